"""How much the keys of a search's space decide what networks come to, by scikit-learn or Optuna where installed."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.monitor.search_summary import SearchReport, SearchTrial, coordinate_of
from fleet.spec.space import Dimension, Range

LEAST = 10  # networks, below which nothing is said
_MOST = 1000  # networks that are looked at
_Found = tuple[Sequence[float], str]


@dataclass(frozen=True)
class Importance:
    """How much each key decides.

    Attributes:
        shares: of each key, the greatest first; they add up to 1. Empty where nothing can be said.
        summary: how that was found, or why nothing was.
    """

    shares: Mapping[str, float]
    summary: str


def importance_of(search: SearchReport, skip_slow: bool = False) -> Importance | None:
    """What can be said of a search; None of a space of one key, and of few networks.

    Networks that were pruned early count with the best value that they had, as everywhere in the report.

    Args:
        skip_slow: whether no library may be loaded for it, which takes seconds.
    """
    varied = [
        key for key in search.space if len({repr(one.values.get(key)) for one in search.ranked}) > 1
    ]
    if len(varied) < 2 or len(search.ranked) < LEAST:
        return None
    if skip_slow:
        return Importance(
            {}, "How much each key decides is found out and shown here by the command fleet report."
        )
    every = math.ceil(len(search.ranked) / _MOST)
    for way in _WAYS:
        try:
            found, words = way(search, varied, search.ranked[::every])
        except ImportError:
            continue
        total = sum(found)
        if total <= 0:
            return Importance({}, words)
        return Importance(
            dict(
                sorted(
                    ((key, value / total) for key, value in zip(varied, found, strict=True)),
                    key=lambda item: -item[1],
                )
            ),
            words,
        )
    return Importance(
        {}, "How much each key decides is shown where scikit-learn or Optuna is installed."
    )


def _by_permutation(
    search: SearchReport, keys: Sequence[str], ranked: Sequence[SearchTrial]
) -> _Found:
    """How much worse a random forest foretells the order of networks if the values of a key are shuffled."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    inputs = [[_number(one.values.get(key), search.space[key]) for key in keys] for one in ranked]
    order = [
        -float(place) for place in range(len(ranked))
    ]  # a loss that is far off has no more weight than the last
    forest = RandomForestRegressor(100, min_samples_leaf=2, oob_score=True, random_state=0).fit(
        inputs, order
    )
    if forest.oob_score_ <= 0:
        return [0.0] * len(
            keys
        ), "The values of the keys do not foretell how good a network is, as far as can be seen."
    found = permutation_importance(
        forest, inputs, order, n_repeats=10, random_state=0
    ).importances_mean
    return [max(0.0, float(one)) for one in found], (
        "How much each key decides: by permutation, in a random forest that foretells the order of networks. Of those "
        f"that it has not seen it explains {forest.oob_score_:.0%} of the variance."
    )


def _by_optuna(search: SearchReport, keys: Sequence[str], ranked: Sequence[SearchTrial]) -> _Found:
    """How differently a key is distributed among the best networks and among all (PED-ANOVA)."""
    import optuna

    ranked = [
        one
        for one in ranked
        if None not in [coordinate_of(one.values.get(key), search.space[key]) for key in keys]
    ]
    if len(ranked) < LEAST:
        return [0.0] * len(
            keys
        ), "Too few networks have values of the space for all keys to say how much each decides."
    logging.getLogger("optuna").setLevel(logging.WARNING)
    space: dict[str, optuna.distributions.BaseDistribution] = {
        key: optuna.distributions.FloatDistribution(own.low, own.high, log=own.log)
        if isinstance(own := search.space[key], Range)
        else optuna.distributions.CategoricalDistribution([repr(choice) for choice in own])
        for key in keys
    }
    study = optuna.create_study(direction="maximize" if search.is_larger_better else "minimize")
    for one in ranked:
        values = {
            key: one.values[key] if isinstance(search.space[key], Range) else repr(one.values[key])
            for key in keys
        }
        with warnings.catch_warnings(action="ignore"):
            study.add_trial(
                optuna.create_trial(params=values, value=one.value, distributions=space)
            )
    found = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
    )
    return [found.get(key, 0.0) for key in keys], (
        "How much each key decides, by Optuna's PED-ANOVA: how differently it is spread among the best networks."
    )


_WAYS: tuple[Callable[[SearchReport, Sequence[str], Sequence[SearchTrial]], _Found], ...] = (
    _by_permutation,
    _by_optuna,
)


def _number(value: Any, values: Dimension) -> float:
    """A value as a forest takes it; one that is none of the space, since it is of an earlier one, lies below all."""
    place = coordinate_of(value, values)
    if place is not None:
        return place
    if isinstance(values, Range):
        return values.low - (0.0 if values.log else values.high - values.low)
    return -1.0
