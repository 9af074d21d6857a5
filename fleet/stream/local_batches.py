"""Batches that a trainer prepares itself from a store, in a thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeAlias

import numpy as np

from fleet.comm.protocols import Group
from fleet.stream.batch import Batch, split_rows
from fleet.stream.order import Epoch, EpochPlan, Order, runs
from fleet.stream.stall import Waiting, WriterDied
from fleet.stream.store import FileStore
from preprocess.base import UnreadableSample

# [FLEET] Fig. 4: a trainer's queue holds 10 batches.
Q_D = 10

_Prepared: TypeAlias = tuple[Batch, list[UnreadableSample]]


class LocalBatches:
    """Prepares this rank's rows in a thread, a few batches ahead.

    Args:
        store: provides the samples.
        order: the order of the samples in each epoch.
        waiting: waits for samples that other ranks prepare.
        on_bad: receives unreadable samples, in the thread that iterates.

    Attributes:
        waited_s: seconds for which this rank has waited for samples so far.
    """

    def __init__(
        self,
        store: FileStore,
        order: Order,
        waiting: Waiting,
        on_bad: Callable[[UnreadableSample], None],
    ) -> None:
        self.waited_s = 0.0
        self._store = store
        self._order = order
        self._waiting = waiting
        self._on_bad = on_bad

    def batches(  # noqa: D102
        self,
        epoch: Epoch,
        start: int,
        batch: int,
        group: Group,
        consumed: Container[int] = (),
    ) -> Iterator[Batch]:
        plan = self._order.plan_epoch(epoch, consumed)
        stop = threading.Event()
        prepare = partial(self._prepare, plan, batch, group.rank, group.size, stop)
        firsts = iter(range(start, len(plan.indices), batch))
        executor = ThreadPoolExecutor(1, "own-stream")
        ahead = deque(executor.submit(prepare, first) for first in islice(firsts, Q_D))
        try:
            while ahead:
                began = time.perf_counter()
                ready, bad = self._await(ahead.popleft())
                self.waited_s += time.perf_counter() - began
                ahead.extend(executor.submit(prepare, first) for first in islice(firsts, 1))
                for sample in bad:
                    self._on_bad(sample)
                yield ready
        finally:
            stop.set()
            executor.shutdown(cancel_futures=True)

    def _await(self, prepared: Future[_Prepared]) -> _Prepared:
        """Wait for a batch of the thread; stop waiting for a rank that has died."""

        def poll() -> _Prepared | None:
            return prepared.result() if prepared.done() else None

        def poll_with_writers() -> _Prepared | None:
            self._waiting.check_writers()
            return poll()

        try:
            return self._waiting.world.wait(poll_with_writers)
        except WriterDied:
            self._store.stop_waiting()
            return self._waiting.world.wait(poll)

    def _prepare(
        self,
        plan: EpochPlan,
        batch: int,
        rank: int,
        size: int,
        stop: threading.Event,
        first: int,
    ) -> _Prepared:
        """Prepare this rank's rows of the batch that begins at a sample; runs in the thread."""
        samples = len(plan.indices)
        last = min(first + batch, samples)
        rows = slice(*split_rows(first, last, rank, size))
        self._store.await_all(plan.indices[rows], stop)
        inputs, targets, bad = self._load(plan.indices[rows], plan.productions[rows])
        epoch = Epoch(int(plan.productions.max()), plan.path)
        return Batch(inputs, targets, last - first, last, last == samples, epoch), bad

    def _load(
        self, indices: np.ndarray, productions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[UnreadableSample]]:
        inputs, targets = self._store.empty(len(indices))
        bad = [
            sample
            for production, part in runs(productions)
            for sample in self._store.load(indices[part], production, inputs[part], targets[part])
        ]
        return inputs, targets, bad
