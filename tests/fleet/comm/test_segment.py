"""Shared memory."""

import os
import uuid
from pathlib import Path

import numpy as np

from fleet.comm.segment import Segment, map_arrays, unlink_all
from fleet.errors import InfrastructureError
from tests.refusals import refused


def test_segment_missing_memory_names_what_to_lower():
    with refused(InfrastructureError, "1000000 TB", "/dev/shm", "data.shared_memory"):
        Segment("fleet-test-huge", 10**18, create=True)
    assert not os.path.exists("/dev/shm/fleet-test-huge")
    with refused(InfrastructureError, "/dev/shm/fleet-test-none"):
        Segment("fleet-test-none", 10, create=False)


def test_segment_replaces_memory_of_a_killed_run():
    Segment("fleet-test-killed", 10, create=True).memory[0:1] = b"x"
    segment = Segment("fleet-test-killed", 10, create=True)
    segment.unlink()
    assert segment.memory[0:1] == b"\0"


def test_map_arrays_are_zero_and_page_aligned():
    forms = (np.int64, 3), (np.uint8, 0), (np.float32, 500, 7)
    name = f"fleet-test-{uuid.uuid4().hex}"
    segment, arrays = map_arrays(name, True, *forms)
    try:
        assert [(array.dtype, array.shape, array.any()) for array in arrays] == [
            (np.dtype(kind), tuple(shape), False) for kind, *shape in forms
        ]
        arrays[0][:], arrays[2][:] = -1, 0.5
        _, mapped = map_arrays(name, False, *forms)
        assert (mapped[0] == -1).all()
        assert (mapped[2] == 0.5).all()
        assert all(array.ctypes.data % 4096 == 0 for array in (mapped[0], mapped[2]))
    finally:
        segment.unlink()


def test_unlink_all_removes_names_of_one_prefix():
    prefix = f"fleet-{os.getuid()}-unlink-{os.getpid()}"
    names = [f"{prefix}-1-a", f"{prefix}-1-b", f"{prefix}-11-a"]
    segments = [Segment(name, 1, create=True) for name in names]
    unlink_all(f"{prefix}-1")
    assert [Path("/dev/shm", name).exists() for name in names] == [False, False, True]
    segments[-1].unlink()
