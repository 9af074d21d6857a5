"""A window, and who may write where in it."""

import itertools

import pytest

from fleet.stream.layout import Layout
from fleet.stream.window import NOT_READING, Window
from preprocess.sample import ImageSpec
from tests.fleet.stream.streams import LAYOUT, new_name, window_of
from tests.fleet.stream.words import watched


def test_ranks_that_map_one_window_see_what_the_others_write():
    name = new_name()
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


@pytest.mark.parametrize("access", range(6))
def test_a_reader_that_leaves_meanwhile_is_not_taken_for_one_that_is_infinitely_far(access):
    window = window_of(LAYOUT)
    window.need(0, 3)
    window.need(1, 5)
    plain, accesses = window.cursors, itertools.count()

    def leave():
        if next(accesses) == access:
            plain[1] = NOT_READING

    window.cursors = watched(plain, leave)
    assert window.fastest_reader() == (3 if access == 0 else 5)


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
