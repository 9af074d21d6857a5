"""The stream: chunks in shared memory, filled by preprocessors, read by groups at their own pace."""

import itertools
import os
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.messages import NO_LIMIT, Exit, Produce, Tag
from fleet.comm.roles import assign
from fleet.errors import InfrastructureError, UserError
from fleet.runtime.preprocessor import Preprocessor
from fleet.stream.base import split_rows
from fleet.stream.filler import NodeMemory
from fleet.stream.layout import Layout, plan_layout, plan_ring
from fleet.stream.order import Epoch, RingOrder, StrictOrder
from fleet.stream.own import FromKept, FromSource, OwnStream
from fleet.stream.reader import RingStream, SharedStream
from fleet.stream.sample_set import SampleSet
from fleet.stream.stall import Standstill
from fleet.stream.validation import OwnValidation, SharedValidation
from fleet.stream.window import NOT_READING, Segment, Window
from preprocess.base import BadSample, InputError
from preprocess.pipeline import Pipeline
from preprocess.sample import ImageSpec
from preprocess.transforms import parse_transforms
from tests.fleet.one_process import Launch
from tests.sources import Numbered, partly_bad

SEED = 3
GREY, COLOUR = ImageSpec((4, 4, 1), "uint8"), ImageSpec((32, 32, 3), "uint8")


def pipeline(samples):
    """Samples that are different in every epoch."""
    return Pipeline.probed(Numbered(samples, seed=1), parse_transforms(["tests.sources:noise"]), SEED)


def expected(alone, whole, first, last):
    """What rows of an epoch hold, prepared by one rank alone."""
    images, labels = alone.empty(last - first)
    for row in range(first, last):
        place = slice(row - first, row - first + 1)
        alone.load([whole.indices[row]], int(whole.productions[row]), images[place], labels[place])
    return images, labels


_names = itertools.count()


def window_of(layout, is_relayed=False):
    window = Window(layout, f"fleet-test-{os.getpid()}-{next(_names)}", create=True, is_relayed=is_relayed)
    window.segment.unlink()
    return window


# ---- arithmetic --------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_the_rows_of_a_batch_are_shared_out_in_order_as_evenly_as_can_be(first, rows, size):
    shares = [split_rows(first, first + rows, rank, size) for rank in range(size)]
    assert [row for share in shares for row in range(*share)] == list(range(first, first + rows))
    lengths = [last - first for first, last in shares]
    assert max(lengths) - min(lengths) <= 1


layouts = st.builds(
    lambda samples, chunk, more: Layout(ImageSpec((2, 2, 1), "uint8"), samples, min(chunk, samples), 2 + more, 9, 1),
    st.integers(1, 40), st.integers(1, 9), st.integers(0, 9))


@given(layouts, st.integers(0, 5))
def test_the_chunks_of_an_epoch_hold_each_position_once(layout, epoch):
    numbers = range(epoch * layout.chunks, (epoch + 1) * layout.chunks)
    assert {layout.span(number)[0] for number in numbers} == {epoch}
    positions = [position for number in numbers for position in range(*layout.span(number)[1:])]
    assert positions == list(range(layout.samples))
    for position in positions:
        assert layout.span(layout.sequence(epoch, position))[1] <= position < layout.span(
            layout.sequence(epoch, position))[2]


@settings(max_examples=300)
@given(st.integers(1, 3000), st.sampled_from([(2, 2, 1), (32, 32, 3), (224, 224, 3)]), st.integers(1, 400),
       st.integers(1, 10**9), st.integers(1, 8))
def test_a_window_that_is_planned_holds_the_largest_batch_and_one_chunk_more_and_is_not_larger_than_said(
        samples, shape, batch, window, readers):
    batch = min(batch, samples)
    try:
        layout = plan_layout(ImageSpec(shape, "uint8"), samples, window, batch, readers)
    except UserError as error:
        message = str(error)
    else:
        assert layout.window_bytes <= window
        spanned = -(-(batch - 1) // layout.chunk) + 1  # chunks that the worst batch touches
        assert layout.slots >= spanned + 1
        assert layout.lookahead >= spanned
        assert 1 <= layout.chunk <= samples
        return
    assert "data.window" in message
    assert " need " in message


def test_a_window_that_is_too_small_is_told_the_size_that_would_do():
    with pytest.raises(UserError, match=r"largest batch \(128 samples of 3.07 kB\) and one chunk ahead need 786 kB"):
        plan_layout(COLOUR, 10_000, 500_000, 128, 4)
    assert plan_layout(COLOUR, 10_000, 786_432, 128, 4).slots == 4


def test_a_window_is_never_larger_than_two_epochs():
    layout = plan_layout(GREY, 100, 10**12, 10, 1)
    assert layout.slots == 2 * layout.chunks


# ---- memory ------------------------------------------------------------------------------------

LAYOUT = Layout(ImageSpec((2, 3, 1), "float32"), samples=10, chunk=4, slots=3, lookahead=9, readers=2)


def test_ranks_that_map_one_window_see_what_the_others_write():
    name = f"fleet-test-{os.getpid()}-{next(_names)}"
    one = Window(LAYOUT, name, create=True)
    other = Window(LAYOUT, name, create=False)
    one.segment.unlink()
    one.images[one.rows(4)], one.labels[one.rows(4)] = 0.5, 7
    assert not other.has(4)
    one.publish(4)
    assert other.has(4)
    assert not other.has(1)  # the same slot, an older chunk
    assert (other.images[other.rows(4)] == 0.5).all()
    assert (other.labels[4:8] == 7).all()
    other.cursors[1] = 5
    assert one.fastest_reader() == 5


def test_a_slot_is_free_once_no_reader_no_relay_and_no_joiner_needs_what_it_holds():
    window = window_of(LAYOUT)
    everybody = NOT_READING
    assert window.is_free(2, hold=0, first=0)  # nothing was there before
    for chunk in range(3):
        window.publish(chunk)
    assert not window.is_free(3, hold=0, first=0)  # somebody may still join at chunk 0
    assert window.is_free(3, hold=1, first=0)
    window.need(0, 0)
    assert not window.is_free(3, everybody, 0)
    window.need(0, 1)
    assert window.is_free(3, everybody, 0)
    assert not window.is_free(4, everybody, 0)
    window.cursors[-1] = 0  # the relay
    assert not window.is_free(3, everybody, 0)
    assert window.fastest_reader() == 1


def test_a_chunk_waits_for_the_one_before_it_in_its_slot_even_where_nobody_needs_that():
    window = window_of(LAYOUT)
    assert not window.is_free(5, NOT_READING, first=2)  # chunk 2 is still being filled by another preprocessor
    window.publish(2)
    assert window.is_free(5, NOT_READING, first=2)
    assert not window.is_free(8, NOT_READING, first=2)
    assert window.is_free(7, NOT_READING, first=5)  # before the first chunk there is none


RING = Layout(ImageSpec((2, 3, 1), "float32"), samples=10, chunk=4, slots=3, lookahead=2, readers=2, is_ring=True)


def test_any_slot_of_a_ring_that_nobody_reads_is_given_to_the_next_chunk():
    ring = window_of(RING)
    for chunk in range(3):
        assert ring.assign(chunk)
    assert not ring.assign(3)  # all three are being written
    ring.publish(1)
    ring.need(0, 1)
    assert not ring.assign(3)  # chunk 1 is being read
    ring.publish(2)
    assert ring.assign(3)  # in the place of chunk 2: neither chunk 0 nor 1 stops it
    assert ring.complete() == [1]
    assert (ring.is_gone(2), ring.is_gone(1), ring.is_gone(3), ring.is_gone(4)) == (True, False, False, False)


def test_a_chunk_of_a_ring_that_was_not_sent_to_the_other_nodes_stays():
    ring = window_of(RING, is_relayed=True)
    for chunk in range(3):
        ring.assign(chunk)
        ring.publish(chunk)
    assert not ring.assign(3)
    ring.relayed(1)
    assert ring.assign(3)
    assert ring.complete() == [1, 2]


def test_a_ring_wants_room_for_three_shards_and_says_what_that_is():
    assert plan_ring(COLOUR, 1000, 10**6, 50, readers=4).chunk == 20
    with pytest.raises(UserError, match=r"three shards of 20 samples of 3.07 kB need 184 kB; or .* data.shards: 50"):
        plan_ring(COLOUR, 1000, 10**5, 50, readers=4)


def test_memory_that_is_not_there_is_an_error_that_says_what_to_lower():
    with pytest.raises(InfrastructureError, match=r"1000000 TB of shared memory .* free in /dev/shm: lower data.w"):
        Segment("fleet-test-huge", 10**18, create=True)
    assert not os.path.exists("/dev/shm/fleet-test-huge")
    with pytest.raises(InfrastructureError, match="No such file"):
        Segment("fleet-test-none", 10, create=False)


def test_memory_of_a_run_that_was_killed_is_taken_over():
    Segment("fleet-test-left", 10, create=True).memory[0:1] = b"x"
    again = Segment("fleet-test-left", 10, create=True)
    again.unlink()
    assert again.memory[0:1] == b"\0"


# ---- the whole stream, every interleaving ------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A training group: on which trainers, from which epoch on, for how many, with which batches."""

    trainers: tuple
    first: int
    epochs: int
    batch: int


class Alone:
    """The members of a group of one."""

    rank, size = 0, 1

    def from_master(self, value):
        return value


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
        groups.append(Group(tuple(free[:size]), draw(st.integers(0, 2)), draw(st.integers(1, 3)),
                            draw(st.integers(1, samples))))
        del free[:size]
    if draw(st.booleans()):
        layout = Layout(GREY, samples, chunk, draw(st.integers(3, 9)), draw(st.integers(2, 5)),
                        roles.gpus_per_node, is_ring=True)
    else:
        touched = max(-(-(group.batch - 1) // chunk) + 1 for group in groups)
        layout = Layout(GREY, samples, chunk, touched + draw(st.integers(1, 6)),
                        touched + draw(st.integers(0, 3)), roles.gpus_per_node)
    return roles, layout, groups


def order_of(layout, alone):
    return RingOrder(alone, layout.chunk, SEED) if layout.is_ring else StrictOrder(alone, layout.chunk)


class Granter:
    """The coordinator's part: lets the stream run ahead, and holds it for groups that are still to join."""

    def __init__(self, world, roles, layout, groups):
        self._world, self._roles, self._layout, self._groups = world, roles, layout, groups
        self._joined, self._left = set(), set()
        self._granted = min(group.first for group in groups)
        self._told = None

    def step(self):
        message = self._world.hear(Tag.COORDINATOR)
        if isinstance(message, tuple) and message[0] in ("joined", "epoch", "left"):
            kind, group, epoch = message
            {"joined": self._joined, "left": self._left, "epoch": set()}[kind].add(group)
            self._granted = max(self._granted, epoch)
        joining = [group.first for place, group in enumerate(self._groups) if place not in self._joined]
        limit = hold = NO_LIMIT
        if not self._layout.is_ring:
            limit = (self._granted + 2) * self._layout.chunks
            hold = min([*joining, self._granted + 1]) * self._layout.chunks
        order = Produce(limit, hold, first=0, turns=self._roles.preprocessors)
        if len(self._left) == len(self._groups):
            order = Exit()
        if order != self._told:
            self._told = order
            for rank in self._roles.preprocessors:
                self._world.tell(rank, Tag.PREPROCESSOR, order)
        return message is not None


def read(world, roles, layout, window, group, place, alone, seen):
    """A trainer's part: join, read its rows of some epochs, leave; every row is looked at twice."""
    node = roles.node_of[world.rank]
    mates = [rank for rank in roles.trainers if roles.node_of[rank] == node]
    order = order_of(layout, alone)
    stream = (RingStream(window, mates.index(world.rank), world, order) if layout.is_ring
              else SharedStream(window, mates.index(world.rank), world))
    rank = group.trainers.index(roles.trainers.index(world.rank))
    stream.join(group.first)
    ranks = [roles.trainers[trainer] for trainer in group.trainers]
    members = world.group(ranks, place)
    members.exchange(None)
    taken = set()
    if rank == 0:
        world.tell(0, Tag.COORDINATOR, ("joined", place, group.first))
    for epoch in range(group.first, group.first + group.epochs):
        if rank == 0:
            world.tell(0, Tag.COORDINATOR, ("epoch", place, epoch))
        for batch in stream.batches(Epoch(epoch), 0, group.batch, members, frozenset(taken)):
            first = batch.position - batch.size
            rows = split_rows(first, batch.position, rank, len(ranks))
            images, labels = expected(alone, order.itinerary(batch.epoch), *rows)
            for _ in range(3):  # others run in between, and must not touch what is being read
                np.testing.assert_array_equal(batch.images, images)
                np.testing.assert_array_equal(batch.labels, labels)
                world.pause(worked=True)
            seen.append((place, epoch, *rows))
            assert batch.is_last == (batch.position == layout.samples)
        assert not taken & set(batch.epoch.path)  # never twice from one production
        taken |= set(batch.epoch.path)
        if layout.is_ring:
            whole = order.itinerary(batch.epoch)
            assert whole.path == batch.epoch.path
            assert sorted(whole.indices) == list(range(layout.samples))
    stream.leave()
    world.group(ranks, place + 1000).exchange(None)
    if rank == 0:
        world.tell(0, Tag.COORDINATOR, ("left", place, group.first))


@settings(max_examples=60, deadline=None)
@given(streams(), st.integers(0, 10**6))
def test_every_group_reads_each_sample_of_its_epochs_once_in_order_bit_by_bit(made, seed):
    roles, layout, groups = made
    windows = [window_of(layout, is_relayed=roles.nodes > 1) for _ in range(roles.nodes)]
    alone, seen = pipeline(layout.samples), []

    def rank_main(world):
        window = windows[roles.node_of[world.rank]]
        if world.rank in roles.trainers:
            trainer = roles.trainers.index(world.rank)
            place, group = next((place, group) for place, group in enumerate(groups) if trainer in group.trainers)
            read(world, roles, layout, window, group, place, alone, seen)
            return
        granter = Granter(world, roles, layout, groups) if world.rank == 0 else None
        filled = pipeline(layout.samples)
        preprocessor = Preprocessor(world, roles, NodeMemory(window), order_of(layout, filled), filled, None)
        while not preprocessor.is_done:
            busy = granter is not None and granter.step()
            world.pause(busy | preprocessor.step())
        preprocessor.stop()

    assert Launch(len(roles.node_of), seed).run(rank_main)
    for place, group in enumerate(groups):
        for epoch in range(group.first, group.first + group.epochs):
            rows = sorted(part[2:] for part in seen if part[:2] == (place, epoch))
            assert [row for part in rows for row in range(*part)] == list(range(layout.samples))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 3), st.integers(0, 3), st.integers(0, 29))
def test_what_a_rank_prepares_itself_is_what_the_stream_would_have_brought(samples, batch, size, epoch, start):
    alone, start = pipeline(samples), min(start, samples - 1)
    rows = []

    def rank_main(world):
        order = StrictOrder(alone, samples)
        stream = OwnStream(FromSource(pipeline(samples)), order, world, pytest.fail)
        for item in stream.batches(Epoch(epoch), start, batch, world.group(range(size), 1), ()):
            first, last = split_rows(item.position - item.size, item.position, world.rank, size)
            np.testing.assert_array_equal(item.images, expected(alone, order.itinerary(Epoch(epoch)), first, last)[0])
            rows.extend(range(first, last))

    assert Launch(size, seed=0).run(rank_main)
    assert sorted(rows) == list(range(start, samples))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 30), st.integers(1, 12), st.booleans(), st.integers(0, 99))
def test_samples_that_are_kept_are_decoded_once_and_finished_by_whoever_reads_them(
        trainers, nodes, samples, batch, is_random, seed):
    node_of = tuple(node for node in range(nodes) for _ in range(1 + trainers))
    roles = assign(node_of, None, None)
    decoded, got = [], []

    class Counting(Numbered):
        def read(self, index):
            decoded.append(index)
            return super().read(index)

    transforms = parse_transforms(["tests.sources:noise"] if is_random else [])
    source = Counting(samples, seed=1)
    kept = [SampleSet(GREY, samples, 4, f"fleet-test-{os.getpid()}-{next(_names)}", create=True)
            for _ in range(nodes)]
    for one in kept:
        one.segment.unlink()
    alone = Pipeline.probed(Numbered(samples, seed=1), transforms, SEED)

    def rank_main(world):
        mine, prepared = kept[roles.node_of[world.rank]], Pipeline(source, transforms, SEED, alone.sample)
        if world.rank in roles.trainers:
            order = StrictOrder(prepared, samples)
            stream = OwnStream(FromKept(prepared, mine), order, world, pytest.fail)
            for epoch in (world.rank, world.rank + 1):  # everybody another one
                for item in stream.batches(Epoch(epoch), 0, batch, Alone()):
                    got.append((item, order.itinerary(Epoch(epoch))))
            world.tell(0, Tag.COORDINATOR, "left")
            return
        preprocessor = Preprocessor(world, roles, NodeMemory(kept=mine), StrictOrder(alone, samples), prepared, None)
        left = 0
        if world.rank == 0:
            for rank in roles.preprocessors:
                world.tell(rank, Tag.PREPROCESSOR, Produce(NO_LIMIT, NO_LIMIT, 0, roles.preprocessors))
        while not preprocessor.is_done:
            if world.rank == 0 and world.hear(Tag.COORDINATOR):
                left += 1
                if left == len(roles.trainers):
                    for rank in roles.preprocessors:
                        world.tell(rank, Tag.PREPROCESSOR, Exit())
            world.pause(preprocessor.step())
        preprocessor.stop()

    assert Launch(len(node_of), seed).run(rank_main)
    assert sorted(decoded) == list(range(samples))  # each once, however many nodes and epochs
    assert len(got) == len(roles.trainers) * 2 * -(-samples // batch)
    for item, whole in got:
        images, labels = expected(alone, whole, item.position - item.size, item.position)
        np.testing.assert_array_equal(item.images, images)
        np.testing.assert_array_equal(item.labels, labels)


def test_a_slow_reader_stops_nobody_who_reads_a_ring():
    roles = assign((0, 0, 0), 1, None)
    layout = Layout(GREY, 30, 5, 3, 2, 2, is_ring=True)
    window, done = window_of(layout), []

    def rank_main(world):
        alone = pipeline(30)
        order = order_of(layout, alone)
        if world.rank == 0:
            preprocessor = Preprocessor(world, roles, NodeMemory(window), order, alone, None)
            world.tell(0, Tag.PREPROCESSOR, Produce(NO_LIMIT, NO_LIMIT, 0, (0,)))
            while len(done) < 2:
                world.pause(preprocessor.step())
            return
        stream, taken = RingStream(window, world.rank - 1, world, order), set()
        for epoch in range(1 if world.rank == 1 else 5):
            path = ()
            for batch in stream.batches(Epoch(epoch), 0, 5, Alone(), frozenset(taken)):
                path = batch.epoch.path
                if world.rank == 1:  # holds its first shard until the other has trained five epochs
                    world.wait(lambda: bool(done) or None)
            taken |= set(path)
        done.append(world.rank)

    assert Launch(3, seed=0).run(rank_main)
    assert done == [2, 1]


# ---- what goes wrong ---------------------------------------------------------------------------


def stalled(layout, prepare, chunk=0):
    """What a reader says of a chunk that does not come."""
    window = window_of(layout)
    prepare(window)

    def use(world):
        stream = SharedStream(window, 0, world, stall_s=0.05)
        epoch, position, _ = layout.span(chunk)
        with pytest.raises(InfrastructureError) as caught:
            list(stream.batches(Epoch(epoch), position, 8, Alone()))
        return str(caught.value)

    return alone_in_the_world(use)


def test_a_writer_that_does_not_write_is_named_in_an_error():
    assert stalled(LAYOUT, lambda window: window.publish(0)) == (
        "chunk 1 of the stream has not come for 0 s (data.stall): the preprocessor that should write it does not; the "
        "newest chunk is 0")


def test_a_reader_that_reads_no_further_is_named_in_an_error():
    def prepare(window):
        for chunk in range(1, 4):  # the window is full, and reader 1 wants all that is in it
            window.publish(chunk)
        window.need(1, 1)

    assert "reader 1 of this node, at chunk 1, reads no further and the window is full" in stalled(LAYOUT, prepare, 4)


@pytest.mark.parametrize("what", ["training", "validation"])
def test_samples_that_should_stay_and_come_no_more_are_an_error(what):
    alone = pipeline(20)
    shared = SampleSet(GREY, 20, 6, f"fleet-test-{os.getpid()}-{next(_names)}", create=True)
    shared.segment.unlink()
    shared.publish(0)

    def use(world):
        if what == "validation":
            return SharedValidation(shared, world, stall_s=0.05).await_all()
        stream = OwnStream(FromKept(alone, shared, stall_s=0.05), StrictOrder(alone, 20), world, pytest.fail)
        return list(stream.batches(Epoch(0), 0, 8, Alone()))

    with pytest.raises(InfrastructureError, match=rf"no further {what} samples .* \(data.stall\): 1 of 4 chunks"):
        alone_in_the_world(use)


def test_samples_that_come_slowly_are_waited_for():
    now = 0.0
    shared = SampleSet(GREY, 20, 6, f"fleet-test-{os.getpid()}-{next(_names)}", create=True)
    shared.segment.unlink()
    standstill = Standstill(shared, "training", 1.0, lambda: now)
    for chunk in range(3):
        standstill.look()
        now += 0.9
        standstill.look()
        shared.publish(chunk)
    standstill.rest()
    now += 5  # nobody waits
    standstill.look()
    now += 1.1
    with pytest.raises(InfrastructureError):
        standstill.look()


def test_a_source_that_ends_before_it_said_is_a_clear_error():
    class Short(Numbered):
        def read(self, index):
            if index > 20:
                raise IndexError("no such record")
            return super().read(index)

    broken = Pipeline(Short(30, seed=1), [], SEED, pipeline(30).sample)
    with pytest.raises(InputError, match="says that it has 30 samples, and has none at 2"):
        broken.load(range(30), 0, *broken.empty(30))


# ---- single things -----------------------------------------------------------------------------


def own_stream(alone, world, on_bad):
    return OwnStream(FromSource(alone), StrictOrder(alone, alone.samples), world, on_bad)


def alone_in_the_world(function):
    """Run something on a launch of one rank."""
    results = []
    Launch(1, seed=0).run(lambda world: results.append(function(world)))
    return results[0]


def test_a_stream_of_ones_own_that_is_left_early_leaves_no_thread():
    import threading

    def leave_early(world):
        for _ in own_stream(pipeline(30), world, pytest.fail).batches(Epoch(0), 0, 1, Alone()):
            break

    alone_in_the_world(leave_early)
    assert "own-stream" not in {thread.name for thread in threading.enumerate()}


def test_an_error_while_preparing_ones_own_samples_is_raised_where_they_are_used():
    class Broken(Numbered):
        def read(self, index):
            raise RuntimeError("the source has a bug")

    broken = Pipeline(Broken(30, seed=1), [], SEED, pipeline(30).sample)

    def use(world):
        with pytest.raises(RuntimeError, match="the source has a bug"):
            list(own_stream(broken, world, pytest.fail).batches(Epoch(0), 0, 4, Alone()))

    alone_in_the_world(use)


def test_samples_that_cannot_be_read_are_told_and_marked():
    source, validation = partly_bad("30")
    told = []

    def use(world):
        stream = own_stream(Pipeline.probed(source, [], SEED), world, told.append)
        return [label for batch in stream.batches(Epoch(0), 0, 7, Alone()) for label in batch.labels]

    assert alone_in_the_world(use).count(-1) == 1
    bad, = told
    assert isinstance(bad, BadSample)
    assert str(bad) == "sample 5: torn file"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_validation_samples_are_shared_out_among_the_ranks_whoever_prepared_them(size):
    whole = Pipeline.probed(Numbered(20, seed=2), [], SEED)
    shared = SampleSet(GREY, 20, 6, f"fleet-test-{os.getpid()}-{next(_names)}", create=True)
    shared.segment.unlink()
    got = {"shared": [], "own": []}

    def rank_main(world):
        if world.rank == 0:
            for chunk in range(shared.chunks):
                world.pause(worked=True)
                rows = shared.rows(chunk)
                whole.load(range(rows.start, rows.stop), 0, shared.images[rows], shared.labels[rows], training=False)
                assert not shared.is_complete()
                shared.publish(chunk)
        for kind, validation in (("shared", SharedValidation(shared, world)),
                                 ("own", OwnValidation(whole, pytest.fail))):
            for images, labels in validation.batches(4, world.rank, size):
                assert len(labels) <= 4
                got[kind] += [(Numbered.number(image), label, zlib.crc32(image.tobytes()))
                              for image, label in zip(images, labels, strict=True)]

    assert Launch(size, seed=1).run(rank_main)
    assert sorted(got["shared"]) == sorted(got["own"])
    assert [number for number, *_ in sorted(got["shared"])] == list(range(20))
