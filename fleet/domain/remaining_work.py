"""The work that searches may still add, for estimates of the time left (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ExpectedTrials:
    """Networks that a search may still propose.

    Attributes:
        networks: their maximum number.
        epochs: the maximum number of their epochs in total; infinity without a budget.
        max_concurrent: the maximum number at a time; infinity if only devices limit it.
        proposed: network proposed so far -> its epochs if it trains no more, otherwise None.
    """

    networks: float
    epochs: float
    max_concurrent: float
    proposed: Mapping[str, int | None]


@dataclass(frozen=True)
class RemainingWork:
    """The state of searches and of the pruner that decides how long a run takes.

    Attributes:
        next_rung: (network, epochs) -> epochs at its next rung; None without rungs.
        expected: maximum epochs -> epochs that a network trains on average; None without rungs.
        searches: the trials that each search may still propose.
    """

    next_rung: Callable[[str, int], int | None] = lambda name, epochs: None
    expected: Callable[[int], float | None] = lambda max_epochs: None
    searches: tuple[ExpectedTrials, ...] = ()
