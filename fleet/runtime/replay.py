"""Training one network again on the stream epochs of its history: how far do the losses agree?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fleet.storage.state import EpochRecord

_COMPARED = ("loss", "accuracy", "val_loss", "val_accuracy")


def largest_difference(recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord]) -> float:
    """The largest relative difference of any loss or accuracy of any epoch.

    Args:
        recorded, replayed: two histories of one network.

    Raises:
        ValueError: they are not of the same stream epochs.
    """
    if [record.stream_epoch for record in recorded] != [record.stream_epoch for record in replayed]:
        raise ValueError("these histories are not of the same stream epochs")
    largest = 0.0
    for one, other in zip(recorded, replayed, strict=True):
        for name in _COMPARED:
            largest = max(largest, _difference(getattr(one, name), getattr(other, name)))
    return largest


def _difference(a: float, b: float) -> float:
    """Relative; none between what is no number twice, infinite between a number and none."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def compare(recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord]) -> str:
    """Both histories beside each other, and how far they agree."""
    lines = ["epoch  stream epoch  loss recorded  replayed   val recorded  replayed"]
    lines += [f"{one.epoch:5d}  {one.stream_epoch:12d}  {one.loss:13.6f}  {other.loss:8.6f}  "
              f"{one.val_loss:12.6f}  {other.val_loss:8.6f}" for one, other in zip(recorded, replayed, strict=True)]
    return "\n".join([*lines, f"largest relative difference: {largest_difference(recorded, replayed):.2e}"])
