"""The pages of the site that are not files of docs/, and the links between all pages.

Links of the repository lead from file to file: ``../README.md``, ``docs/spec.md``,
``../examples/digits.yaml``. On the site these files are pages of other names.
"""

import argparse
import inspect
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fleet import api
from fleet.__main__ import GROUPS, make_parser
from fleet.arguments import Parser
from fleet.run import add_arguments

ROOT = Path(__file__).resolve().parents[2]

# File of the repository -> page of the site.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash"}

_LINK = re.compile(r"\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")


# ---- links ---------------------------------------------------------------------------------------


def repository_file(page: str) -> str:
    """Return the file of the repository that a page of the site shows."""
    for file, moved in MOVED.items():
        if page == moved:
            return file
    return f"docs/{page}"


def page_of(file: str) -> str:
    """Return the page, or picture, of the site that shows a file or folder of the repository."""
    if file in MOVED:
        return MOVED[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    return f"source/{file.rstrip('/')}.md"


def _targets(text: str, file: str) -> Iterator[str]:
    """Yield the files of the repository that a file links to."""
    for match in _LINK.finditer(text):
        if not re.match(r"[a-z]+:", match[1]):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(file), match[1]))


def with_site_links(text: str, page: str) -> str:
    """Return the text of a page with links that are right on the site.

    Args:
        text: the page, with links between files of the repository.
        page: its name on the site.
    """
    folder = posixpath.dirname(repository_file(page))

    def replace(match: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", match[1]):
            return match[0]
        target = page_of(posixpath.normpath(posixpath.join(folder, match[1])))
        return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{match[2]})"

    return _LINK.sub(replace, text)


# ---- generated pages -----------------------------------------------------------------------------


def generated_pages() -> dict[str, str]:
    """Return the pages that are not files of docs/: name on the site -> text.

    The links in the text are those of the repository.
    """
    pages = {
        page: (ROOT / file).read_text(encoding="utf-8")
        for file, page in MOVED.items()
        if (ROOT / file).exists()
    }
    files = {f"docs/{file.relative_to(ROOT / 'docs')}" for file in (ROOT / "docs").rglob("*.md")}
    linked = {
        target
        for file in files | {file for file in MOVED if (ROOT / file).exists()}
        for target in _targets((ROOT / file).read_text(encoding="utf-8"), file)
    }
    pages |= {
        page_of(file): source_page(file)
        for file in linked
        if page_of(file).startswith("source/") and (ROOT / file).exists()
    }
    return pages | {"commands.md": commands_page(), "api.md": api_page()}


def source_page(file: str) -> str:
    """Return a page with the text of a file of the repository, or of the files in a folder."""
    path = ROOT / file
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    parts = [f"# `{file}`"]
    for item in files:
        if item.is_file():
            heading = [f"## `{item.name}`"] if path.is_dir() else []
            content = item.read_text(encoding="utf-8").rstrip()
            parts += [*heading, f"````{LANGUAGES.get(item.suffix, '')}\n{content}\n````"]
    return "\n\n".join(parts) + "\n"


def api_page() -> str:
    """Return the reference of ``fleet.api``: functions, results, keys of a spec, errors."""
    members = {name: getattr(api, name) for name in api.__all__}
    functions = [name for name, member in members.items() if inspect.isroutine(member)]
    keys = [
        name
        for name, member in members.items()
        if member.__module__.startswith("fleet.spec") and name not in functions
    ]
    errors = [
        name
        for name, member in members.items()
        if isinstance(member, type) and issubclass(member, BaseException)
    ]
    classes = [name for name in members if name not in {*keys, *functions, *errors}]
    return "\n".join(
        [
            "# Python API\n\nWhat does `fleet.api` have? It writes specs, starts launches, and "
            "reads results. [A notebook](notebook.md) shows it at work.\n",
            *_documented("Functions", functions),
            *_documented("Launches and results", classes),
            *_documented("Keys of a spec", keys, members=False),
            "[The keys of a spec](spec.md) describes their fields.\n",
            *_documented("Errors", errors),
        ]
    )


def _documented(heading: str, names: Sequence[str], members: bool = True) -> list[str]:
    """Return a section in which mkdocstrings documents some names of ``fleet.api``."""
    options = "" if members else "      members: false\n"
    return [
        f"## {heading}\n",
        *(
            f"::: fleet.api.{name}\n    options:\n      show_root_heading: true\n"
            f"      heading_level: 3\n{options}"
            for name in names
        ),
    ]


def commands_page() -> str:
    """Return the reference of all commands, from their parsers."""
    main = Parser(
        prog="python -m fleet.run", allow_abbrev=False, add_help=False, description=_MAIN_JOB
    )
    add_arguments(main)
    parts = [
        "# Commands\n\nWhich commands are there, and which options do they take? `fleet help` "
        "lists them, and `fleet help COMMAND` prints the same as this page. All statuses are in "
        "[Running](running.md#exit-statuses).\n",
        f"## mpirun -n N python -m fleet.run\n\n{_described(main)}",
    ]
    for heading, commands in GROUPS.items():
        parts.append(f"## {heading.partition(' (')[0]}\n")
        parts += [_command(name, text) for name, (_, text) in commands.items()]
    return "\n".join(parts)


_MAIN_JOB = """Train the networks of a spec, on one machine or many.

The same command resumes a run that was interrupted."""


def _command(name: str, text: str) -> str:
    return f"### fleet {name}\n\n{text[0].upper()}{text[1:]}.\n\n{_described(make_parser(name))}"


def _described(parser: argparse.ArgumentParser) -> str:
    """Return what a command does, how it is written, and a table of its arguments."""
    actions = [action for action in parser._actions if action.dest != "help"]
    rows = [
        f"| {_names(action)} | {_cell(parser, action)} |"
        for action in actions
        if action.help is not argparse.SUPPRESS
    ]
    usage = re.sub(r"^usage: | \[-h\]", "", parser.format_usage().rstrip())
    description = (parser.description or "").strip()
    table = ["| argument | meaning |", "| --- | --- |", *rows, ""] if rows else []
    return "\n".join([f"```text\n{usage}\n```\n", f"```text\n{description}\n```\n", *table])


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        return f"`{name}`"
    value = ""
    if action.nargs != 0:
        metavar = action.metavar or action.dest.upper()
        value = " " + (metavar if isinstance(metavar, str) else " ".join(metavar))
    if action.choices:
        value = " " + "{" + ",".join(map(str, action.choices)) + "}"
    return ", ".join(f"`{name}{value}`" for name in action.option_strings).replace("|", "\\|")


def _cell(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
