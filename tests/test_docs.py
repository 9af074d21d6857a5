"""What README and docs/ name is there: files, headings, commands, options, modules and spec keys."""

import argparse
import importlib
import re
import textwrap
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import pytest
import yaml

from fleet.__main__ import COMMANDS, FORMER_NAMES
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
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]  # the changelog also names what is no more
SPEC_PARTS = {"data", "train", "schedule", "profile", "resources", "checkpoint"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# ---- the parts of a page -----------------------------------------------------------------------

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^|\n\n)((?: {4}.*\n)(?:(?: {4}.*)?\n)*)")


def prose(text):
    """The text without its blocks of code and comments."""
    return INDENTED.sub("\n\n", FENCE.sub("", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)))


def spans(text):
    """What stands between backticks."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def code(text):
    """Every piece of code: the lines of blocks, and what stands between backticks."""
    blocks = [content for _, content in FENCE.findall(text)]
    blocks += [textwrap.dedent(block) for block in INDENTED.findall(FENCE.sub("", text))]
    lines = [
        line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()
    ]
    return [line.partition(" # ")[0] for line in lines] + spans(text)


def anchors(text):
    """The names that GitHub gives to the headings of a page."""
    targets = []
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE):
        name = re.sub(
            r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        ).replace(" ", "-")
        targets.append(name if name not in targets else f"{name}-{targets.count(name)}")
    return targets


def links(text):
    """The targets of all links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(text)))


def broken(page, text):
    """The local links of a page that lead nowhere."""
    wrong = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        inside = (
            text
            if file == page
            else file.read_text(encoding="utf-8")
            if file.suffix == ".md" and file.exists()
            else ""
        )
        if not file.exists() or (anchor and anchor not in anchors(inside)):
            wrong.append(target)
    return wrong


# ---- links -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, CHANGELOG], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_link_that_leads_nowhere_is_found():
    text = "# A `b`!\n\n[1](#a-b) [2](docs/spec.md#data) [3](docs/none.md) [4](docs/spec.md#none) `[5](none)`\n"
    assert broken(README, text) == ["docs/none.md", "docs/spec.md#none"]


def test_every_page_is_in_the_index():
    index = ROOT / "docs/README.md"
    listed = {(index.parent / link).resolve() for link in links(index.read_text(encoding="utf-8"))}
    assert [
        page for page in PAGES if page.parent == index.parent and page not in {*listed, index}
    ] == []


def test_a_stranger_reads_the_readme_to_the_end():
    assert len(README.read_text(encoding="utf-8").split()) <= 1300


# ---- commands ----------------------------------------------------------------------------------


def main_job_options(capsys):
    """The options of ``python -m fleet.run``."""
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    return set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))


def command_options(name):
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[name][0]).configure(parser)
    return set(parser._option_string_actions)


NAMED = re.compile(r"(?:^|\s|/)(?:python -m )?fleet ((?:simulate )?[a-z][\w-]*)([^|;&]*)")


def commands(text):
    """The commands that a page names: (name, the rest of the line)."""
    return [
        (name, tail.partition(" -- ")[0])
        for piece in code(text)
        for name, tail in NAMED.findall(piece)
    ]


def mistaken(text):
    """The commands and options of a page that do not exist."""
    unknown = [name for name, _ in commands(text) if name not in COMMANDS and name != "simulate"]
    return unknown + [
        f"{name} {option}"
        for name, tail in commands(text)
        if name in COMMANDS
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", tail)
        if option not in command_options(name)
    ]


@each_page
def test_every_command_and_option_exists(page):
    former = set(FORMER_NAMES) if page.name == "glossary.md" else set()
    assert set(mistaken(page.read_text(encoding="utf-8"))) == former


def test_a_command_or_option_that_does_not_exist_is_found():
    text = "`fleet check --jsn` and `fleet simulate none`\n\n    mpirun -n 3 python -m fleet nothing x.yaml\n\n"
    assert mistaken(text) == ["nothing", "simulate none", "check --jsn"]


@each_page
def test_every_option_of_the_main_job_exists(page, capsys):
    options = main_job_options(capsys)
    lines = [piece.partition("fleet.run ")[2] for piece in code(page.read_text(encoding="utf-8"))]
    assert {
        option for line in lines for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", line)
    } <= options


@each_page
def test_every_target_of_make_exists(page):
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = [re.match(r"make ([a-z-]+)", piece) for piece in code(page.read_text(encoding="utf-8"))]
    assert {make_targets[1] for make_targets in named if make_targets} <= targets


# ---- files and modules -------------------------------------------------------------------------

FOLDERS = "fleet|preprocess|scheduler|launch|tests|benchmarks|tools|examples|docs"


def absent(text):
    """The files and modules of this repository that a page names and that are not there."""
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
    """Whether a dotted name is that of a module of ours, or of something that stands in one."""
    parts = name.split(".")
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
def test_every_file_and_module_exists(page):
    assert absent(page.read_text(encoding="utf-8")) == []


def test_a_file_or_module_that_does_not_exist_is_found():
    text = "`fleet/run.py`, `fleet/none.py`, `fleet.run.main`, `fleet.run.none`, `scheduler.none`, `fleet.schema.json`"
    assert absent(text) == ["fleet/none.py", "fleet.run.none", "scheduler.none"]


# ---- specs -------------------------------------------------------------------------------------


def blocks(text):
    return [
        (yaml.safe_load(content), content)
        for kind, content in FENCE.findall(text)
        if kind == "yaml"
    ]


@each_page
def test_every_block_of_yaml_is_right(page, tmp_path, monkeypatch):
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
    """Whether a mapping may stand in a spec, at its top or inside ``data``; raises what is wrong with it."""
    spec_text = content if content.keys() <= keys_of(Document) else {"data": content}
    return parse({"models": [{"family": "softmax"}], **spec_text})


def inline_specs(text):
    """The mappings that stand in a sentence, as ``checkpoint: {every: 10min}`` does."""
    settings = re.compile(rf"({'|'.join(keys_of(Document) | keys_of(Data))}): .*")
    return [
        yaml.safe_load(span)
        for span in spans(text)
        if settings.fullmatch(span) and "..." not in span
    ]


@each_page
def test_every_setting_in_a_sentence_is_right(page):
    for content in inline_specs(page.read_text(encoding="utf-8")):
        assert part_of_a_spec(content)


def keys_of(kind):
    return {field.name for field in fields(kind)}


def unknown_keys(text):
    """The dotted keys, such as ``data.shared_memory``, that no spec has."""
    wrong = []
    old_keys = {old.partition(": ")[0] for old in RENAMED_KEYS}
    for piece in code(text):
        names = re.findall(rf"(?<![\w./-])(?:{'|'.join(SPEC_PARTS)})(?:\.[a-z_]+)+(?![\w(])", piece)
        wrong += [
            name
            for name in names
            if not name.endswith((".json", ".npz")) and not has_key(name) and name not in old_keys
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
def test_every_key_of_a_spec_exists(page):
    assert unknown_keys(page.read_text(encoding="utf-8")) == []


def test_a_key_that_no_spec_has_is_found():
    assert unknown_keys(
        "`data.shared_memory`, `data.widow`, `train.optimizer.learning_rate`, `train.optimizer.rate`"
    ) == ["data.widow", "train.optimizer.rate"]


# ---- the changelog -----------------------------------------------------------------------------


def test_the_changelog_says_where_modules_are_now():
    text = CHANGELOG.read_text(encoding="utf-8")
    rows = re.findall(r"^ *\| (`.*`) \| (`.*`) \|$", text, re.MULTILINE)
    moved = [pair for old, new in rows for pair in zip(spans(old), spans(new), strict=True)]
    assert [(old, new) for old, new in moved if not is_there(new) or old == new] == []
    assert moved


# ---- the first change --------------------------------------------------------------------------


def test_the_first_change_works_as_its_page_has_it(monkeypatch):
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


def test_the_design_names_every_room():
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    rooms = [
        room.partition(".")[2] for room in MAY_IMPORT if room.startswith(("fleet.", "scheduler."))
    ]
    assert [
        room
        for room in rooms
        if room not in spans(text)
        and not room.startswith("__")
        and not re.search(rf"^    .*\b{room}\b", text, re.MULTILINE)
    ] == []


def test_the_design_names_every_thread_of_a_launch():
    rooms = [
        ROOT / "fleet" / room
        for room in ("runtime", "comm", "storage", "stream", "engines", "monitor")
    ]
    starting = {
        str(file.relative_to(ROOT))
        for folder in (*rooms, ROOT / "preprocess")
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
