"""Memory that ranks share."""

import os

import pytest

from fleet.comm.segment import Segment
from fleet.errors import InfrastructureError


def test_memory_that_is_not_there_is_an_error_that_says_what_to_lower():
    with pytest.raises(InfrastructureError, match=r"1000000 TB of shared memory .* free in /dev/shm: lower data.w"):
        Segment("fleet-test-huge", 10**18, create=True)
    assert not os.path.exists("/dev/shm/fleet-test-huge")
    with pytest.raises(InfrastructureError, match="No such file"):
        Segment("fleet-test-none", 10, create=False)


def test_memory_of_a_run_that_was_killed_is_taken_over():
    Segment("fleet-test-left", 10, create=True).memory[0:1] = b"x"
    again = Segment("fleet-test-left", 10, create=True)
    again.unlink()
    assert again.memory[0:1] == b"\0"
