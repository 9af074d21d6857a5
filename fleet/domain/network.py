"""What is known of a network in training: its history, its state, and what its convergence rule says of them (pure)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from fleet.domain.json_record import MayBeNan, OmitDefault
from fleet.spec import Stopping
from fleet.units import pluralize

Code: TypeAlias = Mapping[
    str, str
]  # file, relative to the folder where its module was found -> hash of its text
Score: TypeAlias = Annotated[
    float, MayBeNan
]  # NaN where nothing was judged, such as without validation data


DATA = "data"  # among the files that were changed: what the data is known by
SCORES = ("loss", "accuracy", "val_loss", "val_accuracy")  # of an epoch, whatever its metrics are


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch of a network: a row of its history.

    Attributes:
        epoch: counted from 1.
        stream_epoch: the epoch of the stream that was consumed; with it the epoch can be trained again.
        samples: that counted; the others could not be read.
        seconds: of training and validation.
        waited_s: of them, what the group's master waited for data.
        path: the chunks of the ring that were consumed (:func:`fleet.stream.order.format_path`); empty in strict order.
        accepted: the files of the network's code that were changed while this was its newest epoch, or within it, where
            somebody has said that training is to go on all the same (``--accept-changes``); separated by spaces. The
            word ``data`` stands among them where the data was changed.
        parent, parent_epoch: of the first epoch of a network that began with the weights of another: of which, and
            after which of its epochs.
        metrics: those that its spec asks for, by name, and with ``val_`` of validation.
        batch: the global batch; 0 in records of earlier versions.
        start: of the first epoch of a network that began with weights of a file: the beginning of its SHA-256.
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

    @property
    def precedes_other_data(self) -> bool:
        """Whether epochs after this one are of other data, so that their values cannot be compared."""
        return DATA in self.accepted.split()

    def value(self, name: str) -> float:
        """One of its losses, accuracies or metrics; NaN where there is no such."""
        found = getattr(self, name) if name in SCORES else self.metrics.get(name)
        if found is None:
            return math.nan
        return float(found)


@dataclass(frozen=True)
class State:
    """A network in the middle of its training.

    Attributes:
        arrays: weights, optimizer and random state, by name.
        identity: of the architecture and the training settings; a checkpoint of another network is refused.
        history: its finished epochs.
        stream_epoch: the epoch of the stream that it is in the middle of, where ``position`` is above 0.
        position: samples of that epoch that it has consumed.
        path: the chunks of the ring that it consumes in that epoch; empty in strict order.
        sums: of that epoch so far, over the samples that could be read: their losses in nats, how many were classified
            right, how many they are; then those that its metrics are made of.
        seconds, waited_s: of that epoch so far, as in its record.
        final: why it is done, or nothing.
        architecture: its own description (:attr:`fleet.spec.model.Architecture.key`); empty in checkpoints of 0.1.0.
        code: the files of its ``build:`` function; None in checkpoints of 0.1.0.
        generation: of the lease under which the checkpoint was written; 0 without one.
        accepted: as in its next record, of changes that were accepted before it had finished an epoch.
        batch: as in its next record, of the epoch that it is in the middle of.
        start: as in its first record, until it has one.
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

    def after(self, record: EpochRecord, final: str) -> State:
        """The state between an epoch that has just ended and the next one, without arrays.

        Args:
            final: why it is done, or nothing.
        """
        return State(
            {},
            self.identity,
            (*self.history, record),
            final=final,
            architecture=self.architecture,
            code=self.code,
        )

    def accepting(self, files: str) -> State:
        """The same network, with a word on the changes of its code that were accepted here."""
        if not self.history:
            return replace(self, accepted=" ".join(filter(None, [self.accepted, files])))
        newest = self.history[-1]
        said = " ".join(filter(None, [newest.accepted, files]))
        return replace(self, history=(*self.history[:-1], replace(newest, accepted=said)))

    def with_other_data(self) -> State:
        """The same weights at the beginning of an epoch: of the one that was under way, nobody knows what was seen."""
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
        """How many epochs are finished."""
        return len(self.history)

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class Outcome:
    """How it ended with a network.

    Attributes:
        reason: why it is done, or why it failed.
        is_failure: whether it failed.
        may_pass: whether what made it fail may pass, so that the next launch tries it again.
        is_pruned: whether it was dropped before it was done.
        deaths: how many ranks died while they trained it, where that made it fail.
        is_skipped: whether launches leave it out (``fleet skip``); then ``is_pruned`` is set as well.
    """

    reason: str
    is_failure: bool = False
    may_pass: bool = False
    is_pruned: bool = False
    deaths: int = 0
    is_skipped: bool = False


@dataclass(frozen=True)
class Death:
    """A rank died, or did not come back, while it trained a network.

    Attributes:
        how: in words, such as ``rank 3 on node07 died``.
        epochs: that the network had finished by then.
        is_sure: whether the network is to blame; otherwise it is trained last, and does not fail for it.
    """

    how: str
    epochs: int
    is_sure: bool = True


def reason_of_deaths(deaths: Collection[Death], most: int) -> str:
    """Why a network has failed; nothing where fewer ranks died than make it a failed one.

    >>> reason_of_deaths([Death("rank 1 on a died", 0), Death("rank 2 on a died", 0)], most=2)
    'ranks were lost while they trained it, 2 times (max_deaths: 2): rank 1 on a died; rank 2 on a died'
    """
    sure = [death.how for death in deaths if death.is_sure]
    if len(sure) < most:
        return ""
    times = pluralize(len(sure), "time")
    return f"ranks were lost while they trained it, {times} (max_deaths: {most}): {'; '.join(sure)}"


@dataclass(frozen=True)
class TestResult:
    """What a finished network, as it is exported, came to on the test data.

    Attributes:
        loss, accuracy: means over the samples; NaN where none could be read.
        samples: that could be read.
        metrics: those that its spec asks for, by name.
    """

    loss: Score
    accuracy: Score
    samples: int
    metrics: dict[str, float | None] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class NetworkStatus:
    """How far a network of a run is.

    Attributes:
        history: its finished epochs.
        outcome: None while there is something left to train.
        tested: None until it is done, and without test data.
        is_paused: whether it is given no devices until it is let go on.
    """

    history: tuple[EpochRecord, ...] = ()
    outcome: Outcome | None = None
    tested: TestResult | None = None
    is_paused: bool = False

    @classmethod
    def pruned(cls, history: tuple[EpochRecord, ...]) -> NetworkStatus:
        """That of a network that was dropped before it was done."""
        return cls(
            history, Outcome(f"pruned after {pluralize(len(history), 'epoch')}", is_pruned=True)
        )

    @property
    def is_skipped(self) -> bool:
        """Whether launches leave it out."""
        return self.outcome is not None and self.outcome.is_skipped

    @property
    def is_pruned(self) -> bool:
        """Whether it was dropped before it was done."""
        return self.outcome is not None and self.outcome.is_pruned

    @property
    def is_final(self) -> bool:
        """Whether it is over, and is exported when its group lets go: nobody wants one that was pruned."""
        return self.outcome is not None and not self.outcome.is_pruned

    @property
    def is_finished(self) -> bool:
        """Whether it has trained to its end: it has neither failed nor was it dropped before."""
        return self.outcome is not None and not (self.outcome.is_failure or self.outcome.is_pruned)

    def with_history(self, history: tuple[EpochRecord, ...]) -> NetworkStatus:
        """The same after other epochs."""
        if self.is_pruned:
            return NetworkStatus.pruned(history)
        return replace(self, history=history)

    def found_after(self, before: NetworkStatus) -> NetworkStatus:
        """This, of a checkpoint, with what no checkpoint knows and was so before: that it is paused, or was pruned."""
        return replace(
            self.pruned_after(before), is_paused=before.is_paused and self.outcome is None
        )

    def pruned_after(self, before: NetworkStatus) -> NetworkStatus:
        """This, of a checkpoint, or that it was pruned, if it was so before and has not finished all the same."""
        if before.is_pruned and not self.is_finished:
            return NetworkStatus.pruned(self.history)
        return self


@dataclass(frozen=True)
class StepRate:
    """How fast the training steps of a group are, by themselves.

    Attributes:
        rate: samples/s of the whole group; 0 where nobody can tell.
        spread: standard deviation of the durations of steps, as a share of their mean.
        steps: that were timed.
        beside: how many networks, this one among them, were on the master's GPU in all of them.
    """

    rate: float = 0.0
    spread: float = 0.0
    steps: int = 0
    beside: int = 1


@dataclass(frozen=True)
class Convergence:
    """What a network's history says of its convergence.

    Attributes:
        best_epoch: counted from 1; 0 when there is none. Of epochs with equal values it is the one of least loss.
        best: the monitored value of that epoch.
        reason: why training is over, or nothing.
        improved_epoch: the last one that was better by more than ``min_delta``: patience counts from there.
    """

    best_epoch: int
    best: float
    reason: str
    improved_epoch: int = 0


class Best(NamedTuple):
    """The best of the epochs so far, by which networks are exported, ranked, judged and told of.

    Attributes:
        record: of that epoch; None before there is one.
        score: what is monitored of it, so that more is better.
        improved_epoch: the last one that was better by more than ``min_delta``.
        newest: the last epoch of all.
    """

    record: EpochRecord | None = None
    score: float = math.nan
    improved_epoch: int = 0
    newest: EpochRecord | None = None

    def after(self, record: EpochRecord, converge: Stopping) -> Best:
        """Return the best when one more epoch has ended; values of other data cannot be compared."""
        best = self
        score = converge.sign * record.value(converge.metric)
        if self.newest is not None and self.newest.precedes_other_data:
            best = Best(improved_epoch=self.newest.epoch)
        # The first epoch is the best so far whatever it is; one that is no number gives way to any that is.
        if (
            best.record is None
            or score > best.score + converge.min_delta
            or (math.isnan(best.score) and not math.isnan(score))
        ):
            return Best(record, score, record.epoch, record)
        if score == best.score and judged_loss(record) < judged_loss(best.record):
            # better, but no improvement of what is monitored: patience does not wait
            return Best(record, score, best.improved_epoch, record)
        return best._replace(newest=record)


def best_of(history: Iterable[EpochRecord], converge: Stopping) -> Best:
    """Return the best of finished epochs."""
    best = Best()
    for record in history:
        best = best.after(record, converge)
    return best


def convergence(history: Sequence[EpochRecord], converge: Stopping) -> Convergence:
    """Judge a history. Early stopping has no state of its own: a resumed network stops where it would have.

    Values of other data cannot be compared: once an epoch of changed data is over, those before count no more for which
    is the best, and patience begins anew.

    Args:
        history: the finished epochs.
        converge: when to stop.
    """
    sign = converge.sign
    record, best, improved, _ = best_of(history, converge)
    best_epoch = 0 if record is None else record.epoch
    reason = ""
    if converge.stop_at is not None and best_epoch and best >= sign * converge.stop_at:
        reason = f"{converge.metric} reached {sign * best:.4g}"
    elif converge.patience is not None and len(history) - improved >= converge.patience:
        reason = f"no better {converge.metric} for {pluralize(converge.patience, 'epoch')}"
    elif len(history) >= converge.max_epochs:
        reason = pluralize(converge.max_epochs, "epoch")
    return Convergence(best_epoch, sign * best if best_epoch else math.nan, reason, improved)


def reason_now(history: Sequence[EpochRecord], final: str, converge: Stopping) -> str:
    """Why a network is done, now that its rule is this one; nothing if it is not.

    A network that was done for some reason keeps it, as long as its rule does not let it go on: fewer epochs or less
    patience are not why it ended.

    Args:
        history: the finished epochs.
        final: why it was done when they were trained, or nothing.
        converge: when to stop.
    """
    reason = convergence(history, converge).reason
    if reason:
        return final or reason
    return ""


# A loss beyond it has no square in float32: neither norms of gradients nor what optimizers keep can be computed.
LARGEST_LOSS = 1e19
_GROWTH = 1e6  # of the loss of an epoch over that of the first one, or over 1: no training comes back from there


def has_diverged(loss: float) -> bool:
    """Whether a loss is so large, or infinite, that a network is lost; one that is not known is no such.

    >>> has_diverged(1e28), has_diverged(3.46), has_diverged(math.nan)
    (True, False, False)
    """
    return abs(loss) > LARGEST_LOSS


def divergence(history: Sequence[EpochRecord], is_judged: bool) -> str:
    """What shows that a network has diverged in its newest epoch; nothing where it has not.

    Args:
        history: the finished epochs, at least one.
        is_judged: whether there were validation samples: then their loss should be a number.
    """
    record = history[-1]
    first = history[0].loss
    if abs(record.loss) > min(LARGEST_LOSS, _GROWTH * max(abs(first), 1.0)):
        return f"diverged: the loss became {record.loss:.4g} in epoch {record.epoch}, after {first:.4g} in the first"
    if is_judged and not abs(record.val_loss) <= LARGEST_LOSS:
        return (
            f"diverged: the loss of validation became {record.val_loss:.4g} in epoch {record.epoch}"
        )
    return ""


def epochs_left(history: Sequence[EpochRecord], converge: Stopping) -> tuple[int, int]:
    """The fewest and the most epochs that a network may still train by its rule, as far as its history says.

    Args:
        history: the finished epochs.
        converge: when to stop.
    """
    verdict = convergence(history, converge)
    done = len(history)
    if verdict.reason:
        return 0, 0
    most = converge.max_epochs - done
    fewest = most
    if converge.patience is not None:  # the first epoch improves on nothing
        fewest = min(fewest, max(verdict.improved_epoch, 1) + converge.patience - done)
    if converge.stop_at is not None:
        fewest = 1
    return fewest, most


def stream_epochs(history: Sequence[EpochRecord]) -> list[int]:
    """What tells a history from others of its network: the epochs of the stream that were consumed."""
    return [record.stream_epoch for record in history]


def judged_loss(record: EpochRecord) -> float:
    """The loss that breaks a tie: of validation, or of training without it; infinite where it is no number."""
    has_accuracy = not math.isnan(record.accuracy)  # values have none, of training or of validation
    is_validated = not math.isnan(record.val_accuracy if has_accuracy else record.val_loss)
    if is_validated or not math.isnan(record.val_accuracy):
        loss = record.val_loss
    else:
        loss = record.loss
    if math.isnan(loss):
        return math.inf
    return loss
