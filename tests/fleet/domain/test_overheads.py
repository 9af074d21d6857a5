"""The overheads of a launch, beside training."""

from dataclasses import replace

import pytest

from fleet.domain import events as ev
from fleet.domain.run import RunState
from scheduler.base import Delta
from tests.fleet.histories import record

STARTED = ev.LaunchStarted(
    2,
    trainers=4,
    preprocessors=1,
    nodes=1,
    gpus_per_node=4,
    policy="global",
    finished=(),
    first_stream_epoch=0,
    samples=60,
    devices=(0, 1, 2, 3),
    stream="free",
    options=ev.ScheduleOptions(0.8, Delta(0.15, relative=True), True, 0),
    bounds={"a": (1, None)},
)


def launch(events):
    """Return the state of a launch after some events."""
    run = RunState()
    for event in events:
        run.apply(0.0, event)
    return run.launch


def test_overheads_count_all_gpus_of_blocked_groups():
    events = [
        STARTED,
        ev.GroupStarted("a", (0,), 0, 1),
        ev.EpochEnded("a", record(1, gpus=1), blocked_s=0.5),
        ev.GroupChanged("a", (0,), (0, 1, 2), 0, seconds=2.0),
        ev.EpochEnded("a", record(2, gpus=3), blocked_s=0.25),
        ev.GroupStopped("a", checkpoint_s=1.0),
    ]
    spent = launch(events)
    assert spent.regrouping_s == pytest.approx(2.0 * 3)
    assert spent.checkpointing_s == pytest.approx(0.5 + 0.25 * 3 + 1.0 * 3)


def test_overheads_count_shares_of_shared_gpus():
    spent = launch(
        [
            replace(STARTED, slots=2),  # of two GPUs
            ev.GroupStarted("a", (0,), 0, 1),
            ev.GroupStarted("b", (2,), 0, 1),
            ev.EpochEnded("a", record(1, gpus=1), blocked_s=0.5),
            ev.GroupStopped("b", checkpoint_s=1.0),
            ev.GroupStopped("a", checkpoint_s=1.0),
        ]
    )
    assert spent.checkpointing_s == pytest.approx(0.5 / 2 + 1.0 / 2 + 1.0)
    assert "checkpointing 0.88%" in spent.summary(100.0)


def test_overheads_count_global_waits_once():
    spent = launch(
        [
            STARTED,
            ev.ProfilingFinished(3, 7.0, {}),
            ev.PlanChanged((), 0.25),
            ev.PlanChanged((), 0.5),
        ]
    )
    assert (spent.profiling_s, spent.scheduling_s) == (7.0, 0.75)


def test_overheads_exclude_earlier_launches():
    assert launch([STARTED, ev.EpochEnded("a", record(1))]).checkpointing_s == 0.0


def test_overheads_agree_in_event_and_summary():
    spent = launch(
        [
            STARTED,
            ev.ProfilingFinished(3, 10.0, {}),
            ev.RoundStarted(1, ("a",)),
            ev.PlanChanged((), 1.0),
            ev.GroupStarted("a", (0, 1), 0, 1),
            ev.GroupStopped("a", 2.0),
            ev.RoundStarted(2, ()),
        ]
    )
    assert spent.make_end_event(0, 100.0) == ev.LaunchEnded(
        0,
        100.0,
        rounds=2,
        profiling_s=10.0,
        scheduling_s=1.0,
        checkpointing_s=4.0,
        regrouping_s=0.0,
    )
    assert spent.summary(100.0) == (
        "1 min 40 s in 2 rounds; profiling 10.0%, scheduling 1.000%, checkpointing 1.00%, "
        "regrouping 0.00% of it"
    )


def test_summary_of_an_empty_launch():
    assert (
        launch([STARTED])
        .summary(0.0)
        .endswith(
            "in 0 rounds; profiling 0.0%, scheduling 0.000%, checkpointing 0.00%, regrouping 0.00% "
            "of it"
        )
    )
