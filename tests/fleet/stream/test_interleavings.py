"""Preprocessors, relays and readers of a stream, in any interleaving of ranks."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.messages import NO_LIMIT, Exit, Produce, Tag
from fleet.comm.roles import assign
from fleet.comm.single_rank import SingleRankGroup
from fleet.runtime.preprocessor import Preprocessor
from fleet.stream.batch import split_rows
from fleet.stream.compose import NodeMemory
from fleet.stream.layout import Layout
from fleet.stream.local_batches import LocalBatches
from fleet.stream.order import Epoch, RingOrder, StrictOrder
from fleet.stream.reader import Reader
from fleet.stream.ring import RingReader
from fleet.stream.stall import Waiting
from fleet.stream.store import NodeStore
from preprocess.pipeline import Pipeline
from preprocess.transforms import parse_transforms
from tests.examples import examples
from tests.fleet.one_process import Launch
from tests.fleet.stream.streams import GREY, SEED, expected, pipeline, set_of, window_of
from tests.sources import Numbered


@dataclass(frozen=True)
class Group:
    """A training group: its trainers, its first epoch, its number of epochs, its batch size."""

    trainers: tuple
    first: int
    epochs: int
    batch: int


@st.composite
def streams(draw):
    """Ranks on one or two nodes, and groups that join and leave."""
    nodes = draw(st.integers(1, 2))
    on_each = draw(st.integers(2, 4))
    node_of = tuple(node for node in range(nodes) for _ in range(on_each))
    roles = assign(node_of, draw(st.integers(nodes, nodes * (on_each - 1))), None)
    samples = draw(st.integers(1, 40))
    chunk = draw(st.integers(1, min(samples, 7)))
    free, groups = list(range(len(roles.trainers))), []
    while free:
        size = draw(st.integers(1, len(free)))
        groups.append(
            Group(
                tuple(free[:size]),
                draw(st.integers(0, 2)),
                draw(st.integers(1, 3)),
                draw(st.integers(1, samples)),
            )
        )
        del free[:size]
    if draw(st.booleans()):
        layout = Layout(
            GREY,
            samples,
            chunk,
            draw(st.integers(3, 9)),
            draw(st.integers(2, 5)),
            roles.gpus_per_node,
            is_ring=True,
        )
    else:
        batch_chunks = max(-(-(group.batch - 1) // chunk) + 1 for group in groups)
        layout = Layout(
            GREY,
            samples,
            chunk,
            batch_chunks + draw(st.integers(1, 6)),
            batch_chunks + draw(st.integers(0, 3)),
            roles.gpus_per_node,
        )
    return roles, layout, groups


def order_of(layout, alone):
    return (
        RingOrder(alone, layout.chunk, SEED) if layout.is_ring else StrictOrder(alone, layout.chunk)
    )


class StreamGrants:
    """The coordinator's part: advances the stream and holds chunks for groups that join later."""

    def __init__(self, world, roles, layout, groups):
        self._world, self._roles, self._layout, self._groups = world, roles, layout, groups
        self._joined, self._finished = set(), set()
        self._granted = min(group.first for group in groups)
        self._latest_order = None

    def step(self):
        message = self._world.receive(Tag.COORDINATOR)
        if isinstance(message, tuple) and message[0] in ("joined", "epoch", "finished"):
            kind, group, epoch = message
            {"joined": self._joined, "finished": self._finished, "epoch": set()}[kind].add(group)
            self._granted = max(self._granted, epoch)
        joining = [
            group.first for index, group in enumerate(self._groups) if index not in self._joined
        ]
        limit = hold = NO_LIMIT
        if not self._layout.is_ring:
            limit = (self._granted + 2) * self._layout.chunks
            hold = min([*joining, self._granted + 1]) * self._layout.chunks
        order = Produce(limit, hold, first=0, turns=self._roles.preprocessors)
        if len(self._finished) == len(self._groups):
            order = Exit()
        if order != self._latest_order:
            self._latest_order = order
            for rank in self._roles.preprocessors:
                self._world.send(rank, Tag.PREPROCESSOR, order)
        return message is not None


def read(world, roles, layout, window, group, number, alone, rows_read):
    """Run a trainer: join, read its rows of some epochs, check each row three times, leave."""
    node = roles.node_of[world.rank]
    node_trainers = [rank for rank in roles.trainers if roles.node_of[rank] == node]
    order = order_of(layout, alone)
    reader_class = RingReader if layout.is_ring else Reader
    stream = reader_class(window, node_trainers.index(world.rank), Waiting(world), order)
    rank = group.trainers.index(roles.trainers.index(world.rank))
    stream.join(group.first)
    ranks = [roles.trainers[trainer] for trainer in group.trainers]
    members = world.group(ranks, number)
    members.barrier()
    consumed = set()
    if rank == 0:
        world.send(0, Tag.COORDINATOR, ("joined", number, group.first))
    for epoch in range(group.first, group.first + group.epochs):
        if rank == 0:
            world.send(0, Tag.COORDINATOR, ("epoch", number, epoch))
        for batch in stream.batches(Epoch(epoch), 0, group.batch, members, frozenset(consumed)):
            first = batch.position - batch.size
            rows = split_rows(first, batch.position, rank, len(ranks))
            images, labels = expected(alone, order.plan_epoch(batch.epoch), *rows)
            for _ in range(3):  # other ranks run in between, and must not overwrite these rows
                np.testing.assert_array_equal(batch.inputs, images)
                np.testing.assert_array_equal(batch.targets, labels)
                world.pause(worked=True)
            rows_read.append((number, epoch, *rows))
            assert batch.is_last == (batch.position == layout.samples)
        assert not consumed & set(batch.epoch.path)  # no chunk is consumed twice
        consumed |= set(batch.epoch.path)
        if layout.is_ring:
            complete = order.plan_epoch(batch.epoch)
            assert complete.path == batch.epoch.path
            assert sorted(complete.indices) == list(range(layout.samples))
    stream.leave()
    world.group(ranks, number + 1000).barrier()
    if rank == 0:
        world.send(0, Tag.COORDINATOR, ("finished", number, group.first))


@settings(max_examples=examples(60), deadline=None)
@given(streams(), st.integers(0, 10**6))
def test_stream_group_reads_each_sample_once_in_order(launch, seed):
    roles, layout, groups = launch
    windows = [window_of(layout, is_relayed=roles.nodes > 1) for _ in range(roles.nodes)]
    alone, rows_read = pipeline(layout.samples), []

    def rank_main(world):
        window = windows[roles.node_of[world.rank]]
        if world.rank in roles.trainers:
            trainer = roles.trainers.index(world.rank)
            number, group = next(
                (number, group) for number, group in enumerate(groups) if trainer in group.trainers
            )
            read(world, roles, layout, window, group, number, alone, rows_read)
            return
        grants = StreamGrants(world, roles, layout, groups) if world.rank == 0 else None
        filled = pipeline(layout.samples)
        preprocessor = Preprocessor(
            world, roles, NodeMemory(window), order_of(layout, filled), filled, None
        )
        while not preprocessor.is_done:
            has_worked = grants is not None and grants.step()
            world.pause(has_worked | preprocessor.step())
        preprocessor.stop()

    assert Launch(len(roles.node_of), seed).run(rank_main)
    for number, group in enumerate(groups):
        for epoch in range(group.first, group.first + group.epochs):
            rows = sorted(part[2:] for part in rows_read if part[:2] == (number, epoch))
            assert [row for part in rows for row in range(*part)] == list(range(layout.samples))


@settings(max_examples=examples(20), deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 30),
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 99),
)
def test_stream_decodes_stored_samples_once_and_readers_augment(
    trainers, nodes, samples, batch, is_random, seed
):
    node_of = tuple(node for node in range(nodes) for _ in range(1 + trainers))
    roles = assign(node_of, None, None)
    decoded, batches = [], []

    class Counting(Numbered):
        def read(self, index):
            decoded.append(index)
            return super().read(index)

    transforms = parse_transforms(["tests.sources:noise"] if is_random else [])
    source = Counting(samples, seed=1)
    stored = [set_of(samples, 4) for _ in range(nodes)]
    alone = Pipeline.from_source(Numbered(samples, seed=1), transforms, SEED)

    def rank_main(world):
        node_set = stored[roles.node_of[world.rank]]
        prepared = Pipeline(source, transforms, SEED, alone.sample)
        if world.rank in roles.trainers:
            order = StrictOrder(prepared, samples)
            stream = LocalBatches(NodeStore(prepared, node_set), order, Waiting(world), pytest.fail)
            for epoch in (world.rank, world.rank + 1):  # different epochs on each rank
                plan = order.plan_epoch(Epoch(epoch))
                for read_batch in stream.batches(Epoch(epoch), 0, batch, SingleRankGroup()):
                    batches.append((read_batch, plan))
            world.send(0, Tag.COORDINATOR, "finished")
            return
        preprocessor = Preprocessor(
            world, roles, NodeMemory(decoded=node_set), StrictOrder(alone, samples), prepared, None
        )
        finished_count = 0
        if world.rank == 0:
            for rank in roles.preprocessors:
                world.send(
                    rank, Tag.PREPROCESSOR, Produce(NO_LIMIT, NO_LIMIT, 0, roles.preprocessors)
                )
        while not preprocessor.is_done:
            if world.rank == 0 and world.receive(Tag.COORDINATOR):
                finished_count += 1
                if finished_count == len(roles.trainers):
                    for rank in roles.preprocessors:
                        world.send(rank, Tag.PREPROCESSOR, Exit())
            world.pause(preprocessor.step())
        preprocessor.stop()

    assert Launch(len(node_of), seed).run(rank_main)
    assert sorted(decoded) == list(range(samples))  # each once, however many nodes and epochs
    assert len(batches) == len(roles.trainers) * 2 * -(-samples // batch)
    for read_batch, plan in batches:
        last = read_batch.position
        images, labels = expected(alone, plan, last - read_batch.size, last)
        np.testing.assert_array_equal(read_batch.inputs, images)
        np.testing.assert_array_equal(read_batch.targets, labels)


def test_stream_ring_continues_beside_a_slow_reader():
    roles = assign((0, 0, 0), 1, None)
    layout = Layout(GREY, 30, 5, 3, 2, 2, is_ring=True)
    window, done = window_of(layout), []

    def rank_main(world):
        alone = pipeline(30)
        order = order_of(layout, alone)
        if world.rank == 0:
            preprocessor = Preprocessor(world, roles, NodeMemory(window), order, alone, None)
            world.send(0, Tag.PREPROCESSOR, Produce(NO_LIMIT, NO_LIMIT, 0, (0,)))
            while len(done) < 2:
                world.pause(preprocessor.step())
            return
        stream, consumed = RingReader(window, world.rank - 1, Waiting(world), order), set()
        for epoch in range(1 if world.rank == 1 else 5):
            path = ()
            for batch in stream.batches(Epoch(epoch), 0, 5, SingleRankGroup(), frozenset(consumed)):
                path = batch.epoch.path
                if world.rank == 1:  # holds its first shard until the other has trained five epochs
                    world.wait(lambda: bool(done) or None)
            consumed |= set(path)
        done.append(world.rank)

    assert Launch(3, seed=0).run(rank_main)
    assert done == [2, 1]
