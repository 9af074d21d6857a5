"""Tests of the account of a run's time."""

from dataclasses import asdict, replace

import pytest

from fleet.domain import events as ev
from fleet.domain.json_record import read_record, write_record
from fleet.domain.timeline import LoggedEvent, replay_log
from fleet.monitor import accounting as of_run
from tests.fleet.logs import LOG, START, epoch, with_rates


def account(log):
    return of_run.account(replay_log(log))


def test_account_of_stints_and_time():
    result = account(LOG)
    assert [
        (stint.name, stint.devices, stint.start_s, stint.end_s, stint.epochs)
        for stint in result.stints
    ] == [("a", (0,), 1.0, 22.1, 2), ("b<1>", (1,), 1.0, 21.6, 1)]
    spent = asdict(result.spent)
    assert spent == pytest.approx(
        {
            "training": 35,
            "data": 5,
            "checkpointing": 0.95,
            "moving": 41.7 - 40.95,
            "waiting": 46 - 41.7 - 0.02,
            "scheduling": 0.02,
            "profiling": 0,
        }
    )
    assert sum(spent.values()) == pytest.approx(2 * 23)


def test_account_of_startup():
    before = {"launcher": 0.25, "reading": 2.0}
    log = [
        LoggedEvent(0.0, replace(START, before_s=before)),
        *LOG[1:4],
        LoggedEvent(4.5, ev.FirstStep("b<1>", 1.5)),
        *LOG[4:],
    ]
    result = account(log)
    assert dict(result.startup) == pytest.approx(
        {**before, "loading the engine": 1.0, "building b<1>": 1.5, "its first step": 2.0}
    )
    assert account(LOG).startup == ()  # it has no step yet, or an older version wrote it


def test_first_signal_needs_an_epoch_of_each_live_network():
    log = [
        LoggedEvent(0.0, replace(START, networks=3)),
        LoggedEvent(0.0, ev.GroupStarted("a", (0,), 0, 1)),
        LoggedEvent(0.0, ev.GroupStarted("b", (1,), 0, 1)),
        epoch(4.0, "a", 1, 4.0),
        epoch(10.0, "b", 1, 10.0),
        epoch(11.0, "a", 2, 4.0),
        LoggedEvent(12.0, ev.NetworkFailed("c", "out of memory")),
    ]
    assert [account(log[:count]).first_signal_s for count in (1, 5, 7)] == [None, None, 10.0]


def test_profiling_occupies_all_devices():
    result = account(
        [
            LOG[0],
            LoggedEvent(0.5, ev.ProfilingFinished(3, 0.5, {"a": (10.0,), "b<1>": (5.0,)})),
            *LOG[1:],
        ]
    )
    assert result.spent.profiling == pytest.approx(0.5 * 2)


def test_account_costs_are_means_of_moves():
    result = account(with_rates(10.0, 5.0))
    assert (result.costs.regroup_s, result.costs.epoch_s) == pytest.approx((0.5, 0.5))
    assert result.measured_s == pytest.approx(21.1)  # from the first group to the last
    assert result.simulated_s == pytest.approx(0.51 + 2 * (10 + 0.5))


def test_checkpoint_cost_of_unfinished_groups_only():
    unfinished = [*LOG[:5], LoggedEvent(11.6, ev.GroupStopped("a", 0.4)), *LOG[5:8]]
    assert (
        account(LOG).costs.checkpoint_s,
        account(unfinished).costs.checkpoint_s,
    ) == pytest.approx((0.0, 0.4))


def test_lockstep_epoch_cost_is_that_of_slowest_group():
    start = replace(START, stream="lockstep")
    log = [
        LoggedEvent(0.0, start),
        LoggedEvent(0.0, ev.GroupStarted("a", (0,), 0, 1)),
        LoggedEvent(0.0, ev.GroupStarted("b<1>", (1,), 0, 1)),
        epoch(4.0, "a", 1, 4.0),
        epoch(10.0, "b<1>", 1, 10.0),
        epoch(14.5, "a", 2, 4.0),
        epoch(20.5, "b<1>", 2, 10.0),
    ]  # a has waited for b, and then for half a second
    assert account(log).costs.epoch_s == pytest.approx(0.5)
    assert account([LoggedEvent(0.0, START), *log[1:]]).costs.epoch_s == pytest.approx(
        (6.5 + 0.5) / 2
    )


def test_observed_rates_replace_missing_policy_rates():
    result = account(LOG)
    assert result.simulated_s == pytest.approx(0.51 + 2 * (10 + 0.5))


def test_absurd_group_size_takes_no_time_or_memory():
    assert account([*LOG[:4], epoch(11.5, "a", 1, 10.0, gpus=10**30)]).simulated_s > 0


def test_simulation_is_no_faster_than_shared_stream():
    start = replace(START, stream="lockstep")
    stream = LoggedEvent(
        0.5,
        ev.StreamStarted(
            1,
            1,
            "baseline",
            "shared",
            False,
            supply_samples_per_s=2.0,
            demand_samples_per_s=10.0,
            bottleneck="input",
        ),
    )
    log = with_rates(10.0, 5.0, start)
    assert (
        account(log).simulated_s
        < 2 * 100 / 2.0
        <= account([*log[:2], stream, *log[2:]]).simulated_s
    )
    slower = LoggedEvent(0.6, ev.SupplyChanged(1.0, 10.0))
    assert account([*log[:2], stream, slower, *log[2:]]).simulated_s >= 2 * 100 / 1.0


def test_old_log_with_unitless_delta_is_replayed():
    def simulated(delta):
        options = read_record(ev.ScheduleOptions, write_record(START.options) | {"delta": delta})
        start = replace(START, policy="global", options=options)
        return account(with_rates(10.0, 5.0, start)).simulated_s

    assert (
        simulated("6") == simulated("6/s") < simulated("4") == simulated("4/s")
    )  # the rates are 5 samples/s apart
    assert simulated("60%") == simulated("6/s")


def test_account_is_invariant_under_time_scale():
    slow, fast = (
        account(with_rates(10.0, 5.0)),
        account(with_rates(5.0, 2.5, replace(START, time_scale=0.5))),
    )
    assert (fast.measured_s, fast.simulated_s) == pytest.approx((slow.measured_s, slow.simulated_s))


def test_launches_follow_each_other_and_saved_epochs_count():
    killed = LOG[:5]  # up to the first epoch of a, at 11.5 s
    resumed = [
        LoggedEvent(0.0, START),
        epoch(0.0, "b<1>", 1, 9.0),
        LoggedEvent(2.0, ev.GroupStarted("a", (1,), 2, 1)),
        epoch(12.0, "a", 2, 9.0),
        LoggedEvent(12.0, ev.NetworkFinished("a", "", 2)),
        LoggedEvent(12.5, ev.GroupStopped("a", 0.1)),
    ]
    result = account([*killed, *resumed])
    assert result.launches == 2
    assert result.seconds == pytest.approx(11.5 + 12.5)
    assert [(stint.name, stint.end_s, stint.epochs) for stint in result.stints] == [
        ("a", 11.5, 1),
        ("b<1>", 11.5, 1),
        ("a", 24.0, 1),
    ]


def at(date, *events):
    """Return the start of a launch at a date, in seconds."""
    return [LoggedEvent(0.0, replace(START, date=date)), *events]


def of_one(network, begins_s, ends_s):
    """Return the log of a launch that trains a network and does not log its end."""
    return [
        LoggedEvent(begins_s, ev.GroupStarted(network, (0,), 0, 1)),
        epoch(ends_s, network, 1, ends_s - begins_s - 1),
    ]


def test_concurrent_launches_get_separate_devices():
    result = account(
        [
            *at(1000.0, *of_one("a", 1.0, 21.0)),
            *at(1005.0, *of_one("b<1>", 2.0, 12.0)),
            *at(
                1018.0, *of_one("b<1>", 1.0, 9.0)
            ),  # on the devices of the second launch, which was killed
            *at(2000.0, *of_one("a", 1.0, 11.0)),
        ]
    )  # much later, alone
    assert [(stint.name, stint.devices, stint.start_s, stint.end_s) for stint in result.stints] == [
        ("a", (0,), 1.0, 21.0),
        ("b<1>", (2,), 7.0, 17.0),
        ("b<1>", (2,), 19.0, 27.0),
        ("a", (0,), 28.0, 38.0),
    ]
    assert (result.seconds, result.launches, result.devices, result.replay) == (
        38.0,
        4,
        (0, 1, 2, 3),
        None,
    )
    spent = asdict(result.spent)
    assert spent["training"] == pytest.approx(19 + 9 + 7 + 9)
    assert sum(spent.values()) == pytest.approx(2 * (21 + 12 + 9 + 11))


def test_launches_with_tiny_overlap_follow_each_other():
    result = account([*at(1000.0, *of_one("a", 1.0, 2000.0)), *at(2998.0, *of_one("a", 1.0, 11.0))])
    assert (result.seconds, result.devices) == (2011.0, (0, 1))


def test_incomplete_first_launch_is_skipped():
    result = account([*LOG[4:], *LOG])
    assert (result.launches, result.seconds) == (1, 23.0)


def test_epochs_of_unknown_launch_belong_to_no_group():
    result = account([LOG[0], epoch(0.1, "b<1>", 1, 9.0), *LOG[1:4], epoch(11.5, "a", 1, 10.0)])
    assert [(stint.name, stint.epochs) for stint in result.stints] == [("a", 1), ("b<1>", 0)]
    assert result.spent.training == pytest.approx(10.0)


def test_failed_group_frees_its_devices():
    log = [
        *LOG[:5],
        LoggedEvent(12.0, ev.GroupFailed("a", 1, 0)),
        LoggedEvent(14.0, ev.GroupStarted("a", (0,), 1, 1)),
        *LOG[8:],
    ]
    assert [(stint.start_s, stint.end_s) for stint in account(log).stints if stint.name == "a"] == [
        (1.0, 12.0),
        (14.0, 22.1),
    ]


def test_changed_group_has_a_stint_per_shape():
    log = [
        LoggedEvent(0.0, START),
        LoggedEvent(0.0, ev.GroupStarted("a", (0,), 0, 1)),
        epoch(10.0, "a", 1, 9.9),
        LoggedEvent(12.0, ev.GroupChanged("a", (0,), (0, 1), position=20, seconds=0.2)),
        epoch(16.0, "a", 2, 6.0, gpus=2),
        LoggedEvent(16.0, ev.GroupStopped("a", 0.0)),
    ]
    result = account(log)
    assert [(stint.devices, stint.end_s, stint.epochs) for stint in result.stints] == [
        ((0,), 12.0, 1),
        ((0, 1), 16.0, 1),
    ]
    assert result.costs.regroup_s == pytest.approx((0.1 + 0.2) / 2)
    assert result.spent.training == pytest.approx(
        9.9 + 2 + 2 * 4
    )  # the second epoch: 2 s on one device, 4 s on two


def test_networks_share_gpu_time_equally_and_free_slots_are_idle():
    start = replace(
        START, trainers=6, gpus_per_node=6, devices=tuple(range(6)), slots=3
    )  # of two GPUs
    log = [
        LoggedEvent(0.0, start),
        LoggedEvent(0.0, ev.GroupStarted("a", (0,), 0, 1)),
        LoggedEvent(10.0, ev.GroupStarted("b<1>", (2,), 0, 1)),
        epoch(20.0, "a", 1, 20.0),
        LoggedEvent(20.0, ev.GroupStopped("a", 0.0)),
        epoch(26.0, "b<1>", 1, 16.0, waited=4.0),
        LoggedEvent(26.0, ev.GroupStopped("b<1>", 0.0)),
    ]
    result = account(log)
    assert (result.devices, result.gpus, result.gpus_per_node, result.slots) == (
        (0, 1, 2, 3, 4, 5),
        2,
        2,
        3,
    )
    assert result.spent.training + result.spent.data == pytest.approx(
        26
    )  # of the first GPU, which always had one of them
    assert result.spent.data == pytest.approx((5 + 6) * 4 / 16)
    assert result.spent.waiting == pytest.approx(26)  # the second GPU
    assert sum(asdict(result.spent).values()) == pytest.approx(2 * 26 + 0.5 * 0.25 + 0.25)


def test_concurrent_launches_have_separate_gpu_slots():
    shared = replace(START, trainers=3, gpus_per_node=4, devices=(0, 1, 2), slots=2)
    result = account(
        [
            *at(1000.0, *of_one("a", 1.0, 21.0)),
            LoggedEvent(0.0, replace(shared, date=1005.0)),
            LoggedEvent(1.0, ev.GroupStarted("b<1>", (2,), 0, 1)),
            epoch(11.0, "b<1>", 1, 9.0),
        ]
    )
    assert (result.devices, result.gpus) == ((0, 1, 4, 5, 6), 4)
    assert [stint.devices for stint in result.stints] == [(0,), (6,)]
    assert result.spent.training == pytest.approx(19 + 9)


@pytest.mark.parametrize("log", [[], LOG[:1], LOG[:4]])
def test_new_run_cannot_be_simulated(log):
    result = account(log)
    assert result is None or result.replay is None
