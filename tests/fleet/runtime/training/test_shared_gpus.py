"""GPUs that trainers share: who starts the Multi-Process Service, and who ends it."""

import pytest

from fleet.comm.roles import assign
from fleet.runtime.training.shared_gpus import SharedGpus
from launch import mps
from tests.fleet.one_process import Launch

ROLES = assign(
    [0] * 5 + [1] * 3, 2, 2, slots=2
)  # trainers 1 to 4 on two GPUs, 6 and 7 on two that are not shared


class MadeUp:
    """Daemons that are only noted."""

    def __init__(self, monkeypatch):
        self.started, self.stopped = [], []
        monkeypatch.setattr(mps, "start", self._start)
        monkeypatch.setattr(
            mps.Daemons, "stop", lambda daemons, environment: self.stopped.append(daemons.gpus)
        )

    def _start(self, gpus, environment):
        names = tuple(sorted(set(gpus)))
        self.started.append((environment["rank"], names))
        return mps.Daemons(mps.Path(f"/tmp/of-{environment['rank']}"), names), ""


@pytest.fixture
def service(monkeypatch):
    return MadeUp(monkeypatch)


def launched(shown, lost=frozenset()):
    """The environment of each rank after the launch; in its end some are lost."""
    results = {}

    def rank(world):
        index = results[world.rank] = {"rank": world.rank}
        shared = SharedGpus(world, ROLES, shown.get(world.rank), index)
        world.dead_ranks = lost
        if world.rank not in lost:
            shared.stop()

    assert Launch(len(ROLES.node_of), seed=1).run(rank)
    return results


SHOWN = {1: "4", 2: "5", 3: "4", 4: "5", 6: "0", 7: "1"}


def test_shared_gpus_start_one_daemon_per_gpu_and_node(service):
    environments = launched(SHOWN)
    assert sorted(service.started) == [(1, ("4", "5")), (6, ("0", "1"))]
    assert sorted(service.stopped) == [("0", "1"), ("4", "5")]
    assert environments[3] == {
        "rank": 3,
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/of-1/0",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert environments[4]["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/of-1/1"
    assert environments[0] == {"rank": 0}  # it trains nothing


def test_shared_gpus_daemons_end_after_first_trainer_died(service):
    launched(SHOWN, lost=frozenset({1}))
    assert sorted(service.stopped) == [("0", "1"), ("4", "5")]


@pytest.mark.parametrize(
    "shown", [{}, dict.fromkeys(SHOWN, "0")], ids=["no GPUs", "each its own, by one name"]
)
def test_shared_gpus_need_matching_names(service, shown):
    environments = launched(shown)
    assert (service.started, service.stopped) == ([], [])
    assert environments[1] == {"rank": 1}
