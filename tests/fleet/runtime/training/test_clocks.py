"""Durations of epochs and reports of their pace."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.messages import Pace
from fleet.domain.network import StepRate, TrainingState
from fleet.runtime.training import clocks
from fleet.runtime.training.clocks import EpochClock, PaceReport, StepClock
from scheduler.ensemble.sharing import Sharing
from tests.examples import examples
from tests.fakes import Clock


@pytest.fixture
def now(monkeypatch):
    """The time, which tests advance."""
    now = Clock(100.0)
    monkeypatch.setattr(clocks.time, "perf_counter", now)
    return now


def test_epoch_clock_adds_each_part_once(now):
    sources, writer = SimpleNamespace(waited_s=5.0), SimpleNamespace(blocked_s=7.0)
    clock = EpochClock(sources, writer)
    state = TrainingState({}, "i", seconds=10.0, waited_s=1.0)  # of an earlier launch
    now.now, sources.waited_s, writer.blocked_s = 103.0, 5.5, 7.25
    state = clock.add_elapsed(state)
    assert (state.seconds, state.waited_s) == (13.0, 1.5)
    now.now, sources.waited_s = 104.0, 5.75
    assert clock.add_elapsed(state).seconds == 14.0
    assert clock.add_elapsed(state).seconds == 13.0  # no time has passed
    assert clock.blocked_s == 0.25  # of the whole epoch


def test_epoch_clock_restarts_at_0(now):
    sources, writer = SimpleNamespace(waited_s=0.0), SimpleNamespace(blocked_s=0.0)
    clock = EpochClock(sources, writer)
    now.now, sources.waited_s, writer.blocked_s = 150.0, 20.0, 30.0
    clock.restart()
    state = clock.add_elapsed(TrainingState({}, "i"))
    assert (state.seconds, state.waited_s, clock.blocked_s) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ranks", "moments", "expected"),
    [
        (
            1,
            ((100.5, 150), (101.0, 300), (101.9, 350), (103.0, 500)),
            [Pace("net", 300, 300.0), Pace("net", 500, 100.0)],
        ),
        (4000, ((101.0, 100), (103.9, 100), (104.0, 100), (107.0, 100)), [Pace("net", 100, 25.0)]),
    ],
)
def test_pace_report_is_sent_once_a_second_or_less(now, ranks, moments, expected):
    received, steps = [], StepClock()
    steps.pop_is_new()
    report = PaceReport("net", 0, steps, ranks=ranks)
    for now.now, position in moments:
        report.send_if_due(received.append, position, is_slowed=False)
    assert received == expected


def test_pace_report_of_first_step_is_sent_immediately(now):
    received, steps = [], StepClock()
    for position in (0, 10):  # two epochs
        report = PaceReport("net", position, steps)
        now.now += 0.5
        report.send_if_due(received.append, position + 10, is_slowed=False)
    assert received == [Pace("net", 10, 20.0)]


def test_step_clock_returns_rate_when_steps_suffice(now):
    received, steps = [], StepClock(warm_up=0, min_steps=2)
    report = PaceReport("net", 0, steps)
    for number in range(1, 41):
        now.now += 1.0
        steps.add(10, 0.5)
        report.send_if_due(received.append, 10 * number, is_slowed=number == 8)
    assert [(pace.samples, pace.rate.steps) for pace in received if pace.rate.rate] == [
        (20, 2),
        (90, 9),
        (360, 36),
    ]
    assert {pace.rate.rate for pace in received} == {0.0, 20.0}


def test_step_clock_ignores_warm_up_and_few_steps():
    clock = StepClock(warm_up=2, min_steps=2)
    for seconds in (9.0, 7.0, 0.5):
        clock.add(10, seconds)
    assert clock.rate == StepRate()
    clock.add(10, 1.5)
    assert clock.rate == StepRate(10.0, 0.5, 2)


def test_step_clock_counts_fitting_steps_by_mean_and_latest():
    clock, results = StepClock(warm_up=1), []
    for seconds in (9.0, 0.01, 0.01, 0.01, 0.13, 0.01):
        clock.add(10, seconds)
        results.append(clock.count_fitting(0.4))
    assert results == [1, 40, 40, 40, 3, 11]


def test_step_clock_resets_when_networks_share_gpu():
    clock = StepClock(warm_up=0, min_steps=2)
    for parallel, seconds in ((1, 1.0), (1, 1.0), (2, 1.5), (2, 2.0), (2, 2.0)):
        clock.add(10, seconds)
        clock.set_networks_on_gpu(parallel)
    assert clock.rate == StepRate(5.0, 0.0, 2, networks_per_gpu=2)
    clock.set_networks_on_gpu(1)
    assert clock.rate == StepRate()


def test_step_clock_ignores_shared_steps_of_one_turn():
    clock, received = StepClock(warm_up=0, min_steps=10), []
    clock.set_networks_on_gpu(2)
    for _ in range(1000):
        clock.add(10, 0.001)
        received += [clock.pop_rate().steps] if clock.rate.rate else []
    assert [steps for steps in received if steps] == [
        pytest.approx(250, abs=1),
        pytest.approx(1000, abs=4),
    ]


@given(st.integers(0, 10**6), st.integers(0, 1499), st.floats(1.0, 100.0))
@settings(max_examples=examples(30), deadline=None)
def test_step_clock_outlier_still_shows_sharing_curve(seed, outlier, times):
    """A step takes 1 ms alone and 1.25 ms with another network; rates are observed repeatedly."""
    sharing, noise = Sharing(), np.random.default_rng(seed).uniform(0.5, 1.5, 1500)
    for networks, milliseconds in ((1, 1.0), (2, 1.25)):
        clock = StepClock(warm_up=0, min_steps=10)
        clock.set_networks_on_gpu(networks)
        for number, factor in enumerate(noise):
            clock.add(
                8,
                1e-3 * milliseconds * (times if number == outlier and networks == 2 else factor),
            )
            rate = clock.pop_rate()
            if rate.rate:
                sharing.observe(("a", 1), networks, rate.rate, rate.spread, rate.steps)
                assert len(sharing.curve) < 2 or sharing.curve[1] == pytest.approx(1.6, rel=0.25)
        rate = clock.rate  # at the end of the epoch
        sharing.observe(("a", 1), networks, rate.rate, rate.spread, rate.steps)
    assert sharing.curve == (1.0, pytest.approx(1.6, rel=0.25))
