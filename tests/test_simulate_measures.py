"""How strong the simulation is: features of specs, probes in statements, and mutants."""

import ast
import importlib.util
import sys

import pytest

from tests.simulate import coverage, features, mutants, rewriting
from tests.simulate.cases import make_case
from tests.simulate.coverage import Point

SOURCE = """
def sign(x):
    while x > 9:
        x -= 1
    if x > 0:
        return 1
    return 0
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Import SOURCE as a module named ``small``."""
    file = tmp_path / "small.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("small", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "small", module)
    return module


def test_function_that_was_imported_runs_its_new_code(module):
    sign = module.sign
    tree = ast.parse(SOURCE.replace("return 1", "return one"))
    rewriting.LiveFunctions().replace("small.py", tree, {"one": 11})
    assert (sign(3), sign(-3)) == (11, 0)


@pytest.mark.parametrize(
    ("x", "outcomes"), [(3, {"3 ends", "5 true"}), (-3, {"3 ends", "5 false"}), (10, {"3 begins"})]
)
def test_probes_tell_which_lines_and_branches_are_reached(module, x, outcomes):
    numbers = {}
    tree = ast.parse(SOURCE)
    coverage.insert_probes("small.py", tree, numbers)
    reached = bytearray(len(numbers))
    rewriting.LiveFunctions().replace("small.py", tree, {"_REACHED": reached})
    module.sign(x)
    points = [point for point, number in numbers.items() if reached[number]]
    assert {f"{point.line} {point.outcome}" for point in points if point.outcome} >= outcomes
    assert (Point("small.py", 6) in points) == (x > 0)
    assert (Point("small.py", 7) in points) == (x <= 0)


def test_coverage_of_a_seed_is_read_as_it_was_written():
    seed = coverage.SeedCoverage(7, 2, 0.5, "", "2 90", frozenset({0, 3, 64}))
    assert coverage.SeedCoverage.from_json(seed.to_json()) == seed


def test_mutants_change_one_place_each():
    chosen = sorted(mutants.all_mutants(), key=lambda mutant: mutant.order(0))[:10]
    for mutant in chosen:
        before = ast.dump(rewriting.parse(mutant.path))
        changed = rewriting.parse(mutant.path)
        mutants.change(changed, mutant)
        assert ast.dump(changed) != before


def test_mutants_have_names_and_random_keys_of_their_own():
    every = list(mutants.all_mutants())
    assert len({mutant.name for mutant in every}) == len(every)
    assert len({mutant.order(0) for mutant in every}) == len(every)


def test_statement_that_a_mutant_drops_has_probes():
    numbers = {}
    for path in rewriting.files():
        coverage.insert_probes(path, rewriting.parse(path), numbers)
    assert all(Point(mutant.path, mutant.line) in numbers for mutant in mutants.all_mutants())


def test_features_of_any_seed_make_a_valid_spec():
    for seed in range(20):
        case = make_case(seed)
        assert features.is_valid(case.content, case.side_by_side > 1)


@pytest.mark.parametrize("name", features.FEATURES)
def test_feature_changes_some_seeds(name, monkeypatch):
    def content(seed, share):
        monkeypatch.setattr(features, "FEATURES", {name: feature})
        monkeypatch.setattr(features, "_SHARE", share)
        return make_case(seed).content

    feature = features.FEATURES[name]
    assert any(content(seed, share=1) != content(seed, share=0) for seed in range(20))
