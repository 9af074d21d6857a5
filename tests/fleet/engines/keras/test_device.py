"""A trainer uses one GPU, or a share of the cores."""

import os

import pytest

from fleet.engines.base import EngineContext, Slot
from fleet.errors import UserError
from fleet.spec import Resources
from preprocess.sample import ArraySpec, SampleSpec
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ArraySpec((1, 1, 1), "uint8"), 3)


def setup(index, trainers, **options):
    return EngineContext(SAMPLE, Resources(), index=index, trainers=trainers, **options)


class Gpu(str):
    """A GPU of TensorFlow: ``gpu0``, ``xpu0``, ..."""

    @property
    def device_type(self):
        return self[:3].upper()


class FakeGpus:
    """GPUs whose configuration by TensorFlow is recorded."""

    def __init__(self, monkeypatch, count, xpus=0):
        from fleet.engines.keras import engine

        counts = {"GPU": count, "XPU": xpus}
        self.chosen = None
        self.grows = []
        self.limits = []
        config = engine.tf.config
        monkeypatch.setattr(
            config,
            "list_physical_devices",
            lambda kind: [Gpu(f"{kind.lower()}{n}") for n in range(counts[kind])],
        )
        monkeypatch.setattr(
            config, "set_visible_devices", lambda devices, kind: setattr(self, "chosen", devices)
        )
        monkeypatch.setattr(
            config.experimental, "set_memory_growth", lambda gpu, on: self.grows.append((gpu, on))
        )
        monkeypatch.setattr(
            config,
            "set_logical_device_configuration",
            lambda gpu, parts: self.limits.append((gpu, *(part.memory_limit for part in parts))),
        )


def test_find_gpus_logs_messages_of_the_driver(monkeypatch, capfd, caplog):
    from fleet.engines.keras import devices

    def find(kind):
        os.write(2, b"E0000 00:00:1795974231.753164 919 cuda.cc:52] failed call to cuInit\n")
        return []

    monkeypatch.setattr(devices.tf.config, "list_physical_devices", find)
    assert devices.find_gpus() == []
    assert capfd.readouterr().err == ""
    assert caplog.messages == ["failed call to cuInit"] * 2  # for NVIDIA's and AMD's, and Intel's


@pytest.mark.parametrize(
    ("visible", "index", "chosen"), [(4, 2, "gpu2"), (1, 0, "gpu0"), (1, 3, "gpu0")]
)
def test_configure_device_picks_gpu_by_index(monkeypatch, visible, index, chosen):
    from fleet.engines.keras.engine import configure_device

    gpus = FakeGpus(monkeypatch, visible)
    configure_device(setup(index, 4))
    assert (gpus.chosen, gpus.grows) == ([chosen], [(chosen, True)])


@pytest.mark.parametrize(
    ("slot", "grows", "limits"),
    [
        (Slot(0, slots=4, memory_mib=80000), [("gpu1", True)], []),
        (Slot(3, slots=4, memory_mib=80000), [], [("gpu1", 18000)]),
        (Slot(3, slots=4), [("gpu1", True)], []),
    ],
    ids=["first slot is not limited", "other slot", "unknown memory"],
)
def test_configure_device_limits_memory_of_shared_gpu(monkeypatch, slot, grows, limits):
    from fleet.engines.keras.engine import configure_device

    gpus = FakeGpus(monkeypatch, 2)
    configure_device(setup(1, 8, slot=slot))
    assert (gpus.chosen, gpus.grows, gpus.limits) == (["gpu1"], grows, limits)


def test_configure_device_refuses_more_trainers_than_gpus(monkeypatch):
    from fleet.engines.keras.engine import configure_device

    FakeGpus(monkeypatch, 2)
    with refused(UserError, "2 visible GPUs", "trainer number 3"):
        configure_device(setup(2, 3))


@pytest.mark.parametrize(
    ("device", "gpus", "xpus", "chosen"),
    [
        ("auto", 2, 2, ["gpu1"]),
        ("auto", 0, 2, ["xpu1"]),
        ("xpu", 2, 2, ["xpu1"]),
        ("rocm", 2, 2, ["gpu1"]),
        ("cpu", 2, 2, []),
    ],
)
def test_configure_device_follows_the_named_device(monkeypatch, device, gpus, xpus, chosen):
    from fleet.engines.keras.engine import configure_device

    fake = FakeGpus(monkeypatch, gpus, xpus)
    configure_device(
        EngineContext(SAMPLE, Resources(device=device), index=1, trainers=2, deterministic=False)
    )
    assert fake.chosen == chosen


def test_configure_device_refuses_a_missing_device(monkeypatch):
    from fleet.engines.keras.engine import configure_device

    FakeGpus(monkeypatch, 2)
    with refused(UserError, "resources.device: xpu: TensorFlow", "sees no GPU"):
        configure_device(EngineContext(SAMPLE, Resources(device="xpu"), index=0, trainers=1))


def test_configure_device_shares_cores_without_gpus(monkeypatch):
    from fleet.engines.keras import engine

    threads, graph_options = [], []
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(engine.os, "sched_getaffinity", lambda process: range(8))
    monkeypatch.setattr(engine.tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(
        engine.tf.config.threading, "set_intra_op_parallelism_threads", threads.append
    )
    monkeypatch.setattr(
        engine.tf.config.optimizer, "set_experimental_options", graph_options.append
    )
    for trainers in (1, 3, 20):
        engine.configure_device(setup(0, trainers))
    assert graph_options == [{"disable_meta_optimizer": True}] * 3
    monkeypatch.setattr(
        engine.tf.config.experimental,
        "enable_op_determinism",
        lambda: threads.append("deterministic"),
    )
    engine.configure_device(setup(0, 1, deterministic=True))
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")  # set by the user
    engine.configure_device(setup(0, 1))
    assert threads == [8, 2, 1, "deterministic", 1]
