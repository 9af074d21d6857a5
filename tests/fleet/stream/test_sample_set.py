"""Sample sets in shared memory."""

import numpy as np

from fleet.stream.sample_set import SampleSet
from tests.fleet.stream.streams import GREY, new_name, set_of


def test_sample_set_is_shared_by_all_ranks_that_map_it():
    name = new_name()
    first = SampleSet(GREY, 10, 4, name, create=True)
    second = SampleSet(GREY, 10, 4, name, create=False)
    first.segment.unlink()
    first.inputs[first.rows(1)], first.targets[first.rows(1)] = 9, 2
    assert not second.has(1)
    first.publish(1)
    assert (second.has(1), second.ready(), second.is_complete()) == (True, 1, False)
    assert (second.inputs[4:8] == 9).all()
    assert (second.targets[4:8] == 2).all()


def test_sample_set_last_chunk_may_be_short():
    samples = set_of(10, 4)
    assert [samples.rows(chunk) for chunk in range(samples.chunks)] == [
        slice(0, 4),
        slice(4, 8),
        slice(8, 10),
    ]
    assert [samples.length(chunk) for chunk in range(samples.chunks)] == [4, 4, 2]


def test_sample_set_has_rows_of_published_chunks():
    samples = set_of(10, 4)
    samples.publish(0)
    samples.publish(2)
    assert samples.has_rows(np.array([0, 3, 9]))
    assert not samples.has_rows(np.array([0, 4]))
    samples.publish(1)
    assert samples.has_rows(np.arange(10))
    assert samples.is_complete()
