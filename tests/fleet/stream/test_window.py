"""Windows of the stream and their slots."""

import itertools

import pytest

from fleet.stream.layout import Layout
from fleet.stream.window import CHOOSING, NOT_READING, Stock, Window
from preprocess.sample import ArraySpec
from tests.fleet.stream.streams import LAYOUT, new_name, window_of
from tests.fleet.stream.words import watched


def test_window_is_shared_by_all_ranks_that_map_it():
    name = new_name()
    first = Window(LAYOUT, name, create=True)
    second = Window(LAYOUT, name, create=False)
    first.segment.unlink()
    first.inputs[first.rows(4)], first.targets[first.rows(4)] = 0.5, 7
    assert not second.has(4)
    first.publish(4)
    assert second.has(4)
    assert not second.has(1)  # the same slot, an older chunk
    assert (second.inputs[second.rows(4)] == 0.5).all()
    assert (second.targets[4:8] == 7).all()
    second.cursors[1] = 5
    assert first.fastest_reader() == 5


@pytest.mark.parametrize("access", range(6))
def test_window_leaving_reader_is_not_infinitely_far(access):
    window = window_of(LAYOUT)
    window.need(0, 3)
    window.need(1, 5)
    plain, accesses = window.cursors, itertools.count()

    def leave():
        if next(accesses) == access:
            plain[1] = NOT_READING

    window.cursors = watched(plain, leave)
    assert window.fastest_reader() == (3 if access == 0 else 5)


def test_window_slot_is_free_once_no_cursor_needs_it():
    window = window_of(LAYOUT)
    no_hold = NOT_READING
    assert window.is_free(2, hold=0, first=0)  # the slot is empty
    for chunk in range(3):
        window.publish(chunk)
    assert not window.is_free(3, hold=0, first=0)  # a group may still join at chunk 0
    assert window.is_free(3, hold=1, first=0)
    window.need(0, 0)
    assert not window.is_free(3, no_hold, 0)
    window.need(0, 1)
    assert window.is_free(3, no_hold, 0)
    assert not window.is_free(4, no_hold, 0)
    window.cursors[-1] = 0  # the relay
    assert not window.is_free(3, no_hold, 0)
    assert window.fastest_reader() == 1


def test_window_chunk_waits_for_its_predecessor_in_slot():
    window = window_of(LAYOUT)
    # another preprocessor is still filling chunk 2
    assert not window.is_free(5, NOT_READING, first=2)
    window.publish(2)
    assert window.is_free(5, NOT_READING, first=2)
    assert not window.is_free(8, NOT_READING, first=2)
    assert window.is_free(7, NOT_READING, first=5)  # the slot has no earlier chunk


RING = Layout(
    ArraySpec((2, 3, 1), "float32"),
    samples=10,
    chunk=4,
    slots=3,
    lookahead=2,
    readers=2,
    is_ring=True,
)


def test_window_ring_assigns_any_unread_slot():
    ring = window_of(RING)
    for chunk in range(3):
        assert ring.assign(chunk)
    assert not ring.assign(3)  # all three are being written
    ring.publish(1)
    ring.need(0, 1)
    assert not ring.assign(3)  # chunk 1 is being read
    ring.publish(2)
    assert ring.assign(3)  # replaces chunk 2, whatever happens to chunks 0 and 1
    assert ring.stock() == Stock(frozenset({1}), frozenset({0, 3}), until=4)
    assert [ring.stock().will_have(chunk) for chunk in range(5)] == [True, True, False, True, True]


def test_window_ring_has_no_chunk_before_first():
    ring = window_of(RING)
    assert ring.stock(first=6) == Stock(frozenset(), frozenset(), until=6)
    ring.assign(6)
    assert ring.stock(first=6) == Stock(frozenset(), frozenset({6}), until=7)


def test_window_ring_releases_no_chunk_while_a_reader_chooses():
    ring = window_of(RING)
    for chunk in range(3):
        ring.assign(chunk)
        ring.publish(chunk)
    ring.need(0, CHOOSING)
    assert ring.fastest_reader() is None
    assert not ring.assign(3)
    assert ring.stock() == Stock(frozenset(range(3)), frozenset(), until=3)
    ring.need(0, 0)
    assert ring.assign(3)
    assert ring.stock() == Stock(frozenset({0, 2}), frozenset({3}), until=4)


@pytest.mark.parametrize("cursor", [CHOOSING, 0])
@pytest.mark.parametrize("access", range(8))
def test_window_ring_keeps_chunks_that_a_reader_has_seen(access, cursor):
    ring = window_of(RING)
    for chunk in range(3):
        ring.assign(chunk)
        ring.publish(chunk)
    plain, accesses, stocks = ring.cursors, itertools.count(), []

    def join():
        if next(accesses) == access:
            plain[0] = cursor
            stocks.append(ring.stock())

    words = {
        name: getattr(ring, name) for name in ("cursors", "stamps", "assigned", "assigned_until")
    }
    for name, array in words.items():
        setattr(ring, name, watched(array, join))
    assigned = ring.assign(3)
    for name, array in words.items():
        setattr(ring, name, array)
    (stock,) = stocks
    assert all(
        ring.stock().will_have(chunk)
        for chunk in stock.complete & ({0} if cursor == 0 else {0, 1, 2})
    )
    assert assigned or cursor == CHOOSING


def test_window_ring_keeps_chunk_not_yet_relayed():
    ring = window_of(RING, is_relayed=True)
    for chunk in range(3):
        ring.assign(chunk)
        ring.publish(chunk)
    assert not ring.assign(3)
    ring.mark_relayed(1)
    assert ring.assign(3)
    assert ring.stock().complete == {1, 2}
