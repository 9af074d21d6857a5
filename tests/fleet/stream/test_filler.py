"""Preprocessors that fill shared memory of a node."""

import itertools
import time
from dataclasses import replace

import pytest

from fleet.comm.messages import NO_LIMIT, Demand, Prepared, Produce, Tag
from fleet.comm.roles import assign
from fleet.stream.filler import SetFiller, WindowFiller
from fleet.stream.layout import Layout
from fleet.stream.order import StrictOrder
from tests.fleet.stream.streams import GREY, alone_in_the_world, pipeline, set_of, window_of

SAMPLES = 60
LAYOUT = Layout(GREY, SAMPLES, chunk=10, slots=12, lookahead=3, readers=2)
ROLES = assign((0, 0, 0), 1, None)


class FilledWindow:
    """A window and the only preprocessor that fills it."""

    def __init__(self, world, layout=LAYOUT, clock=time.perf_counter):
        self.world, self.window, training = world, window_of(layout), pipeline(SAMPLES)
        order = StrictOrder(training, layout.chunk)
        self._filler = WindowFiller(world, ROLES, self.window, order, training, clock=clock)

    def apply_order(self, limit, hold=0, first=0, turns=(0,), since=0):
        self._filler.apply_order(Produce(limit, hold, first, turns, since))
        self.step = self._filler.step

    def note_demand(self, node, sequence):
        self._filler.note_demand(Demand(node, sequence))

    def release_readers(self, rank):
        self._filler.release_readers([rank])

    def fill(self):
        """Fill until no chunk may be written; returns one past the newest chunk."""
        while self._filler.step():
            pass
        return self.window.newest()


def call_with_window(use, **options):
    return alone_in_the_world(lambda world: use(FilledWindow(world, **options)))


def test_filler_stays_within_the_lookahead_of_the_fastest_reader():
    def use(filler):
        filler.apply_order(NO_LIMIT)
        assert filler.fill() == 3  # for groups that are still to join
        filler.window.need(0, 1)
        filler.window.need(1, 4)
        return filler.fill()

    assert call_with_window(use) == 7


def test_filler_considers_readers_of_other_nodes():
    def use(filler):
        filler.apply_order(NO_LIMIT)
        filler.note_demand(1, 2)
        filler.note_demand(2, 5)
        filler.note_demand(1, 3)
        return filler.fill()

    assert call_with_window(use) == 8


def test_filler_overwrites_no_chunk_that_is_still_needed():
    def use(filler):
        filler.apply_order(NO_LIMIT)
        filler.window.need(0, 1)
        filler.window.need(1, 40)
        assert filler.fill() == LAYOUT.slots  # a group is still to join at chunk 0
        filler.apply_order(NO_LIMIT, hold=40)
        assert filler.fill() == LAYOUT.slots + 1  # the slowest reader needs chunk 1
        filler.window.need(0, 40)
        return filler.fill()

    assert call_with_window(use) == 43


def test_filler_begins_with_the_first_chunk_of_its_order():
    def use(filler):
        filler.apply_order(NO_LIMIT, hold=6, first=6)
        filler.fill()
        return [chunk for chunk in range(12) if filler.window.has(chunk)]

    assert call_with_window(use) == [6, 7, 8]


@pytest.mark.parametrize(
    "remove",
    [
        pytest.param(
            lambda filler, rank: setattr(filler.world, "dead_ranks", frozenset({rank})), id="dies"
        ),
        pytest.param(lambda filler, rank: filler.release_readers(rank), id="is unresponsive"),
    ],
)
def test_filler_ignores_readers_that_were_removed(remove):
    def use(filler):
        filler.apply_order(NO_LIMIT, hold=NO_LIMIT)
        filler.window.need(0, 0)
        filler.window.need(1, 40)
        assert filler.fill() == LAYOUT.slots
        remove(filler, ROLES.trainers[0])
        return filler.fill()

    assert call_with_window(use) == 43


def test_filler_reports_throughput_of_chunks():
    """Check the report of a rank with three kinds of intervals.

    Each load takes 0.25 s, other work before the second load of a chunk 0.125 s, and the wait for a
    reader before the next chunk one hour.
    """
    times = itertools.accumulate(itertools.cycle([3600.0, 0.25, 0.125, 0.25]))

    def use(filler):
        filler.apply_order(NO_LIMIT)
        for chunk in range(6):
            filler.window.need(0, chunk)
            filler.fill()
        received = []
        while (message := filler.world.receive(Tag.COORDINATOR)) is not None:
            received.append(message)
        return received

    messages = call_with_window(use, clock=lambda: next(times))
    assert messages == [Prepared(0, 10, 0.5, 0.125)] * 8  # each chunk is loaded as 8 and 2 samples


def test_filler_finishes_started_chunk_when_removed():
    def use(filler):
        filler.apply_order(4, turns=(0, 1))
        filler.step()  # 8 samples of chunk 0
        filler.apply_order(8, turns=(1,), since=4)
        return [filler.window.has(chunk) for chunk in range(filler.fill() + 3)]

    assert call_with_window(use, layout=replace(LAYOUT, lookahead=8)) == [
        True,
        False,
        True,
        False,
        False,
        False,
    ]


def test_filler_takes_over_chunks_of_removed_rank():
    def use(filler):
        filler.apply_order(4, turns=(1, 2, 0))
        filler.fill()  # chunk 2; the next one would be chunk 5
        filler.apply_order(8, turns=(2, 0), since=4)  # still chunk 5
        filler.apply_order(8, turns=(0,), since=4)
        filler.apply_order(9, turns=(0,), since=4)
        return [filler.window.has(chunk) for chunk in range(filler.fill())]

    assert call_with_window(use, layout=replace(LAYOUT, lookahead=9)) == [
        False,
        False,
        True,
        False,
        *[True] * 5,
    ]


@pytest.mark.parametrize(
    ("published", "samples_of_others"),
    [([], [*range(50, 60), *range(30, 40)]), ([1], [*range(50, 60)]), ([1, 3], [])],
)
def test_set_filler_takes_chunks_of_busy_ranks(published, samples_of_others):
    roles = assign((0, 0, 0, 0), 2, None)
    target, loaded = set_of(SAMPLES, 10), []

    def load(rows, images, labels):
        loaded.extend(rows)
        images[:], labels[:] = 1, 1
        return []

    def use(world):
        filler = SetFiller(world, roles, target, True, load)
        for chunk in published:
            target.publish(chunk)
        complete = [target.ready()]
        while filler.step():
            complete.append(target.ready())
        return complete

    counts = alone_in_the_world(use)
    # 8 and 2 samples at a time
    assert counts[:7] == [len(published) + done for done in (0, 0, 1, 1, 2, 2, 3)]
    assert loaded == [*range(10), *range(20, 30), *range(40, 50), *samples_of_others]
