"""Find the cores near a GPU from the NUMA nodes of the machine, in ``/sys``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launch.place import parse_cpus

SYS = Path("/sys")
_VENDORS = ("0x10de", "0x1002")  # NVIDIA, AMD
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # displays, 3D controllers and accelerators


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


def find_gpu_nodes(gpus: Sequence[str], root: Path | None = None) -> list[GpuNode]:
    """Return the NUMA nodes of GPUs; none if the machine does not report several nodes.

    GPUs are numbered by their order on the bus, as by drivers; a GPU with another name is not
    found.
    """
    root = SYS if root is None else root
    cores = {}
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        cpus = _text(folder / "cpulist")
        if cpus:
            cores[folder.name.removeprefix("node")] = frozenset(parse_cpus(cpus))
    if len(cores) < 2:
        return []
    nodes = {str(index): _text(device / "numa_node") for index, device in enumerate(_gpus(root))}
    return [
        GpuNode(gpu, int(nodes[gpu]), cores[nodes[gpu]])
        for gpu in gpus
        if nodes.get(gpu, "") in cores
    ]


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


def _gpus(root: Path) -> list[Path]:
    """Return the GPUs of one vendor on the bus, in order."""
    devices = sorted((root / "bus/pci/devices").glob("*"))
    displays = [device for device in devices if _text(device / "class")[:6] in _CLASSES]
    for vendor in _VENDORS:
        of_vendor = [device for device in displays if _text(device / "vendor") == vendor]
        if of_vendor:
            return of_vendor
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
