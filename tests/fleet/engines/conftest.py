"""What the engines' networks are tested with."""

import numpy as np
import pytest


@pytest.fixture(scope="package")
def batch():
    """12 images of 8 x 8 pixels, the lighter the higher their class, and their 3 classes."""
    labels = np.arange(12) % 3
    pixels = (
        np.random.default_rng(0).integers(0, 100, (12, 8, 8, 1)) + 70 * labels[:, None, None, None]
    )
    return pixels.astype(np.uint8), labels
