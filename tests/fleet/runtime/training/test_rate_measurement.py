"""Measurement of a network's rate on synthetic samples."""

from types import SimpleNamespace

import numpy as np
import pytest

from fleet.domain.network import StepRate
from fleet.engines.base import StepTotals
from fleet.runtime.training import rate_measurement
from fleet.runtime.training.agreement import TrainingFailed
from fleet.runtime.training.rate_measurement import make_samples, measure_batches, measure_rate
from fleet.spec import Profile
from preprocess.sample import ArraySpec, SampleSpec
from tests.fakes import Clock, Group


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("rows", [0, 5])
def test_make_samples_have_shape_and_dtype_of_the_data(rows, dtype):
    images, labels = make_samples(SampleSpec(ArraySpec((4, 3, 1), dtype), 3), rows)
    assert (images.shape, images.dtype) == ((rows, 4, 3, 1), dtype)
    assert (labels.shape, labels.dtype) == ((rows,), np.int64)
    assert set(labels) <= {0, 1, 2}


@pytest.mark.parametrize(("rank", "rows"), [(0, 4), (1, 3), (2, 3)])
def test_measure_rate_times_last_steps_of_each_rank(monkeypatch, rank, rows):
    now, seen = Clock(), []
    monkeypatch.setattr(rate_measurement.time, "perf_counter", now)

    def step(images, labels, size, stop):
        seen.append((len(images), len(labels), size, stop))
        now.now += 10.0 if len(seen) <= 2 else 0.5  # the first ones trace
        return StepTotals(stop=stop)

    profile = Profile(batches=6, timed=4, seconds=60, spread=0)
    assert measure_rate(group(step, rank), SAMPLE, profile, 10) == StepRate(10 / 0.5, 0.0, 4)
    assert seen == [(rows, rows, 10, False)] * 6


def group(step, rank=0):
    return SimpleNamespace(
        group=Group(3, rank),
        step=step,
        network=SimpleNamespace(name="a"),
        batch_transforms=None,
    )


SAMPLE = SampleSpec(ArraySpec((2, 2, 1), "uint8"), 2)


def measured(monkeypatch, durations, profile, stops_at_3=False, rank=0):
    """Measure steps of given durations, the last one repeated; return the rate and stop flags."""
    now, stops = Clock(), []
    monkeypatch.setattr(rate_measurement.time, "perf_counter", now)

    def step(images, labels, size, stop):
        now.now += durations[min(len(stops), len(durations) - 1)]
        stops.append(stop)
        return StepTotals(stop=stop or (stops_at_3 and len(stops) == 3))

    return measure_rate(group(step, rank), SAMPLE, profile, 10), stops


MANY = {"batches": 100, "timed": 99, "seconds": 1000, "spread": 0.01}


@pytest.mark.parametrize(
    ("durations", "profile", "steps", "timed", "rate"),
    [
        ([9.0, 1.0], MANY, 7, 6, 10.0),
        ([1.0, *([1.0, 3.0] * 50)], {**MANY, "batches": 40, "timed": 39}, 40, 39, None),
        # It ends after 35 s, of which 21 warm up.
        ([7.0], {"batches": 100, "timed": 20, "seconds": 30}, 6, 3, 10 / 7),
        ([100.0], {"seconds": 30}, 2, 1, 10 / 100),
    ],
    ids=[
        "the spread is small enough",
        "steps differ",
        "it has taken long enough",
        "steps take for ever",
    ],
)
def test_measure_rate_stops_when_sure_or_out_of_time(
    monkeypatch, durations, profile, steps, timed, rate
):
    results, stops = measured(monkeypatch, durations, Profile(**profile))
    assert (len(stops), results.steps) == (steps, timed)
    assert stops[:-1] == [False] * (steps - 1)
    assert rate is None or (results.rate, stops[-1]) == (pytest.approx(rate), True)


def test_measure_rate_ends_when_the_master_stops(monkeypatch):
    _, stops = measured(monkeypatch, [1.0], Profile(**MANY), stops_at_3=True, rank=1)
    assert stops == [False] * 3


def test_measure_batches_stops_at_first_that_does_not_fit(monkeypatch):
    now = Clock()
    monkeypatch.setattr(rate_measurement.time, "perf_counter", now)

    def step(images, labels, size, stop):
        if size > 20:
            raise TrainingFailed("out of memory")
        now.now += 0.5 + size / 100
        return StepTotals(stop=stop)

    profile = Profile(batches=6, timed=4, seconds=60, spread=0)
    rates = measure_batches(group(step), SAMPLE, profile, (10, 20, 40, 80))
    assert [rate.rate for rate in rates] == [pytest.approx(10 / 0.6), pytest.approx(20 / 0.7)]
    with pytest.raises(TrainingFailed):
        measure_batches(group(step), SAMPLE, profile, (40, 80))


def test_measure_rate_without_timed_steps_is_reported():
    """It came later than the master, and the first step took long."""
    late = group(lambda images, labels, size, stop: StepTotals(stop=True), rank=1)
    assert measure_batches(late, SAMPLE, Profile(batches=6, timed=4), (10,)) == [StepRate()]
