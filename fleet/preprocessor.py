"""The preprocessor rank: read, transform, put.

A preprocessor never blocks: :meth:`Preprocessor.step` does a bounded piece of work, so that rank 0 can
coordinate in between. It imports neither TensorFlow nor any model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fleet.messages import Bad, Exit, Produce, Tag, Throughput
from fleet.relay import Relay
from fleet.roles import Roles
from fleet.segment import ValidationSet, Window
from preprocess.base import BadSample
from preprocess.pipeline import Pipeline

if TYPE_CHECKING:  # MPI starts when it is imported
    from fleet.mpi import World

_SAMPLES_A_STEP = 8  # some milliseconds of work: what the coordinator on rank 0 may be kept waiting
_MEASURED_SAMPLES = 64


class Preprocessor:
    """Fills this node's window, and its part of the validation samples.

    Args:
        window: of this node.
        shared: the validation samples of this node.
        training, evaluation: how samples are prepared.
    """

    def __init__(self, world: World, roles: Roles, window: Window, shared: ValidationSet | None,
                 training: Pipeline, evaluation: Pipeline | None) -> None:
        self._world, self._roles, self._window, self._shared = world, roles, window, shared
        self._training, self._evaluation = training, evaluation
        self._limit = self._hold = self._first = 0
        self._turns: Sequence[int] = ()
        self._turn = 0
        self._next: int | None = None  # the chunk that is mine to fill next
        self._filled = 0  # samples of it that are there
        self._orders: dict[int, np.ndarray] = {}
        self._relay: Relay | None = None
        node = roles.node_of[world.rank]
        mates = [rank for rank in roles.preprocessors if roles.node_of[rank] == node]
        self._is_leader = mates[0] == world.rank
        chunks = range(shared.chunks) if shared else range(0)
        self._validation = [chunk for chunk in chunks if chunk % len(mates) == mates.index(world.rank)]
        self.is_done = False
        self.busy_s = 0.0
        self.samples = 0

    # ---- the four steps of a role's life ----

    def start(self) -> None:
        """Tell the coordinator how fast this rank prepares samples."""
        self._world.tell(0, Tag.COORDINATOR, Throughput(self._measure()))

    def step(self) -> bool:
        """Do a bounded piece of work; returns whether there was any."""
        message = self._world.hear(Tag.PREPROCESSOR)
        if isinstance(message, Produce):
            self._follow(message)
        elif isinstance(message, Exit):
            self.is_done = True
            return False
        relayed = self._relay is not None and self._relay.step(self._may_write(self._relay.next))
        return self._produce() | self._validate() | relayed | (message is not None)

    def stop(self) -> None:
        """Leave the stream in order; collective over the leaders."""
        if self._relay is not None:
            self._relay.finish()

    # ---- what they are made of ----

    def _measure(self) -> float:
        """Samples/s of this rank, on the first samples of the data set."""
        count = min(_MEASURED_SAMPLES, len(self._training.source))
        images = np.empty((count, *self._training.shape), self._training.dtype)
        began = time.perf_counter()
        self._training.load(range(count), 0, images, np.empty(count, np.int64))
        return count / (time.perf_counter() - began)

    def _follow(self, order: Produce) -> None:
        self._limit, self._hold = order.limit, order.hold
        if self._turns:
            return
        self._turns, self._first = order.turns, order.first
        if self._world.rank in self._turns:
            self._turn = self._turns.index(self._world.rank)
            # The first chunk from `first` on whose number falls to this rank.
            self._next = order.first + (self._turn - order.first) % len(self._turns)
        if self._roles.nodes > 1 and self._is_leader:
            self._relay = Relay(self._world, self._roles, self._window, self._turns, order.first)

    def _may_write(self, sequence: int) -> bool:
        """Whether chunk ``sequence`` is wanted yet, and its slot is free."""
        window = self._window
        if sequence >= self._limit or not window.is_free(sequence, self._hold, self._first):
            return False
        fastest = window.fastest_reader()
        if fastest is None:
            # Nobody reads on this node. No reader of another one is beyond `hold`, so it is not held back.
            fastest = self._hold
        return sequence < fastest + window.layout.lookahead

    def _produce(self) -> bool:
        if self._next is None or (self._filled == 0 and not self._may_write(self._next)):
            return False
        epoch, first, last = self._window.layout.span(self._next)
        begin, end = first + self._filled, min(last, first + self._filled + _SAMPLES_A_STEP)
        row = self._window.rows(self._next).start + self._filled
        rows = slice(row, row + end - begin)
        began = time.perf_counter()
        bad = self._training.load(self._order(epoch)[begin:end], epoch, self._window.images[rows],
                                  self._window.labels[rows])
        self.busy_s += time.perf_counter() - began
        self.samples += end - begin
        self._report(bad, training=True)
        self._filled += end - begin
        if end == last:
            self._window.publish(self._next)
            self._next += len(self._turns)
            self._filled = 0
        return True

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders = {epoch: self._training.order(epoch)}
        return self._orders[epoch]

    def _validate(self) -> bool:
        if not self._validation or self._shared is None or self._evaluation is None:
            return False
        chunk = self._validation.pop(0)
        rows = self._shared.rows(chunk)
        bad = self._evaluation.load(range(rows.start, rows.stop), 0, self._shared.images[rows],
                                    self._shared.labels[rows], training=False)
        self._report(bad, training=False)
        self._shared.publish(chunk)
        return True

    def _report(self, bad: Sequence[BadSample], training: bool) -> None:
        for sample in bad:
            self._world.tell(0, Tag.COORDINATOR, Bad(sample.name, sample.reason, training))
