"""The rows of a batch."""

from hypothesis import given
from hypothesis import strategies as st

from fleet.stream.batch import split_rows


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_split_rows_divides_evenly_in_order(first, rows, size):
    shares = [split_rows(first, first + rows, rank, size) for rank in range(size)]
    assert [row for share in shares for row in range(*share)] == list(range(first, first + rows))
    lengths = [last - first for first, last in shares]
    assert max(lengths) - min(lengths) <= 1
