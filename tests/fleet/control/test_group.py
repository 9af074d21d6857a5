"""The phases of a group."""

import pytest

from fleet.comm import messages
from fleet.comm.messages import (
    Continue,
    EpochDone,
    Joined,
    Pause,
    Paused,
    Regroup,
    Regrouped,
    Stop,
    Stopped,
)
from fleet.control.effects import RanksDied
from fleet.control.group import TRANSITIONS, Phase, TrainingGroup
from fleet.control.history import InvalidTransition
from scheduler.ensemble.moves import Stance
from tests.fleet.histories import record, spec

NETWORK = spec({"family": "softmax", "name": "a", "gpus": [1, 4]}).networks[0]
STEPS = sorted(
    {step for steps in TRANSITIONS.values() for step in steps}, key=lambda step: step.__name__
)


def group(phase=Phase.FORMING, network=NETWORK):
    return TrainingGroup(network, (2, 0), next_epoch=3, reads_stream_from={2: 3, 0: 3}, phase=phase)


def step(kind):
    """Return a message, an order or a death of a type."""
    return kind(*[None] * len(getattr(kind, "_fields", ["ranks"])))


def test_group_goes_through_the_phases():
    subject = group()
    for message, phase in [
        (Joined("a"), Phase.TRAINING),
        (Pause(False), Phase.PAUSING),
        (Paused("a", 3), Phase.PAUSED),
        (Regroup((1, 2), 1, 7, 3, 0), Phase.REGROUPING),
        (Regrouped("a", 9, 0.1), Phase.TRAINING),
        (EpochDone("a", record(1), 0.0, ""), Phase.WAITING),
        (Continue(4), Phase.TRAINING),
        (EpochDone("a", record(2), 0.0, ""), Phase.WAITING),
        (Stop(True), Phase.STOPPING),
        (Stopped("a", 0.0), Phase.ENDED),
    ]:
        subject.advance(message)
        assert subject.phase is phase


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_group_refuses_impossible_transitions(phase, kind):
    subject = group(phase)
    if kind in TRANSITIONS[phase]:
        subject.advance(step(kind))
        assert subject.phase is TRANSITIONS[phase][kind]
    else:
        with pytest.raises(
            InvalidTransition, match=f"a is {phase.name} .* and cannot take {kind.__name__}"
        ):
            subject.advance(step(kind))
        assert subject.phase is phase


def test_transitions_cover_all_messages_of_groups():
    not_of_groups = {
        messages.Measure,
        messages.Start,
        messages.Join,
        messages.Exit,
        messages.LeaveLaunch,
        messages.Ready,
        messages.Measured,
        messages.Built,
        messages.Produce,
        messages.ReleaseReaders,
        messages.Demand,
        messages.Throughput,
        messages.Prepared,
        messages.SampleUnreadable,
        messages.Warned,
        messages.EnergyUsed,
        messages.ForTrainer,
        messages.NotFused,
    }
    kinds = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and hasattr(kind, "_fields")
    }
    assert set(STEPS) == kinds - not_of_groups | {RanksDied}


def test_transitions_lead_out_of_every_phase():
    for phase in set(Phase) - {Phase.ENDED, Phase.FAILED}:
        assert set(TRANSITIONS[phase].values()) - {phase, Phase.FAILED}


@pytest.mark.parametrize(
    ("phase", "stance"),
    [
        (Phase.FORMING, Stance.BUSY),
        (Phase.TRAINING, Stance.INSIDE),
        (Phase.PAUSING, Stance.INSIDE),
        (Phase.PAUSED, Stance.INSIDE),
        (Phase.WAITING, Stance.BETWEEN),
        (Phase.REGROUPING, Stance.BUSY),
        (Phase.STOPPING, Stance.BUSY),
        (Phase.FAILED, Stance.BUSY),
    ],
)
def test_holding_follows_from_the_phase(phase, stance):
    assert group(phase).holding(True, True, is_answered=True).stance is stance


def test_holding_is_busy_without_orders():
    assert group(Phase.WAITING).holding(True, True, is_answered=False).stance is Stance.BUSY
    assert group(Phase.TRAINING).holding(True, True, is_answered=False).stance is Stance.INSIDE


@pytest.mark.parametrize(
    ("when_scaled", "launch_can", "can"),
    [("fixed", True, True), ("fixed", False, False), ("per_gpu", True, False)],
)
def test_holding_allows_changes_with_a_fixed_batch(when_scaled, launch_can, can):
    network = spec(
        {"family": "softmax", "name": "a"}, train={"batch": {"when_scaled": when_scaled}}
    ).networks[0]
    assert group(Phase.WAITING, network).holding(launch_can, True, True).can_change is can
