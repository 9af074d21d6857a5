"""How many networks are on a GPU, as its trainers tell each other."""

import pytest

from fleet.comm.roles import assign
from fleet.comm.segment import Segment
from fleet.stream.tenants import Tenants
from tests.fakes import World

ROLES = assign([0] * 7, 1, 2, slots=None)  # trainers 1 to 6 on two GPUs: 1, 3 and 5 share one


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr("fleet.comm.segment._FOLDER", tmp_path)
    segment, lost = Segment("tenants", ROLES.gpus_per_node, create=True), set()
    tenants = {
        rank: Tenants(World(rank=rank, lost=lost), ROLES, segment) for rank in ROLES.trainers
    }
    return tenants, lost


def test_only_those_that_train_on_the_same_gpu_count(node):
    tenants, _ = node
    assert tenants[1].count() == 1
    with tenants[1].present(), tenants[2].present(), tenants[5].present():
        assert [tenants[rank].count() for rank in (1, 2, 5)] == [2, 1, 2]
    assert tenants[1].count() == 1


def test_a_dead_rank_trains_nothing(node):
    tenants, lost = node
    with tenants[1].present(), tenants[3].present():
        lost.add(3)
        assert tenants[1].count() == 1


def test_where_no_gpu_is_shared_a_network_is_alone():
    alone = Tenants(World(rank=1), assign([0, 0], 1, None))
    with alone.present():
        assert alone.count() == 1
