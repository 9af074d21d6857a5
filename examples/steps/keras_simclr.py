"""Contrastive learning as in simclr.py, in Keras."""

import keras
import tensorflow as tf
from keras import layers


def network(input_shape, width=16, outputs_of_head=16):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(width, 3, strides=2, padding="same", activation="gelu"),
            layers.Conv2D(2 * width, 3, strides=2, padding="same", activation="gelu"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(outputs_of_head),
        ]
    )


def view(images, seed):
    """Return images that are shifted, brightened and noisy at random."""
    shifts = tf.random.stateless_uniform((2,), seed, -2, 3, tf.int32)
    brightness = tf.random.stateless_uniform((tf.shape(images)[0], 1, 1, 1), seed, 0.8, 1.2)
    noise = tf.random.stateless_normal(tf.shape(images), seed, stddev=0.1)
    return tf.roll(images, shifts, (1, 2)) * brightness + noise


def contrast(first, second, temperature=0.5):
    """Return the NT-Xent loss of two views, (n, numbers) each, a scalar."""
    codes = tf.math.l2_normalize(tf.concat([first, second], 0), axis=1)
    similarity = tf.matmul(codes, codes, transpose_b=True) / temperature
    count = tf.shape(first)[0]
    similarity = tf.linalg.set_diag(similarity, tf.fill([2 * count], similarity.dtype.min))
    partners = tf.roll(tf.range(2 * count), count, 0)
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partners, logits=similarity)
    )


def step(model, batch, training):
    images = batch["input"]
    # Other views in each step: the seed follows from the samples, which are shuffled.
    seed = tf.cast(tf.stack([batch["index"][0], tf.reduce_sum(batch["index"])]), tf.int32)
    first = model(view(images, seed), training=training)
    second = model(view(images, seed + 1), training=training)
    return contrast(first, second)
