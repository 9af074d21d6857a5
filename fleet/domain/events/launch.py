"""Events of a launch as a whole, and the commands that it receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from fleet.domain.json_record import JsonRecord, Micro, Milli, OmitDefault
from fleet.domain.network import EvaluationResult, Outcome
from fleet.spec.old_keys import values_with_new_names, with_new_keys
from fleet.units import parse_delta
from scheduler.base import Cluster, Delta


def _read_delta(text: object) -> Delta:
    # Until version 0.1.0 samples/s had no unit.
    unit = "" if str(text).endswith(("%", "/s")) else "/s"
    return parse_delta(f"{text}{unit}")


@dataclass(frozen=True)
class ScheduleOptions:
    """The options of policies (:class:`scheduler.base.Options`)."""

    alpha: float
    delta: Annotated[Delta, BeforeValidator(_read_delta), PlainSerializer(str)]
    peak_limited: bool
    seed: int


@dataclass(frozen=True)
class CheckpointStatus:
    """The status of a network by its checkpoint, where the log of earlier launches differs.

    Attributes:
        epochs: finished epochs in the checkpoint.
        reason: why it has finished or failed; empty if there is something left to train.
    """

    epochs: int
    reason: str = ""
    is_failure: bool = False
    tested: EvaluationResult | None = None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome; None if there is something left to train."""
        if self.reason:
            return Outcome(self.reason, self.is_failure)
        return None


@dataclass(frozen=True)
class LaunchOrigin:
    """Where a launch comes from.

    Attributes:
        host: name of the node of rank 0.
        version: version of FLEET.
        command: command line that started it; empty if unknown.
    """

    host: str
    version: str
    command: str = ""


class LaunchStarted(JsonRecord, word="start"):
    """A launch has begun: its first event.

    Attributes:
        networks, trainers, preprocessors, nodes: their numbers.
        finished: the networks that ended in earlier launches.
        first_stream_epoch: the first epoch of the stream in this launch.
        samples: number of training samples.
        devices: devices of the trainers.
        stream: how groups depend on each other's pace; see :func:`fleet.units.parse_stream`.
        bounds: network -> its minimum and maximum of GPUs; None without a maximum.
        time_scale: seconds that a second of training takes; 1 unless training is emulated.
        date: when it began, in seconds since 1970, by the clock of the file system; 0 if unknown.
        before_s: activity -> its seconds between the command and this event on rank 0, in order.
        slots: devices that share a GPU; those of a node are assigned to its GPUs in turn.
        fills: whether slots are used even where sharing does not pay.
        fused: trainers of a rank, which trains equal networks as one.
        device: what networks are trained on: GPU; or core, if ranks share cores; or trainer.
        found: the networks whose checkpoint differs from the log of earlier launches.
        beside: whether other launches of the run were working when it began; None if it shares
            none.
        folders: folders that were searched for modules of the spec, beside installed ones.
        origin: where it comes from; None in logs of early versions.
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
    fused: Annotated[int, OmitDefault] = 1
    device: Annotated[str, OmitDefault] = "GPU"
    found: Annotated[Mapping[str, CheckpointStatus], OmitDefault] = field(default_factory=dict)
    beside: Annotated[bool | None, OmitDefault] = None
    folders: Annotated[tuple[str, ...], OmitDefault] = ()
    origin: Annotated[LaunchOrigin | None, OmitDefault] = None

    @property
    def cluster(self) -> Cluster:
        """The devices, in the form that policies use."""
        return Cluster(self.devices, self.gpus_per_node, self.slots, self.fills, self.fused)


class DataChanged(JsonRecord, word="data_changed"):
    """The data differs from what networks were trained on, and they continue as requested.

    Attributes:
        changes: descriptions of the changes.
        epochs: network -> its finished epochs before the change.
    """

    changes: tuple[str, ...]
    epochs: Mapping[str, int]


class LaunchInterrupted(JsonRecord, word="interrupted"):
    """The launch ends before its networks have finished: all groups save where they are.

    Attributes:
        reason: why.
        replay: whether this was a replay of one network, which starts over in the next launch.
    """

    reason: str
    replay: bool = False


class TooLateToStart(JsonRecord, word="too_late"):
    """So little of the walltime is left that no more groups start; written once.

    Attributes:
        networks: the networks that could have started.
        left_s: seconds left of the walltime.
        needed_s: the longest time of a group from its start to its first step.
    """

    networks: tuple[str, ...]
    left_s: Milli
    needed_s: Milli


class LaunchEnded(JsonRecord, word="end"):
    """The launch has ended. This is its last event; a launch that was killed has none.

    Attributes:
        status: the exit status (:class:`fleet.errors.ExitStatus`).
        seconds: duration of the launch.
        rounds: number of rounds (:class:`RoundStarted`).
        profiling_s, scheduling_s: seconds for which all devices waited for rates, and the policy.
        checkpointing_s, regrouping_s: GPU-seconds for which they blocked training.
    """

    status: int
    seconds: Milli = 0.0
    rounds: int = 0
    profiling_s: Micro = 0.0
    scheduling_s: Micro = 0.0
    checkpointing_s: Micro = 0.0
    regrouping_s: Micro = 0.0


class TrackerFailed(JsonRecord, word="track_failed"):
    """The files of a tracker could not be written; logged once per tracker.

    Attributes:
        path: path of its file or folder.
    """

    tracker: str
    path: str
    reason: str


class TrainersReady(JsonRecord, word="ready"):
    """All trainers have loaded their engine and are idle; once per launch."""


class FirstStep(JsonRecord, word="first_step"):
    """A network has been trained for a step; once per launch.

    Attributes:
        build_s: seconds from the start of its group until it had been built.
    """

    network: str
    build_s: Annotated[Milli, OmitDefault] = 0.0


class CommandReceived(JsonRecord, word="command"):
    """The launch has received a command; written before it is carried out.

    Attributes:
        command: its name; unique within the run.
        do: ``add``, ``stop``, ``pause``, ``resume`` or ``yield``.
        networks: the networks that are added, or that it concerns.
        given: for ``add``: the entry of ``models``, with its name. For ``yield``: ``nodes``, the
            numbers of the nodes to release, ``hosts``, their names, ``within_s``, and ``ways``,
            what the group of each network does (``app``: save; ``kill``: give up its training since
            its last checkpoint).
        place: for ``add``: the number of entries before it.
        source: for a clone: the network that it is like.
        values: for a clone: its values by the keys of a space; None for another entry.
        is_warm: whether a clone starts from the weights of its source.
    """

    command: str
    do: str
    networks: tuple[str, ...]
    given: Annotated[Mapping[str, Any], OmitDefault] = field(default_factory=dict, hash=False)
    place: Annotated[int, OmitDefault] = 0
    source: Annotated[str, OmitDefault] = ""
    values: Annotated[Mapping[str, Any] | None, OmitDefault] = field(default=None, hash=False)
    is_warm: Annotated[bool, OmitDefault] = False

    def __post_init__(self) -> None:
        if self.do == "add":
            entry = with_new_keys(self.given, section="models").content
            object.__setattr__(self, "given", entry)
        if self.values is not None:
            object.__setattr__(self, "values", values_with_new_names(self.values))


class NodesReleased(JsonRecord, word="nodes_left"):
    """The groups on some nodes have stopped after a ``yield``; these nodes get no more work.

    Attributes:
        command: the name of the command.
        nodes: their numbers.
        hosts: their names.
        devices: devices of their trainers.
        seconds: since the command was received.
        has_ended: whether their processes end; otherwise they idle until the launch ends.
    """

    command: str
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    devices: tuple[int, ...]
    seconds: float
    has_ended: bool


class RunWarned(JsonRecord, word="run_warning"):
    """Something surely hurts the training of many networks; logged once per warning."""

    warning: str
