"""Which of several is best, where more than one thing counts (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from fleet.spec.search import OF_NETWORKS


class Valued(Protocol):
    """What has values by their names."""

    def value(self, name: str) -> float:
        """The value of a name."""


def come_to(
    names: Sequence[str], best: Valued | None, known: Mapping[str, float | None]
) -> tuple[float, ...]:
    """What a network has come to in each objective; NaN where that is not known.

    Args:
        names: of the objectives.
        best: its best epoch, by the first one, or its row in the table of results, which has the values of that.
        known: what is known of it beside its epochs, by the names of :data:`fleet.spec.search.OF_NETWORKS`.
    """

    def value(name: str) -> float | None:
        if name in OF_NETWORKS:
            return known.get(name)
        if best is None:
            return None
        return best.value(name)

    return tuple(math.nan if (found := value(name)) is None else float(found) for name in names)


def front(values: Sequence[Sequence[float]], modes: Sequence[str]) -> list[int]:
    """The Pareto front: whom none surpasses, which is as good in everything and better in something.

    Args:
        values: of each one what it has come to in each respect.
        modes: of each respect ``maximize`` or ``minimize``.

    Returns:
        Places among ``values``, the best in the first respect first. One that lacks a number is not among them.

    >>> front([(0.9, 100.0), (0.8, 10.0), (0.8, 50.0), (0.95, math.nan)], ("maximize", "minimize"))
    [0, 1]
    """
    signs = [-1.0 if mode == "maximize" else 1.0 for mode in modes]
    costs = {
        place: [sign * value for sign, value in zip(signs, one, strict=True)]
        for place, one in enumerate(values)
        if all(map(math.isfinite, one))
    }
    kept = np.empty((0, len(signs)))
    places = list[int]()
    for place in sorted(
        costs, key=lambda place: (costs[place], place)
    ):  # whoever surpasses one stands before it
        cost = np.array(costs[place])
        if not np.any(np.all(kept <= cost, axis=1) & np.any(kept < cost, axis=1)):
            kept = np.vstack([kept, cost])
            places = [*places, place]
    return places
