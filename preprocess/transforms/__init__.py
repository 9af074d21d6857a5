"""Transforms: what is done to a sample between its file and the network.

A transform is a frozen dataclass whose fields are its parameters in a spec. Its ``apply`` takes an
image (height, width, channels), a random generator, and True for training, and returns the new
image. In evaluation nothing is random: a random crop is a center crop; flips, rotation and jitter
do nothing. Images stay uint8 until a scale.

In a spec a transform is a bare name, or a mapping of one name to its parameters; a name with a
colon is the import path of a function ``f(image, rng, training, **parameters) -> image``:

    transforms:
      - decode
      - random_crop: {size: [32, 32], padding: 4}
      - my_transforms:cutout: {size: 8}
      - scale: {mean: 0.5, std: 0.25}

A new transform is a class in one of these modules, or in a new one, and a row of the table in
``preprocess.transforms.parse``. This package imports ``preprocess.base``, ``decode`` and
``sample``.
"""

from preprocess.transforms.base import Transform
from preprocess.transforms.parse import TRANSFORMS, item_schema, parse_transform, parse_transforms

__all__ = ["TRANSFORMS", "Transform", "item_schema", "parse_transform", "parse_transforms"]
