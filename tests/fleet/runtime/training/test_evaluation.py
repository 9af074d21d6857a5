"""Evaluation of a network by its group."""

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


class NumberedSamples:
    """Samples whose label is their number."""

    def __init__(self, samples):
        self.samples = samples
        self.numbers = np.arange(samples) + 100

    def batches(self, batch, rank, size):
        first, last = split_rows(0, self.samples, rank, size)
        for start in range(first, last, batch):
            rows = np.arange(start, min(start + batch, last))
            yield rows, rows


class Network:
    """A network whose loss of a sample is the sample's number; fails at one of them."""

    def __init__(self, fails_at=None):
        self._fails_at = fails_at

    def evaluate(self, images, labels, indices):
        assert np.array_equal(indices, labels + 100)
        if self._fails_at in labels:
            raise ValueError("unusable sample")
        return StepTotals(float(labels.sum()), len(labels) / 2, len(labels))


def training_of(group, network):
    return SimpleNamespace(
        group=group,
        evaluate=network.evaluate,
        network=SimpleNamespace(train=SimpleNamespace(batch=Batch(2))),
    )


@pytest.fixture(autouse=True)
def _check_after_each_batch(monkeypatch):
    monkeypatch.setattr(evaluation, "_CHECK_EVERY_S", 0.0)


def evaluated(size, seed, samples, network, ends=lambda: False):
    """Return the result of each rank of a group."""
    results = {}

    def rank_main(world):
        training = training_of(world.group(range(size), 1), network)
        try:
            results[world.rank] = evaluate(training, NumberedSamples(samples), ends)
        except TrainingFailed as failure:
            results[world.rank] = failure.reason

    assert Launch(size, seed).run(rank_main)
    return list(results.values())


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 4), st.integers(0, 20), st.integers(0, 99))
def test_evaluate_gives_all_ranks_sums_over_all_samples(size, samples, seed):
    totals = StepTotals(float(sum(range(samples))), samples / 2, samples)
    assert evaluated(size, seed, samples, Network()) == [totals] * size


def test_evaluate_stops_on_all_ranks_when_the_run_ends():
    calls = []

    def ends():
        calls.append(1)
        return len(calls) == 3

    assert evaluated(3, 0, 30, Network(), ends) == [None] * 3
    assert len(calls) == 3


def test_evaluate_ignores_an_end_after_the_last_batch():
    # it is not known yet that the batch is the last one
    assert evaluated(1, 0, 2, Network(), ends=lambda: True) == [None]
    assert evaluated(2, 0, 0, Network(), ends=lambda: True) == [StepTotals()] * 2


def test_evaluate_failure_on_one_rank_fails_all():
    assert evaluated(3, 0, 9, Network(fails_at=8)) == ["ValueError: unusable sample"] * 3


def test_evaluate_without_validation_data_returns_zeros():
    assert evaluate(None, None, lambda: True) == StepTotals()
