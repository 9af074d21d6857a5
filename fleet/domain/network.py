"""A network in training: its history, its state, and its convergence (pure)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from fleet.domain.json_record import NanAsNull, OmitDefault
from fleet.spec import Stopping
from fleet.units import format_duration
from launch.errors import pluralize

# file, relative to the folder where its module was found -> hash of its text
Code: TypeAlias = Mapping[str, str]
# NaN if nothing was evaluated, such as without validation data
Score: TypeAlias = Annotated[float, NanAsNull]


DATA = "data"  # stands for the data among changed files
SCORES = ("loss", "accuracy", "val_loss", "val_accuracy")  # of an epoch, whatever its metrics are


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch of a network: a row of its history.

    Attributes:
        epoch: counted from 1.
        stream_epoch: the epoch of the stream that was consumed; a replay trains on it again.
        samples: samples in the sums, without unreadable ones.
        seconds: time of training and validation.
        waited_s: part of ``seconds`` in which the master of the group waited for data.
        path: the chunks of the ring that were consumed (:func:`fleet.stream.order.format_path`);
            empty in strict order.
        accepted: the files of the network's code that changed while this was its newest epoch, or
            within it, and that ``--accept-changes`` accepted; separated by spaces. The word
            ``data`` is among them if the data changed.
        parent, parent_epoch: in the first epoch of a network that began with the weights of
            another:
            the name of that network, and the epoch of the weights.
        metrics: the metrics of the spec by name; those of validation begin with ``val_``.
        batch: the global batch; 0 in records of early versions.
        start: in the first epoch of a network that began with weights of a file: the beginning of
            the SHA-256 of the file.
        cut_at: samples consumed of the epoch if the time limit of the network ended it early.
    """

    epoch: int
    stream_epoch: int
    loss: Score
    accuracy: Score
    val_loss: Score
    val_accuracy: Score
    learning_rate: float
    samples: int
    gpus: int
    seconds: float
    waited_s: float
    path: str = ""
    accepted: Annotated[str, OmitDefault] = ""
    parent: Annotated[str, OmitDefault] = ""
    parent_epoch: Annotated[int, OmitDefault] = 0
    metrics: Annotated[dict[str, float | None], OmitDefault] = field(
        default_factory=dict, hash=False
    )
    batch: Annotated[int, OmitDefault] = 0
    start: Annotated[str, OmitDefault] = ""
    cut_at: Annotated[int, OmitDefault] = 0

    @property
    def precedes_other_data(self) -> bool:
        """Whether later epochs have other data, so that values cannot be compared with theirs."""
        return DATA in self.accepted.split()

    def value(self, name: str) -> float:
        """Return a loss, accuracy or metric by name; NaN if it is missing."""
        number = getattr(self, name) if name in SCORES else self.metrics.get(name)
        if number is None:
            return math.nan
        return float(number)


def best_accuracy(history: Iterable[EpochRecord]) -> float:
    """Return the best accuracy on training or validation samples; NaN without any."""
    accuracies = [value for record in history for value in (record.accuracy, record.val_accuracy)]
    return max((value for value in accuracies if math.isfinite(value)), default=math.nan)


@dataclass(frozen=True)
class TrainingState:
    """A network in the middle of its training.

    Attributes:
        arrays: weights, optimizer and random state, by name.
        identity: hash of architecture and training settings; checkpoints of others are refused.
        history: the finished epochs.
        stream_epoch: the current epoch of the stream, if ``position`` is above 0.
        position: samples consumed in that epoch.
        path: the chunks of the ring consumed in that epoch; empty in strict order.
        sums: sums of that epoch so far, over readable samples: losses in nats, correctly classified
            samples, number of samples; then the sums of the metrics.
        seconds, waited_s: of that epoch so far, as in its record.
        final: the reason why training has finished, or empty.
        architecture: description (:attr:`fleet.spec.model.Architecture.key`); empty in 0.1.0.
        code: the files of the ``build:`` function; None in checkpoints of 0.1.0.
        generation: generation of the lease under which the checkpoint was written; 0 without a
            lease.
        accepted: changes accepted before an epoch had finished, as in the next record.
        batch: the global batch of the current epoch, as in the next record.
        start: as in the first record, until there is one.
    """

    arrays: Mapping[str, np.ndarray] = field(repr=False)
    identity: str
    history: tuple[EpochRecord, ...] = ()
    stream_epoch: int = -1
    position: int = 0
    path: tuple[int, ...] = ()
    sums: tuple[float, ...] = (0.0, 0.0, 0.0)
    seconds: float = 0.0
    waited_s: float = 0.0
    final: str = ""
    architecture: str = ""
    code: Code | None = None
    generation: int = 0
    accepted: str = ""
    batch: int = 0
    start: str = ""

    def next_epoch(self, record: EpochRecord, final: str) -> TrainingState:
        """Return the state between an epoch that has just ended and the next one, without arrays.

        Args:
            record: the epoch that has ended.
            final: the reason why training has finished, or empty.
        """
        return TrainingState(
            {},
            self.identity,
            (*self.history, record),
            final=final,
            architecture=self.architecture,
            code=self.code,
        )

    def with_accepted_changes(self, files: str) -> TrainingState:
        """Return the state with a note that changes of these files were accepted here."""
        if not self.history:
            return replace(self, accepted=" ".join(filter(None, [self.accepted, files])))
        newest = self.history[-1]
        accepted = " ".join(filter(None, [newest.accepted, files]))
        return replace(self, history=(*self.history[:-1], replace(newest, accepted=accepted)))

    def at_epoch_start(self) -> TrainingState:
        """Return the same weights at the beginning of an epoch.

        After a change of the data, the samples consumed in the current epoch are unknown.
        """
        return replace(
            self,
            stream_epoch=-1,
            position=0,
            path=(),
            sums=(0.0, 0.0, 0.0),
            seconds=0.0,
            waited_s=0.0,
            batch=0,
        )

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return len(self.history)

    @property
    def size(self) -> int:
        """The size of the arrays in bytes."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class Outcome:
    """How training of a network ended.

    Attributes:
        reason: why it finished or failed.
        is_failure: whether it failed.
        may_pass: whether the failure is transient, so that the next launch tries again.
        is_pruned: whether it was stopped before it had finished.
        deaths: the number of ranks that died while they trained it, if it failed because of them.
        is_skipped: whether launches skip it (``fleet skip``); then ``is_pruned`` is set as well.
    """

    reason: str
    is_failure: bool = False
    may_pass: bool = False
    is_pruned: bool = False
    deaths: int = 0
    is_skipped: bool = False


@dataclass(frozen=True)
class Death:
    """A rank died, or stopped answering, while it trained a network.

    Attributes:
        how: a description, such as ``rank 3 on node07 died``.
        epochs: epochs that the network had finished by then.
        is_sure: whether the network is to blame; otherwise it is only trained last.
    """

    how: str
    epochs: int
    is_sure: bool = True


def death_failure_reason(deaths: Collection[Death], max_deaths: int) -> str:
    """Return why deaths of ranks have failed a network; empty for fewer than ``max_deaths``.

    >>> death_failure_reason([Death("rank 1 died", 0), Death("rank 2 died", 0)], max_deaths=2)
    'ranks were lost while they trained it, 2 times (max_deaths: 2): rank 1 died; rank 2 died'
    """
    sure = [death.how for death in deaths if death.is_sure]
    if len(sure) < max_deaths:
        return ""
    times = pluralize(len(sure), "time")
    reasons = "; ".join(sure)
    return f"ranks were lost while they trained it, {times} (max_deaths: {max_deaths}): {reasons}"


@dataclass(frozen=True)
class EvaluationResult:
    """The result of a finished network on the test data, as it is exported.

    Attributes:
        loss, accuracy: means over the samples; NaN if no sample could be read.
        samples: samples that could be read.
        metrics: the metrics of the spec by name.
    """

    loss: Score
    accuracy: Score
    samples: int
    metrics: Annotated[dict[str, float | None], OmitDefault] = field(
        default_factory=dict, hash=False
    )


@dataclass(frozen=True)
class NetworkStatus:
    """How far a network of a run has trained.

    Attributes:
        history: the finished epochs.
        outcome: None while there is something left to train.
        tested: None until it has finished, and without test data.
        is_paused: whether it gets no devices until it is resumed.
    """

    history: tuple[EpochRecord, ...] = ()
    outcome: Outcome | None = None
    tested: EvaluationResult | None = None
    is_paused: bool = False

    @classmethod
    def pruned(cls, history: tuple[EpochRecord, ...]) -> NetworkStatus:
        """Return the status of a network that was pruned after these epochs."""
        return cls(
            history, Outcome(f"pruned after {pluralize(len(history), 'epoch')}", is_pruned=True)
        )

    @property
    def is_skipped(self) -> bool:
        """Whether launches skip it."""
        return self.outcome is not None and self.outcome.is_skipped

    @property
    def is_pruned(self) -> bool:
        """Whether it was stopped before it had finished."""
        return self.outcome is not None and self.outcome.is_pruned

    @property
    def is_final(self) -> bool:
        """Whether it has ended and is exported when its group stops; pruned networks are not."""
        return self.outcome is not None and not self.outcome.is_pruned

    @property
    def is_finished(self) -> bool:
        """Whether it has trained to its end: it has neither failed nor been pruned."""
        return self.outcome is not None and not (self.outcome.is_failure or self.outcome.is_pruned)

    def with_history(self, history: tuple[EpochRecord, ...]) -> NetworkStatus:
        """Return the same status with other epochs."""
        if self.is_pruned and not self.is_skipped:
            return NetworkStatus.pruned(history)
        return replace(self, history=history)

    def merged_with_log(self, before: NetworkStatus) -> NetworkStatus:
        """Merge this checkpoint status with the paused and pruned flags of the log.

        Checkpoints do not store these flags.
        """
        return replace(
            self.with_logged_pruning(before), is_paused=before.is_paused and self.outcome is None
        )

    def with_logged_pruning(self, before: NetworkStatus) -> NetworkStatus:
        """Return the pruned status if the log says so and the network has not finished since.

        No log says that launches skip a network.
        """
        if before.is_pruned and not before.is_skipped and not self.is_finished:
            return NetworkStatus.pruned(self.history)
        return self


@dataclass(frozen=True)
class StepRate:
    """The rate of the training steps of a group.

    Attributes:
        rate: samples/s of the whole group; 0 if unknown.
        spread: standard deviation of the step durations, as a share of their mean.
        steps: number of timed steps.
        networks_per_gpu: networks on the master's GPU during all of them, with this one.
    """

    rate: float = 0.0
    spread: float = 0.0
    steps: int = 0
    networks_per_gpu: int = 1


@dataclass(frozen=True)
class Convergence:
    """The state of convergence that follows from a history.

    Attributes:
        best_epoch: counted from 1; 0 if there is none. Ties go to the epoch of lowest loss.
        best: the monitored value of that epoch.
        reason: why training has finished, or empty.
        improved_epoch: the last epoch that was better by more than ``min_delta``: patience counts
            from it.
    """

    best_epoch: int
    best: float
    reason: str
    improved_epoch: int = 0


class BestEpoch(NamedTuple):
    """The best epoch so far: what is exported, ranked, and reported to searchers and pruners.

    Attributes:
        record: the epoch; None before there is one.
        score: its monitored value, signed so that more is better.
        improved_epoch: the last epoch that was better by more than ``min_delta``.
        newest: the last epoch.
    """

    record: EpochRecord | None = None
    score: float = math.nan
    improved_epoch: int = 0
    newest: EpochRecord | None = None

    def with_epoch(self, record: EpochRecord, stopping: Stopping) -> BestEpoch:
        """Return the best epoch after one more has ended; values of other data are not compared."""
        best = self
        score = stopping.sign * record.value(stopping.metric)
        if self.newest is not None and self.newest.precedes_other_data:
            best = BestEpoch(improved_epoch=self.newest.epoch)
        # The first epoch is the best so far; NaN is replaced by any number.
        if (
            best.record is None
            or score > best.score + stopping.min_delta
            or (math.isnan(best.score) and not math.isnan(score))
        ):
            return BestEpoch(record, score, record.epoch, record)
        if score == best.score and tie_break_loss(record) < tie_break_loss(best.record):
            # better, but the monitored value did not improve: patience keeps counting
            return BestEpoch(record, score, best.improved_epoch, record)
        return best._replace(newest=record)


def best_of(history: Iterable[EpochRecord], stopping: Stopping) -> BestEpoch:
    """Return the best of finished epochs."""
    best = BestEpoch()
    for record in history:
        best = best.with_epoch(record, stopping)
    return best


def check_convergence(history: Sequence[EpochRecord], stopping: Stopping) -> Convergence:
    """Return the state of convergence of a history.

    Early stopping has no state of its own: a resumed network stops where it would have stopped.
    After an epoch of changed data, earlier epochs no longer count as the best, and patience
    restarts.

    Args:
        history: the finished epochs.
        stopping: when to stop.
    """
    sign = stopping.sign
    record, best, improved, _ = best_of(history, stopping)
    best_epoch = 0 if record is None else record.epoch
    reason = ""
    if stopping.stop_at is not None and best_epoch and best >= sign * stopping.stop_at:
        reason = f"{stopping.metric} reached {sign * best:.4g}"
    elif stopping.patience is not None and len(history) - improved >= stopping.patience:
        reason = f"no better {stopping.metric} for {pluralize(stopping.patience, 'epoch')}"
    elif stopping.max_time is not None and training_time(history) >= stopping.max_time:
        reason = f"max_time: {format_duration(stopping.max_time)}"
    elif len(history) >= stopping.max_epochs:
        reason = pluralize(stopping.max_epochs, "epoch")
    return Convergence(best_epoch, sign * best if best_epoch else math.nan, reason, improved)


def training_time(history: Iterable[EpochRecord]) -> float:
    """Return the seconds of training and validation of some epochs."""
    return math.fsum(record.seconds for record in history)


def finished_reason(history: Sequence[EpochRecord], final: str, stopping: Stopping) -> str:
    """Return why a network has finished under its current stopping rule; empty if it has not.

    A finished network keeps its reason unless the rule lets it continue: fewer epochs or less
    patience are not why it ended.

    Args:
        history: the finished epochs.
        final: why it had finished when they were trained, or empty.
        stopping: when to stop now.
    """
    reason = check_convergence(history, stopping).reason
    if reason:
        return final or reason
    return ""


# A larger loss has no square in float32: norms of gradients and moments of optimizers overflow.
LARGEST_LOSS = 1e19
# growth of the loss over that of the first epoch, or over 1, from which no training recovers
_GROWTH = 1e6


def has_diverged(loss: float) -> bool:
    """Return True if the loss has diverged; NaN counts as unknown and returns False.

    >>> has_diverged(1e28), has_diverged(3.46), has_diverged(math.nan)
    (True, False, False)
    """
    return abs(loss) > LARGEST_LOSS


def check_divergence(history: Sequence[EpochRecord], is_judged: bool) -> str:
    """Return how the newest epoch shows divergence; empty if it does not.

    Args:
        history: the finished epochs, at least one.
        is_judged: whether there were validation samples, so that their loss must be finite.
    """
    record = history[-1]
    first = history[0].loss
    if abs(record.loss) > min(LARGEST_LOSS, _GROWTH * max(abs(first), 1.0)):
        return (
            f"diverged: the loss became {record.loss:.4g} in epoch {record.epoch}, "
            f"after {first:.4g} in the first"
        )
    if is_judged and not abs(record.val_loss) <= LARGEST_LOSS:
        return f"diverged: the validation loss became {record.val_loss:.4g} in epoch {record.epoch}"
    return ""


def remaining_epochs(history: Sequence[EpochRecord], stopping: Stopping) -> tuple[int, int]:
    """Return the fewest and the most epochs that a network may still train.

    With a time limit, later epochs are assumed to take as long as the mean of the earlier ones.

    Args:
        history: the finished epochs.
        stopping: when to stop.
    """
    verdict = check_convergence(history, stopping)
    done = len(history)
    if verdict.reason:
        return 0, 0
    maximum = stopping.max_epochs - done
    if stopping.max_time is not None and history:
        seconds = training_time(history)
        mean = seconds / done
        maximum = min(maximum, max(1, math.ceil((stopping.max_time - seconds) / max(mean, 1e-9))))
    minimum = maximum
    if stopping.patience is not None:  # the first epoch improves on nothing
        minimum = min(minimum, max(verdict.improved_epoch, 1) + stopping.patience - done)
    if stopping.stop_at is not None:
        minimum = 1
    return minimum, maximum


def stream_epochs(history: Sequence[EpochRecord]) -> list[int]:
    """Return the stream epochs that were consumed, which identify a history of a network."""
    return [record.stream_epoch for record in history]


def tie_break_loss(record: EpochRecord) -> float:
    """Return the loss that breaks ties: of validation, or else of training; infinite for NaN."""
    has_accuracy = not math.isnan(record.accuracy)  # values have none, of training or of validation
    is_validated = not math.isnan(record.val_accuracy if has_accuracy else record.val_loss)
    if is_validated or not math.isnan(record.val_accuracy):
        loss = record.val_loss
    else:
        loss = record.loss
    if math.isnan(loss):
        return math.inf
    return loss
