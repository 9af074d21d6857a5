"""What searches may yet bring, for whoever estimates how long a run will go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True)
class ExpectedTrials:
    """Networks that a search will yet ask for.

    Attributes:
        networks: how many at most.
        epochs: that they may train together at most; infinity where there is no budget.
        at_once: how many there are at a time at most; infinity where the devices decide.
        before: those that it has asked for; of each that trains no more, after how many epochs, otherwise None.
    """

    networks: float
    epochs: float
    at_once: float
    before: Mapping[str, int | None]


@dataclass(frozen=True)
class RemainingWork:
    """What is known of searches, and of the rule by which networks are pruned.

    Attributes:
        idle: networks that are paused or pruned.
        next_rung: the epochs after which a network that has ended so many is judged next; None without rungs.
        expected: how many epochs a network trains on average that may train so many; None without rungs.
    """

    idle: AbstractSet[str] = frozenset()
    next_rung: Callable[[str, int], int | None] = lambda name, epochs: None
    expected: Callable[[int], float | None] = lambda most: None
    coming: tuple[ExpectedTrials, ...] = ()
