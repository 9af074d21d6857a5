"""Memory that ranks share."""

import os
import uuid

import numpy as np
import pytest

from fleet.comm.segment import Segment, map_arrays
from fleet.errors import InfrastructureError


def test_segment_missing_memory_names_what_to_lower():
    with pytest.raises(
        InfrastructureError,
        match=r"1000000 TB of shared memory .* free in /dev/shm: lower data.shared_memory",
    ):
        Segment("fleet-test-huge", 10**18, create=True)
    assert not os.path.exists("/dev/shm/fleet-test-huge")
    with pytest.raises(InfrastructureError, match="No such file"):
        Segment("fleet-test-none", 10, create=False)


def test_memory_of_a_run_that_was_killed_is_taken_over():
    Segment("fleet-test-left", 10, create=True).memory[0:1] = b"x"
    again = Segment("fleet-test-left", 10, create=True)
    again.unlink()
    assert again.memory[0:1] == b"\0"


def test_map_arrays_are_zero_and_page_aligned():
    forms = (np.int64, 3), (np.uint8, 0), (np.float32, 500, 7)
    name = f"fleet-test-{uuid.uuid4().hex}"
    segment, arrays = map_arrays(name, True, *forms)
    try:
        assert [(entry.dtype, entry.shape, entry.any()) for entry in arrays] == [
            (np.dtype(kind), tuple(shape), False) for kind, *shape in forms
        ]
        arrays[0][:], arrays[2][:] = -1, 0.5
        _, expected = map_arrays(name, False, *forms)
        assert (expected[0] == -1).all()
        assert (expected[2] == 0.5).all()
        assert all(entry.ctypes.data % 4096 == 0 for entry in (expected[0], expected[2]))
    finally:
        segment.unlink()
