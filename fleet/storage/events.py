"""What can happen in a run: one class for each kind of event.

The coordinator makes events, the event log stores them, and observers are shown them. ``word`` is the kind's name in
the log and the fields are its keys; :mod:`fleet.storage.lines` says how they are written. Seconds are those of the
clock, also in a rehearsal, where they are a fraction of the real run's. A device is the number of a trainer, counted
over all nodes. The epochs of a network are counted from 1, those of the stream from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias, get_args

from fleet.storage.lines import Flat, OmitDefault, Places, from_json
from fleet.storage.state import EpochRecord, Score

Tenths: TypeAlias = Annotated[float, Places(1)]
Milli: TypeAlias = Annotated[float, Places(3)]
Micro: TypeAlias = Annotated[float, Places(6)]


# ---- a launch ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleOptions:
    """The settings of the policies (:class:`scheduler.base.Options`); ``delta`` as text, such as 15%."""

    alpha: float
    delta: str
    peak_limited: bool
    seed: int


@dataclass(frozen=True)
class Started:
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
    """

    word: ClassVar[str] = "start"
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


@dataclass(frozen=True)
class Interrupted:
    """The launch is to end before its networks are done: all groups save where they are.

    Attributes:
        replay: whether this was a replay of one network, which starts over in the next launch.
    """

    word: ClassVar[str] = "interrupted"
    reason: str
    replay: bool = False


@dataclass(frozen=True)
class TooLate:
    """So little of the walltime is left that no group is started any more; written once.

    Attributes:
        networks: those that could have been started.
        left_s: seconds that are left of the walltime.
        needed_s: what the slowest group has taken from its start to its first step.
    """

    word: ClassVar[str] = "too_late"
    networks: tuple[str, ...]
    left_s: Milli
    needed_s: Milli


@dataclass(frozen=True)
class Ended:
    """The launch came to its end. This is its last event; a launch that breaks off has none.

    Attributes:
        status: how it ended (:class:`fleet.errors.ExitStatus`).
        seconds: since it began.
        rounds: how many there were (:class:`RoundStarted`).
        profiling_s, scheduling_s: seconds for which all waited for rates, and for the policy.
        checkpointing_s, regrouping_s: GPU-seconds for which training was blocked by them.
    """

    word: ClassVar[str] = "end"
    status: int
    seconds: Milli = 0.0
    rounds: int = 0
    profiling_s: Micro = 0.0
    scheduling_s: Micro = 0.0
    checkpointing_s: Micro = 0.0
    regrouping_s: Micro = 0.0


# ---- rates, plans, the stream ------------------------------------------------------------------


@dataclass(frozen=True)
class RatesGiven:
    """Rates were read from a file, so none are measured; follows :class:`Started`.

    Attributes:
        rates: network -> samples/s on 1, 2, ... GPUs.
    """

    word: ClassVar[str] = "rates"
    rates: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class RateMeasured:
    """A network's rate on a group of some size was measured, or could not be.

    Attributes:
        rate: samples/s of the whole group; 0 if it could not be measured.
        seconds: how long the measurement took.
        done, total: measurements so far, and in all.
        reason: why it could not be measured; empty if it was.
        spread: standard deviation of the durations of its steps, as a share of their mean.
        steps: that were timed.
    """

    word: ClassVar[str] = "measured"
    network: str
    gpus: int
    rate: Milli
    seconds: Milli
    done: int
    total: int
    reason: Annotated[str, OmitDefault] = ""
    spread: Annotated[float, Places(4), OmitDefault] = 0.0
    steps: Annotated[int, OmitDefault] = 0


@dataclass(frozen=True)
class RememberedRate:
    """A rate that an earlier launch has found out; see :class:`fleet.storage.rate_cache.KnownRate`.

    Attributes:
        age_s: how old it was, in seconds, when this launch began.
    """

    gpus: int
    rate: Milli
    spread: float
    age_s: float
    machine: str
    how: str


@dataclass(frozen=True)
class RatesRemembered:
    """Rates of earlier launches are used; follows :class:`Started`.

    Attributes:
        cache: the file that has them.
        rates: network -> what is known of it.
    """

    word: ClassVar[str] = "cached"
    cache: str
    rates: Mapping[str, tuple[RememberedRate, ...]]


@dataclass(frozen=True)
class RateOff:
    """A network trains at another rate than it was taken to, by more than a quarter.

    Attributes:
        expected, rate: samples/s of the whole group: by which it was decided, and of its training steps.
        spread: standard deviation of the durations of these steps, as a share of their mean.
        steps: that were timed.
        corrected: whether the cache of rates has it now; a rates file stays as it is.
    """

    word: ClassVar[str] = "rate_off"
    network: str
    gpus: int
    expected: Milli
    rate: Milli
    spread: Annotated[float, Places(4)]
    steps: int
    corrected: bool


@dataclass(frozen=True)
class Profiled:
    """All rates are known because they were measured, in this launch or an earlier one.

    Attributes:
        measurements: how many were made in this launch.
        seconds: how long they took in all.
        rates: network -> samples/s on 1, 2, ... GPUs.
    """

    word: ClassVar[str] = "profiled"
    measurements: int
    seconds: Milli
    rates: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class RateLearned:
    """Training has shown how fast a network is on a group of some size; again as more steps make it surer.

    Attributes:
        rate: samples/s of the whole group.
        spread: standard deviation of the durations of its steps, as a share of their mean.
        steps: that were timed.
    """

    word: ClassVar[str] = "learned"
    network: str
    gpus: int
    rate: Milli
    spread: Annotated[float, Places(4)]
    steps: int


@dataclass(frozen=True)
class RatesEstimated:
    """The rates by which the next plan was made, where they are learned in training: shown, remembered or guessed.

    Attributes:
        rates: network -> samples/s on 1, 2, ... GPUs.
        seen: how many networks training or an earlier run has shown; without any, rates only compare networks.
    """

    word: ClassVar[str] = "estimated"
    rates: Mapping[str, tuple[float, ...]]
    seen: int


@dataclass(frozen=True)
class RanksReady:
    """All trainers have loaded what they need, and wait for work; once in a launch."""

    word: ClassVar[str] = "ready"


@dataclass(frozen=True)
class FirstStep:
    """A network has been trained for a step; once in a launch."""

    word: ClassVar[str] = "first_step"
    network: str


@dataclass(frozen=True)
class StreamStarted:
    """The preprocessors begin to produce samples; once in a launch.

    Attributes:
        preprocessors: how many produce.
        of: how many there are.
        pace: ``shared`` if groups read the same epochs in step, ``own`` if each group goes at its own pace.
        kept: whether samples are decoded in the first epoch and kept from then on.
        supply_samples_per_s: how many samples/s those preprocessors produce together.
        demand_samples_per_s: how many samples/s the fastest network takes; 0 as long as nobody knows.
        bottleneck: ``input`` or ``training``; empty as long as nobody knows.
    """

    word: ClassVar[str] = "stream"
    preprocessors: int
    of: int
    policy: str
    pace: str
    kept: bool
    supply_samples_per_s: Tenths
    demand_samples_per_s: Tenths
    bottleneck: str


@dataclass(frozen=True)
class PlannedGroup:
    """A network in a plan, with how many devices it should have and which."""

    name: str
    gpus: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Planned:
    """The policy wants another assignment than before.

    Attributes:
        members: the networks that should train now; those that are not named should not.
        scheduling_s: seconds that the policy took since the previous plan; it is also asked when it wants no change.
    """

    word: ClassVar[str] = "plan"
    members: tuple[PlannedGroup, ...]
    scheduling_s: Micro


# ---- groups ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundStarted:
    """A round begins: groups start, and every other group is about to stop.

    Attributes:
        round: counted from 1 in each launch.
        members: the networks that start.
    """

    word: ClassVar[str] = "round"
    round: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class GroupStarted:
    """A group of devices was told to train a network.

    Attributes:
        devices: the master's first.
        stream_epoch: the first epoch of the stream that it may read, or of the network's own count if each has one.
    """

    word: ClassVar[str] = "group"
    network: str
    devices: tuple[int, ...]
    stream_epoch: int
    round: int


@dataclass(frozen=True)
class GroupChanged:
    """A group goes on with other devices.

    Attributes:
        before: the devices that it had.
        devices: the devices that it has now, the master's first.
        position: samples of the epoch that it had consumed.
        seconds: for which it stood still.
    """

    word: ClassVar[str] = "regroup"
    network: str
    before: tuple[int, ...]
    devices: tuple[int, ...]
    position: int
    seconds: Micro


@dataclass(frozen=True)
class EpochEnded:
    """A network has finished an epoch.

    The epochs that a killed launch had saved and not logged follow the next launch's start, and what a struck group
    had saved comes before its :class:`GroupStruck`.

    Attributes:
        record: the epoch in the network's history; its fields are keys of the event.
        blocked_s: seconds for which checkpoints kept training waiting.
        missed: chunks of a ring that were of use, that a node of the group held, and that another had let go; none
            where an epoch was logged later than it ended.
    """

    word: ClassVar[str] = "epoch"
    network: str
    record: Annotated[EpochRecord, Flat]
    blocked_s: Micro = 0.0
    missed: Annotated[int, OmitDefault] = 0


@dataclass(frozen=True)
class GroupStopped:
    """A group has stopped: its network is saved, its devices are free.

    Attributes:
        checkpoint_s: seconds until the last checkpoint was on disk.
        export_s: seconds that the export of a finished network took after that.
    """

    word: ClassVar[str] = "stopped"
    network: str
    checkpoint_s: Micro
    export_s: Micro = 0.0


@dataclass(frozen=True)
class Estimated:
    """How long the run will go on, by all that is known so far: a range.

    Attributes:
        low_s, high_s: seconds from now, if networks stop as early as their convergence rules allow, and if they train
            as many epochs as they may.
        networks: that are not done yet.
    """

    word: ClassVar[str] = "eta"
    low_s: Tenths
    high_s: Tenths
    networks: int


# ---- what becomes of networks ------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkFinished:
    """A network is done.

    Attributes:
        reason: why, such as ``9 epochs``.
        epochs: how many it has finished.
    """

    word: ClassVar[str] = "final"
    network: str
    reason: str
    epochs: int


@dataclass(frozen=True)
class NetworkTested:
    """A network that is done was judged on the test data, as it is exported.

    Attributes:
        loss, accuracy: means over the samples; null if none could be read.
        samples: that could be read.
        seconds: how long it took.
    """

    word: ClassVar[str] = "test"
    network: str
    loss: Score
    accuracy: Score
    samples: int
    seconds: Micro


@dataclass(frozen=True)
class NetworkRetried:
    """A network failed for a reason that may pass, and is tried again.

    Attributes:
        retry: the number of this retry, counted from 1.
        retries: how many there may be.
    """

    word: ClassVar[str] = "retry"
    network: str
    reason: str
    retry: int
    retries: int


@dataclass(frozen=True)
class NetworkFailed:
    """A network failed, and is not tried again in this launch.

    Attributes:
        detail: the traceback, if there is one.
    """

    word: ClassVar[str] = "failed"
    network: str
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class NetworkFellBack:
    """A network's newest checkpoint is damaged: it goes on from the one before, from the best one, or starts over.

    Attributes:
        damage: what is wrong with the checkpoint.
        epochs: how many are finished in the state from which it goes on.
        position: samples of the next epoch that are consumed in that state.
        finished: whether it stays finished: the checkpoint of its best epoch, and its table of epochs, are whole.
    """

    word: ClassVar[str] = "fell_back"
    network: str
    damage: str
    epochs: int
    position: int
    finished: Annotated[bool, OmitDefault] = False


@dataclass(frozen=True)
class ChangesAccepted:
    """The code of a network is not what it was, and training goes on from its checkpoint: somebody has said so.

    Attributes:
        files: that have changed; ``args`` and ``build`` stand for those of the spec.
        epochs: how many were finished before.
    """

    word: ClassVar[str] = "accepted"
    network: str
    files: tuple[str, ...]
    epochs: int


@dataclass(frozen=True)
class BestLost:
    """The checkpoint of a finished network's best epoch is damaged, so another epoch was exported."""

    word: ClassVar[str] = "best_lost"
    network: str
    damage: str


@dataclass(frozen=True)
class NetworkWarned:
    """What a network's description asks for is not done; written once, of the first network that it is said of."""

    word: ClassVar[str] = "warning"
    network: str
    warning: str


# ---- what is lost ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankLost:
    """A rank has died, and the others go on.

    Attributes:
        device: the device on which it trained; None if it was a preprocessor.
    """

    word: ClassVar[str] = "lost"
    rank: int
    device: int | None


@dataclass(frozen=True)
class GroupStruck:
    """A group that lost a rank has let go of its network, which goes back to its last checkpoint.

    Attributes:
        epochs: how many are finished in that checkpoint.
        position: samples of the next epoch that are consumed in it.
    """

    word: ClassVar[str] = "struck"
    network: str
    epochs: int
    position: int


@dataclass(frozen=True)
class BadSample:
    """A sample could not be read and is skipped; written once for each.

    Attributes:
        training: whether it belongs to the training set.
    """

    word: ClassVar[str] = "bad_sample"
    name: str
    reason: str
    training: bool


Event: TypeAlias = (
    Started | Interrupted | TooLate | Ended | RatesGiven | RatesRemembered | RateMeasured | RateOff | Profiled
    | RateLearned | RatesEstimated | RanksReady | FirstStep | StreamStarted | Planned | RoundStarted | GroupStarted
    | GroupChanged | EpochEnded | GroupStopped | NetworkFinished | NetworkTested | NetworkRetried | NetworkFailed
    | NetworkFellBack | ChangesAccepted | BestLost | NetworkWarned | RankLost | GroupStruck | BadSample | Estimated)

KINDS: Mapping[str, type] = {kind.word: kind for kind in get_args(Event)}


def event_from_json(record: Any) -> Event | None:
    """The event that a line tells of; None where it is of an unknown kind, or damaged."""
    event: Event | None = from_json(record, KINDS)
    return event
