"""How networks that share a stream slow each other down."""

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.ensemble.pace import Ring, Stream
from tests.examples import examples

GROUPS = st.lists(st.tuples(st.floats(1, 100), st.integers(1, 4)), min_size=1, max_size=6)


def busy(rates, gpus, streams):
    slowest = {
        s: min(r for r, t in zip(rates, streams, strict=True) if t == s) for s in set(streams)
    }
    return sum(g * slowest[s] / r for r, g, s in zip(rates, gpus, streams, strict=True))


@given(GROUPS, st.integers(2, 3))
@settings(max_examples=examples(60), deadline=None)
def test_no_other_split_into_streams_keeps_more_gpus_busy(groups, count):
    rates, gpus = zip(*groups, strict=True)
    best = max(busy(rates, gpus, streams) for streams in product(range(count), repeat=len(rates)))
    split = Stream(count=count).split(rates, gpus)
    assert set(split) <= set(range(count))
    assert busy(rates, gpus, split) == pytest.approx(best)


@given(GROUPS, st.integers(0, 3), st.floats(1, 200))
@settings(max_examples=examples(60), deadline=None)
def test_pace_is_limited_by_rate_and_stream(groups, count, supply):
    rates, gpus = zip(*groups, strict=True)
    stream = Stream(count=count, rate=supply)
    streams = stream.split(rates, gpus)
    paces = stream.paces(rates, streams)
    assert all(
        0 < pace <= min(rate, supply / max(1, count))
        for pace, rate in zip(paces, rates, strict=True)
    )
    if count:
        assert all(
            len({pace for pace, s in zip(paces, streams, strict=True) if s == own_pace}) == 1
            for own_pace in set(streams)
        )


@pytest.mark.parametrize("window", [0.0, -0.1, 1.1, math.nan])
def test_pace_refuses_a_window_that_does_not_fit(window):
    with pytest.raises(InputError, match="a window above 0 %"):
        Ring(window=window)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_pace_stream_that_produces_nothing_is_refused(rate):
    with pytest.raises(InputError, match="at least 1e-12 samples/s"):
        Stream(rate=rate)
