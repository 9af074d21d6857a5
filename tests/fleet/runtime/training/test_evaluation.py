"""A group judges a network together."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engines.base import StepTotals
from fleet.runtime.training import evaluation
from fleet.runtime.training.agreement import TrainingFailed
from fleet.runtime.training.evaluation import evaluate
from fleet.spec import Batch
from fleet.stream.batch import split_rows
from tests.examples import examples
from tests.fleet.one_process import Launch


class Shared:
    """Samples whose label is their number."""

    def __init__(self, samples):
        self.samples = samples

    def batches(self, batch, rank, size):
        first, last = split_rows(0, self.samples, rank, size)
        for start in range(first, last, batch):
            rows = np.arange(start, min(start + batch, last))
            yield rows, rows


class Judge:
    """The loss of a sample is its number; fails at one of them."""

    def __init__(self, fails_at=None):
        self._fails_at = fails_at

    def evaluate(self, images, labels):
        if self._fails_at in labels:
            raise ValueError("this sample is beyond me")
        return StepTotals(float(labels.sum()), len(labels) / 2, len(labels))


def training_of(group, judge):
    return SimpleNamespace(
        group=group,
        evaluate=judge.evaluate,
        network=SimpleNamespace(train=SimpleNamespace(batch=Batch(2))),
    )


@pytest.fixture(autouse=True)
def _meet_after_each_batch(monkeypatch):
    monkeypatch.setattr(evaluation, "_CHECK_EVERY_S", 0.0)


def judged(size, seed, samples, judge, ends=lambda: False):
    """What each rank of a group gets."""
    results = {}

    def rank_main(world):
        training = training_of(world.group(range(size), 1), judge)
        try:
            results[world.rank] = evaluate(training, Shared(samples), ends)
        except TrainingFailed as failure:
            results[world.rank] = failure.reason

    assert Launch(size, seed).run(rank_main)
    return list(results.values())


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 4), st.integers(0, 20), st.integers(0, 99))
def test_evaluate_gives_all_ranks_sums_over_all_samples(size, samples, seed):
    all_of_them = StepTotals(float(sum(range(samples))), samples / 2, samples)
    assert judged(size, seed, samples, Judge()) == [all_of_them] * size


def test_all_leave_off_together_when_the_run_ends():
    request = []
    assert (
        judged(3, 0, 30, Judge(), ends=lambda: request.append(1) or len(request) == 3) == [None] * 3
    )
    assert len(request) == 3


def test_an_end_that_comes_when_all_is_judged_comes_too_late():
    assert judged(1, 0, 2, Judge(), ends=lambda: True) == [
        None
    ]  # the batch was not known to be the last
    assert judged(2, 0, 0, Judge(), ends=lambda: True) == [StepTotals()] * 2


def test_judging_that_fails_on_one_rank_fails_on_all():
    assert judged(3, 0, 9, Judge(fails_at=8)) == ["ValueError: this sample is beyond me"] * 3


def test_without_validation_data_nothing_is_judged():
    assert evaluate(None, None, lambda: True) == StepTotals()
