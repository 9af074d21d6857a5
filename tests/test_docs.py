"""Names in README and docs/ exist: files, headings, commands, options, modules and spec keys."""

import re
import textwrap
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import pytest
import yaml

from fleet.__main__ import COMMANDS, FORMER_NAMES, make_parser
from fleet.package_names import PACKAGES as SECOND_NAMES
from fleet.run import parse_arguments
from fleet.search import pruning
from fleet.spec import Data, Document, load, parse
from fleet.spec.old_keys import RENAMED_KEYS
from fleet.spec.search import RULES, PruningRule
from launch.sites import parse_site
from tests.fleet.search import test_pruning
from tests.places import ROOT
from tests.test_layers import MAY_IMPORT

README, CHANGELOG = ROOT / "README.md", ROOT / "CHANGELOG.md"
COMMUNITY = [ROOT / name for name in ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")]
# The changelog also has former names.
EXAMPLES = ROOT / "examples/README.md"
PAGES = [README, EXAMPLES, *COMMUNITY, *sorted((ROOT / "docs").rglob("*.md"))]
SPEC_PARTS = {"data", "train", "schedule", "profile", "resources", "checkpoint"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# ---- the parts of a page -----------------------------------------------------------------------

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^|\n\n)((?: {4}.*\n)(?:(?: {4}.*)?\n)*)")


def prose(text):
    """Return the text without blocks of code and comments."""
    return INDENTED.sub("\n\n", FENCE.sub("", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)))


def spans(text):
    """Return the text between backticks."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def code(text):
    """Return every piece of code: the lines of blocks, and text between backticks."""
    blocks = [content for _, content in FENCE.findall(text)]
    blocks += [textwrap.dedent(block) for block in INDENTED.findall(FENCE.sub("", text))]
    lines = [
        line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()
    ]
    return [line.partition(" # ")[0] for line in lines] + spans(text)


def anchors(text):
    """Return GitHub's names of the headings of a page."""
    targets = []
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE):
        name = re.sub(
            r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        ).replace(" ", "-")
        targets.append(name if name not in targets else f"{name}-{targets.count(name)}")
    return targets


def links(text):
    """Return the targets of all links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(text)))


def broken(page, text):
    """Return the broken local links of a page."""
    wrong = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        if file == page:
            inside = text
        elif file.suffix == ".md" and file.exists():
            inside = file.read_text(encoding="utf-8")
        else:
            inside = ""
        if not file.exists() or (anchor and anchor not in anchors(inside)):
            wrong.append(target)
    return wrong


# ---- links -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, CHANGELOG], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages(page):
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_broken_links_are_found():
    text = (
        "# A `b`!\n\n[1](#a-b) [2](docs/spec.md#data) [3](docs/none.md) [4](docs/spec.md#none) "
        "`[5](none)`\n"
    )
    assert broken(README, text) == ["docs/none.md", "docs/spec.md#none"]


def test_index_lists_every_page():
    index = ROOT / "docs/README.md"
    listed = {(index.parent / link).resolve() for link in links(index.read_text(encoding="utf-8"))}
    assert [
        page for page in PAGES if page.parent == index.parent and page not in {*listed, index}
    ] == []


def test_examples_are_listed():
    listed = " ".join(spans(EXAMPLES.read_text(encoding="utf-8")))
    examples = [*EXAMPLES.parent.rglob("*.yaml"), *EXAMPLES.parent.glob("*.py")]
    assert [
        path.name for path in examples if str(path.relative_to(EXAMPLES.parent)) not in listed
    ] == []


def test_core_is_read_in_25_files():
    rows = re.findall(r"^\| (\d+) \| `(.+?\.py)` \|", (ROOT / "docs/core.md").read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    assert all((ROOT / path).is_file() for _, path in rows)


def test_readme_is_short():
    assert len(README.read_text(encoding="utf-8").split()) <= 1300


# ---- commands ----------------------------------------------------------------------------------


def main_job_options(capsys):
    """Return the options of ``python -m fleet.run``."""
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    return set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))


def command_options(name):
    return set(make_parser(name)._option_string_actions)


NAMED = re.compile(r"(?:^|\s|/)(?:python -m )?fleet ((?:simulate )?[a-z][\w-]*)([^|;&]*)")


def commands(text):
    """Yield the commands in a page: (name, the rest of the line)."""
    return [
        (name, tail.partition(" -- ")[0])
        for piece in code(text)
        for name, tail in NAMED.findall(piece)
    ]


def mistaken(text):
    """Return the commands and options of a page that do not exist."""
    unknown = [name for name, _ in commands(text) if name not in COMMANDS and name != "simulate"]
    return unknown + [
        f"{name} {option}"
        for name, tail in commands(text)
        if name in COMMANDS
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", tail)
        if option not in command_options(name)
    ]


@each_page
def test_commands_and_options_exist(page):
    former = set(FORMER_NAMES) if page.name == "glossary.md" else set()
    assert set(mistaken(page.read_text(encoding="utf-8"))) == former


def test_wrong_commands_and_options_are_found():
    text = (
        "`fleet check --jsn` and `fleet simulate none`\n\n    mpirun -n 3 python -m fleet "
        "nothing x.yaml\n\n"
    )
    assert mistaken(text) == ["nothing", "simulate none", "check --jsn"]


@each_page
def test_options_of_the_main_job_exist(page, capsys):
    options = main_job_options(capsys)
    lines = [piece.partition("fleet.run ")[2] for piece in code(page.read_text(encoding="utf-8"))]
    assert {
        option for line in lines for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", line)
    } <= options


@each_page
def test_make_targets_exist(page):
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = [re.match(r"make ([a-z-]+)", piece) for piece in code(page.read_text(encoding="utf-8"))]
    assert {make_targets[1] for make_targets in named if make_targets} <= targets


# ---- files and modules -------------------------------------------------------------------------

FOLDERS = "fleet|preprocess|scheduler|launch|tests|benchmarks|tools|examples|docs"


def absent(text):
    """Return the missing files and modules of this repository in a page."""
    wrong = []
    for piece in code(text):
        wrong += [
            path
            for path in re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]*\w", piece)
            if not (ROOT / path).exists()
        ]
        wrong += [
            name
            for name in re.findall(
                r"(?<![\w./-])(?:fleet|preprocess|scheduler|launch)(?:\.\w+)+", piece
            )
            if not name.endswith((".json", ".yaml")) and not is_there(name)
        ]
    return wrong


def is_there(name):
    """Return True if a dotted name is a module of FLEET, or something inside one."""
    parts = name.split(".")
    if parts[0] == "fleet" and parts[1:2] and parts[1] in SECOND_NAMES:
        parts = parts[1:]
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            return all(
                re.search(rf"^\s*((def|class) {missing}\b|{missing}( =|:))", text, re.MULTILINE)
                for missing in parts[length : length + 1]
            )
    return False


@each_page
def test_files_and_modules_exist(page):
    assert absent(page.read_text(encoding="utf-8")) == []


def test_missing_files_and_modules_are_found():
    text = (
        "`fleet/run.py`, `fleet/none.py`, `fleet.run.main`, `fleet.run.none`, "
        "`scheduler.none`, `fleet.schema.json`"
    )
    assert absent(text) == ["fleet/none.py", "fleet.run.none", "scheduler.none"]


# ---- specs -------------------------------------------------------------------------------------


def blocks(text):
    return [
        (yaml.safe_load(content), content)
        for kind, content in FENCE.findall(text)
        if kind == "yaml"
    ]


@each_page
def test_yaml_blocks_are_valid(page, tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_bytes((ROOT / "examples/my_models.py").read_bytes())
    for folder in ("extending", "targets"):
        monkeypatch.syspath_prepend(ROOT / "examples" / folder)
    monkeypatch.chdir(tmp_path)
    for content, text in blocks(page.read_text(encoding="utf-8")):
        if "models" in content:
            (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
            assert load("spec.yaml").document.models
        elif "base" in content:
            assert parse_site(content, "the page")
        else:
            assert part_of_a_spec(content), text


def part_of_a_spec(content):
    """Return True if a mapping is valid in a spec or in ``data``; else raise its error."""
    spec_text = content if content.keys() <= keys_of(Document) else {"data": content}
    return parse({"models": [{"family": "softmax"}], **spec_text})


def inline_specs(text):
    """Return the mappings in sentences, such as ``checkpoint: {every: 10min}``."""
    settings = re.compile(rf"({'|'.join(keys_of(Document) | keys_of(Data))}): .*")
    return [
        yaml.safe_load(span)
        for span in spans(text)
        if settings.fullmatch(span) and "..." not in span
    ]


@each_page
def test_settings_in_sentences_are_valid(page):
    for content in inline_specs(page.read_text(encoding="utf-8")):
        assert part_of_a_spec(content)


def keys_of(kind):
    return {field.name for field in fields(kind)}


def unknown_keys(text):
    """Return the dotted keys, such as ``data.shared_memory``, that no spec has."""
    wrong = []
    old_keys = {old.partition(": ")[0] for old in RENAMED_KEYS}
    for piece in code(text):
        names = re.findall(rf"(?<![\w./-])(?:{'|'.join(SPEC_PARTS)})(?:\.[a-z_]+)+(?![\w(])", piece)
        wrong += [
            name
            for name in names
            if not name.endswith((".json", ".npz", ".py"))
            and not has_key(name)
            and name not in old_keys
        ]
    return wrong


def has_key(name):
    kind = Document
    for part in name.split("."):
        if not is_dataclass(kind) or part not in keys_of(kind):
            return False
        hint = get_type_hints(kind)[part]
        kind = next((item for item in (hint, *get_args(hint)) if is_dataclass(item)), None)
    return True


@each_page
def test_spec_keys_exist(page):
    assert unknown_keys(page.read_text(encoding="utf-8")) == []


def test_unknown_spec_keys_are_found():
    assert unknown_keys(
        "`data.shared_memory`, `data.widow`, `train.optimizer.learning_rate`, "
        "`train.optimizer.rate`"
    ) == ["data.widow", "train.optimizer.rate"]


# ---- the changelog -----------------------------------------------------------------------------


def test_changelog_names_the_present_modules():
    text = CHANGELOG.read_text(encoding="utf-8")
    rows = re.findall(r"^ *\| (`.*`) \| (`.*`) \|$", text, re.MULTILINE)
    moved = [pair for old, new in rows for pair in zip(spans(old), spans(new), strict=True)]
    assert [(old, new) for old, new in moved if not is_there(new) or old == new] == []
    assert moved


# ---- the first change --------------------------------------------------------------------------


def test_first_change_works_as_documented(monkeypatch):
    text = (ROOT / "docs/first-change.md").read_text(encoding="utf-8")
    row, rule, check = (
        textwrap.dedent(content) for kind, content in FENCE.findall(text) if kind == "python"
    )
    exec(rule, edited := dict(vars(pruning)))
    monkeypatch.setattr(pruning, "Worst", edited["Worst"], raising=False)
    monkeypatch.setitem(RULES, "worst", eval(row.rstrip(",\n"), {"PruningRule": PruningRule}))
    exec(check, namespace := dict(vars(test_pruning)))
    namespace["test_worst_stops_network_below_all_others"]()


# ---- the design --------------------------------------------------------------------------------


def test_design_names_every_subpackage():
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    subpackages = [
        name.partition(".")[2] for name in MAY_IMPORT if name.startswith(("fleet.", "scheduler."))
    ]
    assert [
        name
        for name in subpackages
        if name not in spans(text)
        and not name.startswith("__")
        and not re.search(rf"^    .*\b{name}\b", text, re.MULTILINE)
    ] == []


def test_design_names_every_thread():
    subpackages = [
        ROOT / "fleet" / name
        for name in ("runtime", "comm", "storage", "stream", "engines", "monitor")
    ]
    starting = {
        str(file.relative_to(ROOT))
        for folder in (*subpackages, ROOT / "preprocess")
        for file in folder.rglob("*.py")
        if re.search(r"\bThread(PoolExecutor)?\(", file.read_text(encoding="utf-8"))
    }
    table = (
        (ROOT / "docs" / "design.md")
        .read_text(encoding="utf-8")
        .partition("A launch has these threads:")[2]
    )
    assert len(starting) > 5
    assert starting <= set(re.findall(r"`([\w/]+\.py)`", table.partition("*Rejected:*")[0]))
