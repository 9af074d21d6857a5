"""Take steps in tests."""

from fleet.engines.base import StepTotals
from fleet.engines.steps import StepBatches, steps_of


def begin(trainable, images, targets, sizes, weights=None, flags=StepTotals()):
    """Begin one step per size, and return a function that waits for their totals."""
    counts = [len(targets)] if len(sizes) == 1 else sizes
    rows = (images, targets) if weights is None else (images, targets, weights)
    return steps_of(trainable, is_alone=False).begin_steps(StepBatches(rows, sizes, counts, flags))


def take_step(trainable, images, targets, size, stop=False, weights=None):
    """Take one step on a global batch, and return its totals."""
    return begin(trainable, images, targets, [size], weights, StepTotals(stop=stop))().sums[0]
