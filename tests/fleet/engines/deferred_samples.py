"""Samples of which something is left to the device."""

import numpy as np

from preprocess.deferred_augmentation import pack_rows
from preprocess.sample import Affine, ImageSpec, SampleSpec

DTYPES = ["uint8", "int16", "uint16", "int32", "int64", "float32"]


def random_deferred_samples(
    dtype="uint8", shape=(9, 12, 3), to=(8, 8), count=12, seed=0, affine=None
):
    """So many at random, whose windows also lie outside of their images; and what they are."""
    rng = np.random.default_rng(seed)
    images = (rng.random((count, *shape)) * 250).astype(dtype)
    places = np.stack(
        [
            *(rng.integers(-to[axis], shape[axis] + 1, count) for axis in (0, 1)),
            *rng.integers(0, 2, (2, count)),
        ],
        axis=1,
    )
    sample = SampleSpec(
        ImageSpec((*to, shape[2]), dtype),
        3,
        affine or Affine((0.5, 0.4, 0.3), 0.5),
        deferred_input=ImageSpec(shape, dtype),
    )
    return pack_rows(images, places), sample
