"""Register process-wide settings of Keras and TensorFlow that user code may change.

:mod:`preprocess.user_code` restores them. TensorFlow's global seed is excluded: each network sets
it when built.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from functools import partial

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from preprocess.user_code import register


def _switch(name: str, is_on: bool) -> None:
    getattr(keras.config, f"{'enable' if is_on else 'disable'}_{name}")()


def _layer_counts() -> dict[str, int]:
    """Return the number of named layers of each kind, which determines the next name."""
    return dict(global_state.get_global_attribute(_UIDS, {}))


def _set_layer_counts(counts: Mapping[str, int]) -> None:
    uids = global_state.get_global_attribute(_UIDS)
    if uids is None:
        global_state.set_global_attribute(_UIDS, collections.defaultdict(int, counts))
    else:
        uids.clear()
        uids.update(counts)


_UIDS = "object_name_uids"


register("names of layers", _layer_counts, _set_layer_counts, is_persistent=True, at_import={})
for _name in ("floatx", "epsilon", "image_data_format", "dtype_policy"):
    register(f"Keras' {_name}", getattr(keras.config, _name), getattr(keras.config, f"set_{_name}"))
for _name in ("traceback_filtering", "interactive_logging"):
    register(
        f"Keras' {_name}",
        getattr(keras.config, f"is_{_name}_enabled"),
        partial(_switch, _name),
    )
register(
    "eager execution of functions",
    tf.config.functions_run_eagerly,
    tf.config.run_functions_eagerly,
)
register(
    "TensorFloat-32",
    tf.config.experimental.tensor_float_32_execution_enabled,
    tf.config.experimental.enable_tensor_float_32_execution,
)
register(
    "TensorFlow's soft device placement",
    tf.config.get_soft_device_placement,
    tf.config.set_soft_device_placement,
    is_quick=False,
)
