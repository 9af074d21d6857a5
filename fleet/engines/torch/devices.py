"""Find the device of a trainer by the names of its makers, and do what each does its own way.

``torch.accelerator`` knows CUDA, ROCm (which PyTorch also calls ``cuda``), XPU and backends of
third parties; their modules (``torch.cuda``, ``torch.xpu``, ...) know the memory and the
generators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fleet.errors import UserError


def find_accelerator(setting: str) -> tuple[torch.device | None, int]:
    """Return the kind of GPU that PyTorch uses, and how many it sees; None and 0 for the cores.

    Args:
        setting: ``resources.device``.

    Raises:
        UserError: PyTorch sees no GPU of the kind that the setting names.
    """
    if setting == "cpu":
        return None, 0
    device = torch.accelerator.current_accelerator()
    count = 0 if device is None else torch.accelerator.device_count()
    if setting != "auto" and (not count or name_of(device) != setting):
        kinds = f"it sees {name_of(device)}" if count else "it sees no GPU"
        raise UserError(
            f"resources.device: {setting}: PyTorch {torch.__version__} sees no GPU of this kind "
            f"({kinds}); install the build for it, or set resources.device: auto"
        )
    return (device, count) if count else (None, 0)


def name_of(device: torch.device | None) -> str:
    """Return a device's name in ``resources.device``; for other backends, PyTorch's."""
    if device is None:
        return "cpu"
    if device.type == "cuda" and torch.version.hip is not None:
        return "rocm"
    return device.type


def is_gpu(device: torch.device) -> bool:
    """Return True if kernels are queued on a device, while Python goes on."""
    return device.type != "cpu"


def use(device: torch.device, memory_mib: float | None) -> None:
    """Use a GPU in this process.

    Args:
        device: the GPU.
        memory_mib: the most memory that this process may take; None for no limit. Backends without
            such a limit ignore it.
    """
    module = module_of(device)
    module.set_device(device)
    limit = getattr(module, "set_per_process_memory_fraction", None)
    if memory_mib is not None and limit is not None:
        total = module.get_device_properties(device).total_memory
        limit(min(1.0, memory_mib * 2**20 / total), device)


def enter_thread(device: torch.device) -> None:
    """Use a GPU in this thread; a new thread uses the first GPU."""
    if is_gpu(device):
        module_of(device).set_device(device)


def seed(device: torch.device, number: int) -> None:
    """Seed the generator of a device."""
    if is_gpu(device):
        module_of(device).manual_seed(number)


def can_capture(device: torch.device) -> bool:
    """Return True if a device can start many kernels as one graph: with CUDA, and with ROCm."""
    return device.type == "cuda"


def capture(function: Callable[[], None]) -> Callable[[], None]:
    """Capture the kernels that a function queues on the GPU of this thread, as a graph.

    The kernels are not started. They keep the addresses of their tensors, and draw random numbers
    by the seed of the device at their start.

    Args:
        function: queues kernels, and never waits for one.

    Returns:
        A function that queues all of them at once.

    Raises:
        RuntimeError: something that the function does cannot be captured, such as a copy from the
            memory of the host.
    """
    graph = torch.cuda.CUDAGraph()
    # Other threads may allocate memory meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        function()
    replay: Callable[[], None] = graph.replay
    return replay


def release_memory(device: torch.device) -> None:
    """Return unused memory of a GPU, for other processes."""
    if is_gpu(device):
        module_of(device).empty_cache()


def module_of(device: torch.device) -> Any:
    """Return the module of a backend, such as ``torch.cuda``."""
    return torch.get_device_module(device)
