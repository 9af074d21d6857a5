"""Judging a network on the validation samples, which the ranks of its group share."""

from __future__ import annotations

import time
from collections.abc import Callable

from fleet.engines.base import Sums
from fleet.runtime.training.all_or_none import all_or_none
from fleet.runtime.training.network import Training
from fleet.stream.validation import Validation

_JUDGED_AT_ONCE_S = 1.0  # then a group looks whether the run ends


def evaluate(training: Training, validation: Validation | None, ends: Callable[[], bool]) -> Sums | None:
    """Sums over all validation samples; collective over the group, whose ranks meet about once a second.

    Args:
        validation: None where there is none; then the sums are 0.
        ends: whether the run ends; the master is asked.

    Returns:
        The same on every rank; None where the run ends before all is judged.

    Raises:
        NetworkFailed: on all ranks, when judging failed on one.
    """
    if validation is None:
        return Sums()
    group, mine = training.group, Sums()
    batches = validation.batches(training.network.train.batch.size, group.rank, group.size)

    def judge() -> bool:
        """Go on for a while; returns whether this rank's share is done."""
        nonlocal mine
        began = time.perf_counter()
        for images, targets in batches:
            mine += training.judge(images, targets)
            if time.perf_counter() - began >= _JUDGED_AT_ONCE_S:
                return False
        return True

    while True:  # as often on each rank: those that are done wait for the others
        is_done = all_or_none(group, judge)
        is_ending = group.is_master and not is_done and ends()
        shares = group.exchange((mine, is_done, is_ending))
        if all(is_done for _, is_done, _ in shares):
            return sum((sums for sums, _, _ in shares), Sums())
        if any(is_ending for _, _, is_ending in shares):
            return None
