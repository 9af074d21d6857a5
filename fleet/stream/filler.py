"""Preprocessors filling shared memory: the window of the stream and stored sample sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fleet.comm.messages import Demand, Prepared, Produce, SampleUnreadable, Tag
from fleet.comm.protocols import World
from fleet.comm.roles import Roles
from fleet.stream.layout import Turns
from fleet.stream.order import Order
from fleet.stream.relay import Relay
from fleet.stream.sample_set import SampleSet
from fleet.stream.window import NOT_READING, Window
from preprocess.base import UnreadableSample
from preprocess.record_pipeline import AnyPipeline

_SAMPLES_A_STEP = 8  # some milliseconds of work, for which the coordinator on rank 0 has to wait
_DEMAND_EVERY_S = 0.002
_BUSY_S = 0.5  # of work between two reports to the coordinator


class WindowFiller:
    """Fills a window: prepares this rank's chunks and relays those of other nodes.

    Args:
        window: the window of this node.
        order: the order of the stream.
        training: prepares training samples.
        clock: returns seconds from any origin; preparing samples is timed with it.
    """

    def __init__(
        self,
        world: World,
        roles: Roles,
        window: Window,
        order: Order,
        training: AnyPipeline,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._world = world
        self._roles = roles
        self._window = window
        self._order = order
        self._training = training
        self._relays = roles.relays(world.rank)
        self._heads_node = roles.leader(roles.node_of[world.rank]) == world.rank
        self._limit = 0
        self._hold = 0
        self._assigned = 0  # chunks of the ring before this one have been assigned slots
        self._turns: Turns | None = None
        self._next: int | None = None  # the chunk that this rank fills next
        self._filled = 0  # samples of this chunk that are ready
        # its production and all of its samples
        self._production = 0
        self._indices = np.empty(0, np.int64)
        self._relay: Relay | None = None
        self._dropped: frozenset[int] = frozenset()  # dead ranks whose cursors were released
        self._demands: dict[int, int] = {}  # other node -> position of its readers
        self._sent_demand = 0
        self._sent_demand_at = 0.0
        self._clock = clock
        # Since the last report: samples, time spent on them, and on other work between them.
        self._prepared = 0
        self._busy_s = 0.0
        self._beside_s = 0.0
        self._paused_s = 0.0  # when the latest part of an unfinished chunk was ready

    def apply_order(self, order: Produce) -> None:
        """Apply an order of the coordinator."""
        self._limit = order.limit
        self._hold = order.hold
        if self._turns is None:
            self._turns = Turns(order.first, order.turns)
            self._assigned = order.first
            self._next = self._turns.next_of(self._world.rank, order.first)
            if self._relays:
                self._relay = Relay(self._world, self._roles, self._window, self._turns, number=0)
        elif self._turns.change(order.since, order.turns) and (
            self._next is None or self._next >= order.since
        ):
            self._next = self._turns.next_of(self._world.rank, order.since)

    def note_demand(self, demand: Demand) -> None:
        """Record the position of another node's readers."""
        self._demands[demand.node] = demand.sequence
        self._window.demand[0] = max(self._demands.values())

    def step(self) -> bool:
        """Do a bounded amount of work; returns whether there was any."""
        self._drop_dead_ranks()
        if self._relays:
            self._send_demand()
        if self._window.layout.is_ring and self._heads_node:
            while self._is_wanted(self._assigned) and self._window.assign(self._assigned):
                self._assigned += 1
        return self._produce() | (self._relay is not None and self._relay.step(self._may_write))

    def stop(self) -> None:
        """Finish the relay; collective over the leaders."""
        if self._relay is not None:
            self._relay.finish()

    def _send_demand(self) -> None:
        """Send the position of this node's readers to other nodes."""
        fastest = self._window.fastest_reader()
        now = time.perf_counter()
        if (
            fastest is None
            or fastest <= self._sent_demand
            or now - self._sent_demand_at < _DEMAND_EVERY_S
        ):
            return
        self._sent_demand = fastest
        self._sent_demand_at = now
        own_node = self._roles.node_of[self._world.rank]
        for node in range(self._roles.nodes):
            if node != own_node:
                self._world.send(
                    self._roles.leader(node), Tag.PREPROCESSOR, Demand(own_node, fastest)
                )

    def _is_wanted(self, sequence: int) -> bool:
        """Return True if chunk ``sequence`` may be produced now."""
        fastest = self._window.fastest_reader()
        if fastest is None:
            # No rank reads on this node. Readers of other nodes are at `hold` at most, so this does
            # not hold them back.
            fastest = 0 if self._window.layout.is_ring else self._hold
        ahead_of = max(
            fastest, self._turns.first if self._turns else 0, int(self._window.demand[0])
        )
        return sequence < min(self._limit, ahead_of + self._window.layout.lookahead)

    def _drop_dead_ranks(self) -> None:
        """Release the cursors of dead trainers of this node."""
        dead_ranks = self._roles.with_trainers(self._world.dead_ranks)
        self.release_readers(dead_ranks - self._dropped)
        self._dropped = dead_ranks

    def release_readers(self, ranks: Iterable[int]) -> None:
        """Release the cursors of trainers that no longer read."""
        roles = self._roles
        for rank in ranks:
            if rank in roles.device_of and roles.node_of[rank] == roles.node_of[self._world.rank]:
                self._window.need(roles.local_index(rank), NOT_READING)

    def _may_write(self, sequence: int) -> bool:
        """Return True if chunk ``sequence`` may be produced and its slot is free."""
        if self._window.layout.is_ring:
            return self._window.has_slot(sequence)
        return (
            self._is_wanted(sequence)
            and self._turns is not None
            and self._window.is_free(sequence, self._hold, self._turns.first)
        )

    def _produce(self) -> bool:
        if (
            self._turns is None
            or self._next is None
            or (self._filled == 0 and not self._may_write(self._next))
        ):
            return False
        if self._filled == 0:
            self._production, self._indices = self._order.chunk(self._next)
        begin = self._filled
        end = min(len(self._indices), self._filled + _SAMPLES_A_STEP)
        row = self._window.rows(self._next).start
        rows = slice(row + begin, row + end)
        began = self._clock()
        if begin:  # rank 0 coordinates between two parts of a chunk
            self._beside_s += began - self._paused_s
        bad = self._training.load(
            self._indices[begin:end],
            self._production,
            self._window.inputs[rows],
            self._window.targets[rows],
        )
        self._paused_s = self._clock()
        self._report_throughput(end - begin, self._paused_s - began)
        _report(self._world, bad, training=True)
        self._filled = end
        if end == len(self._indices):
            self._window.publish(self._next)
            self._next = self._turns.next_of(self._world.rank, self._next + 1)
            self._filled = 0
        return True

    def _report_throughput(self, samples: int, seconds: float) -> None:
        """Report to the coordinator how fast samples are prepared."""
        self._prepared = self._prepared + samples
        self._busy_s = self._busy_s + seconds
        if self._busy_s >= _BUSY_S:
            self._world.send(
                0,
                Tag.COORDINATOR,
                Prepared(self._world.rank, self._prepared, self._busy_s, self._beside_s),
            )
            self._prepared = 0
            self._busy_s = 0.0
            self._beside_s = 0.0


class SetFiller:
    """Fills a sample set: prepares this rank's chunks and relays those of other nodes.

    Args:
        target: the sample set of this node.
        training: whether these are training samples.
        load: prepares some rows: (rows, inputs, targets) -> unreadable samples.
    """

    def __init__(
        self,
        world: World,
        roles: Roles,
        target: SampleSet,
        training: bool,
        load: Callable[[range, np.ndarray, np.ndarray], list[UnreadableSample]],
    ) -> None:
        self._world = world
        self._target = target
        self._load = load
        self._training = training
        turns = Turns(0, roles.preprocessors)
        own_node = roles.node_of[world.rank]
        node = [
            chunk
            for chunk in range(target.chunks)
            if roles.node_of[turns.rank_of(chunk)] == own_node
        ]
        # First this rank's own chunks; then, from the end, chunks that other ranks of its node have
        # not reached, such as those of rank 0, which coordinates first. If two ranks prepare the
        # same chunk, they write the same bits.
        own_chunks = [chunk for chunk in node if turns.rank_of(chunk) == world.rank]
        self._chunks = [*sorted(set(node) - set(own_chunks)), *own_chunks[::-1]]
        self._own_chunks = set(own_chunks)
        self._stride = len(roles.preprocessors)  # between two chunks of one rank
        self._rows: list[range] = []
        if roles.relays(world.rank):
            self._relay: Relay | None = Relay(
                world, roles, target, turns, number=1 + training, end=target.chunks
            )
        else:
            self._relay = None

    def step(self) -> bool:
        """Do a bounded amount of work; returns whether there was any."""
        has_relayed = self._relay is not None and self._relay.step(lambda sequence: True)
        while self._chunks and not self._rows:
            chunk = self._chunks.pop()
            if not self._target.has(chunk) and (chunk in self._own_chunks or self._is_far(chunk)):
                self._rows = _steps(self._target.rows(chunk))[::-1]
        if not self._rows:
            return has_relayed
        rows = self._rows.pop()
        part = slice(rows.start, rows.stop)
        bad = self._load(rows, self._target.inputs[part], self._target.targets[part])
        _report(self._world, bad, self._training)
        if rows.stop == self._target.samples or rows.stop % self._target.chunk == 0:
            self._target.publish(rows.start // self._target.chunk)
        return True

    def _is_far(self, chunk: int) -> bool:
        """Return True if the owner of a chunk still has an earlier one to prepare."""
        before = chunk - self._stride
        return before >= 0 and not self._target.has(before)

    def stop(self) -> None:
        """Finish the relay; collective over the leaders."""
        if self._relay is not None:
            self._relay.finish()


def _steps(rows: slice) -> list[range]:
    return [
        range(first, min(first + _SAMPLES_A_STEP, rows.stop))
        for first in range(rows.start, rows.stop, _SAMPLES_A_STEP)
    ]


def _report(world: World, bad: Sequence[UnreadableSample], training: bool) -> None:
    for sample in bad:
        world.send(0, Tag.COORDINATOR, SampleUnreadable(sample.name, sample.reason, training))
