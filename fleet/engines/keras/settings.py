"""Register process-wide settings of Keras and TensorFlow that user code may change.

:mod:`preprocess.user_code` restores them. TensorFlow's global seed is excluded: each network sets
it when built.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from preprocess.user_code import register


def _set_traceback_filtering(is_on: bool) -> None:
    config = keras.config
    (config.enable_traceback_filtering if is_on else config.disable_traceback_filtering)()


def _set_interactive_logging(is_on: bool) -> None:
    config = keras.config
    (config.enable_interactive_logging if is_on else config.disable_interactive_logging)()


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
register("Keras' float", keras.config.floatx, keras.config.set_floatx)
register("Keras' epsilon", keras.config.epsilon, keras.config.set_epsilon)
register(
    "Keras' image data format",
    keras.config.image_data_format,
    keras.config.set_image_data_format,
)
register("Keras' dtype policy", keras.config.dtype_policy, keras.config.set_dtype_policy)
register(
    "Keras' traceback filtering",
    keras.config.is_traceback_filtering_enabled,
    _set_traceback_filtering,
)
register(
    "Keras' interactive logging",
    keras.config.is_interactive_logging_enabled,
    _set_interactive_logging,
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
