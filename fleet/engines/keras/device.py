"""Which GPU, or how many cores, TensorFlow may use on this rank, and how it prepares graphs for them."""

from __future__ import annotations

import os

import tensorflow as tf

from fleet.engines.base import Slot, check_index


def take_device(index: int, trainers: int, deterministic: bool = False, slot: Slot = Slot()) -> None:  # noqa: B008
    """Use one GPU, and of its memory only what is needed; without GPUs, a fair share of the cores.

    Without GPUs graphs are run as they are traced. To rewrite them first (Grappler) is a quarter of what the first step
    of a small network costs, and its later steps are no faster for it.

    Where trainers share a GPU, the first takes what it needs, so that a network which is tried again alone has all that
    there is. The others are held to an equal share, or, where nobody says how much memory there is, take what they
    need as well. (Not tried on a GPU yet.)

    Kernels cut their sums by the number of threads, so a network that is trained again in another number of them comes
    to other numbers; which trainers share a node should not matter to one that is deterministic.

    Args:
        index: the place of this trainer among those of its node. TensorFlow sees the GPUs that an
            existing ``CUDA_VISIBLE_DEVICES`` leaves.
        trainers: on this node.
        deterministic: take deterministic kernels, and without GPUs one thread.
        slot: of the GPU.

    Raises:
        UserError: the node shows fewer GPUs than it has trainers.
    """
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        if "TF_NUM_INTRAOP_THREADS" not in os.environ:
            threads = 1 if deterministic else max(1, len(os.sched_getaffinity(0)) // trainers)
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        return
    check_index(index, len(gpus))
    chosen = gpus[0] if len(gpus) == 1 else gpus[index]
    tf.config.set_visible_devices([chosen], "GPU")
    if slot.memory_limit is None:
        tf.config.experimental.set_memory_growth(chosen, True)
    else:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=slot.memory_limit)
        tf.config.set_logical_device_configuration(chosen, [part])
