"""Emulated networks take the time of training without computing anything."""

import dataclasses
import time

import numpy as np
import pytest

from fleet.engines.base import EngineContext
from fleet.engines.emulated import WEIGHTS, EmulatedEngine
from fleet.errors import CheckpointError
from fleet.spec import Resources, parse
from preprocess.sample import ArraySpec, SampleSpec
from scheduler.base import CommTime, Network, RateTable, Span, StepTime
from tests.fakes import Clock, Group
from tests.fleet.one_process import Launch
from tests.refusals import refused

SAMPLE = SampleSpec(ArraySpec((1, 1, 1), "uint8"), 3)
LABELS = np.array([0, 1, 2, -1, 1, 1])  # one unreadable sample


def network(name="softmax", seed=0):
    return parse({"models": [{"family": "softmax", "name": name}], "seed": seed}).networks[0]


def build(group, rates=(10.0, 16.0), time_scale=1.0, **options):
    rates = RateTable(6, 4, (Network("softmax", rates),))
    engine = EmulatedEngine(EngineContext(SAMPLE, Resources(time_scale=time_scale), rates))
    return engine.build(network(**options), group)


def step(trainable, labels=LABELS, **options):
    return trainable.step(
        np.zeros((len(labels), 1, 1, 1), np.uint8), labels, len(labels), **options
    )


@pytest.mark.parametrize(("gpus", "samples_per_s"), [(1, 10.0), (2, 16.0), (3, 3 * 8.0 * 0.8)])
def test_step_sleeps_by_the_rates_and_eq_5_beyond(gpus, samples_per_s):
    group = Group(gpus)
    step(build(group, time_scale=0.5))
    assert group.sleeps == pytest.approx([0.5 * 6 / samples_per_s])


def test_network_that_was_added_without_rates_has_the_median():
    group = Group(1)
    rates = RateTable(
        6, 4, tuple(Network(name, (rate,)) for name, rate in zip("abc", (1, 3, 9), strict=True))
    )
    engine = EmulatedEngine(EngineContext(SAMPLE, Resources(), rates))
    step(engine.build(network("added"), group))
    assert group.sleeps == pytest.approx([6 / 3])


@pytest.mark.parametrize(("span", "samples_per_s"), [(Span.NODE, 16.0), (Span.SPREAD, 12.0)])
def test_step_sleeps_by_how_the_group_lies(span, samples_per_s):
    rates = RateTable(6, 4, (Network("softmax", (10.0, 16.0), spread_rates=(10.0, 12.0)),))
    seen = []

    def span_of(ranks):
        seen.append(ranks)
        return span

    group = Group(2)
    engine = EmulatedEngine(EngineContext(SAMPLE, Resources(), rates, span_of=span_of))
    step(engine.build(network(), group))
    assert group.sleeps == pytest.approx([6 / samples_per_s])
    assert seen == [group.ranks]


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that only the test advances."""
    clock = Clock(100.0)
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


class DelayedGroup(Group):
    """A group on a machine that oversleeps by given delays."""

    def __init__(self, clock, delays):
        super().__init__()
        self._clock, self._delays = clock, list(delays)

    def sleep(self, seconds):
        super().sleep(seconds)
        self._clock.now += max(seconds, 0) + self._delays.pop(0)


@pytest.mark.parametrize(
    ("delays", "waits", "rested"),
    [
        # Later steps make up for delays of the machine.
        ([0.25, 0.0, 0.9, 0.0, 0.0], [0.0] * 5, [0.6, 0.35, 0.6, -0.3, 0.3]),
        # They make up for a short pause, but not for a wait for samples.
        ([0.0] * 3, [0.0, 3.0, 0.01], [0.6, 0.6, 0.59]),
    ],
)
def test_later_steps_make_up_for_delays(clock, delays, waits, rested):
    group = DelayedGroup(clock, delays)
    trainable = build(group)
    for wait_s in waits:
        clock.now += wait_s
        step(trainable)
    assert group.sleeps == pytest.approx(rested)
    assert any(waits) or clock.now == pytest.approx(100 + 5 * 0.6)


def test_emulated_time_between_epochs_counts(clock):
    group = DelayedGroup(clock, [0.0, 0.2, 0.0])
    trainable = build(group)
    step(trainable)
    step(trainable)
    trainable.average_statistics()
    clock.now += 0.01
    step(trainable)
    assert group.sleeps == pytest.approx([0.6, 0.6, 0.4])


def test_emulated_losses_fall_and_weights_count_samples():
    trainable = build(Group())
    results = [step(trainable) for _ in range(4)]
    assert [result.count for result in results] == [5, 5, 5, 5]
    losses = [result.loss / result.count for result in results]
    assert losses[0] == pytest.approx(np.log(3))
    assert losses == sorted(losses, reverse=True)
    assert trainable.state()["weights"][:4].tolist() == [4, 12, 4, 0]
    totals = trainable.evaluate(np.zeros((6, 1, 1, 1)), LABELS)
    assert totals.loss / totals.count < losses[-1]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_group_of_any_size_gives_the_same_totals(size):
    alone = build(Group())
    expected = [step(alone, stop=True) for _ in range(3)]

    def rank_main(world):
        group = world.group(range(size), 1)
        trainable = build(group)
        rows = slice(world.rank * 6 // size, (world.rank + 1) * 6 // size)
        for result in expected:
            assert (
                trainable.step(np.zeros(0), LABELS[rows], 6, stop=world.rank == size - 1) == result
            )
        assert (trainable.state()["weights"] == alone.state()["weights"]).all()

    assert Launch(size, seed=0).run(rank_main)


def test_load_restores_a_state_and_refuses_another_networks():
    first, second = build(Group()), build(Group())
    step(first)
    second.load(first.state())
    assert step(second) == step(first)
    with refused(CheckpointError, "another network", "weights"):
        second.load({"weights": np.zeros(WEIGHTS + 1)})


def test_loss_curves_depend_on_the_seed():
    assert step(build(Group(), seed=1)) == step(build(Group(), seed=2))  # equal initial losses
    ends = []
    for seed in (1, 2):
        trainable = build(Group(), seed=seed)
        for _ in range(20):
            result = step(trainable)
        ends.append(result.loss)
    assert ends[0] != ends[1]


@pytest.mark.parametrize(("gpus", "size", "seconds"), [(1, 8, 1.0), (2, 16, 1.5), (2, 8, 1.1)])
def test_emulated_elastic_step_takes_step_and_exchange_time(gpus, size, seconds):
    rates = RateTable(
        16,
        4,
        (Network("softmax", (8.0,), params_mb=2.0, step_s=(StepTime(4, 0.6), StepTime(8, 1.0))),),
        (CommTime(2.0, 2, 0.5),),
    )
    elastic = parse(
        {
            "models": [{"family": "softmax"}],
            "train": {"batch": {"size": [8, 16]}},
            "schedule": {"policy": "elastic"},
        }
    ).networks[0]
    group = Group(gpus)
    trainable = EmulatedEngine(EngineContext(SAMPLE, Resources(), rates)).build(elastic, group)
    step(trainable, np.zeros(size, np.int64))
    assert group.sleeps == pytest.approx([seconds])


def test_scale_learning_rate_scales_the_reported_rate():
    trainable = build(Group())
    before = trainable.learning_rate()
    trainable.scale_learning_rate(2.0)
    assert trainable.learning_rate() == 2 * before


def test_repeat_of_a_trial_has_the_rates_of_its_entry():
    engine = EmulatedEngine(
        EngineContext(SAMPLE, Resources(), RateTable(6, 4, (Network("s", (10.0,)),)))
    )
    added = dataclasses.replace(network("s-3-repeat1"), number=3, repeat=1)
    group = Group()
    step(engine.build(added, group))
    assert group.sleeps == pytest.approx([0.6])
