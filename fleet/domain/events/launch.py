"""What happens to a launch as a whole, and what others tell it to do through its mailbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fleet.domain.json_record import Kind, Micro, Milli, OmitDefault
from fleet.domain.network import Outcome, TestResult
from fleet.spec.old_keys import entry_with_new_keys
from fleet.spec.origin import Origin
from scheduler.base import Cluster


@dataclass(frozen=True)
class ScheduleOptions:
    """The settings of the policies (:class:`scheduler.base.Options`); ``delta`` as text, such as 15%."""

    alpha: float
    delta: str
    peak_limited: bool
    seed: int


@dataclass(frozen=True)
class FoundStanding:
    """How far a network is by its checkpoint, where the log of earlier launches says something else.

    Attributes:
        epochs: that are finished in it.
        reason: why it is done, or why it has failed; empty where there is something left to train.
    """

    epochs: int
    reason: str = ""
    is_failure: bool = False
    tested: TestResult | None = None

    @property
    def outcome(self) -> Outcome | None:
        """What has become of it."""
        if self.reason:
            return Outcome(self.reason, self.is_failure)
        return None


class Started(Kind, word="start"):
    """A launch has begun: the first event of each.

    Attributes:
        networks, trainers, preprocessors, nodes: how many of them.
        finished: the networks that earlier launches have done.
        first_stream_epoch: the first epoch of the stream in this launch.
        samples: of the training set.
        devices: of the trainers.
        stream: how groups depend on each other's pace, as :func:`fleet.units.parse_stream` reads it.
        bounds: network -> the fewest and the most GPUs that it may have; None if there is no upper bound.
        time_scale: seconds that a second of training takes; other than 1 only if training is emulated.
        date: when it began, in seconds since 1970, by the clock of the file system; 0 where nobody said.
        before_s: seconds that passed from the command to this event on rank 0, by what was done in them, in this order.
        slots: devices that share a GPU; those of a node go round by round over its GPUs.
        fills: whether they are used also where it does not pay.
        device: what networks are trained on, in a word: GPU; without GPUs, core where ranks share them, and trainer.
        found: the networks that are not as far as the log of earlier launches says.
        beside: of a launch that shares the networks of its run: whether others were at work when it began.
        folders: where modules that the spec names were looked for, beside those that are installed.
    """

    networks: int
    trainers: int
    preprocessors: int
    nodes: int
    gpus_per_node: int
    policy: str
    finished: tuple[str, ...]
    first_stream_epoch: int
    samples: int
    devices: tuple[int, ...]
    stream: str
    options: ScheduleOptions
    bounds: Mapping[str, tuple[int, int | None]]
    time_scale: float = 1.0
    date: Annotated[Milli, OmitDefault] = 0.0
    before_s: Annotated[Mapping[str, float], OmitDefault] = field(default_factory=dict)
    slots: Annotated[int, OmitDefault] = 1
    fills: Annotated[bool, OmitDefault] = False
    device: Annotated[str, OmitDefault] = "GPU"
    found: Annotated[Mapping[str, FoundStanding], OmitDefault] = field(default_factory=dict)
    beside: Annotated[bool | None, OmitDefault] = None
    folders: Annotated[tuple[str, ...], OmitDefault] = ()

    @property
    def cluster(self) -> Cluster:
        """The devices, as policies know them."""
        return Cluster(self.devices, self.gpus_per_node, self.slots, self.fills)


class DataChanged(Kind, word="data_changed"):
    """The data is not what networks were trained on, and they go on all the same: somebody has said so.

    Attributes:
        changes: where, and what has changed, in words.
        epochs: network -> how many epochs it had finished before.
    """

    changes: tuple[str, ...]
    epochs: Mapping[str, int]


class Interrupted(Kind, word="interrupted"):
    """The launch is to end before its networks are done: all groups save where they are.

    Attributes:
        replay: whether this was a replay of one network, which starts over in the next launch.
    """

    reason: str
    replay: bool = False


class TooLate(Kind, word="too_late"):
    """So little of the walltime is left that no group is started any more; written once.

    Attributes:
        networks: those that could have been started.
        left_s: seconds that are left of the walltime.
        needed_s: what the slowest group has taken from its start to its first step.
    """

    networks: tuple[str, ...]
    left_s: Milli
    needed_s: Milli


class Ended(Kind, word="end"):
    """The launch came to its end. This is its last event; a launch that breaks off has none.

    Attributes:
        status: how it ended (:class:`fleet.errors.ExitStatus`).
        seconds: since it began.
        rounds: how many there were (:class:`RoundStarted`).
        profiling_s, scheduling_s: seconds for which all waited for rates, and for the policy.
        checkpointing_s, regrouping_s: GPU-seconds for which training was blocked by them.
    """

    status: int
    seconds: Milli = 0.0
    rounds: int = 0
    profiling_s: Micro = 0.0
    scheduling_s: Micro = 0.0
    checkpointing_s: Micro = 0.0
    regrouping_s: Micro = 0.0


class TrackerFailed(Kind, word="track_failed"):
    """What the spec asks for in ``trackers`` could not be written; written once of each tracker.

    Attributes:
        path: of its file or folder.
    """

    tracker: str
    path: str
    reason: str


class RanksReady(Kind, word="ready"):
    """All trainers have loaded what they need, and wait for work; once in a launch."""


class FirstStep(Kind, word="first_step"):
    """A network has been trained for a step; once in a launch.

    Attributes:
        build_s: seconds from the start of its group until it had been built.
    """

    network: str
    build_s: Annotated[Milli, OmitDefault] = 0.0


class Commanded(Kind, word="command"):
    """Somebody has told the launch to do something; written before it is done.

    Attributes:
        command: its name; no other command of the run has it.
        do: ``add``, ``stop``, ``pause``, ``resume`` or ``yield``.
        networks: that are added, or that it is about.
        given: of an ``add``: the entry of ``models``, with its name. Of a ``yield``: ``nodes``, the numbers of those
            that are given back, ``hosts``, their names, ``within_s``, and ``ways``, what the group of each network does
            (``app``: it saves; ``kill``: it gives up what it has trained since its last checkpoint).
        place: of an ``add``: the number of entries before it.
    """

    command: str
    do: str
    networks: tuple[str, ...]
    given: Annotated[Mapping[str, Any], OmitDefault] = field(default_factory=dict, hash=False)
    place: Annotated[int, OmitDefault] = 0

    def __post_init__(self) -> None:
        if self.do == "add":
            entry = entry_with_new_keys(self.given, Origin()).content
            object.__setattr__(self, "given", entry)


class NodesLeft(Kind, word="nodes_left"):
    """The groups on some nodes have let go, upon a ``yield``, and nothing is given to these nodes any more.

    Attributes:
        command: the name of the ``yield``.
        nodes: their numbers.
        hosts: their names.
        devices: of their trainers.
        seconds: since the command was taken up.
        has_ended: whether their processes end; otherwise they wait, without work, for the end of the launch.
    """

    command: str
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    devices: tuple[int, ...]
    seconds: float
    has_ended: bool
