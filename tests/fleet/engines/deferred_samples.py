"""Random samples with deferred augmentation."""

import numpy as np

from preprocess.deferred_augmentation import pack_rows
from preprocess.sample import Affine, ArraySpec, SampleSpec

DTYPES = ["uint8", "int16", "uint16", "int32", "int64", "float32"]


def random_deferred_samples(
    dtype="uint8", shape=(9, 12, 3), to=(8, 8), count=12, seed=0, affine=None
):
    """Return random samples whose crops may exceed their images, and their description.

    Args:
        dtype: type of the pixels.
        shape: (height, width, channels) of the images.
        to: (height, width) of the crops.
        count: number of samples.
        seed: seed of the pixels and crops.
        affine: scaling of the pixels.

    Returns:
        (count, bytes) uint8 rows as they travel, and the SampleSpec.
    """
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
        ArraySpec((*to, shape[2]), dtype),
        3,
        affine or Affine((0.5, 0.4, 0.3), 0.5),
        deferred_input=ArraySpec(shape, dtype),
    )
    return pack_rows(images, places), sample
