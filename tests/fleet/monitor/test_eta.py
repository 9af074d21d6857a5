"""Tests of the estimated remaining time."""

import math
from dataclasses import replace

import pytest

from fleet.domain import events as ev
from fleet.domain.network import NetworkStatus
from fleet.domain.run import RunState
from fleet.monitor import eta
from fleet.monitor.eta import (
    EstimateSchedule,
    Estimator,
    ExpectedTrials,
    RemainingWork,
    useful_range,
)
from scheduler.base import Delta
from scheduler.simulation.ensemble import simulate
from tests.fleet.histories import record, spec

START = ev.LaunchStarted(
    2,
    2,
    1,
    1,
    2,
    "baseline",
    (),
    0,
    600,
    (0, 1),
    "free",
    ev.ScheduleOptions(0.8, Delta(0.15, relative=True), True, 0),
    {"a": (1, 1), "b": (1, 1)},
)
WIDE = eta._NARROWEST**0.5  # a range is no narrower
RATES = ev.ProfilingFinished(2, 1.0, {"a": (60.0,), "b": (20.0,)})  # epochs of 10 and 30 s


class Run:
    """A run that receives events, with its estimator."""

    def __init__(self, parsed, histories=None):
        self.state = RunState(parsed)
        self.state.restore(
            {name: NetworkStatus(history) for name, history in (histories or {}).items()}
        )
        self.add = lambda event, now_s: self.state.apply(now_s, event)
        self.estimate = Estimator(parsed, parsed.by_name, self.state).estimate


def estimator(converge=None, histories=None, start=START, rates=RATES, paused=""):
    parsed = spec(
        {"family": "softmax", "name": "a"},
        {"family": "softmax", "name": "b"},
        train={"stopping": converge or {"max_epochs": 4}},
        schedule={"policy": "baseline"},
    )
    run = Run(parsed, histories)
    quick = ev.RateMeasured("a", 1, 1e9, 1e-9, 1, 2)  # building takes no time
    pauses = [ev.NetworkVerdict(name, 0, "pause", ("asha",)) for name in paused]
    for event in (start, quick, rates, *pauses):
        if event is not None:
            run.add(event, 0.0)
    return run


def epoch(name, number, seconds, **more):
    return ev.EpochEnded(name, record(number, samples=600, seconds=seconds, **more))


def estimate_of(low_s, high_s):
    """Return the reported range for two estimated ends."""
    return pytest.approx(useful_range(low_s, high_s))


def ends(estimated):
    return estimated.low_s, estimated.high_s


def test_estimate_is_none_before_rates_are_known():
    assert estimator(rates=None).estimate() is None
    assert estimator(start=None).estimate() is None


def test_unmeasured_network_uses_rates_of_others():
    run = estimator(rates=ev.RatesEstimated({"a": (60.0,)}, seen=1))
    run.add(epoch("a", 1, 10.0, waited_s=0.0), 10.0)
    assert ends(run.estimate()) == estimate_of(0.9 * 30, 1.5 * 40)


@pytest.mark.parametrize(
    ("low_s", "high_s"), [(0.0, 10.0), (1.0, 1.0), (1.0, 100.0), (50.0, 100.0)]
)
def test_useful_range_limits_the_width(low_s, high_s):
    low, high = useful_range(low_s, high_s)
    assert 1.99 < high / low < 3.01
    assert low_s <= high, "it lies above what was estimated"
    assert low <= high_s, "it lies below what was estimated"


def test_relative_rates_give_no_estimate():
    assert estimator(rates=ev.RatesEstimated({"a": (6e9,), "b": (2e9,)}, seen=0)).estimate() is None


def test_later_rates_apply_to_earlier_epochs():
    run = estimator(
        rates=ev.RatesEstimated({"a": (600.0,), "b": (20.0,)}, seen=1)
    )  # the rate of a is a guess
    for number in (1, 2):
        for name, seconds in (("a", 10.0), ("b", 30.0)):
            run.add(epoch(name, number, seconds), 0.0)
    before = run.estimate()
    run.add(ev.RatesEstimated({"a": (60.0,), "b": (20.0,)}, seen=2), 0.0)
    after = run.estimate()
    assert (after.low_s, after.high_s) == pytest.approx((before.low_s, before.high_s))
    assert ends(after) == estimate_of(0.9 * 60, 1.1 * 60)


def test_slowest_network_determines_the_estimate():
    estimate = estimator().estimate()
    assert (estimate.low_s, estimate.high_s, estimate.networks) == pytest.approx(
        (120 / WIDE, WIDE * 120, 2)
    )


def test_estimate_on_one_gpu_adds_up():
    estimate = estimator(start=replace(START, trainers=1, devices=(0,), gpus_per_node=1)).estimate()
    assert estimate.high_s == pytest.approx(WIDE * 160)
    run = estimator()
    run.add(ev.RankDied(2, 1), 0.0)
    assert run.estimate().high_s == pytest.approx(WIDE * 160)


def test_slow_epochs_stretch_remaining_epochs():
    run = estimator()
    for number in (1, 2):
        run.add(epoch("b", number, 60.0, waited_s=0.0), 60.0 * number)
        run.add(epoch("a", number, 10.0, waited_s=0.0), 10.0 * number)
    assert ends(run.estimate()) == estimate_of(0.9 * 120, 1.1 * 120)


def test_network_without_epochs_uses_stretch_of_others():
    run = estimator()
    run.add(epoch("a", 1, 20.0, waited_s=0.0), 20.0)
    assert (run.estimate().low_s, run.estimate().high_s) == pytest.approx((240 / WIDE, WIDE * 240))


def test_range_follows_the_stopping_rule():
    run = estimator(converge={"max_epochs": 10, "patience": 2})
    for number in (1, 2):
        run.add(epoch("b", number, 30.0, val_accuracy=0.9, waited_s=0.0), 30.0 * number)
        run.add(epoch("a", number, 10.0, val_accuracy=0.9, waited_s=0.0), 10.0 * number)
    assert ends(run.estimate()) == estimate_of(
        0.9 * 2 * 30, 1.1 * 7 * 30
    )  # quartiles of the epochs that patience allows


def test_time_limits_bound_the_range():
    run = estimator(converge={"max_epochs": 1000, "max_time": 50})
    assert run.estimate().high_s <= useful_range(100, 100)[1]
    for network in ("a", "b"):
        run.add(epoch(network, 1, 40.0, waited_s=0.0), 40.0)
    assert run.estimate().high_s <= useful_range(20, 20)[1]
    unlimited = estimator(converge={"max_epochs": 1000})
    assert unlimited.estimate().low_s > 1000


def test_epochs_of_earlier_launches_count_unless_lost():
    run = estimator(histories={"b": (record(1), record(2))})
    run.add(epoch("b", 1, 30.0), 0.0)  # logged late
    assert run.estimate().high_s == pytest.approx(WIDE * 60)
    run.add(ev.GroupFailed("b", 1, 0), 0.0)
    assert run.estimate().high_s == pytest.approx(WIDE * 90)
    run.add(ev.NetworkFinished("b", "4 epochs", 4), 0.0)
    assert (run.estimate().high_s, run.estimate().networks) == (pytest.approx(WIDE * 40), 1)


def test_first_epoch_of_a_group_includes_forming():
    run = estimator()
    run.add(ev.NetworkFinished("a", "4 epochs", 4), 0.0)
    run.add(ev.GroupStarted("b", (0,), 0, 1), 0.0)
    run.add(epoch("b", 1, 45.0, waited_s=0.0), 50.0)  # built for 5 s, traced for 15
    run.add(epoch("b", 2, 30.0, waited_s=0.0), 80.0)
    assert ends(run.estimate()) == estimate_of(0.9 * 60, 1.1 * 60)  # it is formed
    run.add(ev.GroupStopped("b", 0.0), 80.0)
    assert ends(run.estimate()) == estimate_of(
        0.9 * 60 + 20, 1.1 * 60 + 20
    )  # and will have to be formed again


def test_varying_epoch_times_widen_the_range():
    run = estimator()
    run.add(epoch("a", 1, 10.0, waited_s=0.0), 10.0)
    for number, seconds in ((1, 20.0), (2, 30.0), (3, 60.0)):
        run.add(epoch("b", number, seconds, waited_s=0.0), 60.0 * number)
    assert ends(run.estimate()) == estimate_of(0.9 * 30, 60)  # a takes 27 at least


def test_elapsed_time_of_an_epoch_is_subtracted():
    run = estimator(start=replace(START, trainers=1, devices=(0,), gpus_per_node=1))
    run.add(ev.GroupStarted("b", (0,), 0, 1), 0.0)
    for number in (1, 2, 3):
        run.add(epoch("b", number, 30.0, waited_s=0.0), 30.0 * number)
    run.add(ev.NetworkFinished("a", "4 epochs", 4), 90.0)
    assert ends(run.estimate(110.0)) == estimate_of(0.9 * 30 - 20, 1.1 * 30 - 20)
    assert ends(run.estimate(200.0)) == estimate_of(0, 1.1 * 30 - 30)  # it should have ended


def test_estimate_includes_the_last_export():
    run = estimator()
    run.add(ev.NetworkFinished("a", "4 epochs", 4), 0.0)
    run.add(ev.GroupStopped("a", 0.5, 1.5), 0.0)
    assert ends(run.estimate()) == estimate_of(120 / 1.5 + 2 + 2, 1.5 * 120 + 2 + 2)  # and after it


def test_slowly_formed_group_forms_slowly_again():
    run = estimator(
        converge={"max_epochs": 9}, start=replace(START, trainers=1, devices=(0,), gpus_per_node=1)
    )
    for began, name, forming_s in (
        (0.0, "a", 10.0),
        (200.0, "a", 10.0),
        (400.0, "a", 10.0),
        (600.0, "b", 70.0),
        (900.0, "a", 10.0),
    ):
        run.add(ev.GroupStarted(name, (0,), 0, 1), began)
        for number in (1, 2):
            done = len(run.state.networks[name].status.history)
            run.add(epoch(name, done + 1, 30.0, waited_s=0.0), began + forming_s + 30.0 * number)
        run.add(ev.GroupStopped(name, 0.0), began + forming_s + 60.0)
    assert ends(run.estimate()) == estimate_of(0.9 * 8 * 30 + 10 + 70, 1.1 * 8 * 30 + 12.5 + 70)


def test_waiting_networks_may_wait_for_end_of_round():
    run = estimator()
    run.add(ev.GroupStarted("b", (0,), 0, 1), 0.0)
    run.add(epoch("b", 1, 30.0, waited_s=0.0), 30.0)
    run.add(epoch("b", 2, 30.0, waited_s=0.0), 60.0)
    assert ends(run.estimate()) == estimate_of(
        0.9 * 60, 1.1 * 60 + 1.5 * 40
    )  # of one, the others' factor is uncertain
    run.add(ev.GroupStarted("a", (1,), 0, 1), 60.0)
    assert ends(run.estimate()) == estimate_of(0.9 * 60, 1.1 * 60)  # both go on as they are


def test_build_time_of_measurement_counts_again():
    run = estimator(rates=None)
    run.add(ev.RateMeasured("b", 1, 100.0, 75.0, 1, 2), 75.0)
    run.add(RATES, 75.0)
    steps_s = 48 * 128 / 100.0
    assert run.estimate().high_s == pytest.approx(
        1.5 * 120 + 75.0 - steps_s
    )  # of two, the longer one


def test_first_epoch_estimates_forming_until_the_second():
    parsed = spec(
        {"family": "softmax", "name": "a"},
        train={"stopping": {"max_epochs": 4}},
        schedule={"policy": "baseline"},
    )
    run = Run(parsed)
    for event in (START, RATES, ev.GroupStarted("a", (0,), 0, 1)):
        run.add(event, 0.0)
    assert run.estimate() is None
    run.add(epoch("a", 1, 12.0), 25.0)
    run.add(ev.GroupStopped("a", 0.0), 25.0)
    assert ends(run.estimate()) == estimate_of(30 / 1.5 + 15, 1.5 * 30 + 15)


def test_observed_rates_replace_unmeasured_ones():
    run = estimator(rates=None)
    run.add(epoch("a", 1, 10.0, waited_s=0.0), 10.0)
    run.add(epoch("b", 1, 30.0, waited_s=0.0), 30.0)
    assert ends(run.estimate()) == estimate_of(0.9 * 90, 1.1 * 90)


def test_many_epochs_are_simulated_in_few():
    estimate = estimator(converge={"max_epochs": 6000}).estimate()
    assert estimate.high_s == pytest.approx(WIDE * 30 * 6000)


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("policy", "gpus"), [("baseline", 2), ("adaptive", 2), ("global", 2), ("adaptive", 300)]
)
def test_many_networks_are_sampled_for_simulation(policy, gpus, monkeypatch):
    parsed = spec(
        {
            "family": "softmax",
            "name": "net",
            "count": 1000,
            "space": {"train.optimizer.learning_rate": {"low": 1e-5, "high": 0.1}},
        },
        train={"stopping": {"max_epochs": 2}},
        schedule={"policy": policy},
    )
    names = [network.name for network in parsed.networks]
    run = Run(parsed)
    run.add(
        replace(
            START,
            networks=1000,
            bounds=dict.fromkeys(names, (1, 1)),
            devices=tuple(range(gpus)),
            trainers=gpus,
            gpus_per_node=gpus,
        ),
        0.0,
    )
    run.add(ev.RateMeasured(names[0], 1, 1e9, 1e-9, 1, 2), 0.0)
    run.add(
        ev.ProfilingFinished(
            1000, 1.0, {name: (60.0 if number % 2 else 20.0,) for number, name in enumerate(names)}
        ),
        0.0,
    )
    sizes = []
    monkeypatch.setattr(
        eta,
        "simulate",
        lambda rates, *arguments, **options: (
            sizes.append(len(rates.models)),
            simulate(rates, *arguments, **options),
        )[1],
    )
    estimated = run.estimate()
    assert max(sizes) <= 150
    all_s = 1000 / gpus * 2 * (10 + 30) / 2  # of networks of 10 and 30 s an epoch, two epochs each
    assert estimated.high_s == pytest.approx(WIDE * all_s, rel=0.02 if gpus == 2 else 0.4)
    assert estimated.networks == 1000


def test_estimate_of_a_dry_run_is_in_its_time_scale():
    assert estimator(start=replace(START, time_scale=0.01)).estimate().high_s == pytest.approx(
        WIDE * 1.2
    )


def test_estimate_schedule():
    times = EstimateSchedule(least_s=10.0)
    assert times.is_due(0.0)
    times.record(0.0, 0.01, None)
    assert (times.is_due(0.4), times.is_due(0.6)) == (False, True)
    times.record(0.0, 0.01, ev.TimeLeftEstimated(1.0, 1000.0, 2))
    assert (times.is_due(49.0), times.is_due(51.0)) == (False, True)
    times.record(0.0, 0.01, ev.TimeLeftEstimated(1.0, 5.0, 2))
    assert (times.is_due(9.0), times.is_due(11.0)) == (False, True)


# ---- searches ----------------------------------------------------------------------------------


def test_network_may_end_at_its_next_rung():
    estimate = estimator().estimate(remaining=RemainingWork(next_rung=lambda name, epochs: 1))
    assert ends(estimate) == estimate_of(30 / 1.5, 1.5 * 120)


def test_paused_and_pruned_networks_take_no_time():
    estimate = estimator(paused="b").estimate()
    assert (estimate.high_s, estimate.networks) == (pytest.approx(WIDE * 40), 1)


@pytest.mark.parametrize(
    ("coming", "epochs"),
    [
        (
            ExpectedTrials(10, math.inf, math.inf, {"a": 2, "b": 2}),
            (10, 15),
        ),  # on each of two devices: 2 to 3 of each network
        (ExpectedTrials(10, math.inf, 1, {"a": 2, "b": 2}), (20, 30)),  # one after the other
        (ExpectedTrials(10, 4, math.inf, {"a": 2, "b": 2}), (2, 2)),  # of a budget
        (
            ExpectedTrials(10, math.inf, math.inf, {"a": None, "b": None}),
            (20, 20),
        ),  # only the spec is known
        (ExpectedTrials(10, math.inf, math.inf, {"a": 1, "b": 4}), (6.25, 18.75)),
    ],
    ids=["as those before", "one at a time", "budget", "first ones", "some"],
)
def test_future_trials_train_as_long_as_earlier_ones(coming, epochs):
    estimate = estimator(paused="ab").estimate(remaining=RemainingWork(searches=(coming,)))
    few, many = map(math.ceil, epochs)
    assert ends(estimate) == estimate_of(10 * few / 1.5, 1.5 * 10 * many)
    assert estimate.networks == 10


def test_pruner_with_rungs_gives_expected_epochs():
    coming = ExpectedTrials(8, math.inf, math.inf, {"a": 1, "b": 1})
    estimate = estimator(paused="ab").estimate(
        remaining=RemainingWork(lambda name, epochs: 1, lambda max_epochs: 2.0, (coming,))
    )
    assert ends(estimate) == estimate_of(40 / 1.5, 1.5 * 120)  # 1 to 3 of each


def test_search_without_trials_gives_no_estimate():
    remaining = RemainingWork(searches=(ExpectedTrials(8, math.inf, math.inf, {}),))
    assert estimator(paused="ab").estimate(remaining=remaining) is None
