"""The seam between a training loop and what computes: build, step, evaluate, state.

An engine builds *trainables*. A trainable is one network on one rank of its training group; all ranks
of the group call the same methods in the same order, and the engine exchanges gradients inside them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol, SupportsFloat, TypeAlias, runtime_checkable

import numpy as np

from fleet.comm.protocols import Group
from fleet.errors import CheckpointError, FleetError, NetworkWarning, UserError
from fleet.spec import NetworkSpec, Resources
from fleet.units import pluralize
from preprocess.sample import SampleSpec
from scheduler.base import RateTable

# What a checkpoint holds of a network: arrays by name.
Arrays = Mapping[str, np.ndarray]
Rows: TypeAlias = tuple[
    np.ndarray, ...
]  # a rank's images, targets and, where there are such, weights

_USABLE = 0.9  # of a GPU's memory, where trainers share it: each process has a context there, too


@dataclass(frozen=True)
class StepTotals:
    """Sums over samples, of one rank or of all ranks of a group.

    Between ranks they are six numbers and those of the metrics, in this order, and travel behind the gradients: one
    reduction for both.

    Attributes:
        loss: of the samples, each times its weight, summed, in nats.
        correct: how many of them are classified right; of several labels or pixels of a sample, the share of them.
        count: how many there are, without those that could not be read.
        stop: whether a rank asks the group to stop after this step.
        failed: whether a rank failed in this step.
        steps: how many the group is to take at once in the next call but one; the master says it, others bring 0.
        more: what the network's metrics are made of, which adds up as well.
    """

    loss: float = 0.0
    correct: float = 0.0
    count: float = 0.0
    stop: bool = False
    failed: bool = False
    steps: int = 0
    metric_totals: tuple[float, ...] = ()

    def pack(self) -> np.ndarray:
        """What a rank adds to the sums of the others: (6 + more,) float64."""
        return np.array(
            [
                self.loss,
                self.correct,
                self.count,
                self.stop,
                self.failed,
                self.steps,
                *self.metric_totals,
            ],
            np.float64,
        )

    @classmethod
    def unpack(cls, numbers: Iterable[SupportsFloat]) -> StepTotals:
        """What the ranks' (6 + more,) have added up to, in any type of floats."""
        loss, correct, count, stop, failed, steps, *more = map(float, numbers)
        return cls(loss, correct, count, stop > 0, failed > 0, int(steps), tuple(more))

    def __add__(self, other: StepTotals) -> StepTotals:
        more = tuple(
            map(sum, itertools.zip_longest(self.metric_totals, other.metric_totals, fillvalue=0.0))
        )
        return StepTotals(
            self.loss + other.loss,
            self.correct + other.correct,
            self.count + other.count,
            self.stop or other.stop,
            self.failed or other.failed,
            self.steps + other.steps,
            more,
        )

    @property
    def as_tuple(self) -> tuple[float, ...]:
        """Loss, correct, count and more: what :class:`fleet.domain.network.State` keeps of an epoch so far."""
        return self.loss, self.correct, self.count, *self.metric_totals

    @classmethod
    def from_tuple(cls, totals: Sequence[float]) -> StepTotals:
        """What :attr:`totals` gives."""
        loss, correct, count, *more = totals
        return cls(loss, correct, count, metric_totals=tuple(more))

    def raise_failure(self, error: BaseException | None) -> None:
        """Raise on all ranks when one has failed, after the sums of all have been added up.

        Args:
            error: this rank's own.

        Raises:
            PeerFailed: another rank failed, and this one did not.
        """
        if error is not None:
            raise error
        if self.failed:
            raise PeerFailed("another rank of the group failed in this step")


WIDTH = len(fields(StepTotals)) - 1  # of sums between ranks, without those of metrics


@dataclass(frozen=True)
class Slot:
    """A trainer's part of a GPU.

    Attributes:
        number: among the slots of the GPU; the first may take all memory that is free there.
        slots: of the GPU.
        tenants: says how many networks train on the GPU at this moment.
        memory_mib: of the GPU; None where nobody knows.
    """

    number: int = 0
    slots: int = 1
    count_active: Callable[[], int] = lambda: 1
    memory_mib: int | None = None

    @property
    def memory_limit(self) -> int | None:
        """MiB that its trainer may take; None for no limit.

        >>> [Slot(number, slots=2, memory_mib=81920).memory_limit for number in (0, 1)], Slot(1, slots=2).memory_limit
        ([None, 36864], None)
        """
        if self.number == 0 or self.memory_mib is None:
            return None
        return int(_USABLE * self.memory_mib / self.slots)


@dataclass(frozen=True)
class EngineContext:
    """What an engine may build on, on one trainer rank.

    Attributes:
        sample: what networks are fed with: shape, dtype, classes; ``sample.for_pipeline(network.pipeline, network.fold)`` where
            entries of a spec have ``data`` of their own, or folds differ.
        resources: of the spec.
        rates: of the networks, where they are known.
        index: the place of this trainer's GPU among those of its node.
        trainers: on this node; without GPUs they share its cores.
        deterministic: whether the same steps are to give the same numbers, bit for bit.
        slot: of the GPU.
        folder: of the run, where ranks can meet by files.
        transforms: what is done to the samples of each feed before, for notes on what networks take.
        pin: registers memory with the GPU's driver, for good; memory from which an engine copies to it again and again.
    """

    sample: SampleSpec
    resources: Resources
    rates: RateTable | None = None
    index: int = 0
    trainers: int = 1
    deterministic: bool = False
    slot: Slot = Slot()  # noqa: RUF009 - frozen
    folder: Path = Path()
    transforms: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    pin: Callable[[Any], object] = lambda memory: None


class PeerFailed(FleetError):
    """Another rank of the group failed in this step; its own reason comes from it."""


class PeersFailed(FleetError):
    """Other ranks of the group failed before they came to what all do together.

    Attributes:
        said: what each rank says of that, None where it has not failed.
    """

    def __init__(self, reports: Sequence[Any]) -> None:
        super().__init__("other ranks of the group failed")
        self.reports = reports


def check_peers(group: Group) -> None:
    """See that no rank of a group has failed, before all do something that needs every one of them.

    A rank that fails to build a network says so to the others, which are here then.

    Raises:
        PeersFailed: a rank has failed; all know of it.
    """
    reports = group.allgather(None)
    if any(report is not None for report in reports):
        raise PeersFailed(reports)


class Trainable(Protocol):
    """One network on one rank of its group."""

    def step(
        self,
        images: np.ndarray,
        targets: np.ndarray,
        size: int,
        stop: bool = False,
        weights: np.ndarray | None = None,
    ) -> StepTotals:
        """Train on one global batch, of which this rank has some rows, perhaps none.

        The loss is the sum of those of the samples of the global batch that could be read, each times its weight,
        divided by how many these are. Without weights, a label below 0 says that a sample could not be read; with them,
        a weight below 0.

        The arrays are valid only until this returns: they may lie in the stream's memory, which holds the samples of
        another step then. Copy what is needed later, also what a device still reads.

        Args:
            images: (rows, ...), the inputs as on the wire.
            targets: (rows, ...), as :class:`preprocess.target.TargetSpec` has them; of classes (rows,) int64.
            weights: (rows,) float32; not given for classes without weights.
            size: rows of the global batch, over all ranks.
            stop: whether this rank asks the group to stop after this step; it travels with the gradients, so
                that all ranks stop after the same one.

        Returns:
            The sums over the whole batch, the same on every rank.

        Raises:
            Exception: whatever the network raises; :class:`PeerFailed` on the ranks where it did not.
        """

    def evaluate(
        self, images: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
    ) -> StepTotals:
        """Sums over these samples, of this rank alone, without training."""

    def average_statistics(self) -> None:
        """Give all ranks the mean of what each gathered by itself (batch normalisation's statistics)."""

    def learning_rate(self) -> float:
        """The learning rate of the next step."""

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all that training needs to go on: weights, optimizer, random state."""

    def load(self, arrays: Arrays) -> None:
        """Take a state up again.

        Raises:
            CheckpointError: it belongs to another network.
        """

    def export(self, arrays: Arrays, path: Path) -> None:
        """Write the network with the weights of a state, for use without FLEET.

        The last thing that is done with a trainable: it may take up that state.
        """

    def regroup(self, group: Group) -> None:
        """Go on in another group of any size; collective over it, the network stays as it is on this rank.

        Only for networks whose batch and learning rate do not follow the number of ranks.
        """

    def close(self) -> None:
        """Give back what a group holds (Horovod)."""


@runtime_checkable
class SupportsRateScaling(Protocol):
    """What is asked of a trainable whose batch may change from epoch to epoch."""

    def scale_learning_rate(self, factor: float) -> None:
        """From now on, train with so many times the learning rate of the spec."""


@runtime_checkable
class SupportsPretrained(Protocol):
    """What is asked of a trainable that can begin with weights of a file."""

    def load_pretrained(self, file: Path, skip: Sequence[str]) -> None:
        """Take over the weights of a file, as ``train.start`` says it.

        Args:
            skip: patterns of names of weights that are left as they are.

        Raises:
            ModelError: the file is not there, or does not fit; a pattern meets nothing.
        """


@runtime_checkable
class SupportsMetrics(Protocol):
    """What is asked of a trainable that computes the metrics of its spec."""

    def scores(self, more: Sequence[float]) -> dict[str, float]:
        """What sums over samples (:attr:`Sums.metric_totals`) come to: a number for each of the spec's metrics, by its name."""


@runtime_checkable
class SupportsPrediction(Protocol):
    """What is asked of a trainable whose outputs are kept, so that finished networks can be compared and joined."""

    def predict(
        self, images: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[StepTotals, np.ndarray]:
        """What :meth:`Trainable.evaluate` gives, and the outputs of the network as it would be exported.

        Returns:
            The sums, and (rows, ...) float32: logits or values.
        """


@runtime_checkable
class SupportsMultiStep(Protocol):
    """What is asked of a trainable that takes several steps in one call, so that a short step costs little beside."""

    def can_stride(self) -> bool:
        """Whether it can now, in the group that it is in."""

    def stride(
        self,
        images: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        weights: np.ndarray | None = None,
    ) -> list[StepTotals]:
        """Train on several batches, as by a :meth:`Trainable.step` on each; of a rank that is its group alone.

        Args:
            images, targets, weights: of all of them, one behind the other.
            sizes: rows of each batch, at least one.

        Returns:
            The sums over each batch.

        Raises:
            Exception: whatever the network raises.
        """


class StepResult(NamedTuple):
    """What came of steps that were begun.

    Attributes:
        sums: over each batch, in order.
        at: when they were there, by ``time.perf_counter``; later where nobody knows.
    """

    sums: list[StepTotals]
    finished_at: float


@runtime_checkable
class SupportsAsyncSteps(Protocol):
    """What is asked of a trainable that computes while the next batch is made; then sums are read one call late."""

    def begin(
        self,
        images: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        stop: bool = False,
        weights: np.ndarray | None = None,
    ) -> Callable[[], StepResult]:
        """Begin a step, or as many as there are sizes, as :meth:`Trainable.step` and :meth:`SupportsMultiStep.stride` take them.

        What was begun before may be ended here, also what ranks of a group do together. The arrays are valid only until
        this returns.

        Returns:
            What waits for the sums. It is called once, before the next but one ``begin``, and before anything else is
            asked of the trainable.

        Raises:
            Exception: whatever the network raises, now or when it is waited for, in these steps or those before; on all
                ranks of the group, or on none.
        """


@runtime_checkable
class SupportsAsyncGroupSteps(Protocol):
    """What is asked of a trainable that is both, and of which all ranks of a group take several steps in one call."""

    def can_stride(self) -> bool:
        """Whether it can now, in the group that it is in; otherwise it is asked for a single step."""

    def begin_together(
        self,
        images: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        rows: Sequence[int],
        local_flags: StepTotals,
        weights: np.ndarray | None = None,
    ) -> Callable[[], StepResult]:
        """Begin a step, or as many as there are sizes, as :meth:`SupportsAsyncSteps.begin`; all ranks begin as many.

        Args:
            images, targets, weights: this rank's rows of all batches, one behind the other.
            sizes: rows of each global batch.
            rows: how many of them are this rank's, perhaps none.
            asked: what this rank adds to the sums over each batch, beside those over its rows.
        """


class ExportedEnsemble(Protocol):
    """Exported networks as one: what an engine makes of their files (:attr:`fleet.spec.engines.EngineInfo.join`)."""

    def predict(self, images: np.ndarray) -> np.ndarray:
        """The weighted mean of what the networks predict: probabilities, or values.

        Args:
            images: (n, ...), the inputs as on the wire.

        Returns:
            (n, classes) probabilities that add up to 1, (n, labels) one for each label, (n, values), or
            (n, height, width, classes).
        """

    def save(self, path: Path) -> None:
        """Write them as one network for use without FLEET, which gives what :meth:`predict` does."""


@runtime_checkable
class SupportsInspection(Protocol):
    """What ``fleet check`` and the results ask of a trainable that can tell it; ours can, one of a user's own may."""

    def count_parameters(self) -> int:
        """How many parameters the network has, trained or not."""

    def row_bytes(self) -> int | None:
        """Bytes that a training step holds for each row of a batch, beside weights; None where that is not known."""

    def try_export(self, folder: Path) -> str:
        """Export the network into an empty folder, load it as users would, and compare what the two give.

        Returns:
            What loading it takes beside the engine's library, in a line; empty where it takes nothing.

        Raises:
            ModelError: it cannot be exported, or is another network when it is loaded.
        """


@runtime_checkable
class SupportsLearningCheck(Protocol):
    """What ``fleet check`` asks of a trainable whose model and loss are the user's own."""

    def check_learns(self, images: np.ndarray, targets: np.ndarray) -> None:
        """See on a few samples that the network can learn: its outputs are numbers, and its loss depends on them.

        Raises:
            ModelError, SettingError: it cannot.
        """


class Engine(Protocol):
    """Builds trainables; one engine a trainer rank."""

    exchange_name: str

    def build(self, network: NetworkSpec, group: Group) -> Trainable:
        """Build a network for a group; its weights follow from the network's seed.

        Raises:
            Exception: whatever the model function raises.
        """


def pack_rows(images: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> Rows:
    """What a step is given, without weights where there are none."""
    if weights is None:
        return (images, targets)
    return (images, targets, weights)


def split_batches(rows: Rows, sizes: Sequence[int]) -> list[Rows]:
    """The rows of each of several batches, which lie one behind the other; of a single one all that there are."""
    ends = [0, *itertools.accumulate(sizes[:-1]), len(rows[1])]
    return [tuple(part[first:last] for part in rows) for first, last in itertools.pairwise(ends)]


def select_readable(rows: Rows) -> Rows:
    """Those that could be read; of the others the target, or the weight, is negative."""
    valid = rows[-1] >= 0
    if valid.all():
        return rows
    return tuple(part[valid] for part in rows)


def check_arrays(shapes: Mapping[str, Sequence[int]], arrays: Arrays) -> None:
    """See that arrays are those of a network.

    Args:
        own: its names and their shapes.

    Raises:
        CheckpointError: they are not.
    """
    wrong = [
        name
        for name, shape in shapes.items()
        if name not in arrays or arrays[name].shape != tuple(shape)
    ]
    if wrong or len(shapes) != len(arrays):
        raise CheckpointError(
            "a checkpoint of another network: it differs in "
            + ", ".join([*wrong, *(name for name in arrays if name not in shapes)][:5])
        )


def check_gpu_index(index: int, gpus: int) -> None:
    """See that there is a GPU for a trainer, where trainers do not share one.

    Raises:
        UserError: its node shows fewer.
    """
    if gpus > 1 and index >= gpus:
        raise UserError(
            f"this node shows {pluralize(gpus, 'GPU')}, and this rank is its trainer number {index + 1}: "
            "start fewer ranks on it, or set resources.gpus_per_node"
        )


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """A context in which a network is built; gives the list of what its engine warns of, in lines.

    Warnings of other kinds are shown as ever.
    """
    messages: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, NetworkWarning):
                messages.append(" ".join(str(message).split()))
            else:
                show(message, category, *place, **more)

        warnings.simplefilter("always", NetworkWarning)
        warnings.showwarning = note
        yield messages
