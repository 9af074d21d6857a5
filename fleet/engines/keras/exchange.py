"""How the ranks of a group sum gradients: by Horovod, by MPI, or not at all where there is one rank."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from fleet.comm.base import Group
from fleet.comm.group import communicator_for_library
from fleet.engines.base import PeerFailed

log = logging.getLogger("fleet.engines.keras.exchange")


class GradientExchange(Protocol):
    """Sums over the group: one seam, equal results."""

    group: Group
    is_in_graph: bool  # which of the two sums below is called

    def sum(self, gradients: Sequence[Any], sums: Any, error: Exception | None) -> tuple[Sequence[Any], Any]:
        """Sum outside of a graph; raises on all ranks when one brings an error."""

    def sum_in_graph(self, gradients: Sequence[tf.Tensor], sums: tf.Tensor) -> tuple[Sequence[tf.Tensor], tf.Tensor]:
        """Sum inside a graph, while the backward pass still runs."""

    def close(self) -> None:
        """Leave the group."""


def make_exchange(group: Group, horovod: Any) -> GradientExchange:
    """The exchange of a group."""
    if group.size == 1:
        return NoExchange(group)
    return MpiExchange(group) if horovod is None else HorovodExchange(group, horovod)


class NoExchange:
    """A group of one rank has all gradients already; the whole step is one graph."""

    is_in_graph = True

    def __init__(self, group: Group) -> None:
        self.group = group

    def sum(self, gradients: Sequence[Any], sums: Any, error: Exception | None) -> tuple[Sequence[Any], Any]:
        """Not used: there is nothing to leave the graph for."""
        raise NotImplementedError

    def sum_in_graph(self, gradients: Sequence[tf.Tensor], sums: tf.Tensor) -> tuple[Sequence[tf.Tensor], tf.Tensor]:  # noqa: D102
        return gradients, sums

    def close(self) -> None:
        """Nothing is held."""


class MpiExchange:
    """One MPI reduction of one buffer a step."""

    is_in_graph = False

    def __init__(self, group: Group) -> None:
        self.group = group

    def sum(self, gradients: Sequence[Any], sums: Any, error: Exception | None) -> tuple[Sequence[Any], Any]:  # noqa: D102
        arrays = [np.asarray(gradient, np.float32) for gradient in gradients]
        flat = np.concatenate([*(array.ravel() for array in arrays), np.asarray(sums), [error is not None]],
                              dtype=np.float32)
        self.group.sum(flat)
        if error is not None:
            raise error
        if flat[-1]:
            raise PeerFailed("another rank of the group failed in this step")
        ends = np.cumsum([array.size for array in arrays])
        parts = np.split(flat[:-5], ends[:-1])
        return [part.reshape(array.shape).astype(gradient.dtype.as_numpy_dtype)
                for part, array, gradient in zip(parts, arrays, gradients, strict=True)], flat[-5:-1]

    def sum_in_graph(self, gradients: Sequence[tf.Tensor], sums: tf.Tensor) -> tuple[Sequence[tf.Tensor], tf.Tensor]:
        """Not used: MPI is called from Python."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


class HorovodExchange:
    """Horovod, whose whole world is the group for as long as the group lives."""

    is_in_graph = True

    def __init__(self, group: Group, horovod: Any) -> None:
        self.group, self._horovod = group, horovod
        with communicator_for_library(group) as communicator:
            horovod.init(comm=communicator)

    def sum(self, gradients: Sequence[Any], sums: Any, error: Exception | None) -> tuple[Sequence[Any], Any]:
        """Not used: Horovod sums inside the graph."""
        raise NotImplementedError

    def sum_in_graph(self, gradients: Sequence[tf.Tensor], sums: tf.Tensor) -> tuple[Sequence[tf.Tensor], tf.Tensor]:  # noqa: D102
        # Horovod matches tensors by name, which must not depend on the graph: a rank without rows has another one.
        *gradients, sums = self._horovod.grouped_allreduce(
            [*gradients, sums], op=self._horovod.Sum, name="step", ignore_name_scope=True)
        return gradients, sums

    def close(self) -> None:  # noqa: D102
        if self._horovod.is_initialized():
            self._horovod.shutdown()


def _import_horovod() -> Any:
    try:
        import horovod.tensorflow as horovod
    except Exception as error:  # built for another TensorFlow, it fails in many ways
        log.info("Horovod is not usable: %s", error)
        return None
    return horovod if horovod.mpi_built() else None
