"""Which GPU, or how many cores, TensorFlow may use on this rank."""

from __future__ import annotations

import os

import tensorflow as tf

from fleet.errors import UserError
from fleet.units import counted


def take_device(index: int, trainers: int) -> None:
    """Use one GPU, and of its memory only what is needed; without GPUs, a fair share of the cores.

    Args:
        index: the place of this trainer among those of its node. TensorFlow sees the GPUs that an
            existing ``CUDA_VISIBLE_DEVICES`` leaves.
        trainers: on this node.

    Raises:
        UserError: the node shows fewer GPUs than it has trainers.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        if "TF_NUM_INTRAOP_THREADS" not in os.environ:
            tf.config.threading.set_intra_op_parallelism_threads(max(1, len(os.sched_getaffinity(0)) // trainers))
        return
    if len(gpus) > 1 and index >= len(gpus):
        raise UserError(f"this node shows {counted(len(gpus), 'GPU')}, and this rank is its trainer number "
                        f"{index + 1}: start fewer ranks on it, or set resources.gpus_per_node")
    # A launcher that shows each rank its own GPU alone has chosen already.
    chosen = gpus[0] if len(gpus) == 1 else gpus[index]
    tf.config.set_visible_devices([chosen], "GPU")
    tf.config.experimental.set_memory_growth(chosen, True)
