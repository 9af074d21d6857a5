"""Work that takes time: a transform that a spec names by its import path."""

import time


def linger(image, rng, training):
    """A millisecond for each training sample."""
    if training:
        time.sleep(0.001)
    return image
