"""Apply deferred crops and flips in the graph (:mod:`preprocess.deferred_augmentation`)."""

from __future__ import annotations

import tensorflow as tf

from preprocess.sample import CROP_BYTES, SampleSpec


def augment_deferred(rows: tf.Tensor, sample: SampleSpec) -> tf.Tensor:
    """Return network inputs (n, ...), in the type in which they are scaled, from what travels.

    Args:
        rows: (n, bytes) or (n, ...), samples as they travel.
        sample: their shape and type.
    """
    if sample.deferred_input is None:
        precise = sample.affine is not None and sample.affine.precise
        return tf.cast(rows, tf.float64 if precise else tf.float32)
    (height, width, channels), kind = (
        sample.deferred_input.shape,
        tf.as_dtype(sample.deferred_input.dtype),
    )
    to_height, to_width = sample.image.shape[:2]
    shape = (-1, height * width, channels)
    pixels, places = tf.split(rows, [sample.deferred_input.nbytes, CROP_BYTES], axis=1)
    if kind.size > 1:
        pixels = tf.bitcast(tf.reshape(pixels, (*shape, kind.size)), kind)
    else:
        pixels = tf.reshape(pixels, shape)
    top, first_column, upside, mirror = tf.unstack(
        tf.bitcast(tf.reshape(places, (-1, 4, 4)), tf.int32), axis=1
    )
    y, is_y = _lines(top, upside, to_height, height)
    x, is_x = _lines(first_column, mirror, to_width, width)
    indices = tf.reshape(y[:, :, None] * width + x[:, None, :], (-1, to_height * to_width))
    # On a GPU, TensorFlow gathers no bytes.
    images = tf.gather(tf.cast(pixels, tf.float32), indices, batch_dims=1)
    images = tf.reshape(images, (-1, to_height, to_width, channels))
    return tf.where((is_y[:, :, None] & is_x[:, None, :])[..., None], images, 0.0)


def _lines(
    first: tf.Tensor, is_back: tf.Tensor, count: int, have: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which lines of an image a crop shows, and whether each exists: (n, count)."""
    forth = tf.range(count)
    lines = first[:, None] + tf.where(is_back[:, None] > 0, count - 1 - forth, forth)
    return tf.clip_by_value(lines, 0, have - 1), (lines >= 0) & (lines < have)
