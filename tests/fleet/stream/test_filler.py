"""How far preprocessors fill what a node shares."""

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


class Filled:
    """A window, and the one preprocessor that fills it."""

    def __init__(self, world, layout=LAYOUT, clock=time.perf_counter):
        self.world, self.window, training = world, window_of(layout), pipeline(SAMPLES)
        order = StrictOrder(training, layout.chunk)
        self._filler = WindowFiller(
            world, ROLES, self.window, order, training, leads=False, clock=clock
        )

    def apply_order(self, limit, hold=0, first=0, turns=(0,), since=0):
        self._filler.apply_order(Produce(limit, hold, first, turns, since))
        self.step = self._filler.step

    def note_demand(self, node, sequence):
        self._filler.note_demand(Demand(node, sequence))

    def release_readers(self, rank):
        self._filler.release_readers([rank])

    def fill(self):
        """Fill as far as may be; returns one past the newest chunk."""
        while self._filler.step():
            pass
        return self.window.newest()


def filled(use, **options):
    return alone_in_the_world(lambda world: use(Filled(world, **options)))


def test_it_runs_ahead_of_the_fastest_reader_by_the_lookahead():
    def use(made):
        made.apply_order(NO_LIMIT)
        assert made.fill() == 3  # of those that are still to join
        made.window.need(0, 1)
        made.window.need(1, 4)
        return made.fill()

    assert filled(use) == 7


def test_readers_of_other_nodes_count_as_well():
    def use(made):
        made.apply_order(NO_LIMIT)
        made.note_demand(1, 2)
        made.note_demand(2, 5)
        made.note_demand(1, 3)
        return made.fill()

    assert filled(use) == 8


def test_it_writes_over_nothing_that_is_still_to_be_read():
    def use(made):
        made.apply_order(NO_LIMIT)
        made.window.need(0, 1)
        made.window.need(1, 40)
        assert made.fill() == LAYOUT.slots  # a group is still to join at chunk 0
        made.apply_order(NO_LIMIT, hold=40)
        assert made.fill() == LAYOUT.slots + 1  # the slowest reader needs chunk 1
        made.window.need(0, 40)
        return made.fill()

    assert filled(use) == 43


def test_it_begins_with_the_first_chunk_that_is_wanted():
    def use(made):
        made.apply_order(NO_LIMIT, hold=6, first=6)
        made.fill()
        return [chunk for chunk in range(12) if made.window.has(chunk)]

    assert filled(use) == [6, 7, 8]


@pytest.mark.parametrize(
    "go",
    [
        pytest.param(
            lambda made, rank: setattr(made.world, "dead_ranks", frozenset({rank})), id="dies"
        ),
        pytest.param(lambda made, rank: made.release_readers(rank), id="lives, but is given up"),
    ],
)
def test_a_reader_that_goes_holds_nothing_back(go):
    def use(made):
        made.apply_order(NO_LIMIT, hold=NO_LIMIT)
        made.window.need(0, 0)
        made.window.need(1, 40)
        assert made.fill() == LAYOUT.slots
        go(made, ROLES.trainers[0])
        return made.fill()

    assert filled(use) == 43


def test_filler_reports_throughput_of_chunks():
    """Each load takes a quarter of a second; before the second one of a chunk the rank does other things for an eighth,
    and before the next chunk a reader is waited for, for an hour."""
    times = itertools.accumulate(itertools.cycle([3600.0, 0.25, 0.125, 0.25]))

    def use(made):
        made.apply_order(NO_LIMIT)
        for chunk in range(6):
            made.window.need(0, chunk)
            made.fill()
        received = []
        while (message := made.world.receive(Tag.COORDINATOR)) is not None:
            received.append(message)
        return received

    inputs = filled(use, clock=lambda: next(times))
    assert inputs == [Prepared(0, 10, 0.5, 0.125)] * 8  # each chunk is loaded as 8 and 2 samples


def test_filler_finishes_started_chunk_when_removed():
    def use(made):
        made.apply_order(4, turns=(0, 1))
        made.step()  # 8 samples of chunk 0
        made.apply_order(8, turns=(1,), since=4)
        return [made.window.has(chunk) for chunk in range(made.fill() + 3)]

    assert filled(use, layout=replace(LAYOUT, lookahead=8)) == [
        True,
        False,
        True,
        False,
        False,
        False,
    ]


def test_filler_takes_over_chunks_of_removed_rank():
    def use(made):
        made.apply_order(4, turns=(1, 2, 0))
        made.fill()  # chunk 2, and chunk 5 would be next
        made.apply_order(8, turns=(2, 0), since=4)  # it is 5 again
        made.apply_order(8, turns=(0,), since=4)
        made.apply_order(9, turns=(0,), since=4)
        return [made.window.has(chunk) for chunk in range(made.fill())]

    assert filled(use, layout=replace(LAYOUT, lookahead=9)) == [
        False,
        False,
        True,
        False,
        *[True] * 5,
    ]


@pytest.mark.parametrize(
    ("there", "others"),
    [([], [*range(50, 60), *range(30, 40)]), ([1], [*range(50, 60)]), ([1, 3], [])],
)
def test_set_filler_takes_chunks_of_busy_ranks(there, others):
    roles = assign((0, 0, 0, 0), 2, None)
    target, loaded = set_of(SAMPLES, 10), []

    def load(rows, images, labels):
        loaded.extend(rows)
        images[:], labels[:] = 1, 1
        return []

    def use(world):
        filler = SetFiller(world, roles, target, False, 1, True, load)
        for chunk in there:
            target.publish(chunk)
        complete = [target.ready()]
        while filler.step():
            complete.append(target.ready())
        return complete

    full = alone_in_the_world(use)
    assert full[:7] == [
        len(there) + done for done in (0, 0, 1, 1, 2, 2, 3)
    ]  # 8 and 2 samples at a time
    assert loaded == [*range(10), *range(20, 30), *range(40, 50), *others]
