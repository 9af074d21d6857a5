"""Find the GPUs that TensorFlow may use."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fleet.errors import UserError
from launch.gpus import MAKERS
from launch.library_messages import logged_messages

# TensorFlow's names of GPUs, by ``resources.device``.
_KINDS = {"auto": ("GPU", "XPU"), "cuda": ("GPU",), "rocm": ("GPU",), "xpu": ("XPU",), "cpu": ()}


def find_gpus(setting: str = "auto") -> list[Any]:
    """Return the GPUs that TensorFlow sees; none if the setting is ``cpu``.

    Those of Intel are ``XPU`` devices, by its extension for TensorFlow.

    TensorFlow looks for them at the first operation, too, but then prints messages of the driver,
    such as that a machine without GPUs has none. Thus call this before.

    Args:
        setting: ``resources.device``.

    Raises:
        UserError: TensorFlow sees no GPU of the kind that the setting names.
    """
    with logged_messages():
        gpus = {kind: list(tf.config.list_physical_devices(kind)) for kind in _KINDS[setting]}
    if setting in MAKERS and not any(gpus.values()):
        raise UserError(
            f"resources.device: {setting}: TensorFlow {tf.__version__} sees no GPU of this kind; "
            "install the build for it, or set resources.device: auto"
        )
    return next((devices for devices in gpus.values() if devices), [])


def hide_gpus() -> None:
    """Let TensorFlow use the cores alone."""
    for kind in _KINDS["auto"]:
        tf.config.set_visible_devices([], kind)
