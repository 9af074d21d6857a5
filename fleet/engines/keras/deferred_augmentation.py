"""Apply deferred crops and flips in the graph (:mod:`preprocess.deferred_augmentation`)."""

from __future__ import annotations

import tensorflow as tf

from preprocess.sample import CROP_BYTES, SampleSpec


def augment_deferred(rows: tf.Tensor, sample: SampleSpec) -> tf.Tensor:
    """Return network inputs (n, ...), not yet scaled, from samples as they travel.

    Args:
        rows: (n, bytes) uint8 if the samples have deferred augmentation, else (n, ...).
        sample: shape and type of the samples.

    Returns:
        float32, or float64 if scaling is precise.
    """
    if sample.deferred_input is None:
        precise = sample.affine is not None and sample.affine.precise
        return tf.cast(rows, tf.float64 if precise else tf.float32)
    height, width, channels = sample.deferred_input.shape
    dtype = tf.as_dtype(sample.deferred_input.dtype)
    to_height, to_width = sample.input.shape[:2]
    shape = (-1, height * width, channels)
    pixels, crops = tf.split(rows, [sample.deferred_input.nbytes, CROP_BYTES], axis=1)
    if dtype.size > 1:
        pixels = tf.bitcast(tf.reshape(pixels, (*shape, dtype.size)), dtype)
    else:
        pixels = tf.reshape(pixels, shape)
    top, first_column, flip_vertical, flip_horizontal = tf.unstack(
        tf.bitcast(tf.reshape(crops, (-1, 4, 4)), tf.int32), axis=1
    )
    y, is_y = _crop_indices(top, flip_vertical, to_height, height)
    x, is_x = _crop_indices(first_column, flip_horizontal, to_width, width)
    indices = tf.reshape(y[:, :, None] * width + x[:, None, :], (-1, to_height * to_width))
    # TensorFlow cannot gather bytes on a GPU.
    images = tf.gather(tf.cast(pixels, tf.float32), indices, batch_dims=1)
    images = tf.reshape(images, (-1, to_height, to_width, channels))
    return tf.where((is_y[:, :, None] & is_x[:, None, :])[..., None], images, 0.0)


def _crop_indices(
    first: tf.Tensor, is_flipped: tf.Tensor, count: int, available: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the rows or columns of a crop, clipped, and True if inside the image: (n, count)."""
    forward = tf.range(count)
    indices = first[:, None] + tf.where(is_flipped[:, None] > 0, count - 1 - forward, forward)
    return tf.clip_by_value(indices, 0, available - 1), (indices >= 0) & (indices < available)
