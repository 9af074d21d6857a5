"""The searcher in examples/ that uses scikit-optimize, with the real library."""

import math

import pytest

from fleet.search.searcher import make_searcher
from fleet.spec.dimensions import Range

pytest.importorskip("skopt")

SPACE = {
    "train.optimizer.learning_rate": Range(1e-5, 0.1, log=True),
    "depth": Range(2, 9, integer=True),
    "filters": ([8], [8, 16], [16, 32]),
}

FOREST = {"base_estimator": "ET", "n_initial_points": 5}  # seconds faster than a Gaussian process


def value_of(values):
    """Return a value that is best at a learning rate of 0.003 and six layers."""
    return (
        1
        - abs(math.log10(values["train.optimizer.learning_rate"] / 0.003)) / 4
        - abs(values["depth"] - 6) / 20
    )


def run_search(count, space=SPACE, max_concurrent=3, mode="maximize"):
    """Return the proposals if some networks always train, with values by :func:`value_of`."""
    searcher, training, actual = (
        make_searcher("skopt_searcher:Searcher", space, 4, mode, FOREST),
        [],
        [],
    )
    for number in range(count):
        if (proposals := searcher.ask(number)) is None:
            break
        actual.append(proposals)
        training.append(number)
        if len(training) == max_concurrent:
            subject = training.pop(0)
            assert searcher.report(subject, 1, 0.5) == "go_on"
            value = value_of(actual[subject]) if "depth" in space else 0.5
            searcher.tell(
                subject,
                "finished" if subject % 4 else "pruned",
                value if mode == "maximize" else -value,
            )
    return actual


@pytest.mark.long
@pytest.mark.parametrize("mode", ["maximize", "minimize"])
def test_skopt_proposals_improve_within_the_space(mode):
    actual = run_search(22, mode=mode)
    assert all(
        1e-5 <= subject["train.optimizer.learning_rate"] <= 0.1
        and subject["filters"] in SPACE["filters"]
        for subject in actual
    )
    first, last = ([value_of(subject) for subject in part] for part in (actual[:7], actual[-7:]))
    assert sum(last) > sum(first)


@pytest.mark.long
def test_skopt_answers_equal_calls_equally():
    assert run_search(9) == run_search(9)


def test_skopt_ends_with_an_exhausted_space():
    actual = run_search(9, space={"kernel": (1, 3, 5)})
    assert sorted(subject["kernel"] for subject in actual) == [1, 3, 5]


def test_skopt_ignores_failed_networks():
    searcher = make_searcher("skopt_searcher:Searcher", SPACE, 4, "maximize", {})
    searcher.ask(0)
    searcher.tell(0, "failed", None)
    assert searcher.ask(1) is not None


def test_skopt_learns_from_prior_trials():
    searcher = make_searcher(
        "skopt_searcher:Searcher", {"filters": ([8], [8, 16], [16, 32])}, 4, "maximize", FOREST
    )
    for number, filters in ((-1, [8]), (-2, [16, 32])):
        searcher.add_prior_trial(number, {"filters": filters})
        searcher.tell(number, "finished", 0.5)
    assert searcher.ask(0) == {"filters": [8, 16]}
    assert searcher.losses == {-1: -0.5, -2: -0.5}
