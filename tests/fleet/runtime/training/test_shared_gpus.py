"""Start and end of the Multi-Process Service of shared GPUs."""

import pytest

from fleet.comm.roles import assign
from fleet.runtime.training.shared_gpus import SharedGpus
from launch import mps
from tests.fleet.one_process import Launch

# trainers 1 to 4 on two GPUs, 6 and 7 on two that are not shared
ROLES = assign([0] * 5 + [1] * 3, 2, 2, slots=2)


class FakeDaemons:
    """Records starts and stops of daemons."""

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
    return FakeDaemons(monkeypatch)


def launched(gpus, dead_ranks=frozenset()):
    """Return the environment of each rank after the launch; some ranks die before its end."""
    environments = {}

    def rank_main(world):
        environment = environments[world.rank] = {"rank": world.rank}
        shared = SharedGpus(world, ROLES, gpus.get(world.rank), environment)
        world.dead_ranks = dead_ranks
        if world.rank not in dead_ranks:
            shared.stop()

    assert Launch(len(ROLES.node_of), seed=1).run(rank_main)
    return environments


GPUS = {1: "4", 2: "5", 3: "4", 4: "5", 6: "0", 7: "1"}


def test_shared_gpus_start_one_daemon_per_gpu_and_node(service):
    environments = launched(GPUS)
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
    launched(GPUS, dead_ranks=frozenset({1}))
    assert sorted(service.stopped) == [("0", "1"), ("4", "5")]


@pytest.mark.parametrize(
    "gpus", [{}, dict.fromkeys(GPUS, "0")], ids=["no GPUs", "different GPUs of one name"]
)
def test_shared_gpus_need_matching_names(service, gpus):
    environments = launched(gpus)
    assert (service.started, service.stopped) == ([], [])
    assert environments[1] == {"rank": 1}
