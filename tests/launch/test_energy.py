"""Counters of energy, on made-up machines."""

import os
import sys
from types import SimpleNamespace

import pytest

from launch import gpu_libraries
from launch.energy import describe_counters, find_counters
from launch.gpus import AMD, INTEL, NVIDIA
from tests.launch.test_devices import GIB, PONTE_VECCHIO, Node


def rapl(root, **zones):
    """Make counters of RAPL: zone -> (name, microjoules); return the folder ``/sys``."""
    for zone, (name, value) in zones.items():
        (folder := root / "class/powercap" / zone.replace("_", ":")).mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text(f"{value}\n")
        (folder / "max_energy_range_uj").write_text("1000000000\n")
    return root


def rapl_zone(number, name, value, parent=""):
    return {f"intel-rapl_{parent}{number}": (name, value)}


def machine(root):
    return rapl(
        root,
        **rapl_zone(0, "package-0", 5_000_000),
        **rapl_zone("0_0", "core", 3_000_000),
        **rapl_zone("0_1", "dram", 2_000_000),
        **rapl_zone(1, "psys", 9_000_000),
    )


def test_find_counters_reads_packages_and_memory(tmp_path):
    counters = find_counters((), None, {}, machine(tmp_path))
    # cores are part of the package, and the package is part of psys
    assert [(counter.name, counter.read()) for counter in counters] == [
        ("processor 0", 5.0),
        ("memory", 2.0),
    ]
    assert counters[0].between(999.0, 1.0) == pytest.approx(2.0)
    assert describe_counters(counters) == "counted for processor 0, memory"


def test_find_counters_leaves_out_what_it_cannot_read(tmp_path, monkeypatch):
    root = machine(tmp_path)
    for path in root.glob("class/powercap/*/energy_uj"):
        path.unlink()  # as if only root could read them
    assert find_counters((), None, {}, root) == []
    assert "only root" in describe_counters([], root)
    assert describe_counters([], tmp_path / "none") == "no counter"


def test_find_counters_asks_the_makers_of_gpus(tmp_path, monkeypatch):
    monkeypatch.setitem(
        sys.modules,
        "pynvml",
        SimpleNamespace(
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetTotalEnergyConsumption=lambda handle: [1000, 7000][handle],
        ),
    )
    monkeypatch.setitem(
        sys.modules,
        "amdsmi",
        SimpleNamespace(
            amdsmi_init=lambda: None,
            amdsmi_get_processor_handles=lambda: ["this"],
            amdsmi_get_gpu_device_bdf=lambda handle: "0000:80:00.0",
            amdsmi_get_energy_count=lambda handle: {
                "energy_accumulator": 2_000_000,
                "counter_resolution": 15.25,
            },
        ),
    )
    for library in (gpu_libraries.nvml, gpu_libraries.amdsmi):
        library.cache_clear()
    try:
        (counter,) = find_counters(("1",), NVIDIA, {}, tmp_path)
        assert (counter.key, counter.read()) == ("cuda:1", 7.0)
        assert find_counters(("2",), NVIDIA, {}, tmp_path) == []  # the library knows it not
        node = Node(tmp_path / "amd", amd=[64 * GIB])
        (counter,) = find_counters(("0",), AMD, {}, node.sys)
        assert counter.read() == pytest.approx(30.5)
    finally:
        for library in (gpu_libraries.nvml, gpu_libraries.amdsmi):
            library.cache_clear()


def test_find_counters_reads_intels_cards_once(tmp_path):
    node = Node(tmp_path, intel=PONTE_VECCHIO)
    for address in PONTE_VECCHIO:
        folder = node.sys / f"bus/pci/devices/{address}/hwmon/hwmon3"
        os.makedirs(folder)
        (folder / "energy1_input").write_text("4000000\n")
    counters = find_counters(("0", "1", "2"), INTEL, {}, node.sys)
    assert [(counter.key, counter.read()) for counter in counters] == [
        ("gpu:0000:18:00.0", 4.0),
        ("gpu:0000:9a:00.0", 4.0),
    ]
