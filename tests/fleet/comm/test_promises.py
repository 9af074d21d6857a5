"""Ranks that are threads of one process keep what the protocols promise; tests/mpi/test_world.py asks that of MPI."""

import pytest

from fleet.comm import protocols
from tests.fleet import one_process
from tests.fleet.comm.promises import OF_PROCESSES, PROMISES, differences, keep, lacking


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", [name for name in PROMISES if name not in OF_PROCESSES])
def test_a_promise_is_kept_by_ranks_of_one_process(name, size):
    for seed in range(5):  # as many orders of events

        def rank_main(world):
            keep(name, world)
            world.finish()

        assert one_process.Launch(size, seed).run(rank_main)


def test_what_a_world_lacks_or_has_otherwise_is_found():
    class World:
        def send(self, rank, tag, message):
            """As it should be."""

        def broadcast_value(self, value):
            """Without a root."""

    wrong = differences(protocols.World, World)
    assert {"receive", "broadcast_value", "group"} <= set(wrong)
    assert "send" not in wrong
    assert lacking(protocols.World, World()) == [
        "background_tasks",
        "before_end",
        "dead_ranks",
        "host",
        "hosts",
        "is_fault_tolerant",
        "rank",
        "size",
    ]
