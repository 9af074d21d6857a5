"""How the ranks of a group add up gradients: by Horovod, by MPI, or not at all where there is one rank.

There are two places to do it. Horovod has an operation for graphs, so a step is one graph, in which the first
gradients travel while the last ones are computed; a rank alone has one graph, too. MPI is called from Python, between
a graph that computes gradients and one that applies them.
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

_ALIGNED = 16  # numbers: where TensorFlow wants tensors to begin


def make_exchange(group: Group, horovod: Any) -> Exchange:
    """The exchange of a group.

    Args:
        horovod: its module for TensorFlow; None for MPI.
    """
    if group.size == 1:
        return NoExchange(group)
    if horovod is None:
        return MpiExchange(group)
    return HorovodExchange(group, horovod)


class NoExchange:
    """Adds up inside of a graph; here that of a rank alone, which has all gradients already."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def sum_in_graph(
        self, gradients: Sequence[tf.Tensor], sums: tf.Tensor
    ) -> tuple[Sequence[tf.Tensor], tf.Tensor]:
        """The gradients and sums of all ranks.

        Args:
            gradients: of this rank, a tensor of each variable's shape and type.
            sums: (6 + more,) float32: :class:`fleet.engines.base.Sums`.
        """
        return gradients, sums

    def close(self) -> None:
        """Leave the group."""


class HorovodExchange(NoExchange):
    """Horovod, whose whole world is the group for as long as the group lives."""

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
        # Horovod matches tensors by name, which must not depend on the graph: a rank without rows has another one.
        *gradients, sums = self._horovod.grouped_allreduce(
            [*gradients, sums], op=self._horovod.Sum, name="step", ignore_name_scope=True
        )
        return gradients, sums

    def close(self) -> None:  # noqa: D102
        if self._horovod.is_initialized():
            self._horovod.shutdown()


class MpiExchange:
    """Adds up outside of any graph: one MPI reduction of one buffer a step, in the memory of the host."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._buffer: _Buffer | None = None

    def sum_on_host(
        self, gradients: Sequence[tf.Tensor], sums: Any, error: BaseException | None
    ) -> tuple[list[tf.Tensor], StepTotals]:
        """The gradients and sums of all ranks.

        Args:
            gradients: of this rank, a tensor of each variable's shape and type.
            sums: (6 + more,) float32: :class:`fleet.engines.base.Sums`.
            error: why this rank has none, where it has none; then zeros stand in for both.

        Returns:
            Gradients of the same shapes, float32, which the next call overwrites; and what the sums have added up to.

        Raises:
            Exception: this rank's error.
            PeerFailed: another rank has brought one.
        """
        if self._buffer is None:
            self._buffer = _Buffer([tuple(gradient.shape) for gradient in gradients], len(sums))
        buffer = self._buffer
        for part, gradient in zip(buffer.parts, gradients, strict=True):
            part[...] = np.asarray(gradient)  # asked for a type, TensorFlow would copy it first
        buffer.sums[:] = (
            sums
            if error is None
            else StepTotals(failed=True, metric_totals=(0.0,) * (len(sums) - WIDTH)).pack()
        )
        self.group.sum(buffer.flat)
        total = StepTotals.unpack(buffer.sums)
        total.raise_failure(error)
        return buffer.tensors, total

    def close(self) -> None:
        """Leave the group."""
        self._buffer = None


class _Buffer:
    """Gradients one behind another, then the sums, all float32, in memory that stays: TensorFlow reads it in place.

    Args:
        shapes: of the gradients.
        width: of the sums.

    Attributes:
        whole: all that is summed.
        parts, tensors: the gradients, as arrays and as tensors of the same memory.
        sums: (width,).
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], width: int) -> None:
        sizes = [math.prod(shape) for shape in shapes]
        ends = np.cumsum([-(-size // _ALIGNED) * _ALIGNED for size in sizes]).tolist()
        self.flat = np.frombuffer(
            mmap.mmap(-1, 4 * (ends[-1] + width)), np.float32
        )  # begins with a page
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
    """Horovod's module for TensorFlow, and ``ready``; or None, and ``missing``, or why it cannot be used with MPI."""
    try:
        import horovod.tensorflow as horovod
    except Exception as error:  # built for another TensorFlow, it fails in many ways
        is_missing = (
            isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "horovod"
        )
        return None, "missing" if is_missing else one_line(error)[:200]
    if horovod.mpi_built():
        return (horovod, "ready")
    return (None, "it is built without MPI")
