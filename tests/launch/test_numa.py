"""The NUMA nodes of GPUs, on fake machines."""

import os

import pytest

from launch.gpus import MAKERS
from launch.numa import GpuNode, bind, find_gpu_nodes, on_gpu_node


def machine(root, nodes, gpus):
    """Make a tree of ``/sys``.

    Args:
        nodes: number -> its cores.
        gpus: place on the bus -> (vendor, class, node).
    """
    for node, cores in nodes.items():
        (folder := root / f"devices/system/node/node{node}").mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    for slot, (vendor, kind, node) in gpus.items():
        (folder := root / f"bus/pci/devices/{slot}").mkdir(parents=True)
        for name, text in (("vendor", vendor), ("class", kind), ("numa_node", node)):
            (folder / name).write_text(f"{text}\n")
    return root


NVIDIA, AMD, INTEL, OTHER = "0x10de", "0x1002", "0x8086", "0x1a03"
TWO = {0: "0-1,4-5", 1: "2-3,6-7"}


MAKER = {maker.vendor: maker for maker in MAKERS.values()}


def gpu_nodes(root, *gpus, vendor=NVIDIA):
    entries = find_gpu_nodes(gpus, MAKER[vendor], root)
    return [(entry.gpu, entry.node, sorted(entry.cores)) for entry in entries]


@pytest.mark.parametrize(
    ("vendor", "kind"),
    [(NVIDIA, "0x030200"), (NVIDIA, "0x030000"), (AMD, "0x038000"), (INTEL, "0x038000")],
)
def test_find_gpu_nodes_numbers_gpus_by_the_bus(tmp_path, vendor, kind):
    root = machine(
        tmp_path,
        TWO,
        {
            "0000:c1:00.0": (vendor, kind, 1),
            "0000:0a:00.0": (vendor, kind, 0),
            "0000:0a:00.1": (vendor, "0x040300", 0),
            "0000:00:02.0": (OTHER, "0x030000", 0),
        },
    )
    assert gpu_nodes(root, "0", "1", vendor=vendor) == [
        ("0", 0, [0, 1, 4, 5]),
        ("1", 1, [2, 3, 6, 7]),
    ]
    assert gpu_nodes(root, "1", vendor=vendor) == [("1", 1, [2, 3, 6, 7])]
    assert gpu_nodes(root, "2", "GPU-8a", vendor=vendor) == []


def test_find_gpu_nodes_is_empty_on_machines_with_one_node(tmp_path):
    gpus = {"0000:0a:00.0": (NVIDIA, "0x030200", -1)}
    assert gpu_nodes(machine(tmp_path / "unsaid", TWO, gpus), "0") == []
    entry = {"0000:0a:00.0": (NVIDIA, "0x030200", 0)}
    assert gpu_nodes(machine(tmp_path / "one", {0: "0-7"}, entry), "0") == []
    assert gpu_nodes(machine(tmp_path / "memory alone", {0: "0-7", 1: ""}, entry), "0") == []
    assert gpu_nodes(tmp_path / "nothing", "0") == []


@pytest.fixture
def process(monkeypatch):
    """This process has cores 0 to 3; return the cores that it binds itself to."""
    bound = [set(range(4))]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: bound[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: bound.append(set(cores)))
    return bound


@pytest.mark.parametrize(
    ("gpus", "cores"),
    [
        ([GpuNode("1", 1, frozenset({2, 3, 6}))], {2, 3}),
        ([GpuNode("0", 1, frozenset({3, 4})), GpuNode("1", 1, frozenset({3, 4}))], {3}),
        (
            [GpuNode("0", 0, frozenset({0, 1})), GpuNode("1", 1, frozenset({2, 3}))],
            {0, 1, 2, 3},
        ),  # of several nodes
        ([GpuNode("1", 1, frozenset({6, 7}))], {0, 1, 2, 3}),  # the launcher bound it elsewhere
        ([], {0, 1, 2, 3}),
    ],
)
def test_bind_keeps_the_cores_on_the_node_of_the_gpus(process, gpus, cores):
    bind(gpus)
    assert process[-1] == cores


def test_on_gpu_node_restores_the_cores(process):
    with on_gpu_node([GpuNode("1", 1, frozenset({2}))]):
        assert process[-1] == {2}
    assert process[-1] == {0, 1, 2, 3}
