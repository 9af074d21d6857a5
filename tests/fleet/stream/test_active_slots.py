"""Number of networks on a GPU, in shared memory of its trainers."""

import pytest

from fleet.comm.roles import assign
from fleet.comm.segment import Segment
from fleet.stream.active_slots import ActiveSlots
from tests.fakes import World

ROLES = assign([0] * 7, 1, 2, slots=None)  # trainers 1 to 6 on two GPUs: 1, 3 and 5 share one


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr("fleet.comm.segment._FOLDER", tmp_path)
    segment, dead_ranks = Segment("active-slots", ROLES.gpus_per_node, create=True), set()
    active_slots = {
        rank: ActiveSlots(World(rank=rank, dead_ranks=dead_ranks), ROLES, segment)
        for rank in ROLES.trainers
    }
    return active_slots, dead_ranks


def test_active_slots_count_networks_of_one_gpu(node):
    active_slots, _ = node
    assert active_slots[1].count() == 1
    with active_slots[1].present(), active_slots[2].present(), active_slots[5].present():
        assert [active_slots[rank].count() for rank in (1, 2, 5)] == [2, 1, 2]
    assert active_slots[1].count() == 1


def test_active_slots_ignore_dead_ranks(node):
    active_slots, dead_ranks = node
    with active_slots[1].present(), active_slots[3].present():
        dead_ranks.add(3)
        assert active_slots[1].count() == 1


def test_active_slots_without_sharing_count_one():
    alone = ActiveSlots(World(rank=1), assign([0, 0], 1, None))
    with alone.present():
        assert alone.count() == 1
