"""Begin overlapping steps in tests."""

from fleet.engines.base import StepTotals, pack_rows
from fleet.engines.steps import StepBatches


def begin(trainable, images, targets, sizes, weights=None, flags=StepTotals()):
    """Begin one step per size, and return a function that waits for their totals."""
    counts = [len(targets)] if len(sizes) == 1 else sizes
    return trainable.begin_steps(
        StepBatches(pack_rows(images, targets, weights), sizes, counts, flags)
    )
