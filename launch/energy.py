"""Read the counters of energy of this machine.

- A GPU's: by ``nvidia-ml-py`` (``nvmlDeviceGetTotalEnergyConsumption``), by ``amdsmi``
  (``amdsmi_get_energy_count``), and from Intel's drivers (``energy1_input``).
- Those of processors and their memory: RAPL, in ``/sys/class/powercap``. Kernels since 5.10 let
  only root read them, unless the administrator allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch import gpus as gpu_list
from launch.devices import find_gpu
from launch.gpu_libraries import energy_reader
from launch.gpus import Maker

_MICRO = 1e-6  # joules


@dataclass(frozen=True)
class Counter:
    """A counter of energy.

    Attributes:
        key: unique on its node; ranks that share what it counts have equal keys.
        name: what it counts, for users.
        read: returns its joules; it never decreases, except where it begins again at 0.
        range_j: the joules after which it begins again at 0; None if it never does.
    """

    key: str
    name: str
    read: Callable[[], float]
    range_j: float | None = None

    def between(self, before: float, after: float) -> float:
        """Return the joules from one value to a later one.

        >>> counter = Counter("", "", lambda: 0.0, range_j=1000.0)
        >>> counter.between(200.0, 300.0), counter.between(900.0, 50.0)
        (100.0, 150.0)
        """
        if after < before and self.range_j is not None:
            after += self.range_j
        return max(0.0, after - before)


def find_counters(
    names: Sequence[str],
    maker: Maker | None,
    environment: Mapping[str, str],
    sys: Path | None = None,
) -> list[Counter]:
    """Return the counters of GPUs and of this node's processors that this process can read.

    Args:
        names: names of the GPUs, as :func:`launch.devices.visible_gpus` returns them.
        maker: their maker.
        environment: the variables of the process.
        sys: the folder ``/sys``.
    """
    sys = gpu_list.SYS if sys is None else sys
    of_gpus = [] if maker is None else _gpu_counters(names, maker, environment, sys)
    counters = [*of_gpus, *_processor_counters(sys)]
    unique = {counter.key: counter for counter in counters if _can_read(counter)}
    return list(unique.values())


def _gpu_counters(
    names: Sequence[str], maker: Maker, environment: Mapping[str, str], sys: Path
) -> Iterator[Counter]:
    for name in names:
        gpu = find_gpu(name, maker, environment, sys)
        read = energy_reader(maker, name, gpu)
        if read is not None:
            yield Counter(f"{maker.device}:{name}", f"GPU {name}", read)
        elif gpu is not None:
            for path in sorted(gpu.folder.glob("hwmon/hwmon*/energy1_input")):
                yield Counter(f"gpu:{gpu.folder.name}", f"GPU {gpu.folder.name}", _reader(path))


def _processor_counters(sys: Path) -> Iterator[Counter]:
    """Yield the counters of RAPL: of each package, and of memory, which no package includes."""
    for zone in sorted((sys / "class/powercap").glob("intel-rapl:*")):
        name = gpu_list.read_text(zone / "name")
        if name == "dram" or name.startswith("package"):
            limit = gpu_list.read_text(zone / "max_energy_range_uj")
            yield Counter(
                f"rapl:{zone.name}",
                "memory" if name == "dram" else name.replace("package-", "processor "),
                _reader(zone / "energy_uj"),
                int(limit) * _MICRO if limit.isdecimal() else None,
            )


def _reader(path: Path) -> Callable[[], float]:
    return lambda: int(path.read_text(encoding="ascii")) * _MICRO


def _can_read(counter: Counter) -> bool:
    with suppress(Exception):  # each library has its own errors
        counter.read()
        return True
    return False


def describe_counters(counters: Sequence[Counter], sys: Path | None = None) -> str:
    """Describe the counters of a node in one line, for ``fleet doctor``."""
    if counters:
        return f"counted for {', '.join(counter.name for counter in counters)}"
    sys = gpu_list.SYS if sys is None else sys
    if any(_processor_counters(sys)):
        return "no counter: only root may read /sys/class/powercap/*/energy_uj"
    return "no counter"
