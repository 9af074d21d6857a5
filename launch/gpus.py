"""List the GPUs of this machine by maker, from ``/sys`` and ``/dev``.

Each maker's runtime numbers its GPUs: NVIDIA's by the bus, AMD's in the order of the driver's
topology (``/sys/class/kfd``), Intel's by the bus and, unless ``ZE_FLAT_DEVICE_HIERARCHY`` says
otherwise, each tile as a GPU of its own. Graphics that is part of a processor has a number, but is
not used: training there is slower than on the cores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys")
DEV = Path("/dev")
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # displays, 3D controllers and accelerators
_LEAST_BYTES = 4 * 2**30  # memory of an AMD GPU that is no processor's graphics
_HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"


@dataclass(frozen=True)
class Maker:
    """A maker of GPUs.

    Attributes:
        device: its GPUs' name in ``resources.device``.
        name: its name for users.
        vendor: its number on the PCI bus.
        variables: the variables by which launchers and users choose GPUs. Those of a group mean the
            same, and the first that is set counts; numbers of the second group count the GPUs that
            the first one leaves.
    """

    device: str
    name: str
    vendor: str
    variables: tuple[tuple[str, ...], ...]

    @property
    def own_variables(self) -> tuple[str, ...]:
        """The variables that no other maker's runtime reads."""
        return tuple(
            name
            for group in self.variables
            for name in group
            if self is NVIDIA or not name.startswith("CUDA")
        )


NVIDIA = Maker("cuda", "NVIDIA", "0x10de", (("CUDA_VISIBLE_DEVICES",),))
AMD = Maker(
    "rocm",
    "AMD",
    "0x1002",
    (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
)
INTEL = Maker("xpu", "Intel", "0x8086", (("ZE_AFFINITY_MASK",),))
# By their names in ``resources.device``; ``auto`` prefers the first that the machine has.
MAKERS = {maker.device: maker for maker in (NVIDIA, AMD, INTEL)}


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, as its maker's runtime counts them.

    Attributes:
        folder: its PCI device in ``/sys``; tiles and partitions of a card share one.
        render: its file below ``/dev/dri``; empty if unknown.
    """

    folder: Path
    render: str = ""

    @property
    def bytes(self) -> int | None:
        """Its memory as AMD's and Intel's drivers report it, per tile; None if they do not."""
        amd = _number(self.folder / "mem_info_vram_total")
        if amd is not None:
            return amd
        of_card = (_number(file) for file in self.folder.glob("drm/card*/lmem_total_bytes"))
        total = next((size for size in of_card if size is not None), None)
        return None if total is None else total // _count_tiles(self.folder)


def installed_gpus(
    maker: Maker, environment: Mapping[str, str], sys: Path | None = None
) -> list[Gpu]:
    """Return a maker's GPUs, in the order of its numbers.

    Args:
        environment: the variables of the process.
        sys: the folder ``/sys``.
    """
    sys = SYS if sys is None else sys
    if maker is AMD and (sys / "class/kfd/kfd/topology/nodes").is_dir():
        return _amd_gpus(sys)
    gpus = [Gpu(folder, _render(folder)) for folder in _on_bus(maker, sys)]
    if maker is INTEL and not counts_cards(environment):
        gpus = [gpu for gpu in gpus for _ in range(_count_tiles(gpu.folder))]
    return gpus


def usable_gpus(
    maker: Maker,
    environment: Mapping[str, str],
    sys: Path | None = None,
    dev: Path | None = None,
) -> tuple[str, ...]:
    """Return the names of a maker's GPUs whose files in ``/dev`` this process sees."""
    dev = DEV if dev is None else dev
    if maker is NVIDIA:
        names = (re.fullmatch(r"nvidia([0-9]+)", file.name) for file in dev.glob("nvidia*"))
        return tuple(sorted((name[1] for name in names if name), key=int))
    if maker is AMD and not (dev / "kfd").exists():
        return ()
    return tuple(
        str(index)
        for index, gpu in enumerate(installed_gpus(maker, environment, sys))
        if gpu.render and (dev / "dri" / gpu.render).exists() and not _is_integrated(maker, gpu)
    )


def counts_cards(environment: Mapping[str, str]) -> bool:
    """Return True if Intel's runtime shows cards rather than their tiles.

    >>> counts_cards({}), counts_cards({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"})
    (False, True)
    """
    return environment.get(_HIERARCHY, "").upper() == "COMPOSITE"


def _on_bus(maker: Maker, sys: Path) -> Sequence[Path]:
    devices = sorted((sys / "bus/pci/devices").glob("*"))
    return [
        device
        for device in devices
        if read_text(device / "class")[:6] in _CLASSES
        and read_text(device / "vendor") == maker.vendor
    ]


def _amd_gpus(sys: Path) -> list[Gpu]:
    """Return AMD's GPUs in the order of the driver's topology, which ROCm follows."""
    gpus = []
    nodes = (sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*")
    for node in sorted(nodes, key=lambda path: int(path.name)):
        lines = read_text(node / "properties").splitlines()
        properties = dict(line.split(maxsplit=1) for line in lines if " " in line)
        if not int(properties.get("simd_count", 0)):
            continue  # a processor
        location = int(properties.get("location_id", 0))
        address = (
            f"{int(properties.get('domain', 0)):04x}:{location >> 8 & 255:02x}:"
            f"{location >> 3 & 31:02x}.{location & 7}"
        )
        render = f"renderD{properties.get('drm_render_minor', '')}"
        gpus.append(Gpu(sys / "bus/pci/devices" / address, render))
    return gpus


def _is_integrated(maker: Maker, gpu: Gpu) -> bool:
    """Return True for graphics of a processor: Intel's on the first bus, AMD's by its memory."""
    if maker is INTEL:
        return gpu.folder.name.startswith("0000:00:")
    return gpu.bytes is not None and gpu.bytes < _LEAST_BYTES


def _render(folder: Path) -> str:
    return next((path.name for path in sorted(folder.glob("drm/renderD*"))), "")


def _count_tiles(folder: Path) -> int:
    """Count the tiles of an Intel card: of its driver ``xe``, or of ``i915``."""
    tiles = [*folder.glob("tile[0-9]*")] or [*folder.glob("drm/card*/gt/gt[0-9]*")]
    return max(1, len(tiles))


def read_text(path: Path) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdecimal() else None
