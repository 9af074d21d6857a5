"""Samples for tests of engines."""

import numpy as np
import pytest


@pytest.fixture(scope="package")
def batch():
    """Return 12 images of 8 x 8 pixels, brighter for higher classes, and their labels 0 to 2."""
    labels = np.arange(12) % 3
    pixels = (
        np.random.default_rng(0).integers(0, 100, (12, 8, 8, 1)) + 70 * labels[:, None, None, None]
    )
    return pixels.astype(np.uint8), labels
