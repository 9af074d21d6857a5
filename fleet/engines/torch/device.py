"""Which GPU, or how many cores, PyTorch may use on this rank."""

from __future__ import annotations

import os

import torch

from fleet.engines.base import Slot, check_index

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # read when CUDA starts


def take_device(index: int, trainers: int, deterministic: bool = False,
                slot: Slot = Slot()) -> torch.device:  # noqa: B008 - frozen
    """Use one GPU, and of its memory no more than this trainer's part; without GPUs, a fair share of the cores.

    Kernels cut their sums by the number of threads, so a network that is trained again in another number of them comes
    to other numbers: one that is deterministic has one thread.

    Args:
        index: the place of this trainer among those of its node. PyTorch sees the GPUs that an existing
            ``CUDA_VISIBLE_DEVICES`` leaves.
        trainers: on this node.
        deterministic: take deterministic kernels, and without GPUs one thread.
        slot: of the GPU.

    Raises:
        UserError: the node shows fewer GPUs than it has trainers.
    """
    if deterministic:
        os.environ.setdefault(_CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # nothing reads it
    gpus = torch.cuda.device_count()
    if not gpus:
        if deterministic or "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1 if deterministic else max(1, len(os.sched_getaffinity(0)) // trainers))
        return torch.device("cpu")
    check_index(index, gpus)
    chosen = torch.device("cuda", 0 if gpus == 1 else index)  # a launcher may have chosen already
    torch.cuda.set_device(chosen)
    if slot.memory_limit is not None:
        total = torch.cuda.get_device_properties(chosen).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, slot.memory_limit * 2**20 / total), chosen)
    return chosen
