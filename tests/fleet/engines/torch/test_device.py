"""A trainer uses one GPU, or a share of the cores."""

from types import SimpleNamespace

import pytest

from fleet.engines.base import EngineContext, Slot
from fleet.errors import UserError
from fleet.spec import Resources
from preprocess.sample import ArraySpec, SampleSpec
from tests.refusals import refused

pytestmark = pytest.mark.torch

SAMPLE = SampleSpec(ArraySpec((1, 1, 1), "uint8"), 3)


def setup(index, trainers, **options):
    return EngineContext(SAMPLE, Resources(), index=index, trainers=trainers, **options)


@pytest.fixture
def visible(monkeypatch):
    """Return a function that simulates GPUs of 80 GB and records the calls of PyTorch."""
    import torch

    def simulate(count):
        calls = SimpleNamespace(devices=[], shares=[], threads=[])
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(
            torch.cuda, "set_device", lambda device: calls.devices.append(str(device))
        )
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda device: SimpleNamespace(total_memory=80000 * 2**20),
        )
        monkeypatch.setattr(
            torch.cuda,
            "set_per_process_memory_fraction",
            lambda share, device: calls.shares.append((share, str(device))),
        )
        monkeypatch.setattr(torch, "set_num_threads", calls.threads.append)
        monkeypatch.setattr(
            torch,
            "use_deterministic_algorithms",
            lambda is_on: calls.threads.append("deterministic"),
        )
        return calls

    return simulate


@pytest.mark.parametrize(
    ("count", "index", "chosen"), [(4, 2, "cuda:2"), (1, 0, "cuda:0"), (1, 3, "cuda:0")]
)
def test_configure_device_picks_gpu_by_index(visible, count, index, chosen):
    from fleet.engines.torch.engine import configure_device

    calls = visible(count)
    assert str(configure_device(setup(index, 4))) == chosen
    assert (calls.devices, calls.shares) == ([chosen], [])


@pytest.mark.parametrize(
    ("slot", "shares"),
    [
        (Slot(0, slots=4, memory_mib=80000), []),
        (Slot(3, slots=4, memory_mib=80000), [(0.225, "cuda:1")]),
        (Slot(3, slots=4), []),
    ],
    ids=["first slot is not limited", "other slot", "unknown memory"],
)
def test_configure_device_limits_memory_of_shared_gpu(visible, slot, shares):
    from fleet.engines.torch.engine import configure_device

    calls = visible(2)
    configure_device(setup(1, 8, slot=slot))
    assert calls.shares == shares


def test_configure_device_refuses_more_trainers_than_gpus(visible):
    from fleet.engines.torch.engine import configure_device

    visible(2)
    with refused(UserError, "2 visible GPUs", "trainer number 3"):
        configure_device(setup(2, 3))


def test_configure_device_shares_cores_without_gpus(visible, monkeypatch):
    from fleet.engines.torch import engine

    calls = visible(0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(engine.os, "sched_getaffinity", lambda process: range(8))
    for trainers in (1, 3, 20):
        engine.configure_device(setup(0, trainers))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # set by the user
    engine.configure_device(setup(0, 1))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    engine.configure_device(setup(0, 1, deterministic=True))
    assert calls.threads == [8, 2, 1, "deterministic", 1]
