"""Rings on one to four nodes, in any order of ranks and of accesses to shared memory."""

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fleet.comm.messages import NO_LIMIT, Exit, Produce, Tag
from fleet.comm.roles import assign
from fleet.comm.single_rank import SingleRankGroup
from fleet.runtime.preprocessor import Preprocessor
from fleet.stream import filler
from fleet.stream.batch import split_rows
from fleet.stream.compose import NodeMemory
from fleet.stream.layout import Layout
from fleet.stream.order import Epoch, RingOrder
from fleet.stream.ring import RingReader, choose, missed
from fleet.stream.stall import Stalled, Waiting
from fleet.stream.window import Stock
from tests.fleet.one_process import Launch
from tests.fleet.stream.streams import GREY, SEED, alone_in_the_world, expected, pipeline, window_of
from tests.fleet.stream.words import watched

SIZE = 2  # samples in a shard
TURNS = 200_000  # far more than any launch here needs


# ---- choice of chunks ----


def node_stocks(chunks=12):
    """Possible stocks of a node: chunks before the last one that was assigned a slot."""
    return st.integers(0, chunks).flatmap(
        lambda until: st.builds(
            lambda assigned, complete: Stock(
                frozenset(assigned & complete), frozenset(assigned - complete), until
            ),
            st.sets(st.integers(0, until - 1) if until else st.nothing()),
            st.sets(st.integers(0, chunks)),
        )
    )


@given(st.lists(node_stocks(), min_size=1, max_size=4), st.sets(st.integers(0, 20)))
def test_ring_choose_takes_oldest_chunk_of_all_nodes(stocks, useless):
    def is_possible(sequence):
        return sequence not in useless and all(stock.will_have(sequence) for stock in stocks)

    chosen = choose(stocks, lambda sequence: sequence not in useless)
    assert is_possible(chosen)
    possible = [sequence for sequence in range(40) if is_possible(sequence)]
    complete = [
        sequence for sequence in possible if all(sequence in stock.complete for stock in stocks)
    ]
    assert chosen == min(complete or possible)


def test_ring_missed_counts_overwritten_useful_chunks():
    current = Stock(frozenset({2, 3, 4}), frozenset({5}), until=6)
    present = Stock(frozenset({4, 6, 7}), frozenset({8}), until=9)
    assert missed([current, present], lambda sequence: sequence != 2) == {3, 5}
    assert missed([current, current], lambda sequence: True) == set()


@pytest.mark.parametrize(
    ("consumed", "message"),
    [
        (
            {1},
            "chunk 0 of the ring has not arrived for 0 s (data.data_timeout), but newer ones have: "
            "the preprocessor that should write it does not; the newest chunk is 1",
        ),
        (
            {0, 1},
            "chunk 2 of the ring has not arrived for 0 s (data.data_timeout): the preprocessor "
            "that should write it does not; the newest chunk is 1",
        ),
        (
            {0, 1, 2},
            "chunk 3 of the ring has not arrived for 0 s (data.data_timeout): no slot has become "
            "free for it on this node (readers hold chunks 1); the newest chunk is 1",
        ),
    ],
    ids=["late", "last", "without a slot"],
)
def test_ring_stalled_group_names_the_cause(consumed, message):
    layout = Layout(GREY, 6 * SIZE, SIZE, slots=3, lookahead=2, readers=2, is_ring=True)
    window, alone = window_of(layout), pipeline(layout.samples)
    for chunk in range(3):
        window.assign(chunk)
    window.publish(1)
    window.need(1, 1)

    def use(world):
        stream = RingReader(window, 0, Waiting(world, 0.05), RingOrder(alone, SIZE, SEED))
        return list(stream.batches(Epoch(0), 0, SIZE, SingleRankGroup(), consumed))

    with pytest.raises(Stalled) as stalled:
        alone_in_the_world(use)
    assert str(stalled.value) == message


def test_ring_epoch_counts_missed_chunks():
    layout = Layout(GREY, 3 * SIZE, SIZE, slots=4, lookahead=2, readers=1, is_ring=True)
    windows, alone, counts = [window_of(layout), window_of(layout)], pipeline(layout.samples), []
    for node, window in enumerate(windows):
        for chunk in range(4 + node):  # the second node has overwritten chunk 0
            window.assign(chunk)
            window.publish(chunk)

    def rank_main(world):
        stream = RingReader(windows[world.rank], 0, Waiting(world), RingOrder(alone, SIZE, SEED))
        counts.append(
            [batch.missed for batch in stream.batches(Epoch(0), 0, SIZE, world.group((0, 1), 1))]
        )

    assert Launch(2, seed=0).run(rank_main)
    assert counts == [[1, 1, 1], [1, 1, 1]]


# ---- whole launches ----


@dataclass(frozen=True)
class Group:
    """A training group: its trainers, its number of epochs, its batch size."""

    trainers: tuple
    epochs: int
    batch: int


@dataclass(frozen=True)
class Plan:
    """A launch: each trainer is in the groups that contain it, one after another.

    Attributes:
        node_of: the node of each rank.
        preprocessors: their total number, at least one on each node.
        first: the stream's first epoch in the launch.
    """

    node_of: tuple
    preprocessors: int
    layout: Layout
    groups: tuple
    first: int = 0

    @property
    def roles(self):
        return assign(self.node_of, self.preprocessors, None)

    @property
    def first_chunk(self):
        return self.layout.sequence(self.first, 0)


@st.composite
def plans(draw):
    nodes, trainers = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    preparing = 1 if nodes > 1 else draw(st.integers(1, 2))
    shards, slots = draw(st.integers(2, 5)), draw(st.integers(3, 8))
    layout = Layout(GREY, shards * SIZE, SIZE, slots, max(2, slots // 2), trainers, is_ring=True)
    all_trainers, groups = tuple(range(nodes * trainers)), []
    for _ in range(draw(st.integers(1, 2))):
        order = draw(st.permutations(all_trainers))
        cuts = sorted(draw(st.sets(st.integers(1, len(order)), max_size=2)))
        # trainers beyond the last cut are in no group
        for first, last in itertools.pairwise([0, *cuts]):
            groups.append(
                Group(
                    tuple(order[first:last]),
                    draw(st.integers(1, 2)),
                    draw(st.integers(1, shards * SIZE)),
                )
            )
    return Plan(
        tuple(node for node in range(nodes) for _ in range(preparing + trainers)),
        nodes * preparing,
        layout,
        tuple(groups),
        draw(st.integers(0, 2)),
    )


class CountingGroup:
    """A group that counts its allgathers."""

    def __init__(self, group):
        self._group, self.rank, self.size, self.allgathers = group, group.rank, group.size, 0

    def barrier(self):
        self._group.barrier()

    def allgather(self, value):
        self.allgathers += 1
        return self._group.allgather(value)


class Rings:
    """A launch of real preprocessors and readers, whose turns the test decides.

    Every access to a word of shared memory ends a turn. So a reader may leave while another rank
    reads the cursors, or join while the node's leader assigns a slot.
    """

    def __init__(self, plan, seed):
        self.plan, self._roles = plan, plan.roles
        self.launch = Launch(len(plan.node_of), seed)
        self._windows = [
            window_of(plan.layout, is_relayed=self._roles.nodes > 1)
            for _ in range(self._roles.nodes)
        ]
        for window in self._windows:
            for name in ("cursors", "stamps", "assigned", "assigned_until", "demand"):
                setattr(window, name, watched(getattr(window, name), self.launch.pause))
        self._alone = pipeline(plan.layout.samples)
        self._finished = 0
        self.chunks = 0  # that groups have read
        self.rows_read = []  # (group, epoch, first row, last row) of each read of a rank
        self.launch.start(self._run_rank)

    def _run_rank(self, world):
        if world.rank in self._roles.trainers:
            self._train(world)
        else:
            self._prepare(world)

    def _prepare(self, world):
        prepared = pipeline(self.plan.layout.samples)
        window = self._windows[self._roles.node_of[world.rank]]
        preprocessor = Preprocessor(
            world, self._roles, NodeMemory(window), self._order(), prepared, None
        )
        if world.rank == 0:
            first, turns = self.plan.first_chunk, self._roles.preprocessors
            self._send_preprocessors(world, Produce(NO_LIMIT, NO_LIMIT, first, turns))
        while not preprocessor.is_done:
            if world.rank == 0 and self._finished == len(self._roles.trainers):
                self._finished = 0
                self._send_preprocessors(world, Exit())
            world.pause(preprocessor.step())
        preprocessor.stop()

    def _send_preprocessors(self, world, message):
        for rank in self._roles.preprocessors:
            world.send(rank, Tag.PREPROCESSOR, message)

    def _order(self):
        return RingOrder(self._alone, SIZE, SEED)

    def _train(self, world):
        roles = self._roles
        trainer, window = roles.trainers.index(world.rank), self._windows[roles.node_of[world.rank]]
        stream = RingReader(
            window,
            roles.local_index(world.rank),
            Waiting(world),
            self._order(),
            first=self.plan.first_chunk,
        )
        for number, group in enumerate(self.plan.groups):
            if trainer in group.trainers:
                self._read(world, stream, number, group, group.trainers.index(trainer))
        stream.leave()
        self._finished += 1

    def _read(self, world, stream, number, group, rank):
        """Read the epochs of a group; check every row twice, while other ranks run in between."""
        ranks = [self._roles.trainers[trainer] for trainer in group.trainers]
        order = self._order()
        consumed = frozenset()
        members = CountingGroup(world.group(ranks, number))
        stream.join(0)
        for epoch in range(group.epochs):
            chunks_before, members.allgathers = 0, 0
            for batch in stream.batches(Epoch(epoch), 0, group.batch, members, consumed):
                path = batch.epoch.path
                assert members.allgathers <= len(path) - chunks_before, (
                    "a chunk that the group had chosen was overwritten"
                )
                self.chunks += (len(path) - chunks_before) * (rank == 0)
                chunks_before, members.allgathers = len(path), 0
                rows = split_rows(batch.position - batch.size, batch.position, rank, len(ranks))
                images, _ = expected(self._alone, order.plan_epoch(batch.epoch), *rows)
                for _ in range(2):
                    np.testing.assert_array_equal(batch.inputs, images)
                    world.pause(worked=True)
                self.rows_read.append((number, epoch, *rows))
            assert not consumed & set(path)
            assert min(path) >= self.plan.first_chunk
            consumed |= set(path)
        world.group(ranks, number + 1000).barrier()

    @property
    def first_cursors(self):
        """The chunk that the first reader of each node reads or waits for."""
        return [int(np.asarray(window.cursors)[0]) for window in self._windows]

    @property
    def produced(self):
        """Number of chunks that were assigned slots, on the node that is furthest."""
        until = max(int(np.asarray(window.assigned_until).max()) for window in self._windows)
        return max(0, until - self.plan.first_chunk)

    def check_production(self):
        """Check that the ring advances no further than needed.

        Each choice advances it by two productions at most, and writers are ahead by at most the
        lookahead.
        """
        layout, chosen = self.plan.layout, self.chunks + len(self.plan.groups)
        assert self.produced <= layout.lookahead + chosen * (2 * layout.chunks + layout.lookahead)

    def check_all_rows_are_read(self):
        for number, group in enumerate(self.plan.groups):
            for epoch in range(group.epochs):
                rows = sorted(part[2:] for part in self.rows_read if part[:2] == (number, epoch))
                assert [row for part in rows for row in range(*part)] == list(
                    range(self.plan.layout.samples)
                )


@pytest.fixture(autouse=True)
def _send_demands_immediately(monkeypatch):
    """Make the messages between nodes independent of the clock."""
    monkeypatch.setattr(filler, "_DEMAND_EVERY_S", 0.0)


class RingMachine(RuleBasedStateMachine):
    """Some ranks run and others do not, in any order; at the end all run and must finish."""

    rings = None

    @initialize(plan=plans(), seed=st.integers(0, 10**6))
    def begin(self, plan, seed):
        self.rings = Rings(plan, seed)

    @rule(rank=st.integers(0, 11), turns=st.integers(1, 60))
    def run_rank(self, rank, turns):
        for _ in range(turns):
            self.rings.launch.turn(rank % len(self.rings.plan.node_of))
        self.rings.check_production()

    @rule(paused=st.sets(st.integers(0, 11), max_size=6), turns=st.integers(1, 60))
    def run_ranks_except(self, paused, turns):
        ranks = [rank for rank in range(len(self.rings.plan.node_of)) if rank not in paused]
        for rank in itertools.islice(itertools.cycle(ranks), turns if ranks else 0):
            self.rings.launch.turn(rank)
        self.rings.check_production()

    def teardown(self):
        if self.rings is None:
            return
        try:
            assert self.rings.launch.finish(TURNS)
            self.rings.check_production()
            self.rings.check_all_rows_are_read()
        finally:
            self.rings.launch.kill()


TestRings = RingMachine.TestCase
TestRings.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("nodes", [1, 2])
def test_ring_choose_before_start_takes_this_launchs_chunk(nodes):
    layout = Layout(GREY, 2 * SIZE, SIZE, slots=4, lookahead=2, readers=1, is_ring=True)
    node_of = tuple(node for node in range(nodes) for _ in range(2))
    plan = Plan(node_of, nodes, layout, (Group(tuple(range(nodes)), 1, SIZE),), first=3)
    rings = Rings(plan, seed=0)
    for _ in range(60):
        for rank in plan.roles.trainers:
            rings.launch.turn(rank)
    assert rings.first_cursors == [layout.sequence(plan.first, 0)] * nodes
    assert rings.launch.finish(TURNS)
    rings.check_all_rows_are_read()


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(plans(), st.integers(0, 10**6))
def test_ring_advances_only_as_far_as_single_group_needs(plan, seed):
    """All shards that the group lacks are produced within the next two productions."""
    group = Group(tuple(range(len(plan.roles.trainers))), 4, SIZE)
    plan = dataclasses.replace(plan, groups=(group,))
    rings = Rings(plan, seed)
    assert rings.launch.finish(TURNS)
    rings.check_all_rows_are_read()
    lookahead = plan.layout.lookahead
    assert rings.produced <= group.epochs * (2 * plan.layout.chunks + lookahead) + lookahead
