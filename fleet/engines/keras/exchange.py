"""Sum gradients over the ranks of a group: by Horovod, by MPI, or not at all for one rank.

Horovod has an operation for graphs, so a step is one graph, in which the first gradients travel
while the last ones are computed; a group of one rank has one graph, too. MPI is called from Python,
between a graph that computes gradients and one that applies them.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from fleet.comm.group import communicator_for_library
from fleet.comm.protocols import Group
from fleet.engines.base import WIDTH, StepTotals, check_peers
from fleet.spec.model import one_line

_ALIGNED = 16  # elements; TensorFlow requires aligned tensors


def make_exchange(group: Group, horovod: Any) -> Exchange:
    """Return the exchange of a group.

    Args:
        group: group of ranks that exchange gradients.
        horovod: Horovod's module for TensorFlow; None for MPI.
    """
    if group.size == 1:
        return NoExchange(group)
    if horovod is None:
        return MpiExchange(group)
    return HorovodExchange(group, horovod)


class NoExchange:
    """Sums nothing, because a group of one rank has all gradients."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def sum_in_graph(
        self, gradients: Sequence[tf.Tensor], sums: tf.Tensor
    ) -> tuple[Sequence[tf.Tensor], tf.Tensor]:
        """Return the gradients and totals summed over all ranks.

        Args:
            gradients: gradients of this rank, with each variable's shape and type.
            sums: (6 + metrics,) float32, :class:`fleet.engines.base.StepTotals`.
        """
        return gradients, sums

    def close(self) -> None:
        """Leave the group."""


class HorovodExchange(NoExchange):
    """Sums by Horovod inside a graph; Horovod's world is the group until :meth:`close`."""

    def __init__(self, group: Group, horovod: Any) -> None:
        super().__init__(group)
        self._horovod = horovod
        check_peers(group)
        with communicator_for_library(group) as communicator:
            horovod.init(comm=communicator)

    def sum_in_graph(  # noqa: D102
        self,
        gradients: Sequence[tf.Tensor],
        sums: tf.Tensor,
    ) -> tuple[Sequence[tf.Tensor], tf.Tensor]:
        # Horovod matches tensors by name. The name must not depend on the graph, because a rank
        # without rows runs another one.
        *gradients, sums = self._horovod.grouped_allreduce(
            [*gradients, sums], op=self._horovod.Sum, name="step", ignore_name_scope=True
        )
        return gradients, sums

    def close(self) -> None:  # noqa: D102
        if self._horovod.is_initialized():
            self._horovod.shutdown()


class MpiExchange:
    """Sums outside of graphs: one MPI reduction of one host buffer per step."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._buffer: _Buffer | None = None

    def sum_on_host(
        self, gradients: Sequence[tf.Tensor], sums: Any, error: BaseException | None
    ) -> tuple[list[tf.Tensor], StepTotals]:
        """Return the gradients and totals summed over all ranks.

        Args:
            gradients: gradients of this rank, with each variable's shape and type.
            sums: (6 + metrics,) float32, :class:`fleet.engines.base.StepTotals`.
            error: error of this rank, if it failed; zeros then replace both.

        Returns:
            Gradients of the same shapes, float32, which the next call overwrites; and the totals.

        Raises:
            Exception: this rank's error.
            PeerFailed: another rank failed.
        """
        if self._buffer is None:
            self._buffer = _Buffer([tuple(gradient.shape) for gradient in gradients], len(sums))
        buffer = self._buffer
        for part, gradient in zip(buffer.parts, gradients, strict=True):
            part[...] = np.asarray(gradient)  # with a dtype, TensorFlow would copy it first
        if error is not None:
            zeros = (0.0,) * (len(sums) - WIDTH)
            sums = StepTotals(failed=True, metric_totals=zeros).pack()
        buffer.sums[:] = sums
        self.group.sum(buffer.flat)
        total = StepTotals.unpack(buffer.sums)
        total.raise_failure(error)
        return buffer.tensors, total

    def close(self) -> None:
        """Leave the group."""
        self._buffer = None


class _Buffer:
    """Gradients followed by totals, float32, in persistent memory that TensorFlow reads in place.

    Args:
        shapes: shapes of the gradients.
        width: number of totals.

    Attributes:
        flat: everything that is summed.
        parts, tensors: the gradients, as arrays and as tensors of the same memory.
        sums: the totals, (width,).
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], width: int) -> None:
        sizes = [math.prod(shape) for shape in shapes]
        ends = np.cumsum([-(-size // _ALIGNED) * _ALIGNED for size in sizes]).tolist()
        memory = mmap.mmap(-1, 4 * (ends[-1] + width))  # page-aligned
        self.flat = np.frombuffer(memory, np.float32)
        self.parts = [
            self.flat[first : first + size].reshape(shape)
            for first, size, shape in zip([0, *ends], sizes, shapes, strict=False)
        ]
        self.tensors = [
            tf.experimental.dlpack.from_dlpack(part.__dlpack__()) for part in self.parts
        ]
        self.sums = self.flat[ends[-1] :]


Exchange: TypeAlias = NoExchange | MpiExchange


def find_horovod() -> tuple[Any, str]:
    """Find Horovod's module for TensorFlow.

    Returns:
        The module and ``ready``; or None and ``missing``, or the reason why it cannot be used with
        MPI.
    """
    try:
        import horovod.tensorflow as horovod
    except Exception as error:  # a build for another TensorFlow may raise anything
        is_missing = (
            isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "horovod"
        )
        return None, "missing" if is_missing else one_line(error)[:200]
    if horovod.mpi_built():
        return (horovod, "ready")
    return (None, "it was built without MPI")
