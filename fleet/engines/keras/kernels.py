"""Compute layers and optimizers of Keras with fused TensorFlow kernels.

Keras 3 writes batch normalization and optimizer steps as dozens of small operations, for any
backend. Each is traced and passes over all activations again: in small convolutional networks a
quarter of a step, and half of the operations of its graph. Results are equal up to the order of
additions. A model and its exports stay plain Keras: only how an existing object computes is
replaced.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf


def use_kernels(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Use TensorFlow's kernels for batch normalization and the optimizer where they fit."""
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
    """Compute batch normalization of images in training; all else as Keras does.

    Args:
        layer: layer to compute.
        plain: Keras' own ``call`` of the layer.
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
    # The kernel gives the variance of the population that the batch is from; Keras keeps that
    # of the batch.
    count = tf.cast(tf.reduce_prod(tf.shape(images)[:3]), tf.float32)
    for moving, now in (
        (layer.moving_mean, mean),
        (layer.moving_variance, variance * ((count - 1) / count)),
    ):
        moving.assign(moving * layer.momentum + now * (1 - layer.momentum))
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
    kind = variable.dtype
    index = optimizer._get_variable_index(variable)
    step = tf.cast(
        optimizer.iterations + 1, kind
    )  # a tensor where gradients are accumulated, else a variable
    first = tf.constant(optimizer.beta_1, kind)
    second = tf.constant(optimizer.beta_2, kind)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=optimizer._momentums[index].value.handle,
        v=optimizer._velocities[index].value.handle,
        beta1_power=first**step,
        beta2_power=second**step,
        lr=tf.cast(learning_rate, kind),
        beta1=first,
        beta2=second,
        epsilon=tf.constant(optimizer.epsilon, kind),
        grad=tf.cast(gradient, kind),
    )
