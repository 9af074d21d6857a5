"""Define the interface between the training loop and an engine: build, step, evaluate, state.

An engine builds *trainables*. A trainable is one network on one rank of its training group. All
ranks of the group call the same methods in the same order, and the engine exchanges gradients
inside them.
"""

from __future__ import annotations

import itertools
import os
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
from launch.errors import pluralize
from preprocess.sample import SampleSpec
from scheduler.base import RateTable, Span

# The state of a network in a checkpoint: arrays by name.
Arrays = Mapping[str, np.ndarray]
# Images, targets and, if samples are weighted, weights of the rows of a rank.
Rows: TypeAlias = tuple[np.ndarray, ...]

# Usable share of the memory of a shared GPU; the CUDA contexts of the processes take the remainder.
_USABLE = 0.9


@dataclass(frozen=True)
class StepTotals:
    """Sums over samples, of one rank or of all ranks of a group.

    Ranks exchange six numbers and the sums of the metrics, in this order, after the gradients, so
    that one reduction sums both.

    Attributes:
        loss: weighted loss summed over the samples, in nats.
        correct: number of samples that are classified correctly; for multiple labels or pixels, the
            share per sample.
        count: number of readable samples.
        stop: True if a rank asks the group to stop after this step.
        failed: True if a rank failed in this step.
        steps: number of steps to take in the call after the next one; set by the master, 0 on other
            ranks.
        metric_totals: sums from which the network's metrics are computed.
    """

    loss: float = 0.0
    correct: float = 0.0
    count: float = 0.0
    stop: bool = False
    failed: bool = False
    steps: int = 0
    metric_totals: tuple[float, ...] = ()

    def pack(self) -> np.ndarray:
        """Return the numbers that a rank adds to the sums of its group: (6 + metrics,) float64."""
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
        """Return the totals from (6 + metrics,) summed numbers of any float type."""
        loss, correct, count, stop, failed, steps, *metric_totals = map(float, numbers)
        return cls(loss, correct, count, stop > 0, failed > 0, int(steps), tuple(metric_totals))

    def __add__(self, addend: StepTotals) -> StepTotals:
        metric_totals = tuple(
            map(sum, itertools.zip_longest(self.metric_totals, addend.metric_totals, fillvalue=0.0))
        )
        return StepTotals(
            self.loss + addend.loss,
            self.correct + addend.correct,
            self.count + addend.count,
            self.stop or addend.stop,
            self.failed or addend.failed,
            self.steps + addend.steps,
            metric_totals,
        )

    @property
    def as_tuple(self) -> tuple[float, ...]:
        """Loss, correct, count and metric totals, as :class:`fleet.domain.network.State` has."""
        return self.loss, self.correct, self.count, *self.metric_totals

    @classmethod
    def from_tuple(cls, totals: Sequence[float]) -> StepTotals:
        """Return the totals that :attr:`as_tuple` describes."""
        loss, correct, count, *metric_totals = totals
        return cls(loss, correct, count, metric_totals=tuple(metric_totals))

    def raise_failure(self, error: BaseException | None) -> None:
        """Raise on all ranks if one of them has failed, after the totals have been summed.

        Args:
            error: the error of this rank, if it failed.

        Raises:
            PeerFailed: another rank failed, and this one did not.
        """
        if error is not None:
            raise error
        if self.failed:
            raise PeerFailed("another rank of the group failed in this step")


class StepResult(NamedTuple):
    """The result of a call of :meth:`fleet.engines.steps.SupportsSteps.begin_steps`.

    Attributes:
        sums: totals of each batch, in order.
        finished_at: time at which they were available, by ``time.perf_counter``; an upper bound if
            unknown.
    """

    sums: list[StepTotals]
    finished_at: float


# Position of each number in packed totals; metrics follow.
INDEX = {total.name: index for index, total in enumerate(fields(StepTotals)[:-1])}
WIDTH = len(INDEX)  # elements of packed totals, excluding metrics


@dataclass(frozen=True)
class Slot:
    """A trainer's share of a GPU.

    Attributes:
        number: index among the slots of the GPU; slot 0 may take all free memory.
        slots: number of slots of the GPU.
        count_active: returns the number of networks that train on the GPU at the moment.
        memory_mib: memory of the GPU in MiB; None if unknown.
    """

    number: int = 0
    slots: int = 1
    count_active: Callable[[], int] = lambda: 1
    memory_mib: int | None = None

    @property
    def memory_limit(self) -> int | None:
        """Memory in MiB that the trainer may take; None if unlimited.

        >>> [Slot(number, slots=2, memory_mib=81920).memory_limit for number in (0, 1)]
        [None, 36864]
        >>> Slot(1, slots=2).memory_limit is None
        True
        """
        if self.number == 0 or self.memory_mib is None:
            return None
        return int(_USABLE * self.memory_mib / self.slots)


@dataclass(frozen=True)
class EngineContext:
    """Everything an engine is given on one trainer rank.

    Attributes:
        sample: shape, dtype and classes of the inputs; use ``sample.of(network.feed,
            network.fold)`` if entries of the spec have their own ``data``, or folds differ.
        resources: the ``resources`` of the spec.
        rates: training rates of the networks, if known.
        index: index of this trainer's GPU on its node.
        trainers: number of trainers on this node; without GPUs they share its cores.
        deterministic: True if equal steps must give bit-identical numbers.
        slot: this trainer's share of the GPU.
        folder: folder of the run, for example to rendezvous through files.
        transforms: transforms of each input pipeline, as in the spec, for the note of an export.
        pin: registers memory with the GPU's driver permanently; for buffers that are copied
            repeatedly.
        defaults: version of FLEET whose defaults apply.
        span_of: ranks of a group -> how their GPUs lie on nodes.
    """

    sample: SampleSpec
    resources: Resources
    rates: RateTable | None = None
    index: int = 0
    trainers: int = 1
    deterministic: bool = False
    slot: Slot = Slot()  # noqa: RUF009 - frozen
    folder: Path = Path()
    transforms: Mapping[str, Any] = field(default_factory=dict)
    pin: Callable[[Any], object] = lambda memory: None
    defaults: str = "0.3"
    span_of: Callable[[Sequence[int]], Span] = lambda ranks: Span.ANY


class PeerFailed(FleetError):
    """Another rank of the group failed in this step; that rank reports the reason."""


class PeersFailed(FleetError):
    """Other ranks of the group failed before a collective operation.

    Attributes:
        reports: the report of each rank; None for ranks that have not failed.
    """

    def __init__(self, reports: Sequence[Any]) -> None:
        super().__init__("other ranks of the group failed")
        self.reports = reports


def check_peers(group: Group) -> None:
    """Check that no rank of a group has failed, before a collective operation.

    A rank that fails to build a network reports it to the ranks that wait here.

    Raises:
        PeersFailed: a rank has failed; it is raised on all ranks.
    """
    reports = group.allgather(None)
    if any(report is not None for report in reports):
        raise PeersFailed(reports)


class Trainable(Protocol):
    """A network on one rank of its group; :mod:`fleet.engines.steps` describes how it trains."""

    def evaluate(self, *rows: np.ndarray) -> StepTotals:
        """Return the totals of these samples on this rank alone, without training.

        Args:
            rows: inputs, targets and, if samples are weighted, weights; see
                :class:`fleet.engines.steps.StepBatches`.
        """

    def average_statistics(self) -> None:
        """Average across ranks the statistics that each collected, as of batch normalization."""

    def learning_rate(self) -> float:
        """Return the learning rate of the next step."""

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of all that training needs to resume: weights, optimizer, random state."""

    def load(self, arrays: Arrays) -> None:
        """Restore a state.

        Raises:
            CheckpointError: it belongs to a different network.
        """

    def export(self, arrays: Arrays, path: Path) -> None:
        """Write the network with the weights of a state, for use without FLEET.

        No other method is called afterwards, so the trainable may load the state into itself.
        """

    def regroup(self, group: Group) -> None:
        """Move to another group of any size; collective over the new group.

        The network is unchanged. Only for networks whose batch and learning rate do not depend on
        the number of ranks.
        """

    def close(self) -> None:
        """Release the resources of a group, such as Horovod."""


@runtime_checkable
class SupportsRateScaling(Protocol):
    """A trainable whose batch may change from epoch to epoch."""

    def scale_learning_rate(self, factor: float) -> None:
        """Set the learning rate to a multiple of the spec's from now on."""


class EpochProgress(NamedTuple):
    """Where in its training a network is, for schedules that count epochs or watch a metric.

    Attributes:
        epoch: number of finished epochs.
        done: number of steps of the present epoch that have been taken.
        steps: number of steps of the present epoch; huge if unknown.
        monitored: the monitored value of each finished epoch.
    """

    epoch: int = 0
    done: int = 0
    steps: int = 10**9
    monitored: tuple[float, ...] = ()


@runtime_checkable
class SupportsEpochs(Protocol):
    """A trainable whose learning rate may depend on epochs."""

    def begin_epoch(self, progress: EpochProgress) -> None:
        """Prepare the remaining steps of an epoch; called on all ranks."""


@runtime_checkable
class SupportsPretrained(Protocol):
    """A trainable that can start from the weights in a file."""

    def load_pretrained(self, file: Path, skip: Sequence[str]) -> None:
        """Load weights from a file, as ``train.start`` specifies.

        Args:
            file: path of the weights.
            skip: patterns of weight names to leave at their initial values.

        Raises:
            ModelError: the file is missing or does not fit, or a pattern matches no weight.
        """


@runtime_checkable
class SupportsMetrics(Protocol):
    """A trainable that computes the metrics of its spec."""

    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:
        """Return the value of each metric by name, from :attr:`StepTotals.metric_totals`."""


@runtime_checkable
class SupportsPrediction(Protocol):
    """A trainable whose outputs can be saved, to compare and combine finished networks."""

    def predict(self, *rows: np.ndarray) -> tuple[StepTotals, np.ndarray]:
        """Return the totals of the samples and the outputs of the network as exported.

        Args:
            rows: as in :meth:`Trainable.evaluate`.

        Returns:
            The totals, and (rows, ...) float32: logits or values.
        """


class ExportedEnsemble(Protocol):
    """Several exported networks as one; see :attr:`fleet.spec.engines.EngineInfo.join`."""

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Return the weighted mean of the networks' predictions: probabilities, or values.

        Args:
            inputs: (n, ...), the inputs as they travel.

        Returns:
            (n, classes) probabilities that sum to 1, (n, labels) one probability per label, (n,
            values), or (n, height, width, classes).
        """

    def save(self, path: Path) -> None:
        """Write the networks as one that predicts the same, for use without FLEET."""


@runtime_checkable
class SupportsInspection(Protocol):
    """A trainable that answers questions of ``fleet check`` and of the results table."""

    def count_parameters(self) -> int:
        """Return the number of parameters of the network, trainable or not."""

    def row_bytes(self) -> int | None:
        """Return the bytes that a step holds per row, besides weights; None if unknown."""

    def try_export(self, folder: Path) -> str:
        """Export the network into an empty folder, load it as a user would, and compare outputs.

        Returns:
            What loading needs besides the engine's library, as one line; empty if nothing.

        Raises:
            ModelError: it cannot be exported, or differs after loading.
        """


@runtime_checkable
class SupportsLearningCheck(Protocol):
    """A trainable whose model and loss may be user-defined."""

    def check_learns(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        """Check on a few samples that outputs are finite and that the loss depends on them.

        Raises:
            ModelError, SettingError: the network cannot learn.
        """


class Engine(Protocol):
    """Builds trainables; there is one engine per trainer rank."""

    exchange_name: str

    def build(self, network: NetworkSpec, group: Group) -> Trainable:
        """Build a network for a group; its weights follow from the network's seed.

        Raises:
            Exception: any error of the model function.
        """


def split_batches(rows: Rows, sizes: Sequence[int]) -> list[Rows]:
    """Return the rows of each of several concatenated batches; a single batch takes all rows."""
    ends = [0, *itertools.accumulate(sizes[:-1]), len(rows[1])]
    return [tuple(part[first:last] for part in rows) for first, last in itertools.pairwise(ends)]


def select_readable(rows: Rows) -> Rows:
    """Return the rows that could be read; unreadable ones have a negative target or weight."""
    valid = rows[-1] >= 0
    if valid.all():
        return rows
    return tuple(part[valid] for part in rows)


def with_indices(local_rows: Rows, indices: np.ndarray | None) -> Rows:
    """Insert the rows in the data set after the inputs; made-up samples count from 0."""
    if indices is None:
        indices = np.arange(len(local_rows[1]))
    return (local_rows[0], indices, *local_rows[1:])


def check_arrays(shapes: Mapping[str, Sequence[int]], arrays: Arrays) -> None:
    """Check that arrays belong to a network.

    Args:
        shapes: shape of each array of the network, by name.
        arrays: the arrays to check.

    Raises:
        CheckpointError: they belong to a different network.
    """
    wrong = [
        name
        for name, shape in shapes.items()
        if name not in arrays or arrays[name].shape != tuple(shape)
    ]
    if wrong or len(shapes) != len(arrays):
        names = [*wrong, *(name for name in arrays if name not in shapes)][:5]
        raise CheckpointError(
            "the checkpoint belongs to another network; these arrays are missing, extra or of "
            f"another shape: {', '.join(names)}"
        )


def gpu_index(index: int, gpus: int) -> int:
    """Return the index of a trainer's GPU among the GPUs that its process sees.

    Args:
        index: index of the trainer on its node.
        gpus: number of GPUs that the node shows; a launcher may show each trainer a single one.

    Raises:
        UserError: the node shows fewer GPUs than it has trainers.
    """
    if gpus == 1:
        return 0
    if index >= gpus:
        raise UserError(
            f"this node has {pluralize(gpus, 'visible GPU')}, but this rank is its trainer number "
            f"{index + 1}: start fewer ranks on it, or set resources.gpus_per_node"
        )
    return index


def count_threads(trainers: int, deterministic: bool) -> int:
    """Return the number of threads of a trainer without a GPU.

    Args:
        trainers: number of trainers on the node, which share its cores.
        deterministic: True if results must not depend on that number.
    """
    if deterministic:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // trainers)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect an engine's warnings about a network, one line each; show others as usual."""
    messages: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def collect(
            message: Warning | str, category: type[Warning], *arguments: Any, **options: Any
        ) -> None:
            if issubclass(category, NetworkWarning):
                messages.append(" ".join(str(message).split()))
            else:
                show(message, category, *arguments, **options)

        warnings.simplefilter("always", NetworkWarning)
        warnings.showwarning = collect
        yield messages
