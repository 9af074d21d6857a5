"""Sums in shared memory of a node."""

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.comm import node_sum
from fleet.comm.node_sum import NodeSum, forms, make_node_sum
from fleet.errors import GroupMemberDied, InfrastructureError
from tests.fleet import one_process

LENGTHS = st.lists(
    st.tuples(st.integers(0, 700), st.sampled_from(["float32", "float64", "int64", "float16"])),
    min_size=1,
    max_size=6,
)


def until(is_done):
    while not is_done():
        time.sleep(0)


@pytest.fixture(autouse=True)
def small_stage(monkeypatch):
    monkeypatch.setattr(node_sum, "_STAGE", 1024)


@given(ranks=st.integers(2, 5), arrays=LENGTHS, seed=st.integers(0, 99))
def test_node_sum_of_any_length_is_equal_on_all_ranks(ranks, arrays, seed):
    random = np.random.default_rng(seed)
    turns, stages = (np.zeros(shape, kind) for kind, *shape in forms(ranks))
    values = [
        [random.integers(0, 9, length).astype(dtype) for length, dtype in arrays]
        for _ in range(ranks)
    ]
    # small integers, whose sums are exact in any order
    expected = [sum(arrays) for arrays in zip(*values, strict=True)]

    def add(rank):
        node_sum_of_rank = NodeSum(turns, stages, rank)
        for array in values[rank]:
            node_sum_of_rank.add(array, until)

    threads = [threading.Thread(target=add, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(ranks):
        for array, total in zip(values[rank], expected, strict=True):
            np.testing.assert_array_equal(array, total)


@pytest.mark.parametrize("short", [{True}, {False}, {True, False}, set()])
def test_node_sum_is_shared_by_all_ranks_or_none(short, monkeypatch):
    """Some ranks cannot map the memory (other containers), or there is too little of it."""
    real_map_arrays = node_sum.map_arrays

    def map_arrays(name, create, *forms):
        if create in short:
            raise InfrastructureError("no shared memory")
        return real_map_arrays(name, create, *forms)

    monkeypatch.setattr(node_sum, "map_arrays", map_arrays)
    shared = {}

    def rank_main(world):
        shared[world.rank] = make_node_sum(world.group(range(world.size), 1)) is not None
        world.finish()

    assert one_process.Launch(3, 0).run(rank_main)
    assert shared == dict.fromkeys(range(3), not short)


def test_node_sum_leaves_no_file_open():
    """An open file would keep its memory, and a run makes thousands of groups."""

    def rank_main(world):
        assert make_node_sum(world.group(range(world.size), 1)) is not None
        world.finish()

    gc.collect()  # closes files of earlier tests
    before = len(os.listdir("/proc/self/fd"))
    assert one_process.Launch(3, 0).run(rank_main)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_node_sum_unlinks_its_memory_after_a_death():
    created = []

    class FailedGroup:
        is_master, size = True, 2

        def broadcast_value(self, name):
            created.append(Path("/dev/shm", name))
            assert created[0].exists()
            raise GroupMemberDied("died: rank 1")

    with pytest.raises(GroupMemberDied):
        make_node_sum(FailedGroup())
    assert not created[0].exists()
