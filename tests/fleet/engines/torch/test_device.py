"""Which GPU, or how many cores, a trainer takes."""

from types import SimpleNamespace

import pytest

from fleet.engines.base import Slot
from fleet.errors import UserError

pytestmark = pytest.mark.torch


@pytest.fixture
def visible(monkeypatch):
    """Has PyTorch see so many GPUs of 80 GB; returns what it is told of them."""
    import torch

    def show(count):
        messages = SimpleNamespace(chosen=[], shares=[], threads=[])
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(
            torch.cuda, "set_device", lambda device: messages.chosen.append(str(device))
        )
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda device: SimpleNamespace(total_memory=80000 * 2**20),
        )
        monkeypatch.setattr(
            torch.cuda,
            "set_per_process_memory_fraction",
            lambda share, device: messages.shares.append((share, str(device))),
        )
        monkeypatch.setattr(torch, "set_num_threads", messages.threads.append)
        monkeypatch.setattr(
            torch,
            "use_deterministic_algorithms",
            lambda on: messages.threads.append("deterministic"),
        )
        return messages

    return show


@pytest.mark.parametrize(
    ("count", "index", "chosen"), [(4, 2, "cuda:2"), (1, 0, "cuda:0"), (1, 3, "cuda:0")]
)
def test_configure_device_picks_gpu_by_index(visible, count, index, chosen):
    from fleet.engines.torch.engine import configure_device

    messages = visible(count)
    assert str(configure_device(index, 4)) == chosen
    assert (messages.chosen, messages.shares) == ([chosen], [])


@pytest.mark.parametrize(
    ("slot", "shares"),
    [
        (
            Slot(0, slots=4, memory_mib=80000),
            [],
        ),  # the first, which has all memory when it is alone
        (Slot(3, slots=4, memory_mib=80000), [(0.225, "cuda:1")]),
        (Slot(3, slots=4), []),
    ],
    ids=["first", "further", "nobody says how much there is"],
)
def test_configure_device_limits_memory_of_shared_gpu(visible, slot, shares):
    from fleet.engines.torch.engine import configure_device

    messages = visible(2)
    configure_device(1, 8, slot=slot)
    assert messages.shares == shares


def test_more_trainers_than_gpus_are_refused(visible):
    from fleet.engines.torch.engine import configure_device

    visible(2)
    with pytest.raises(
        UserError, match="this node has 2 visible GPUs, but this rank is its trainer number 3"
    ):
        configure_device(2, 3)


def test_trainers_of_a_node_without_gpus_share_its_cores(visible, monkeypatch):
    from fleet.engines.torch import engine

    messages = visible(0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(engine.os, "sched_getaffinity", lambda process: range(8))
    for trainers in (1, 3, 20):
        engine.configure_device(0, trainers)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # the user's word
    engine.configure_device(0, 1)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    engine.configure_device(0, 1, deterministic=True)
    assert messages.threads == [8, 2, 1, "deterministic", 1]
