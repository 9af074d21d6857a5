"""Objectives of a search, and the Pareto front of several (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from fleet.spec.constraints import Constraint
from fleet.spec.search import NETWORK_OBJECTIVES


class HasValues(Protocol):
    """An object with values by name."""

    def value(self, name: str) -> float:
        """Return the value of a name."""


def objective_values(
    names: Sequence[str], best: HasValues | None, facts: Mapping[str, float | None]
) -> tuple[float, ...]:
    """Return the value of a network for each objective; NaN if unknown.

    Args:
        names: names of the objectives.
        best: its best epoch by the first objective, or its row of results with the values of that
            epoch.
        facts: values that do not depend on epochs, by the names of
            :data:`fleet.spec.search.NETWORK_OBJECTIVES`.
    """

    def value(name: str) -> float | None:
        if name in NETWORK_OBJECTIVES:
            return facts.get(name)
        if best is None:
            return None
        return best.value(name)

    return tuple(math.nan if (number := value(name)) is None else float(number) for name in names)


def violations_of(
    constraints: Sequence[Constraint],
    best: HasValues | None,
    facts: Mapping[str, float | None],
) -> tuple[float, ...]:
    """Return by how much a network violates each constraint.

    Args:
        constraints: the constraints.
        best, facts: as in :func:`objective_values`.

    Returns:
        For each constraint a number, at most 0 if it is met; NaN if unknown.
    """
    values = objective_values([constraint.value for constraint in constraints], best, facts)
    return tuple(
        constraint.violation(value) for constraint, value in zip(constraints, values, strict=True)
    )


def pareto_front(values: Sequence[Sequence[float]], modes: Sequence[str]) -> list[int]:
    """Return the indices of the Pareto front: no other point is as good in all and better in one.

    Args:
        values: for each point, a value per objective.
        modes: for each objective ``maximize`` or ``minimize``.

    Returns:
        Indices of ``values``, the best of the first objective first, without points that lack a
        number.

    >>> points = [(0.9, 100.0), (0.8, 10.0), (0.8, 50.0), (0.95, math.nan)]
    >>> pareto_front(points, ("maximize", "minimize"))
    [0, 1]
    """
    signs = [-1.0 if mode == "maximize" else 1.0 for mode in modes]
    costs = {
        index: [sign * value for sign, value in zip(signs, point, strict=True)]
        for index, point in enumerate(values)
        if all(map(math.isfinite, point))
    }
    front_costs = np.empty((0, len(signs)))
    places = list[int]()
    # a dominating point comes first
    for index in sorted(costs, key=lambda index: (costs[index], index)):
        cost = np.array(costs[index])
        if not np.any(np.all(front_costs <= cost, axis=1) & np.any(front_costs < cost, axis=1)):
            front_costs = np.vstack([front_costs, cost])
            places = [*places, index]
    return places
