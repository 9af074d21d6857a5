"""Which networks go together: greedy selection with replacement (pure)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fleet.prediction.scores import Truth, quick_score

ROUNDS = 50


def greedy(predictions: Sequence[np.ndarray], truth: Truth, rounds: int = ROUNDS) -> dict[int, int]:
    """Choose networks whose mean prediction is best: ensemble selection (Caruana et al., ICML 2004, section 2).

    The selection begins empty. In each round the network is added, perhaps once more, with which the mean of the
    selection is best. In the end as many as were best of the first ones are taken (the best prefix of the path), and of
    equally good numbers of them the least. Better is what has the greater accuracy, or the same with the smaller loss;
    what is equal in both is chosen that has been chosen before, then what stands first.

    Args:
        predictions: of each network, (n, outputs), the best network first.
        truth: of the same n samples.
        rounds: how many are chosen before the best prefix is taken.

    Returns:
        The networks of the best prefix, by their places, and how often each is in it, in the order in which they came.

    >>> truth = Truth("class", np.array([0, 1]))
    >>> greedy([np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([[0.4, 0.6], [0.1, 0.9]])], truth)
    {0: 1, 1: 1}
    """
    total = np.zeros(predictions[0].shape, np.float64)
    path: list[int] = []
    best, best_length = (0.0, np.inf), 0
    for length in range(1, rounds + 1):
        found = min((_order((total + one) / length, truth), place not in path, place)
                    for place, one in enumerate(predictions))
        order, place = found[0], found[2]
        path.append(place)
        total += predictions[place]
        if not best_length or order < best:
            best, best_length = order, length
    return dict(Counter(path[:best_length]))


def _order(predicted: np.ndarray, truth: Truth) -> tuple[float, float]:
    """What is less is better; what differs by no more than rounding is equal."""
    accuracy, loss = quick_score(predicted, truth)
    return (0.0 if math.isnan(accuracy) else -round(accuracy, 9)), round(loss, 9)
