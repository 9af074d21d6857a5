"""Batches that a trainer prepares itself from a store, in a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Any

import numpy as np

from fleet.comm.protocols import Group
from fleet.stream.batch import Batch, split_rows
from fleet.stream.order import Epoch, EpochPlan, Order, runs
from fleet.stream.stall import Waiting, WriterDied
from fleet.stream.store import FileStore
from preprocess.base import UnreadableSample

# [FLEET] Fig. 4: a trainer's queue holds 10 batches.
Q_D = 10


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
        ahead: queue.Queue[Any] = queue.Queue(Q_D)
        stop = threading.Event()
        plan = self._order.plan_epoch(epoch, consumed)
        worker = threading.Thread(
            target=self._prepare,
            args=(ahead, stop, plan, start, batch, group.rank, group.size),
            name="own-stream",
            daemon=True,
        )
        worker.start()
        try:
            while True:
                began = time.perf_counter()
                message = self._next(ahead)
                self.waited_s += time.perf_counter() - began
                if message is _END:
                    return
                if isinstance(message, BaseException):
                    raise message
                ready, bad = message
                for sample in bad:
                    self._on_bad(sample)
                yield ready
        finally:
            stop.set()
            worker.join()

    def _next(self, ahead: queue.Queue) -> Any:
        """Wait for the thread's next batch; stop waiting for a rank that has died."""

        def poll() -> Any:
            message = _get(ahead)
            if message is None:
                self._waiting.check_writers()
            return message

        try:
            return self._waiting.world.wait(poll)
        except WriterDied:
            self._store.stop_waiting()
            return self._waiting.world.wait(partial(_get, ahead))

    def _prepare(
        self,
        ahead: queue.Queue,
        stop: threading.Event,
        plan: EpochPlan,
        start: int,
        batch: int,
        rank: int,
        size: int,
    ) -> None:
        try:
            samples = len(plan.indices)
            number = int(plan.productions.max())
            for first in range(start, samples, batch):
                last = min(first + batch, samples)
                own_rows = slice(*split_rows(first, last, rank, size))
                self._store.await_all(plan.indices[own_rows], stop)
                if stop.is_set():
                    return
                images, targets, bad = self._load(
                    plan.indices[own_rows], plan.productions[own_rows]
                )
                prepared = Batch(
                    images, targets, last - first, last, last == samples, Epoch(number, plan.path)
                )
                if not _put(ahead, (prepared, bad), stop):
                    return
            _put(ahead, _END, stop)
        except BaseException as error:  # is raised in the rank's main thread
            _put(ahead, error, stop)

    def _load(
        self, indices: np.ndarray, productions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[UnreadableSample]]:
        images, targets = self._store.empty(len(indices))
        bad = [
            sample
            for production, part in runs(productions)
            for sample in self._store.load(indices[part], production, images[part], targets[part])
        ]
        return images, targets, bad


_END = object()


def _get(ahead: queue.Queue) -> Any:
    try:
        return ahead.get_nowait()
    except queue.Empty:
        return None


def _put(ahead: queue.Queue, message: object, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            ahead.put(message, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
