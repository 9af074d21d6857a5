"""Importance of a search's parameters, computed by scikit-learn or Optuna if installed."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.monitor.search_summary import SearchReport, SearchTrial, coordinate_of
from fleet.spec.dimensions import Dimension, Range

MIN_NETWORKS = 10  # minimum number of networks
_MAX_NETWORKS = 1000  # maximum number of evaluated networks
_KeyScores = tuple[Sequence[float], str]


@dataclass(frozen=True)
class Importance:
    """The importance of each key of a space.

    Attributes:
        shares: share of each key, greatest first, adding up to 1; empty if unknown.
        summary: how it was computed, or why it was not.
    """

    shares: Mapping[str, float]
    summary: str


def importance_of(search: SearchReport, skip_slow: bool = False) -> Importance | None:
    """Return the importances of a search; None for a single key or few networks.

    Networks that were pruned early count with their best value, as everywhere in the report.

    Args:
        search: the report of the search.
        skip_slow: True to load no libraries, which takes seconds.
    """
    varied = [
        key
        for key in search.space
        if len({repr(trial.values.get(key)) for trial in search.ranked}) > 1
    ]
    if len(varied) < 2 or len(search.ranked) < MIN_NETWORKS:
        return None
    if skip_slow:
        return Importance(
            {}, "Run fleet report to compute the importance of each key and show it here."
        )
    every = math.ceil(len(search.ranked) / _MAX_NETWORKS)
    for method in _METHODS:
        try:
            scores, summary = method(search, varied, search.ranked[::every])
        except ImportError:
            continue
        total = sum(scores)
        if total <= 0:
            return Importance({}, summary)
        return Importance(
            dict(
                sorted(
                    ((key, value / total) for key, value in zip(varied, scores, strict=True)),
                    key=lambda item: -item[1],
                )
            ),
            summary,
        )
    return Importance({}, "Install scikit-learn or Optuna to see the importance of each key.")


def _by_permutation(
    search: SearchReport, keys: Sequence[str], ranked: Sequence[SearchTrial]
) -> _KeyScores:
    """Return how much worse a random forest ranks networks if values of a key are shuffled."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    inputs = [
        [_number(trial.values.get(key), search.space[key]) for key in keys] for trial in ranked
    ]
    # Ranks, so that outliers have no more weight than the last network.
    order = [-float(position) for position in range(len(ranked))]
    forest = RandomForestRegressor(100, min_samples_leaf=2, oob_score=True, random_state=0).fit(
        inputs, order
    )
    if forest.oob_score_ <= 0:
        message = "The values of the keys do not predict the ranking of the networks."
        return [0.0] * len(keys), message
    importances = permutation_importance(
        forest, inputs, order, n_repeats=10, random_state=0
    ).importances_mean
    return [max(0.0, float(trial)) for trial in importances], (
        "Permutation importance in a random forest that predicts the ranking; it explains "
        f"{forest.oob_score_:.0%} of held-out variance."
    )


def _by_optuna(
    search: SearchReport, keys: Sequence[str], ranked: Sequence[SearchTrial]
) -> _KeyScores:
    """Return how much a key's distribution among the best networks differs from all (PED-ANOVA).

    Each key is evaluated on the networks that have a value in its dimension: under conditions these
    are some of all.
    """
    import optuna

    logging.getLogger("optuna").setLevel(logging.WARNING)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    scores: dict[str, float] = {}
    for key in keys:
        dimension = search.space[key]
        distribution: optuna.distributions.BaseDistribution
        if isinstance(dimension, Range):
            distribution = optuna.distributions.FloatDistribution(
                dimension.low, dimension.high, log=dimension.log
            )
        else:
            distribution = optuna.distributions.CategoricalDistribution(list(map(repr, dimension)))
        study = optuna.create_study(direction="maximize" if search.is_larger_better else "minimize")
        for trial in ranked:
            value = trial.values.get(key)
            if coordinate_of(value, dimension) is None:
                continue
            value = value if isinstance(dimension, Range) else repr(value)
            with warnings.catch_warnings(action="ignore"):
                study.add_trial(
                    optuna.create_trial(
                        params={key: value}, value=trial.value, distributions={key: distribution}
                    )
                )
        if len(study.trials) >= MIN_NETWORKS:
            with warnings.catch_warnings(action="ignore"):  # normalize is experimental
                importances = optuna.importance.get_param_importances(
                    study, evaluator=evaluator, normalize=False
                )
            scores[key] = importances.get(key, 0.0)
    if not scores:
        message = "Too few networks have values inside the space to compute importances."
        return [0.0] * len(keys), message
    return [scores.get(key, 0.0) for key in keys], (
        "Importance by Optuna's PED-ANOVA: how much the values of the best networks differ from "
        "the rest."
    )


_METHODS: tuple[Callable[[SearchReport, Sequence[str], Sequence[SearchTrial]], _KeyScores], ...] = (
    _by_permutation,
    _by_optuna,
)


def _number(value: Any, values: Dimension) -> float:
    """Return a value as input of the forest; values outside the space lie below all others."""
    coordinate = coordinate_of(value, values)
    if coordinate is not None:
        return coordinate
    if isinstance(values, Range):
        return values.low - (values.high - values.low)
    return -1.0
