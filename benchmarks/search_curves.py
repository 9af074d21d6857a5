"""A seeded law of learning curves, and GPUs that train networks by it: what `search.py` and `search_ray.py` share.

Nothing of FLEET is imported here: Ray's environment has none of it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

EPOCHS, NETWORKS, GPUS = 27, 200, 16
NEAR = 0.99  # of the best network: what a search is to come to
START, NOISE = (
    0.1,
    0.01,
)  # accuracy of a network that knows nothing; standard deviation of what is measured

SPACE = {
    "learning_rate": (1e-5, 1e-1),
    "width": (8, 128),
    "depth": (2, 20),
}  # the first two on a logarithmic scale


@dataclass(frozen=True)
class Curve:
    """How a network learns.

    Attributes:
        accuracies: after each epoch, without noise.
        measured: with it.
        epoch_s: seconds of an epoch on one GPU.
    """

    accuracies: tuple[float, ...]
    measured: tuple[float, ...]
    epoch_s: float


def curve(values: Mapping[str, float], seed: int) -> Curve:
    """The curve of a network; a function of its values and the seed alone.

    A network ends the higher, the nearer its values are to a best point that the seed draws, and by a chance of its
    own. Most of the gap to its end is closed after 1 to 8 epochs, later in networks that end high, with small learning
    rates and with many layers: so curves cross. An epoch of the largest network takes 60 times as long as one of the
    smallest.
    """
    position = {name: _share(name, values[name]) for name in SPACE}
    world, rng = random.Random(seed), random.Random(f"{seed} {sorted(position.items())}")
    best = {
        "learning_rate": world.uniform(0.35, 0.75),
        "width": world.uniform(0.5, 0.9),
        "depth": world.uniform(0.3, 0.8),
    }
    weights = {"learning_rate": 1.6, "width": 0.35, "depth": 0.35}
    lacks = sum(weights[name] * (position[name] - best[name]) ** 2 for name in SPACE)
    end = max(START, 0.95 - lacks - abs(rng.gauss(0, 0.015)))
    half = math.exp(
        rng.uniform(0, math.log(4))
        + 0.7 * (1 - position["learning_rate"]) * position["depth"]
        + max(0.0, end - 0.8)
    )
    accuracies = tuple(
        START + (end - START) * (1 - (1 + epoch / half) ** -1.5) for epoch in range(1, EPOCHS + 1)
    )
    measured = tuple(accuracy + rng.gauss(0, NOISE) for accuracy in accuracies)
    return Curve(
        accuracies, measured, 20 * (0.4 + position["width"] * 3) * (0.4 + position["depth"] * 2.5)
    )


def _share(name: str, value: float) -> float:
    low, high = SPACE[name]
    if name == "depth":
        return (value - low) / (high - low)
    return math.log(value / low) / math.log(high / low)


def drawn(seed: int, networks: int = NETWORKS) -> list[dict[str, float]]:
    """The values of the networks that a random search trains."""
    draw = random.Random(f"networks {seed}")
    return [
        {
            "learning_rate": math.exp(draw.uniform(*map(math.log, SPACE["learning_rate"]))),
            "width": round(math.exp(draw.uniform(*map(math.log, SPACE["width"])))),
            "depth": draw.randint(*map(int, SPACE["depth"])),
        }
        for _ in range(networks)
    ]


class Search(Protocol):
    """Who says which network a GPU trains next, and when it is enough."""

    def next(self) -> tuple[int, Mapping[str, float]] | None:
        """A network that is to be trained, or trained on: its number and its values; None where none is to be now."""

    def ended(self, number: int, epoch: int, accuracy: float) -> bool:
        """A network has ended an epoch; returns whether it goes on at once. Not asked after its last epoch."""

    def finished(self, number: int, accuracy: float) -> None:
        """A network has ended its last epoch."""


@dataclass(frozen=True)
class Spent:
    """What a search has taken.

    Attributes:
        until_near: GPU hours until a network was as good as ``NEAR`` of the best of those that are drawn; infinite if
            none ever was.
        total: GPU hours in all.
        hours: from its beginning to its end.
        best: accuracy of the best network, as a share of the best of those that are drawn.
    """

    until_near: float
    total: float
    hours: float
    best: float


def simulate(search: Search, seed: int) -> Spent:
    """Train networks on GPUs, one on each, as a search says."""
    reference = max(max(curve(values, seed).accuracies) for values in drawn(seed))
    curves: dict[int, Curve] = {}
    done: dict[int, int] = {}
    ends: list[tuple[float, int]] = []  # (seconds, network) of the epochs that are being trained
    idle, now, gpu_s, best, near = GPUS, 0.0, 0.0, 0.0, math.inf
    while True:
        while idle and (proposed := search.next()) is not None:
            number, values = proposed
            curves.setdefault(number, curve(values, seed))
            done.setdefault(number, 0)
            heapq.heappush(ends, (now + curves[number].epoch_s, number))
            idle -= 1
        if not ends:
            return Spent(near / 3600, gpu_s / 3600, now / 3600, best / reference)
        now, number = heapq.heappop(ends)
        learning_curve, epoch = curves[number], done[number] + 1
        done[number] = epoch
        gpu_s += learning_curve.epoch_s
        best = max(best, learning_curve.accuracies[epoch - 1])
        if best >= NEAR * reference:
            near = min(near, gpu_s)
        if epoch == EPOCHS:
            search.finished(number, learning_curve.measured[epoch - 1])
        elif search.ended(number, epoch, learning_curve.measured[epoch - 1]):
            heapq.heappush(ends, (now + learning_curve.epoch_s, number))
            continue
        idle += 1
