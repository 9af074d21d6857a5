"""All messages between ranks, and the tag of each receiving role.

The coordinator gives orders; trainers and preprocessors answer. A message is a named tuple, sent
over MPI and never written to disk. An order to train a network carries the network's whole spec,
so trainers can train networks that were added during the run.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from fleet.domain.network import EpochRecord, EvaluationResult, StepRate
from fleet.spec import NetworkSpec
from fleet.storage.lease import NO_FENCE, Fence
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
    # batch sizes to measure if the policy chooses the batch; otherwise the network's own
    batches: tuple[int, ...] = ()


class Start(NamedTuple):
    """Train a network on a group of ranks, from its last checkpoint if it has one."""

    network: NetworkSpec
    ranks: tuple[int, ...]
    group: int
    stream_epoch: int
    fence: Fence = NO_FENCE  # of the network's lease, if networks have leases
    batch: int | None = None  # batch size of the epochs to start, if the policy chooses it


class Join(NamedTuple):
    """Build a network that another group trains, then wait for ``Regroup`` or ``Stop``."""

    network: NetworkSpec
    group: int  # number of the group of this rank alone
    fence: Fence = NO_FENCE  # as in ``Start``


class Pause(NamedTuple):
    """Finish the step, then wait; ignored if the epoch ends first, unless the run ends."""

    run_ends: bool  # then an evaluation in progress is repeated after the resume


class Continue(NamedTuple):
    """Finish the epoch or, at its end, train another on this stream epoch."""

    stream_epoch: int
    batch: int | None = None  # batch size of the epoch that starts, as in ``Start``


class Regroup(NamedTuple):
    """Continue in a group of these ranks; ranks that are not listed become free."""

    ranks: tuple[int, ...]
    stay_count: int  # number of leading ranks that are in the group already and have the network
    group: int
    stream_epoch: int
    # first epoch in which new ranks read the stream; until then they prepare their own rows
    reads_stream_from: int
    batch: int | None = None  # as in ``Continue``


class Stop(NamedTuple):
    """Stop training this network: it is finished, or other networks get its GPUs."""

    final: bool
    saves: bool = True  # otherwise training since the last checkpoint is lost


class Exit(NamedTuple):
    """The run is over."""


class LeaveLaunch(NamedTuple):
    """End this rank while the run continues (preprocessors only in a fault-tolerant launch)."""


class ForTrainer(NamedTuple):
    """A message to one of several trainers of a rank."""

    trainer: int
    message: Message


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
    # step times of all batch sizes that fit in memory, if several were measured
    timed: tuple[StepTime, ...] = ()
    parameters: int = 0  # of the network; 0 if the engine cannot count them


class Joined(NamedTuple):
    """All ranks of a group have set their cursors, which protect their part of the stream."""

    network: str


class Built(NamedTuple):
    """A group, or a rank that will join one, has built its network or failed to.

    The group learns of a failure when the rank joins it.
    """

    network: str
    rank: int
    # of the network, trainable or not; None if the engine cannot count them
    parameters: int | None = None


class Pace(NamedTuple):
    """The progress of a group: after its first step, then about once a second."""

    network: str
    samples: int
    samples_per_s: float
    rate: StepRate = StepRate()  # of its steps, if it has changed


class EnergyUsed(NamedTuple):
    """A rank has used energy for a network since it last reported; only where it is counted."""

    network: str
    joules: float


class Warned(NamedTuple):
    """An engine has built a network and warns about it."""

    network: str
    warning: str


class NotFused(NamedTuple):
    """A network cannot be trained as one program with equal ones."""

    network: str
    reason: str


class FellBack(NamedTuple):
    """The newest checkpoint of a network is damaged, and an older one or none is used."""

    network: str
    damage: str
    history: tuple[EpochRecord, ...]  # of the checkpoint that is used
    position: int  # samples consumed of the next epoch


class EpochDone(NamedTuple):
    """A group has finished an epoch and waits for its next order."""

    network: str
    record: EpochRecord
    blocked_s: float  # time for which training waited for checkpoints in this epoch
    final: str  # why the network is done; empty if it is not
    missed: int = 0  # chunks of a ring; see :class:`fleet.stream.batch.Batch`
    rate: StepRate = StepRate()  # of the steps since the group last changed


class Paused(NamedTuple):
    """A group has paused inside this stream epoch and waits for its next order."""

    network: str
    stream_epoch: int


class Regrouped(NamedTuple):
    """A group continues with other ranks."""

    network: str
    position: int  # samples of the epoch that were consumed before
    seconds: float  # for which it did not train


class Converged(NamedTuple):
    """Report a network that had converged when an earlier launch was killed."""

    network: str
    reason: str


class Stopped(NamedTuple):
    """A group has stopped; its checkpoint is written, its ranks are free."""

    network: str
    checkpoint_s: float  # time until the last checkpoint was on disk
    export_s: float = 0.0  # then until the network was exported
    damage: str = ""  # why another epoch than the best one is exported
    tested: EvaluationResult | None = None  # the exported network on the test data
    test_s: float = 0.0  # time of that evaluation


class Failed(NamedTuple):
    """A network failed; its ranks are free."""

    network: str
    reason: str
    detail: str
    may_pass: bool  # whether trying again may help
    out_of_memory: bool = False  # a GPU of its own may help


# ---- coordinator to preprocessors, and back ----------------------------------------------------


NO_LIMIT = 2**62


class Produce(NamedTuple):
    """Produce the stream up to a chunk; hold the chunks that groups may still need.

    ``limit``, ``hold`` and ``first`` are chunk numbers of the stream (see
    :mod:`fleet.stream.layout`); ``first`` is the stream's first chunk, the same in every message of
    a run, and ``turns`` the ranks that produce in turn, from chunk ``since`` on. A ring advances as
    far as readers need it to: it has no limit and holds nothing.
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
    """Report how fast one preprocessor prepares samples, before the stream begins."""

    rank: int
    samples_per_s: float


class Prepared(NamedTuple):
    """The samples that a preprocessor has prepared since its last report, and its busy time."""

    rank: int
    samples: int
    busy_s: float  # without waits for readers or other ranks
    beside_s: float = 0.0  # spent on other work while there were samples to prepare


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
    | ForTrainer
    | Ready
    | Measured
    | Joined
    | Built
    | Pace
    | EnergyUsed
    | Warned
    | NotFused
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
