"""Rings on one node to four: groups always come on, whatever order ranks and accesses to shared memory have."""

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


# ---- what is chosen ----


def stocks(chunks=12):
    """What a node may hold: chunks before the last that was given a slot."""
    return st.integers(0, chunks).flatmap(
        lambda until: st.builds(
            lambda held, there: Stock(frozenset(held & there), frozenset(held - there), until),
            st.sets(st.integers(0, until - 1) if until else st.nothing()),
            st.sets(st.integers(0, chunks)),
        )
    )


@given(st.lists(stocks(), min_size=1, max_size=4), st.sets(st.integers(0, 20)))
def test_ring_choose_takes_oldest_chunk_of_all_nodes(held, useless):
    def may_be(sequence):
        return sequence not in useless and all(stock.will_have(sequence) for stock in held)

    chosen = choose(held, lambda sequence: sequence not in useless)
    assert may_be(chosen)
    possible = [sequence for sequence in range(40) if may_be(sequence)]
    existing = [
        sequence for sequence in possible if all(sequence in stock.complete for stock in held)
    ]
    assert chosen == min(existing or possible)


def test_ring_missed_counts_overwritten_useful_chunks():
    current = Stock(frozenset({2, 3, 4}), frozenset({5}), until=6)
    present = Stock(frozenset({4, 6, 7}), frozenset({8}), until=9)
    assert missed([current, present], lambda sequence: sequence != 2) == {3, 5}
    assert missed([current, current], lambda sequence: True) == set()


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (
            {1},
            "chunk 0 of the ring .*, though newer ones come: the preprocessor that should write it does not; .* is 1",
        ),
        (
            {0, 1},
            r"chunk 2 of the ring has not arrived for 0 s \(data.data_timeout\): the preprocessor that should write it does",
        ),
        (
            {0, 1, 2},
            "chunk 3 of the ring .*: no slot has become free for it on this node, whose readers hold 1; ",
        ),
    ],
    ids=["late", "last", "without a slot"],
)
def test_ring_stalled_group_names_the_cause(taken, said):
    layout = Layout(GREY, 6 * SIZE, SIZE, slots=3, lookahead=2, readers=2, is_ring=True)
    window, alone = window_of(layout), pipeline(layout.samples)
    for chunk in range(3):
        window.assign(chunk)
    window.publish(1)
    window.need(1, 1)

    def use(world):
        stream = RingReader(window, 0, Waiting(world, 0.05), RingOrder(alone, SIZE, SEED))
        return list(stream.batches(Epoch(0), 0, SIZE, SingleRankGroup(), taken))

    with pytest.raises(Stalled, match=said):
        alone_in_the_world(use)


def test_ring_epoch_counts_missed_chunks():
    layout = Layout(GREY, 3 * SIZE, SIZE, slots=4, lookahead=2, readers=1, is_ring=True)
    windows, alone, counted = [window_of(layout), window_of(layout)], pipeline(layout.samples), []
    for node, window in enumerate(windows):
        for chunk in range(4 + node):  # the second node has let go of chunk 0
            window.assign(chunk)
            window.publish(chunk)

    def be(world):
        stream = RingReader(windows[world.rank], 0, Waiting(world), RingOrder(alone, SIZE, SEED))
        counted.append(
            [batch.missed for batch in stream.batches(Epoch(0), 0, SIZE, world.group((0, 1), 1))]
        )

    assert Launch(2, seed=0).run(be)
    assert counted == [[1, 1, 1], [1, 1, 1]]


# ---- whole launches ----


@dataclass(frozen=True)
class Group:
    """Some trainers, for some epochs, with batches of some size."""

    trainers: tuple
    epochs: int
    batch: int


@dataclass(frozen=True)
class Plan:
    """What a launch does: each trainer is in the groups that name it, one after another.

    Attributes:
        node_of: of each rank.
        preprocessors: one on each node at least.
        first: the epoch of the stream that the launch begins with.
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
    everybody, groups = tuple(range(nodes * trainers)), []
    for _ in range(draw(st.integers(1, 2))):
        order = draw(st.permutations(everybody))
        cuts = sorted(draw(st.sets(st.integers(1, len(order)), max_size=2)))
        for first, last in itertools.pairwise(
            [0, *cuts]
        ):  # trainers beyond the last cut are in no group
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


class Counted:
    """A group that counts how often its ranks speak to each other."""

    def __init__(self, group):
        self._group, self.rank, self.size, self.times = group, group.rank, group.size, 0

    def barrier(self):
        self._group.barrier()

    def allgather(self, value):
        self.times += 1
        return self._group.allgather(value)


class Rings:
    """A launch of real preprocessors and readers, of which a scheduler says who has its turn.

    Every access to a word of shared memory ends a turn. So orders are tried in which a reader leaves while another
    rank looks at the cursors, or comes while the node's leader gives a slot away.
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
        self._left = 0
        self.chunks, self.read = (
            0,
            [],
        )  # that groups have taken; (group, epoch, first row, last row) that ranks read
        self.launch.start(self._be)

    def _be(self, world):
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
            self._tell_preprocessors(world, Produce(NO_LIMIT, NO_LIMIT, first, turns))
        while not preprocessor.is_done:
            if world.rank == 0 and self._left == len(self._roles.trainers):
                self._left = 0
                self._tell_preprocessors(world, Exit())
            world.pause(preprocessor.step())
        preprocessor.stop()

    def _tell_preprocessors(self, world, message):
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
        self._left += 1

    def _read(self, world, stream, number, group, rank):
        """Epochs of a group; every row is looked at twice, and others run in between."""
        ranks, order, consumed = (
            [self._roles.trainers[trainer] for trainer in group.trainers],
            self._order(),
            frozenset(),
        )
        members = Counted(world.group(ranks, number))
        stream.join(0)
        for epoch in range(group.epochs):
            earlier, members.times = 0, 0
            for batch in stream.batches(Epoch(epoch), 0, group.batch, members, consumed):
                path = batch.epoch.path
                assert members.times <= len(path) - earlier, (
                    "what was agreed upon was not to be had"
                )
                self.chunks += (len(path) - earlier) * (rank == 0)
                earlier, members.times = len(path), 0
                rows = split_rows(batch.position - batch.size, batch.position, rank, len(ranks))
                images, _ = expected(self._alone, order.plan_epoch(batch.epoch), *rows)
                for _ in range(2):
                    np.testing.assert_array_equal(batch.images, images)
                    world.pause(worked=True)
                self.read.append((number, epoch, *rows))
            assert not consumed & set(path)
            assert min(path) >= self.plan.first_chunk
            consumed |= set(path)
        world.group(ranks, number + 1000).barrier()

    @property
    def wanted(self):
        """The chunk that the first reader of each node reads, or waits for."""
        return [int(np.asarray(window.cursors)[0]) for window in self._windows]

    @property
    def produced(self):
        """Chunks that were given slots, on the node that is furthest."""
        until = max(int(np.asarray(window.assigned_until).max()) for window in self._windows)
        return max(0, until - self.plan.first_chunk)

    def check_production(self):
        """Each choice has the ring turn by two productions at most; writers are at most the lookahead before it."""
        layout, chosen = self.plan.layout, self.chunks + len(self.plan.groups)
        assert self.produced <= layout.lookahead + chosen * (2 * layout.chunks + layout.lookahead)

    def check_all_is_read(self):
        for number, group in enumerate(self.plan.groups):
            for epoch in range(group.epochs):
                rows = sorted(part[2:] for part in self.read if part[:2] == (number, epoch))
                assert [row for part in rows for row in range(*part)] == list(
                    range(self.plan.layout.samples)
                )


@pytest.fixture(autouse=True)
def _tell_at_once(monkeypatch):
    """Whether a node tells the others how far its readers are must not be a matter of the clock."""
    monkeypatch.setattr(filler, "_TELL_EVERY_S", 0.0)


class RingMachine(RuleBasedStateMachine):
    """Some ranks run and others do not, in any order; at the end all run, and must come to theirs."""

    rings = None

    @initialize(plan=plans(), seed=st.integers(0, 10**6))
    def begin(self, plan, seed):
        self.rings = Rings(plan, seed)

    @rule(rank=st.integers(0, 11), turns=st.integers(1, 60))
    def run_one(self, rank, turns):
        for _ in range(turns):
            self.rings.launch.turn(rank % len(self.rings.plan.node_of))
        self.rings.check_production()

    @rule(resting=st.sets(st.integers(0, 11), max_size=6), turns=st.integers(1, 60))
    def run_others(self, resting, turns):
        ranks = [rank for rank in range(len(self.rings.plan.node_of)) if rank not in resting]
        for rank in itertools.islice(itertools.cycle(ranks), turns if ranks else 0):
            self.rings.launch.turn(rank)
        self.rings.check_production()

    def teardown(self):
        if self.rings is None:
            return
        try:
            assert self.rings.launch.finish(TURNS)
            self.rings.check_production()
            self.rings.check_all_is_read()
        finally:
            self.rings.launch.kill()


TestRings = RingMachine.TestCase
TestRings.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("nodes", [1, 2])
def test_ring_choose_before_start_takes_this_launchs_chunk(nodes):
    layout = Layout(GREY, 2 * SIZE, SIZE, slots=4, lookahead=2, readers=1, is_ring=True)
    node_of, everybody = tuple(node for node in range(nodes) for _ in range(2)), tuple(range(nodes))
    plan = Plan(node_of, nodes, layout, (Group(everybody, 1, SIZE),), first=3)
    rings = Rings(plan, seed=0)
    for _ in range(60):
        for rank in plan.roles.trainers:
            rings.launch.turn(rank)
    assert rings.wanted == [layout.sequence(plan.first, 0)] * nodes
    assert rings.launch.finish(TURNS)
    rings.check_all_is_read()


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(plans(), st.integers(0, 10**6))
def test_ring_advances_only_as_far_as_single_group_needs(plan, seed):
    """All shards that it lacks come within the next two productions."""
    group = Group(tuple(range(len(plan.roles.trainers))), 4, SIZE)
    plan = dataclasses.replace(plan, groups=(group,))
    rings = Rings(plan, seed)
    assert rings.launch.finish(TURNS)
    rings.check_all_is_read()
    assert (
        rings.produced
        <= group.epochs * (2 * plan.layout.chunks + plan.layout.lookahead) + plan.layout.lookahead
    )
