"""The contract of a World for ranks of one process; tests/mpi/test_world.py checks it for MPI."""

import pytest

from fleet.comm import protocols
from tests.fleet import one_process
from tests.fleet.comm.world_contract import (
    CHECKS,
    NEED_PROCESSES,
    differing_methods,
    missing_attributes,
    run_check,
)


@pytest.mark.long_but_first
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", [name for name in CHECKS if name not in NEED_PROCESSES])
def test_world_contract_holds_for_ranks_of_one_process(name, size):
    for seed in range(5):  # five orders of events

        def rank_main(world):
            run_check(name, world)
            world.finish()

        assert one_process.Launch(size, seed).run(rank_main)


def test_world_contract_detects_missing_and_differing_methods():
    class World:
        def send(self, rank, tag, message):
            """Have the right parameters."""

        def broadcast_value(self, value):
            """Without a root."""

    wrong = differing_methods(protocols.World, World)
    assert {"receive", "broadcast_value", "group"} <= set(wrong)
    assert "send" not in wrong
    assert missing_attributes(protocols.World, World()) == [
        "background_tasks",
        "before_end",
        "dead_ranks",
        "host",
        "hosts",
        "is_fault_tolerant",
        "rank",
        "size",
    ]
