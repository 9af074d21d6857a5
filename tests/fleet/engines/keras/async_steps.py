"""Steps of a rank alone, or one of a group."""

from fleet.engines.base import StepTotals


def begin(trainable, images, targets, sizes, weights=None):
    """Begin with them; returns what waits for their sums."""
    rows = [len(targets)] if len(sizes) == 1 else sizes
    return trainable.begin_together(images, targets, sizes, rows, StepTotals(), weights)
