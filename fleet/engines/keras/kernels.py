"""Compute layers and optimizers of Keras with fused TensorFlow kernels.

To support any backend, Keras 3 composes batch normalization and optimizer steps of dozens of small
operations. Each is traced and passes over all activations again; in small convolutional networks
they take a quarter of a step and half of the operations of its graph. Results are equal up to the
order of additions. A model and its exports stay plain Keras: only the methods of existing objects
are replaced.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf


def use_kernels(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Use TensorFlow's kernels for batch normalization and the optimizer where possible."""
    for layer in model._flatten_layers():
        if type(layer) is keras.layers.BatchNormalization:
            layer.call = partial(_normalize, layer, layer.call)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if type(inner) is keras.optimizers.SGD:
        inner.update_step = partial(_descend, inner)
    elif type(inner) in (keras.optimizers.Adam, keras.optimizers.AdamW) and not inner.amsgrad:
        inner.update_step = partial(_adapt, inner)


def _normalize(
    layer: Any, plain: Any, inputs: Any, training: bool | None = None, mask: Any = None
) -> Any:
    """Compute batch normalization of images in training; call Keras otherwise.

    Args:
        layer: layer to compute.
        plain: Keras' ``call`` method of the layer.
        inputs, training, mask: arguments of ``call``.
    """
    fits = (
        training
        and layer.trainable
        and mask is None
        and layer.axis in (-1, 3)
        and len(inputs.shape) == 4
        and not (layer.synchronized or layer.renorm)
        and tf.is_tensor(inputs)
    )
    if not fits:
        return plain(inputs, training=training, mask=mask)
    channels = layer.moving_mean.shape
    images = tf.cast(inputs, tf.float32)
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=images,
        scale=layer.gamma.value if layer.scale else tf.ones(channels),
        offset=layer.beta.value if layer.center else tf.zeros(channels),
        mean=[],
        variance=[],
        epsilon=layer.epsilon,
        is_training=True,
    )
    # The kernel returns the unbiased variance; Keras uses the variance of the batch.
    count = tf.cast(tf.reduce_prod(tf.shape(images)[:3]), tf.float32)
    for moving, current in (
        (layer.moving_mean, mean),
        (layer.moving_variance, variance * ((count - 1) / count)),
    ):
        moving.assign(moving * layer.momentum + current * (1 - layer.momentum))
    return tf.cast(outputs, layer.compute_dtype)


def _descend(
    optimizer: Any, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
) -> None:
    """Take one step of SGD on one variable."""
    rate = tf.cast(learning_rate, variable.dtype)
    gradient = tf.cast(gradient, variable.dtype)
    if not optimizer.momentums:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
        return
    velocity = optimizer.momentums[optimizer._get_variable_index(variable)].value
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=velocity.handle,
        lr=rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, variable.dtype),
        use_nesterov=optimizer.nesterov,
    )


def _adapt(
    optimizer: Any, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
) -> None:
    """Take one step of Adam on one variable; AdamW decays weights before it."""
    dtype = variable.dtype
    index = optimizer._get_variable_index(variable)
    # The iterations are a tensor if gradients are accumulated, else a variable.
    step = tf.cast(optimizer.iterations + 1, dtype)
    first = tf.constant(optimizer.beta_1, dtype)
    second = tf.constant(optimizer.beta_2, dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=optimizer._momentums[index].value.handle,
        v=optimizer._velocities[index].value.handle,
        beta1_power=first**step,
        beta2_power=second**step,
        lr=tf.cast(learning_rate, dtype),
        beta1=first,
        beta2=second,
        epsilon=tf.constant(optimizer.epsilon, dtype),
        grad=tf.cast(gradient, dtype),
    )
