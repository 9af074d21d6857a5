"""A trainer uses one GPU, or a share of the cores."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from fleet.engines.base import EngineContext, Slot
from fleet.errors import UserError
from fleet.spec import Resources
from preprocess.sample import ArraySpec, SampleSpec
from tests.places import ROOT
from tests.refusals import refused

pytestmark = pytest.mark.torch

SAMPLE = SampleSpec(ArraySpec((1, 1, 1), "uint8"), 3)


def setup(index, trainers, resources=None, **options):
    resources = resources or Resources()
    return EngineContext(SAMPLE, resources, index=index, trainers=trainers, **options)


@pytest.fixture
def visible(monkeypatch):
    """Return a function that simulates GPUs of 80 GB and records the calls of PyTorch."""
    import torch

    def simulate(count, kind="cuda"):
        calls = SimpleNamespace(devices=[], shares=[], threads=[])
        device = torch.device(kind) if count else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
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


@pytest.mark.parametrize(
    ("device", "kind", "hip", "chosen"),
    [
        ("auto", "cuda", None, "cuda:1"),
        ("cuda", "cuda", None, "cuda:1"),
        ("rocm", "cuda", "6.4", "cuda:1"),  # PyTorch's name of AMD's GPUs, too
        ("cpu", "cuda", None, "cpu"),
    ],
)
def test_configure_device_follows_the_named_device(visible, monkeypatch, device, kind, hip, chosen):
    import torch

    from fleet.engines.torch.engine import configure_device

    visible(2, kind)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert str(configure_device(setup(1, 2, resources=Resources(device=device)))) == chosen


@pytest.mark.parametrize(
    ("device", "sees"), [("rocm", "cuda"), ("xpu", "cuda"), ("cuda", "no GPU")]
)
def test_configure_device_refuses_a_missing_device(visible, device, sees):
    from fleet.engines.torch.engine import configure_device

    visible(2 if sees == "cuda" else 0)
    with refused(UserError, f"resources.device: {device}", f"it sees {sees}"):
        configure_device(setup(0, 1, resources=Resources(device=device)))


FAKE = """
import torch
from torch.utils import backend_registration as registration

from fleet.engines.torch import devices
from fleet.engines.torch.exchange import exchange_name

calls = []


class Backend(registration._DummyBackendModule):
    def device_count(self):
        return 2

    def set_device(self, device):
        calls.append(str(device))

    def manual_seed(self, seed):
        calls.append(seed)

    def empty_cache(self):
        calls.append("empty")


registration._setup_privateuseone_for_python_backend("fake", Backend())
kind, count = devices.find_accelerator("auto")
assert (kind.type, count) == ("fake", 2)
assert devices.find_accelerator("cpu") == (None, 0)
device = torch.device("fake", 1)
devices.use(device, memory_mib=100)  # it has no limit
devices.seed(device, 3)
devices.release_memory(device)
devices.seed(torch.device("cpu"), 3)
assert calls == ["fake:1", 3, "empty"]
assert exchange_name("auto", device) == "mpi"
"""


def test_a_backend_of_others_is_used_as_an_accelerator():
    subprocess.run([sys.executable, "-c", FAKE], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("kind", "name"), [("cuda", "library"), ("xpu", "library"), ("cpu", "mpi")]
)
def test_exchange_name_is_chosen_by_device(kind, name):
    import torch

    from fleet.engines.torch.exchange import exchange_name

    assert exchange_name("auto", torch.device(kind)) == name


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
