"""Which cores are near which GPU: what the kernel says of the NUMA nodes of a machine, in ``/sys``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launch.place import parse_cpus

SYS = Path("/sys")
_VENDORS = ("0x10de", "0x1002")  # NVIDIA, AMD
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # what shows, draws or accelerates


@dataclass(frozen=True)
class GpuNode:
    """Where a GPU hangs.

    Attributes:
        gpu: its name, as :func:`launch.devices.visible_gpus` has it.
        node: of memory and cores.
        cores: of that node, by the numbers of their hardware threads.
    """

    gpu: str
    node: int
    cores: frozenset[int]


def find_gpu_nodes(gpus: Sequence[str], root: Path | None = None) -> list[GpuNode]:
    """Where some GPUs hang, as far as the machine says so, and has more than one node.

    GPUs have the order of their places on the bus, as drivers number them; one that is named
    otherwise is not found.
    """
    root = SYS if root is None else root
    cores = {
        node.name.removeprefix("node"): frozenset(parse_cpus(cpus))
        for node in (root / "devices/system/node").glob("node[0-9]*")
        if (cpus := _text(node / "cpulist"))
    }
    if len(cores) < 2:
        return []
    of_gpu = {str(index): _text(device / "numa_node") for index, device in enumerate(_gpus(root))}
    return [
        GpuNode(gpu, int(node), cores[node])
        for gpu in gpus
        if (node := of_gpu.get(gpu, "")) in cores
    ]


@contextmanager
def on_gpu_node(gpu_nodes: Sequence[GpuNode]) -> Iterator[None]:
    """On cores of the node that these GPUs hang on, where it is one: what is touched first meanwhile is put there."""
    before = os.sched_getaffinity(0)
    bind(gpu_nodes)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def bind(gpu_nodes: Sequence[GpuNode]) -> None:
    """Keep this process to those of its cores that are on the node of all these GPUs, where it has some there."""
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
    return next(
        (
            of_vendor
            for vendor in _VENDORS
            if (of_vendor := [device for device in displays if _text(device / "vendor") == vendor])
        ),
        [],
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
