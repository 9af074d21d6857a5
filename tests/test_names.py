"""Names and phrases of the code and the documents are the field's (see docs/glossary.md)."""

import ast
import re

import pytest

from tests.places import PACKAGES, ROOT, sources

FOLDERS = (*PACKAGES, "tests", "benchmarks", "examples", "tools")

# Pronouns, participles and adverbs. They say nothing about what a name stands for.
WORDS = frozenset(
    "asked away beside beyond deaf each everything fallen fewest found given gone heard held "
    "her here hers his it its kept known least left lost made mine most nobody nothing one ones "
    "other others ours own place rest said shown some somebody struck such taken theirs them "
    "there these they this those told tried wanted what where which who whole whom whose why "
    "wish wishes".split()
)

# "file name" -> why the name stays.
_COORDINATE = "a coordinate: left, top, right, bottom"
_ON_DISK = "a field of a record on disk"
_EQ = "Python's name for the parameter of __eq__"
EXCEPTIONS = {
    "examples/targets/make_data.py left": _COORDINATE,
    "fleet/domain/events/launch.py beside": _ON_DISK,
    "fleet/domain/events/launch.py found": _ON_DISK,
    "fleet/domain/events/launch.py given": _ON_DISK,
    "fleet/domain/events/launch.py place": _ON_DISK,
    "fleet/domain/events/search.py left": _ON_DISK,
    "fleet/domain/events/search.py told": _ON_DISK,
    "fleet/domain/events/training.py asked": _ON_DISK,
    "fleet/domain/events/training.py kept": _ON_DISK,
    "fleet/domain/events/training.py why": _ON_DISK,
    "fleet/companions/chains/chain.py why": _ON_DISK,
    "fleet/storage/results.py tried": _ON_DISK,
    "fleet/companions/harvest/harvest_log.py why": _ON_DISK,
    "fleet/checks/preflight.py what": "a key of the JSON that fleet doctor prints",
    "fleet/spec/engines.py own": "a parameter that engines outside this project pass",
    "fleet/spec/model.py other": _EQ,
    "preprocess/batches.py left": _COORDINATE,
    "preprocess/deferred_augmentation.py left": _COORDINATE,
    "preprocess/kernels.py left": _COORDINATE,
    "preprocess/transforms/color.py left": _COORDINATE,
    "preprocess/transforms/geometry.py left": _COORDINATE,
    "preprocess/transforms/on_device.py left": _COORDINATE,
    "scheduler/base.py other": _EQ,
}

PHRASES = re.compile(
    r"\bnobody\b|\bwhoever\b|\bthose that\b|\bone's own\b|\bso long\b|\bno such\b(?! file)|"
    r"\bfor want of\b|\b(is|are) told\b",
    re.I,
)


def bindings(tree):
    """Yield line and name of the functions, classes, parameters and variables of a module."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield node.lineno, name


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_nouns_and_verbs(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sources(folder)
        for line, name in bindings(ast.parse(path.read_text()))
        if name.strip("_") in WORDS and f"{path.relative_to(ROOT)} {name}" not in EXCEPTIONS
    ]
    assert wrong == []


def test_names_of_exceptions_exist():
    for exception in EXCEPTIONS:
        path, name = exception.split()
        assert name in {bound for _, bound in bindings(ast.parse((ROOT / path).read_text()))}


def test_phrases_are_plain():
    wrong = []
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
    modules = [path for folder in FOLDERS for path in sources(folder)]
    for path in (*pages, *modules):
        if path.name in ("CHANGELOG.md", "test_names.py"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            wrong += [
                f"{path.relative_to(ROOT)}:{number} {match.group()}"
                for match in PHRASES.finditer(line)
            ]
    assert wrong == []


def test_names_of_tests_can_be_searched():
    names = re.findall(
        r"^\s*def (test_\w{56,})\(",
        "\n".join(path.read_text() for path in sources("tests")),
        re.M,
    )
    assert names == []
