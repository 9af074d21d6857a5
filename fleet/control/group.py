"""A training group in the view of the coordinator: its phases and their transitions (pure).

::

    FORMING --> TRAINING --> PAUSING --> PAUSED      waits for orders inside an epoch
                    |           |
                    +-----------+------> WAITING     waits for orders between two epochs

    PAUSED, WAITING --> TRAINING                     the order to continue
                    --> REGROUPING --> TRAINING      the order to continue with other devices
                    --> STOPPING --> ENDED           the order to save and stop

A group reports its state, and gets orders only while it waits: paused inside an epoch, or between
two. So orders and reports never cross, with one exception: a pause that arrives after the last step
of an epoch is void.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fleet.comm import messages as m
from fleet.control.effects import RanksDied
from fleet.control.history import InvalidTransition
from fleet.spec import NetworkSpec
from scheduler.base import Member
from scheduler.ensemble.moves import GroupHolding, Stance


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    >>> name_ranks([3]), name_ranks([3, 4])
    ('rank 3', 'ranks 3, 4')
    """
    if len(ranks) > 1:
        word = "ranks"
    else:
        word = "rank"
    return f"{word} {', '.join(map(str, ranks))}"


class Phase(Enum):
    """The phase of a group; the value describes it."""

    FORMING = "its ranks are starting"
    TRAINING = "training, or building the network"
    PAUSING = "about to pause inside its epoch"
    PAUSED = "paused inside an epoch"
    WAITING = "waiting between two epochs"
    REGROUPING = "its ranks are regrouping"
    STOPPING = "saving, about to end"
    FAILED = "one of its ranks has died, and the others stop"
    ENDED = "ended"


# A message, an order or a death -> the phase that follows.
Transitions = Mapping[type, Phase]

# Messages of a group's master about the group.
GROUP_MESSAGES = (
    m.Joined,
    m.FellBack,
    m.Pace,
    m.EpochDone,
    m.Paused,
    m.Converged,
    m.Regrouped,
    m.Stopped,
    m.Failed,
)

_INSIDE: Transitions = {
    m.EpochDone: Phase.WAITING,
    m.Converged: Phase.WAITING,
    m.Failed: Phase.ENDED,
    m.Pause: Phase.PAUSING,
}

_ALIVE: Mapping[Phase, Transitions] = {
    Phase.FORMING: {m.Joined: Phase.TRAINING},
    Phase.TRAINING: {**_INSIDE, m.Pace: Phase.TRAINING, m.FellBack: Phase.TRAINING},
    # A second pause says that the launch ends; the first is void while a verdict is pending.
    Phase.PAUSING: {
        **_INSIDE,
        m.Pace: Phase.PAUSING,
        m.FellBack: Phase.PAUSING,
        m.Paused: Phase.PAUSED,
    },
    Phase.PAUSED: {m.Continue: Phase.TRAINING, m.Regroup: Phase.REGROUPING, m.Stop: Phase.STOPPING},
    Phase.WAITING: {
        m.Continue: Phase.TRAINING,
        m.Regroup: Phase.REGROUPING,
        m.Stop: Phase.STOPPING,
    },
    Phase.REGROUPING: {m.Regrouped: Phase.TRAINING, m.Failed: Phase.ENDED},
    Phase.STOPPING: {m.Stopped: Phase.ENDED, m.Failed: Phase.ENDED},
    # The status of its network will be read from a checkpoint, whatever messages still arrive.
    Phase.FAILED: dict.fromkeys(set(GROUP_MESSAGES) - {m.Regrouped}, Phase.FAILED),
    Phase.ENDED: {},
}

# No rank of these dies alone: groups do not change in a launch that outlives deaths (see
# LaunchState.create), and one that has ended is removed at once.
_WITHOUT_DEATHS = (Phase.REGROUPING, Phase.ENDED)

TRANSITIONS: Mapping[Phase, Transitions] = {
    phase: steps if phase in _WITHOUT_DEATHS else {**steps, RanksDied: Phase.FAILED}
    for phase, steps in _ALIVE.items()
}

_STANCES = {
    Phase.TRAINING: Stance.INSIDE,
    Phase.PAUSING: Stance.INSIDE,
    Phase.PAUSED: Stance.INSIDE,
    Phase.WAITING: Stance.BETWEEN,
}


# A training group hangs if it is silent for longer than both of these:
_SILENT_S = 5.0
_SILENT_RATIO = 5.0  # times its longest silence so far


@dataclass
class TrainingGroup:
    """A training group, from its start until its ranks are free again.

    Attributes:
        network: the network that it trains.
        devices: devices of its ranks, the master's first.
        next_epoch: stream epoch that it is granted next.
        next_read_epoch: the epoch whose first sample it reads next, while it waits for orders.
        reads_stream_from: device -> first epoch that it reads from the stream; before, it prepares
            its own rows.
        recruits: devices that will join it -> whether they have built the network.
        previous_devices: its devices before its last change.
        number: increases with each group that is started.
        last_message_s: time of its start or of its last message.
        longest_silence_s: longest time between two messages of training.
        has_trained: whether it has reported training.
        name: name of the network.
    """

    network: NetworkSpec
    devices: tuple[int, ...]
    next_epoch: int
    reads_stream_from: dict[int, int]
    next_read_epoch: int = 0
    recruits: dict[int, bool] = field(default_factory=dict)
    previous_devices: tuple[int, ...] = ()
    phase: Phase = Phase.FORMING
    number: int = 0
    last_message_s: float = 0.0
    longest_silence_s: float = 0.0
    has_trained: bool = False
    name: str = field(init=False)
    _member: Member = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.network.name
        self._member = Member(self.name, self.devices)

    @property
    def member(self) -> Member:
        """The group, in the form that policies use."""
        if self._member.devices is not self.devices:
            self._member = Member(self.name, self.devices)
        return self._member

    @property
    def is_busy(self) -> bool:
        """Whether it can take no request now: it starts, stops, regroups or has failed."""
        return self.phase not in _STANCES

    @property
    def is_awaiting_orders(self) -> bool:
        """Whether it waits for orders."""
        return self.phase in (Phase.PAUSED, Phase.WAITING)

    def advance(self, step: Any) -> None:
        """Advance to the phase that follows a message, an order or a death.

        Raises:
            InvalidTransition: the step is impossible in this phase.
        """
        after = TRANSITIONS[self.phase].get(type(step))
        if after is None:
            raise InvalidTransition(
                f"{self.name} is {self.phase.name} ({self.phase.value}) and cannot take {step}"
            )
        self.phase = after

    def record_message(self, now_s: float, is_training: bool) -> None:
        """Record the time of a message, and whether it reports training."""
        if is_training and self.has_trained:
            self.longest_silence_s = max(self.longest_silence_s, now_s - self.last_message_s)
        self.has_trained |= is_training
        self.last_message_s = now_s

    def is_unusual_silence(self, silent_s: float) -> bool:
        """Return True if the silence is unusually long, so that the network is to blame for it."""
        return self.has_trained and silent_s > max(
            _SILENT_S, _SILENT_RATIO * self.longest_silence_s
        )

    def holding(
        self, can_change: bool, grows_inside: bool, is_answered: bool, is_node_release: bool = False
    ) -> GroupHolding:
        """Return the devices, and how they can change now.

        Args:
            can_change: whether groups of this launch can change.
            grows_inside: whether they can add devices inside an epoch.
            is_answered: whether it gets orders now, if it waits for them.
            is_node_release: whether it must stop, whatever the plan.
        """
        stance = _STANCES.get(self.phase, Stance.BUSY)
        if is_node_release or (self.is_awaiting_orders and not is_answered):
            stance = Stance.BUSY
        # If the batch depends on the GPUs, another size needs another optimizer.
        is_fixed = self.network.train.batch.when_scaled == "fixed"
        return GroupHolding(
            self.devices,
            stance,
            self.network.min_gpus,
            can_change and is_fixed,
            grows_inside,
            self.recruits,
        )
