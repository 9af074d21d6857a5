"""Ask the makers' libraries about GPUs: ``nvidia-ml-py`` and ``amdsmi``, where they are installed.

They are imported when a number is needed. A library that is missing, or that finds no driver, gives
None; the caller then looks elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

from launch.gpus import AMD, NVIDIA, Gpu, Maker

# The names of their packages, by devices.
LIBRARIES = {NVIDIA.device: "nvidia-ml-py", AMD.device: "amdsmi"}


@cache
def nvml() -> ModuleType | None:
    """Return NVIDIA's library, ready to be asked; None without it or its driver."""
    with suppress(Exception):  # each version has its own errors
        library = import_module("pynvml")
        library.nvmlInit()
        return library
    return None


@cache
def amdsmi() -> ModuleType | None:
    """Return AMD's library, ready to be asked; None without it or its driver."""
    with suppress(Exception):
        library = import_module("amdsmi")
        library.amdsmi_init()
        return library
    return None


def has_library(maker: Maker) -> bool:
    """Return True if the library of a maker answers."""
    return {NVIDIA.device: nvml, AMD.device: amdsmi}.get(maker.device, lambda: None)() is not None


def memory_bytes(maker: Maker, name: str, gpu: Gpu | None) -> int | None:
    """Return the memory of a GPU in bytes; None if its library is missing or does not tell.

    Args:
        name: its name, as :func:`launch.devices.visible_gpus` returns it.
        gpu: the GPU in ``/sys``.
    """
    with suppress(Exception):
        if maker is NVIDIA and (library := nvml()) is not None:
            return int(library.nvmlDeviceGetMemoryInfo(_nvidia_handle(library, name)).total)
        if maker is AMD and (library := amdsmi()) is not None and gpu is not None:
            kind = library.AmdSmiMemoryType.VRAM
            return int(library.amdsmi_get_gpu_memory_total(_amd_handle(library, gpu), kind))
    return None


def _nvidia_handle(library: ModuleType, name: str) -> Any:
    if name.isdecimal():
        return library.nvmlDeviceGetHandleByIndex(int(name))
    return library.nvmlDeviceGetHandleByUUID(name)


def _amd_handle(library: ModuleType, gpu: Gpu) -> Any:
    address = gpu.folder.name
    return next(
        handle
        for handle in library.amdsmi_get_processor_handles()
        if library.amdsmi_get_gpu_device_bdf(handle).lower() == address
    )


def energy_reader(maker: Maker, name: str, gpu: Gpu | None) -> Callable[[], float] | None:
    """Return a function that reads the joules that a GPU has used; None if no library tells.

    Args:
        maker, name, gpu: see :func:`memory_bytes`.
    """
    with suppress(Exception):
        if maker is NVIDIA and (library := nvml()) is not None:
            return partial(_nvidia_joules, library, _nvidia_handle(library, name))
        if maker is AMD and (library := amdsmi()) is not None and gpu is not None:
            return partial(_amd_joules, library, _amd_handle(library, gpu))
    return None


def _nvidia_joules(library: ModuleType, handle: Any) -> float:
    joules: float = library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    return joules


def _amd_joules(library: ModuleType, handle: Any) -> float:
    count = library.amdsmi_get_energy_count(handle)
    microjoules: float = count["energy_accumulator"] * count["counter_resolution"]
    return microjoules / 1e6
