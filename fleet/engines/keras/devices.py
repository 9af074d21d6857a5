"""Find the GPUs that TensorFlow may use."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from launch.library_messages import logged_messages


def find_gpus() -> list[Any]:
    """Return the GPUs that TensorFlow sees.

    TensorFlow looks for them at the first operation, too, but then prints messages of the driver,
    such as that a machine without GPUs has none. Thus call this before.
    """
    with logged_messages():
        return list(tf.config.list_physical_devices("GPU"))
