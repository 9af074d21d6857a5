"""Register process-wide settings of PyTorch that user code may change.

:mod:`preprocess.user_code` restores them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._tensor_str import PRINT_OPTS
from torch.backends import cuda, cudnn

from preprocess.user_code import attribute_accessors, register


def _determinism() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def _set_determinism(values: tuple[bool, bool, bool]) -> None:
    is_on, only_warns, fills = values
    torch.use_deterministic_algorithms(is_on, warn_only=only_warns)
    torch.utils.deterministic.fill_uninitialized_memory = fills


def _device() -> torch.device | None:
    """Return the device set by ``set_default_device``; PyTorch's own function is slow."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if context is None:
        return None
    return context.device


def _started_module() -> Any:
    """Return the module of the GPUs that this process uses; None if it has used none so far."""
    device = torch.accelerator.current_accelerator()
    module = None if device is None else torch.get_device_module(device)
    return module if getattr(module, "is_initialized", bool)() else None


def _generators() -> list[bytes]:
    states = [torch.get_rng_state()]
    module = _started_module()
    if module is not None:
        states += module.get_rng_state_all()
    return [state.numpy().tobytes() for state in states]


def _set_generators(states: list[bytes]) -> None:
    first, *gpu_states = (torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states)
    torch.set_rng_state(first)
    module = _started_module()
    if gpu_states and module is not None:
        module.set_rng_state_all(gpu_states)


register("PyTorch's default dtype", torch.get_default_dtype, torch.set_default_dtype)
register("PyTorch's default device", _device, torch.set_default_device)
register("PyTorch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled)
register("PyTorch's anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled)
register("PyTorch's determinism", _determinism, _set_determinism)
register("PyTorch's threads", torch.get_num_threads, torch.set_num_threads)
register(
    "PyTorch's matmul precision",
    torch.get_float32_matmul_precision,
    torch.set_float32_matmul_precision,
)
register("PyTorch's autocast", torch.is_autocast_enabled, torch.set_autocast_enabled)
register("PyTorch's repeated warnings", torch.is_warn_always_enabled, torch.set_warn_always)
register("PyTorch's print options", vars(PRINT_OPTS).copy, vars(PRINT_OPTS).update, is_quick=False)
for _owner, _name in (
    (cudnn, "enabled"),
    (cudnn, "benchmark"),
    (cudnn, "deterministic"),
    (cudnn, "allow_tf32"),
    (cuda.matmul, "allow_tf32"),
    (cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (cuda.matmul, "allow_bf16_reduced_precision_reduction"),
):
    register(
        f"{_name} of {_owner.__class__.__name__}",
        *attribute_accessors(_owner, _name),
        is_quick=cuda.is_built(),  # without CUDA they have no effect
    )
register("PyTorch's generators", _generators, _set_generators, False, is_rng_state=True)
