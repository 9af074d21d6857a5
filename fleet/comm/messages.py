"""All messages between ranks, and the tag of each receiving role.

The coordinator tells, trainers and preprocessors answer. A message is a named
tuple of values; MPI carries it, nothing of it ever goes to disk. What a trainer
is told of a network is the network's whole spec, so it can train one that the
run did not begin with.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from fleet.domain.network import EpochRecord, EvaluationResult, StepRate
from fleet.spec import NetworkSpec
from fleet.storage.lease import Fence
from scheduler.base import StepTime


class Tag(IntEnum):
    """The receiving role of a message; a rank may have several roles."""

    COORDINATOR = 1
    TRAINER = 2
    PREPROCESSOR = 3


# ---- coordinator to trainers -------------------------------------------------------------------


class Measure(NamedTuple):
    """Measure a network's training rate on a group of ranks."""

    network: NetworkSpec
    ranks: tuple[int, ...]
    group: int  # a number that no other group of the run has
    batches: tuple[
        int, ...
    ] = ()  # to measure it with, one after another, where the policy chooses; else its own


class Start(NamedTuple):
    """Train a network on a group of ranks, from its last checkpoint if it has one."""

    network: NetworkSpec
    ranks: tuple[int, ...]
    group: int
    stream_epoch: int
    fence: Fence | None = (
        None  # the right to write what belongs to the network, where it has one of its own
    )
    batch: int | None = None  # of the epochs that it begins, where the policy chooses it


class Join(NamedTuple):
    """Build a network that another group trains, then wait for ``Regroup`` or ``Stop``."""

    network: NetworkSpec
    group: int  # of this rank alone
    fence: Fence | None = None  # as with ``Start``


class Pause(NamedTuple):
    """Finish the step, then wait; ignored if the epoch ends first, unless the run ends."""

    # whether the run does: then a network that is being judged will be judged when it goes on
    run_ends: bool


class Continue(NamedTuple):
    """Finish the epoch or, at its end, train another on this stream epoch."""

    stream_epoch: int
    batch: int | None = None  # of the epoch that begins, as with ``Start``


class Regroup(NamedTuple):
    """Continue in a group of these ranks; ranks that are not listed become free."""

    ranks: tuple[int, ...]
    # the first of these ranks are in the group already and have the network
    stay_count: int
    group: int
    stream_epoch: int
    # the epoch from which on the others read the stream; before it, they prepare their own rows
    reads_stream_from: int
    batch: int | None = None  # as with ``Continue``


class Stop(NamedTuple):
    """Stop training this network: it is finished, or other networks get its GPUs."""

    final: bool
    saves: bool = True  # otherwise it gives up what it has trained since its last checkpoint


class Exit(NamedTuple):
    """The run is over."""


class LeaveLaunch(NamedTuple):
    """End this rank while the run continues (preprocessors only in a fault-tolerant launch)."""


# ---- trainers to the coordinator ---------------------------------------------------------------


class Ready(NamedTuple):
    """A trainer waits for work."""

    rank: int


class Measured(NamedTuple):
    """The result of a rate measurement, or the reason why there is none."""

    network: str
    gpus: int
    rate: StepRate
    seconds: float
    reason: str
    may_pass: bool = False  # whether measuring again may help
    timed: tuple[
        StepTime, ...
    ] = ()  # the steps of all batches that fit, where there were several to measure
    parameters: int = 0  # of the network, as far as the engine can tell


class Joined(NamedTuple):
    """All ranks of a group have set their cursors, so their part of the stream is kept."""

    network: str


class Built(NamedTuple):
    """A group, or a rank that will join one, has built its network or failed to.

    Of a failure the group will hear when the rank joins it.
    """

    network: str
    rank: int
    parameters: int | None = (
        None  # how many the network has, trained or not, where the engine can tell
    )


class Pace(NamedTuple):
    """The progress of a group: after its first step, then about once a second."""

    network: str
    samples: int
    samples_per_s: float
    rate: StepRate = StepRate()  # of its steps, where that is news


class Warned(NamedTuple):
    """An engine that has built a network warns of it."""

    network: str
    warning: str


class FellBack(NamedTuple):
    """The newest checkpoint of a network is damaged, and an older one or none is used."""

    network: str
    damage: str
    history: tuple[EpochRecord, ...]  # what it goes on from
    position: int  # samples of the next epoch that it has consumed


class EpochDone(NamedTuple):
    """A group has finished an epoch and waits for what comes next."""

    network: str
    record: EpochRecord
    blocked_s: float  # what training waited for checkpoints in this epoch
    final: str  # why the network is done, or nothing
    missed: int = 0  # chunks of a ring; see :class:`fleet.stream.batch.Batch`
    rate: StepRate = StepRate()  # of the steps in which the group was as it is


class Paused(NamedTuple):
    """A group has paused inside this stream epoch, and waits for what comes next."""

    network: str
    stream_epoch: int


class Regrouped(NamedTuple):
    """A group goes on with other ranks."""

    network: str
    position: int  # samples of the epoch that it had consumed
    seconds: float  # for which it stood still


class Converged(NamedTuple):
    """Report a network that had converged when an earlier launch was killed."""

    network: str
    reason: str


class Stopped(NamedTuple):
    """A group has stopped; its checkpoint is written, its ranks are free."""

    network: str
    checkpoint_s: float  # that it took until the last checkpoint was on disk
    export_s: float = 0.0  # and then until the network was exported
    damage: str = ""  # why another epoch than the best is exported
    tested: EvaluationResult | None = None  # what the exported network came to on the test data
    test_s: float = 0.0  # and how long that took


class Failed(NamedTuple):
    """A network failed; its ranks are free."""

    network: str
    reason: str
    detail: str
    may_pass: bool  # whether trying again may help
    out_of_memory: bool = False  # so it may help to have a GPU alone


# ---- coordinator to preprocessors, and back ----------------------------------------------------


NO_LIMIT = 2**62


class Produce(NamedTuple):
    """How far the stream may be produced, and from which chunk groups may still join.

    ``limit``, ``hold`` and ``first`` are chunk numbers of the stream (see
    :mod:`fleet.stream.layout`); ``first`` is the stream's first chunk, the same in every message of
    a run, and ``turns`` the ranks that produce in turn, from chunk ``since`` on. In a ring, which
    turns as far as readers want it to, there is no limit and nothing to hold.
    """

    limit: int
    hold: int
    first: int
    turns: tuple[int, ...]
    since: int = 0


class ReleaseReaders(NamedTuple):
    """Release what is held for trainers that are alive but no longer read."""

    ranks: tuple[int, ...]


class Demand(NamedTuple):
    """The position of a node's readers, sent to the preprocessors of other nodes."""

    node: int
    sequence: int


class Throughput(NamedTuple):
    """How fast one preprocessor prepares samples, before the stream begins."""

    rank: int
    samples_per_s: float


class Prepared(NamedTuple):
    """The samples that a preprocessor has added lately, and the time it was busy."""

    rank: int
    samples: int
    busy_s: float  # without the time in which it waited for readers, or for what others do
    beside_s: float = 0.0  # in which it did something else, with samples to prepare


class SampleUnreadable(NamedTuple):
    """A sample that could not be read."""

    name: str
    reason: str
    training: bool


Message: TypeAlias = (
    Measure
    | Start
    | Join
    | Pause
    | Continue
    | Regroup
    | Stop
    | Exit
    | LeaveLaunch
    | Ready
    | Measured
    | Joined
    | Built
    | Pace
    | Warned
    | FellBack
    | EpochDone
    | Paused
    | Regrouped
    | Converged
    | Stopped
    | Failed
    | Produce
    | ReleaseReaders
    | Demand
    | Throughput
    | Prepared
    | SampleUnreadable
)
