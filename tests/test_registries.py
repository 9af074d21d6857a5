"""Names of policies, pruners, engines and batch systems are compared only in their tables."""

import ast

import pytest

from fleet.spec.engines import ENGINES
from fleet.spec.search import RULES
from launch.systems import SYSTEMS
from scheduler.ensemble.policies import POLICIES
from tests.places import PACKAGES, ROOT, sources

# `none` and `auto` are also words.
NAMES = {
    *POLICIES,
    *ENGINES,
    *SYSTEMS,
    *(name for name, rule in RULES.items() if rule.reads and name != "auto"),
}

# The tables with the names. No other code may compare a name, without exception.
REGISTRIES = {
    "scheduler/ensemble/policies.py",
    "fleet/spec/engines.py",
    "fleet/spec/search.py",
    "launch/systems.py",
}


def compared(text):
    """Yield (line, name) of each comparison: ==, in, key, case, index, list, startswith."""
    for node in ast.walk(ast.parse(text)):
        for compared_names in _compared_names(node):
            for part in ast.walk(compared_names):
                if isinstance(part, ast.Constant) and part.value in NAMES:
                    yield part.lineno, part.value


def _compared_names(node):
    match node:
        case ast.Compare():
            yield from (node.left, *node.comparators)
        case ast.Dict():
            yield from filter(None, node.keys)
        case ast.DictComp():
            yield node.key
        case ast.MatchValue():
            yield node.value
        case ast.Subscript():
            yield node.slice
        case ast.Tuple() | ast.List() | ast.Set():  # of names, compared elsewhere
            yield from node.elts
        case ast.Call(
            func=ast.Attribute(
                attr="get" | "pop" | "startswith" | "endswith" | "setdefault" | "count"
            )
        ):
            yield from node.args[:1]


@pytest.mark.parametrize(
    "text",
    [
        "policy == 'global'",
        "'numpy' != engine",
        "engine in ('keras', 'numpy')",
        "policy not in {'local'}",
        "{'adaptive': 1}",
        "{'adaptive': 1}.get(policy)",
        "costs['adaptive']",
        "costs.get('adaptive')",
        "match engine:\n case 'emulated': pass",
        "match engine:\n case 'slurm' | 'emulated': pass",
        "engine.startswith('keras')",
        "SLOW = ('keras',)",
        "SLOW = {'baseline', 'local'}",
        "f(x) if system.name == 'slurm' else 3",
    ],
)
def test_comparisons_of_all_forms_are_found(text):
    assert list(compared(text))


@pytest.mark.parametrize(
    "text",
    [
        "POLICY = 'global'",
        "find_spec('keras')",
        "replace(resources, engine='emulated')",
        "policy == other",
        "'global' + name",
    ],
)
def test_passing_a_name_is_no_comparison(text):
    assert not list(compared(text))


def test_registry_names_are_not_compared_elsewhere():
    # Formats of other tools have words of their own.
    files = [
        path
        for package in PACKAGES
        for path in sources(package)
        if path.parent != ROOT / "fleet/sweeps"
    ]
    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files
        if str(path.relative_to(ROOT)) not in REGISTRIES
        for line, name in compared(path.read_text(encoding="utf-8"))
    ] == []
