"""The profile of free processors, compared with an array with an entry per unit of time."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulation.availability import Availability

HORIZON = 40
spans = st.tuples(st.integers(0, 20), st.integers(1, 15), st.integers(1, 4))


def both(holds):
    """Draw a profile of 10 processors, the equivalent array, and the holds that fit."""
    free, array, reserved = Availability(10), np.full(HORIZON, 10), []
    for start, length, processors in holds:
        if array[start : start + length].min() >= processors:
            free.reserve(start, start + length, processors)
            array[start : start + length] -= processors
            reserved.append((start, start + length, processors))
    return free, array, reserved


@given(st.lists(spans, max_size=12))
def test_availability_free_processors_are_those_of_the_array(holds):
    free, array, _ = both(holds)
    assert [free.at(t) for t in range(HORIZON)] == array.tolist()
    assert free.min_free(3, 9) == array[3:9].min()


@given(st.lists(spans, max_size=12), st.integers(1, 10), st.integers(0, 20))
def test_free_until_stops_at_the_first_small_step(holds, processors, time):
    free, array, _ = both(holds)
    busy = [t for t in range(time, HORIZON) if array[t] < processors]
    assert free.free_until(time, processors) == (busy[0] if busy else math.inf)


@given(st.lists(spans, max_size=12), st.integers(1, 10), st.integers(1, 8), st.integers(0, 20))
def test_availability_earliest_place_is_the_first_with_room(holds, processors, duration, after):
    free, array, _ = both(holds)
    endless = np.concatenate((array, np.full(duration, 10)))
    places = (t for t in range(after, HORIZON) if endless[t : t + duration].min() >= processors)
    assert free.earliest_start(processors, duration, after) == next(places)


@given(st.lists(spans, max_size=8), st.integers(0, 20))
def test_availability_drops_released_and_past_steps(holds, time):
    free, array, reserved = both(holds)
    free.forget(time)
    assert [free.at(t) for t in range(time, HORIZON)] == array[time:].tolist()
    for start, end, processors in reserved:
        if end > time:
            free.release(max(start, time), end, processors)
    free.forget(time)
    assert free.free_until(time, 10) == math.inf
    assert len(free._times) == 1
