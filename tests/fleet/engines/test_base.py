"""Ranks add up the totals of a step."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.engines.base import WIDTH, PeerFailed, StepTotals

integers = st.integers(0, 10**6).map(float)  # floats that add up without rounding
totals = st.builds(StepTotals, integers, integers, integers, st.booleans(), st.booleans())


@given(st.lists(totals, min_size=1, max_size=5), st.sampled_from(["float32", "float64"]))
def test_sum_of_packed_totals_is_the_sum_of_totals(ranks, dtype):
    packed = [rank_totals.pack() for rank_totals in ranks]
    assert {array.shape for array in packed} == {(WIDTH,)}
    assert StepTotals.unpack(np.sum(packed, axis=0).astype(dtype)) == sum(ranks, StepTotals())


def test_as_tuple_round_trips():
    assert StepTotals(*StepTotals(1.5, 2, 3, stop=True).as_tuple) == StepTotals(1.5, 2, 3)


def test_raise_failure_distinguishes_own_and_peer_errors():
    own_error = ValueError("of this rank")
    for step_totals in (StepTotals(), StepTotals(failed=True)):
        with pytest.raises(ValueError, match="of this rank"):
            step_totals.raise_failure(own_error)
    with pytest.raises(PeerFailed):
        StepTotals(failed=True).raise_failure(None)
    StepTotals().raise_failure(None)


def test_pack_holds_every_field():
    assert len(dataclasses.fields(StepTotals)) - 1 == len(StepTotals().pack()) == WIDTH
    with_metrics = StepTotals(1, 2, 3, metric_totals=(4, 5))
    assert StepTotals.unpack(with_metrics.pack()) == with_metrics
    assert (with_metrics + StepTotals(1) + with_metrics).metric_totals == (8, 10)
    assert StepTotals.from_tuple(with_metrics.as_tuple) == with_metrics
