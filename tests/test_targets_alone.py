"""Only the classes of target kinds decide what a kind means: nothing compares a kind's word."""

import ast
from itertools import chain

import pytest

from preprocess.target_kinds import KINDS
from tests.places import PACKAGES, ROOT, sources

# Tables by kind, of what only one layer knows: of sources, and of the networks of an engine.
TABLES = {
    "fleet/engines/linear.py",
    "fleet/engines/tensor_ops.py",
    "fleet/engines/torch/losses.py",
    "fleet/engines/torch/torchmetrics.py",
    "preprocess/sources/targets.py",
}


def words_of(node):
    """Return the words of kinds in an expression: a constant or a literal collection."""
    return {
        part.value
        for part in (node, *getattr(node, "elts", ()), *getattr(node, "keys", ()))
        if isinstance(part, ast.Constant) and part.value in KINDS
    }


def is_kind(node):
    """Return True for a name or attribute such as ``target.kind``."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return name in ("kind", "kinds")


def compares_kind(node):
    """Return True if an expression compares a kind with a word."""
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
        return any(map(is_kind, parts)) and any(map(words_of, parts))
    if isinstance(node, ast.Match):
        patterns = [case.pattern for case in node.cases]
        values = [p.value for p in patterns if isinstance(p, ast.MatchValue)]
        return is_kind(node.subject) and any(map(words_of, values))
    return False


def is_table(node):
    """Return True for a dictionary by the words of at least two kinds."""
    return isinstance(node, ast.Dict) and len(words_of(node)) > 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('target.kind == "mask"', True),
        ('target.kind not in ("class", "mask")', True),
        ('"mask" in kinds', True),
        ('match kind:\n    case "mask":\n        pass', True),
        ('name == "mask"', False),
        ('layer.kind == "norm"', False),
    ],
)
def test_compares_kind_finds_comparisons_with_words(text, expected):
    assert any(map(compares_kind, ast.walk(ast.parse(text)))) == expected


def test_no_module_compares_the_word_of_a_kind():
    places = []
    tables = set()
    for path in chain.from_iterable(map(sources, PACKAGES)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = path.relative_to(ROOT).as_posix()
            if compares_kind(node):
                places.append(f"{name}:{node.lineno}")
            if is_table(node):
                tables.add(name)
    assert not places
    assert tables == TABLES
