"""Samples that stay."""

import numpy as np

from fleet.stream.sample_set import SampleSet
from tests.fleet.stream.streams import GREY, new_name, set_of


def test_ranks_that_map_one_set_see_what_the_others_write():
    name = new_name()
    entry, second = (
        SampleSet(GREY, 10, 4, name, create=True),
        SampleSet(GREY, 10, 4, name, create=False),
    )
    entry.segment.unlink()
    entry.images[entry.rows(1)], entry.targets[entry.rows(1)] = 9, 2
    assert not second.has(1)
    entry.publish(1)
    assert (second.has(1), second.ready(), second.is_complete()) == (True, 1, False)
    assert (second.images[4:8] == 9).all()
    assert (second.targets[4:8] == 2).all()


def test_the_last_chunk_may_be_short():
    samples = set_of(10, 4)
    assert [samples.rows(chunk) for chunk in range(samples.chunks)] == [
        slice(0, 4),
        slice(4, 8),
        slice(8, 10),
    ]
    assert [samples.length(chunk) for chunk in range(samples.chunks)] == [4, 4, 2]


def test_rows_are_there_once_their_chunks_are():
    samples = set_of(10, 4)
    samples.publish(0)
    samples.publish(2)
    assert samples.has_rows(np.array([0, 3, 9]))
    assert not samples.has_rows(np.array([0, 4]))
    samples.publish(1)
    assert samples.has_rows(np.arange(10))
    assert samples.is_complete()
