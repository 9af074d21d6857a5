"""A training group as the coordinator knows it: the phases of its life, and what can happen in each (pure).

::

    FORMING --> TRAINING --> PAUSING --> PAUSED    stands still inside an epoch
                    |           |
                    +-----------+------> WAITING   stands still between two epochs

    PAUSED, WAITING --> TRAINING                   is told to go on
                    --> CHANGING --> TRAINING      is told to go on with other devices
                    --> STOPPING --> GONE          is told to save and to let go

A group says where it is, and is told what to do next only where it stands still: paused inside an epoch, or waiting
between two. So its orders never cross what it says, but for one: a pause that comes after an epoch's last step is void.
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
    """Return ranks as a message names them.

    >>> name_ranks([3]), name_ranks([3, 4])
    ('rank 3', 'ranks 3, 4')
    """
    if len(ranks) > 1:
        word = "ranks"
    else:
        word = "rank"
    return f"{word} {', '.join(map(str, ranks))}"


class Phase(Enum):
    """Where a group is in its life; the value says it in words."""

    FORMING = "its ranks were told to start, and meet"
    TRAINING = "it trains, or builds the network"
    PAUSING = "it was asked to stand still inside its epoch"
    PAUSED = "it stands still inside an epoch"
    WAITING = "it stands still between two epochs"
    CHANGING = "its ranks were told to go on with others, and meet"
    STOPPING = "it was told to save and to let go"
    STRUCK = "one of its ranks has died, and the others let go"
    GONE = "it is no more"


# What a group says, is told or suffers -> the phase that follows.
Steps = Mapping[type, Phase]

# What a group's master says of the group.
SAID = (
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

_INSIDE: Steps = {
    m.EpochDone: Phase.WAITING,
    m.Converged: Phase.WAITING,
    m.Failed: Phase.GONE,
    m.Pause: Phase.PAUSING,
}

_ALIVE: Mapping[Phase, Steps] = {
    Phase.FORMING: {m.Joined: Phase.TRAINING},
    Phase.TRAINING: {**_INSIDE, m.Pace: Phase.TRAINING, m.FellBack: Phase.TRAINING},
    # A second pause says that the launch ends: the first is void where a network is being judged.
    Phase.PAUSING: {
        **_INSIDE,
        m.Pace: Phase.PAUSING,
        m.FellBack: Phase.PAUSING,
        m.Paused: Phase.PAUSED,
    },
    Phase.PAUSED: {m.Continue: Phase.TRAINING, m.Regroup: Phase.CHANGING, m.Stop: Phase.STOPPING},
    Phase.WAITING: {m.Continue: Phase.TRAINING, m.Regroup: Phase.CHANGING, m.Stop: Phase.STOPPING},
    Phase.CHANGING: {m.Regrouped: Phase.TRAINING, m.Failed: Phase.GONE},
    Phase.STOPPING: {m.Stopped: Phase.GONE, m.Failed: Phase.GONE},
    # How far its network has come will be read from a checkpoint, whatever the group still says.
    Phase.STRUCK: dict.fromkeys(SAID, Phase.STRUCK),
    Phase.GONE: {},
}

TRANSITIONS: Mapping[Phase, Steps] = {
    phase: {**steps, RanksDied: Phase.STRUCK} for phase, steps in _ALIVE.items()
}

_STANCES = {
    Phase.TRAINING: Stance.INSIDE,
    Phase.PAUSING: Stance.INSIDE,
    Phase.PAUSED: Stance.INSIDE,
    Phase.WAITING: Stance.BETWEEN,
}


# A group in training is silent for longer than that, and so many times longer than ever before, only if a step hangs.
_SILENT_S = 5.0
_SILENT_RATIO = 5.0


@dataclass
class TrainingGroup:
    """A training group, from its start until its ranks are free again.

    Attributes:
        network: that it trains.
        devices: of its ranks, the master's first.
        next_epoch: of the stream: what it is granted when it has none in hand.
        reads_next: the epoch whose first sample it will read next, where it stands still.
        reads_stream_from: device -> the epoch from which on it reads the stream; before it, it prepares its own rows.
        joins: the epoch from which on devices will read that have not told the stream so yet.
        recruits: the devices that will join it -> whether they have built the network.
        before: the devices that it had before it changed for those that it has.
        number: it rises with each group that is started.
        heard_s: when it was started, or has said something last.
        longest_s: for which it was silent between two words of training.
        has_trained: whether it has told of training.
        name: of the network.
    """

    network: NetworkSpec
    devices: tuple[int, ...]
    next_epoch: int
    reads_stream_from: dict[int, int]
    joins: int | None
    reads_next: int = 0
    recruits: dict[int, bool] = field(default_factory=dict)
    before: tuple[int, ...] = ()
    phase: Phase = Phase.FORMING
    number: int = 0
    heard_s: float = 0.0
    longest_s: float = 0.0
    has_trained: bool = False
    name: str = field(init=False)
    _member: Member = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.network.name
        self._member = Member(self.name, self.devices)

    @property
    def member(self) -> Member:
        """The group, as policies know it."""
        if self._member.devices is not self.devices:
            self._member = Member(self.name, self.devices)
        return self._member

    @property
    def is_busy(self) -> bool:
        """Whether nothing can be asked of it just now: it starts, stops, changes or dies."""
        return self.phase not in _STANCES

    @property
    def stands_still(self) -> bool:
        """Whether it waits for orders."""
        return self.phase in (Phase.PAUSED, Phase.WAITING)

    def advance(self, step: Any) -> None:
        """Go over to the phase that follows on what the group says, is told or suffers.

        Raises:
            InvalidTransition: nothing follows.
        """
        after = TRANSITIONS[self.phase].get(type(step))
        if after is None:
            raise InvalidTransition(
                f"{self.name} is {self.phase.name} ({self.phase.value}), and yet there is {step}"
            )
        self.phase = after

    def hear(self, now_s: float, is_training: bool) -> None:
        """The group has said something, of training or of something else."""
        if is_training and self.has_trained:
            self.longest_s = max(self.longest_s, now_s - self.heard_s)
        self.has_trained |= is_training
        self.heard_s = now_s

    def stands_out(self, silent_s: float) -> bool:
        """Whether so long a silence is none of its usual ones, so that its network is to blame for it."""
        return self.has_trained and silent_s > max(_SILENT_S, _SILENT_RATIO * self.longest_s)

    def holding(
        self, can_change: bool, grows_inside: bool, is_answered: bool, is_leaving: bool = False
    ) -> GroupHolding:
        """The devices, and what can be done about them now.

        Args:
            can_change: whether groups of this launch can change.
            grows_inside: whether they can take devices in inside an epoch.
            is_answered: whether it gets its orders now, where it stands still.
            is_leaving: whether it stops, whatever is wanted.
        """
        stance = _STANCES.get(self.phase, Stance.BUSY)
        if is_leaving or (self.stands_still and not is_answered):
            stance = Stance.BUSY
        # With a batch that follows the GPUs another size is another optimizer.
        is_fixed = self.network.train.batch.when_scaled == "fixed"
        return GroupHolding(
            self.devices,
            stance,
            self.network.min_gpus,
            can_change and is_fixed,
            grows_inside,
            self.recruits,
        )
