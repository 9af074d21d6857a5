"""Find the cores near a GPU from the NUMA nodes of the machine, in ``/sys``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launch import gpus as gpu_list
from launch.devices import find_gpu
from launch.gpus import Maker, read_text
from launch.place import parse_cpus


@dataclass(frozen=True)
class GpuNode:
    """The NUMA node of a GPU.

    Attributes:
        gpu: the name of the GPU, as returned by :func:`launch.devices.visible_gpus`.
        node: the number of the NUMA node.
        cores: the numbers of the node's hardware threads.
    """

    gpu: str
    node: int
    cores: frozenset[int]


def find_gpu_nodes(
    gpus: Sequence[str], maker: Maker | None, root: Path | None = None
) -> list[GpuNode]:
    """Return the NUMA nodes of GPUs; none if the machine does not report several nodes.

    Args:
        gpus: names of GPUs; names that are no numbers are left out.
        maker: their maker.
        root: the folder ``/sys``.
    """
    root = gpu_list.SYS if root is None else root
    cores = {}
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        cpus = read_text(folder / "cpulist")
        if cpus:
            cores[folder.name.removeprefix("node")] = frozenset(parse_cpus(cpus))
    if len(cores) < 2 or maker is None:
        return []
    nodes = {
        name: read_text(gpu.folder / "numa_node")
        for name in gpus
        if (gpu := find_gpu(name, maker, os.environ, root)) is not None
    }
    return [GpuNode(name, int(node), cores[node]) for name, node in nodes.items() if node in cores]


@contextmanager
def on_gpu_node(gpu_nodes: Sequence[GpuNode]) -> Iterator[None]:
    """Run on the NUMA node of these GPUs if they share one: new memory is allocated there."""
    before = os.sched_getaffinity(0)
    bind(gpu_nodes)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def bind(gpu_nodes: Sequence[GpuNode]) -> None:
    """Restrict this process to its cores on the NUMA node of these GPUs, if it has any there."""
    if len({gpu_node.node for gpu_node in gpu_nodes}) == 1:
        cores = os.sched_getaffinity(0) & gpu_nodes[0].cores
    else:
        cores = set()
    if cores:
        os.sched_setaffinity(0, cores)
