"""Run the steps of a Keras network while Python prepares the next batch.

Steps are queued in a TensorFlow thread (:mod:`fleet.engines.keras.step_queue`); with MPI, a step
ends when the next one begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from fleet.comm.protocols import Group
from fleet.engines.base import WIDTH, PeerFailed, Rows, StepResult, select_readable, with_indices
from fleet.engines.keras.exchange import Exchange, MpiExchange, NoExchange
from fleet.engines.keras.graphs import StepGraphs
from fleet.engines.keras.inputs import as_bytes, as_rows
from fleet.engines.keras.step_queue import StepQueue
from fleet.engines.steps import MAX_STEPS, StepBatches, StepCapabilities
from preprocess.user_code import (
    UserCode,
    exclusive_generators,
    running_user_code,
    seed_host_generators,
)

_Local: TypeAlias = tuple[list[tf.Tensor], Any]  # gradients and totals of this rank


@dataclass(eq=False)
class KerasSteps:
    """The steps of a network, in one group after another.

    Attributes:
        exchange_of: creates the gradient exchange of a group.
        code: user code that computes a part of a step.
        seed: seed of the generators of Python and NumPy, from which that code may draw.
        end_previous: ends the running step, if MPI is called on the host.
    """

    graphs: StepGraphs
    exchange_of: Callable[[Group], Exchange]
    code: UserCode | None
    seed: int
    queue: StepQueue
    end_previous: Callable[[bool], StepResult] | None = None

    @property
    def capabilities(self) -> StepCapabilities:
        """See :class:`fleet.engines.steps.SupportsSteps`."""
        can_stride = type(self.graphs.exchange) in self.graphs.strides
        return StepCapabilities(MAX_STEPS if can_stride else 1, can_overlap=True)

    def regroup(self, group: Group) -> None:
        """Move to another group."""
        self.graphs.exchange.close()
        self.graphs.exchange = self.exchange_of(group)

    def close(self) -> None:
        """Wait for the running step, and leave the group."""
        self.queue.close()
        self.graphs.exchange.close()

    def reopen(self, group: Group) -> None:
        """Continue in a group after :meth:`close`."""
        self.graphs.exchange = self.exchange_of(group)
        self.queue = StepQueue(self.queue.inputs)
        self.end_previous = None

    @contextmanager
    def seeded_generators(self) -> Iterator[None]:
        """Seed the generators for user code: numbers drawn during tracing are part of the graph."""
        if self.code is None:
            yield
            return
        with exclusive_generators():
            seed_host_generators(self.seed)
            yield

    def begin(
        self, batches: StepBatches, indices: np.ndarray | None = None
    ) -> Callable[[], StepResult]:
        """Begin steps; see :meth:`fleet.engines.steps.SupportsSteps.begin_steps`.

        Args:
            batches: the batches.
            indices: (rows,) int64, rows of the samples in the data set, for a step of the user.
        """
        inputs, *more = batches.local_rows
        local_rows = (as_rows(inputs, self.graphs.sample), *map(as_bytes, more))
        batches = batches._replace(local_rows=local_rows)
        if self.graphs.has_own_step:
            local_rows = with_indices(batches.local_rows, indices)
            batches = batches._replace(local_rows=local_rows)
        zeros = (0.0,) * (self.graphs.width - WIDTH)
        flags = replace(batches.flags, metric_totals=zeros).pack().astype(np.float32)
        exchange = self.graphs.exchange
        with running_user_code(self.code, quick=True), self.seeded_generators():
            if isinstance(exchange, MpiExchange):
                return self._begin_on_host(
                    exchange,
                    select_readable(batches.local_rows),
                    np.float32(batches.sizes[0]),
                    flags,
                )
            with self._failing_peers(exchange):
                graph = self.graphs.stride_of(type(exchange))
                if graph is None:
                    sums = self._begin_compiled(
                        select_readable(batches.local_rows),
                        tf.constant(batches.sizes[0], tf.float32),
                        tf.constant(flags),
                    )
                else:
                    sums = self._begin_several(graph, batches, flags)
        return partial(self._read, exchange, self.queue.read_async(sums))

    def _begin_several(
        self, graph: Callable[..., tf.Tensor], batches: StepBatches, flags: np.ndarray
    ) -> tf.Tensor:
        """Run several steps by one graph for any number of steps, so results are bit-identical."""
        counts, local_rows = _readable_of_each(batches)
        return self.queue.call(
            graph,
            tf.constant(batches.sizes, tf.float32),
            tf.constant(counts, tf.int32),
            tf.constant(flags),
            *self.queue.inputs.upload(local_rows),
        )

    def _begin_compiled(self, local_rows: Rows, rows: tf.Tensor, flags: tf.Tensor) -> tf.Tensor:
        """Run a step of a group of one rank; a step without rows changes nothing."""
        assert self.graphs.compiled is not None
        if len(local_rows[1]):
            return self.queue.call(
                self.graphs.compiled, rows, flags, *self.queue.inputs.upload(local_rows)
            )
        return flags

    def _read(self, exchange: NoExchange, wait: Callable[[], StepResult]) -> StepResult:
        with self._failing_peers(exchange), running_user_code(self.code, quick=True):
            return wait()

    @contextmanager
    def _failing_peers(self, exchange: NoExchange) -> Iterator[None]:
        """Make the ranks that wait inside the exchange fail if this rank fails."""
        try:
            yield
        except BaseException as error:
            exchange.close()
            if "Horovod has been shut down" in str(error):
                raise PeerFailed("another rank of the group failed in this step") from error
            raise

    def _begin_on_host(
        self, exchange: MpiExchange, local_rows: Rows, rows: np.float32, flags: np.ndarray
    ) -> Callable[[], StepResult]:
        """Begin this rank's part of a step; it ends when the next step begins or a caller waits."""
        if self.end_previous is not None:
            self.end_previous(True)
        local: _Local = [], flags
        error: BaseException | None = None
        try:
            if len(local_rows[1]):
                local = self.queue.call(
                    self.graphs.local,
                    tf.constant(rows),
                    tf.constant(flags),
                    *self.queue.inputs.upload(local_rows),
                )
            else:
                # Its totals wait for the previous step, which still reads the exchange's memory.
                if not self.graphs.connected:
                    self.graphs.local.get_concrete_function()
                local = self.graphs.zeros(), self.queue.call(tf.identity, tf.constant(flags))
        except BaseException as caught:  # even an exit: the other ranks wait for this rank's part
            error = caught
        results: list[StepResult] = []

        def end(is_async: bool = False) -> StepResult:
            if not results:
                self.end_previous = None
                results.append(self._end_on_host(exchange, local, rows, error, is_async))
            return results[0]

        self.end_previous = end
        return end

    def _end_on_host(
        self,
        exchange: MpiExchange,
        local: _Local,
        rows: np.float32,
        error: BaseException | None,
        is_async: bool,
    ) -> StepResult:
        """Sum the parts of all ranks and apply the step.

        Args:
            exchange: exchange of the group.
            local: gradients and totals of this rank.
            rows: number of rows of the global batch.
            error: error of this rank, if it failed.
            is_async: True to return before the update has been computed; the next step waits for
                it.
        """
        gradients, sums = local
        try:
            sums = np.asarray(sums)  # waits for the whole graph
        except BaseException as caught:
            error = error or caught
        if error is not None:
            gradients = self.graphs.zeros()
            sums = np.zeros(self.graphs.width, np.float32)
        summed, total = exchange.sum_on_host(gradients, sums, error)
        if total.count:
            if total.count == rows:
                step: tuple[Any, ...] = (summed,)
            else:
                step = (summed, tf.constant(rows / np.float32(total.count)))
            if is_async:
                self.queue.call(self.graphs.update, *step)
            else:
                self.graphs.update(*step)
        return StepResult([total], time.perf_counter())


def _readable_of_each(batches: StepBatches) -> tuple[Sequence[int], Rows]:
    """Return the number of readable rows of each batch, and these rows."""
    local_rows = batches.local_rows
    valid = local_rows[-1] >= 0
    if valid.all():
        return batches.counts, local_rows
    parts = np.split(valid, np.cumsum(batches.counts)[:-1])
    counts = [int(np.count_nonzero(part)) for part in parts]
    return counts, tuple(part[valid] for part in local_rows)
