"""Define a seeded law of learning curves, and simulate GPUs that train networks by it.

`search.py` and `search_ray.py` share it. It imports nothing of FLEET, which Ray's environment
lacks.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

EPOCHS, NETWORKS, GPUS = 27, 200, 16
NEAR = 0.99  # share of the best accuracy that a search must reach
START = 0.1  # accuracy of an untrained network
NOISE = 0.01  # standard deviation of measured accuracies

# Ranges of the parameters, the first two on a logarithmic scale.
SPACE = {
    "learning_rate": (1e-5, 1e-1),
    "width": (8, 128),
    "depth": (2, 20),
}


@dataclass(frozen=True)
class Curve:
    """A learning curve.

    Attributes:
        accuracies: Accuracies after each epoch, without noise.
        measured: The same with noise.
        epoch_s: Seconds per epoch on one GPU.
    """

    accuracies: tuple[float, ...]
    measured: tuple[float, ...]
    epoch_s: float

    def seconds(self, epoch: int) -> float:
        """Return the seconds of an epoch."""
        return self.epoch_s


def make_curve(values: Mapping[str, float], seed: int) -> Curve:
    """Return the curve of a network, which depends only on its values and the seed.

    A network ends with a higher accuracy, the nearer its values are to an optimum that the seed
    draws; some of it is random. Most of the gap to its end is closed after 1 to 8 epochs: later in
    networks that end high, with small learning rates and with many layers. So curves cross. An
    epoch of the largest network takes 60 times as long as one of the smallest.
    """
    position = {name: _share(name, values[name]) for name in SPACE}
    world, rng = random.Random(seed), random.Random(f"{seed} {sorted(position.items())}")
    best = {
        "learning_rate": world.uniform(0.35, 0.75),
        "width": world.uniform(0.5, 0.9),
        "depth": world.uniform(0.3, 0.8),
    }
    weights = {"learning_rate": 1.6, "width": 0.35, "depth": 0.35}
    deficit = sum(weights[name] * (position[name] - best[name]) ** 2 for name in SPACE)
    end = max(START, 0.95 - deficit - abs(rng.gauss(0, 0.015)))
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


def draw_networks(seed: int, networks: int = NETWORKS) -> list[dict[str, float]]:
    """Return the values of the networks of a random search."""
    draw = random.Random(f"networks {seed}")
    return [
        {
            "learning_rate": math.exp(draw.uniform(*map(math.log, SPACE["learning_rate"]))),
            "width": round(math.exp(draw.uniform(*map(math.log, SPACE["width"])))),
            "depth": draw.randint(*map(int, SPACE["depth"])),
        }
        for _ in range(networks)
    ]


class CurveLike(Protocol):
    """A learning curve along which a network is trained."""

    @property
    def accuracies(self) -> tuple[float, ...]:
        """What counts when a search is judged, after each epoch; more is better."""

    @property
    def measured(self) -> tuple[float, ...]:
        """The values that a search receives after each epoch."""

    def seconds(self, epoch: int) -> float:
        """Return the seconds of an epoch on one GPU."""


class Search(Protocol):
    """Decides which network a GPU trains next, and when a network stops."""

    def next_network(self) -> tuple[int, Mapping[str, Any]] | None:
        """Return the number and the values of the next network to train; None if there is none."""

    def end_epoch(self, number: int, epoch: int, accuracy: float) -> bool:
        """Report an epoch, except the last one; return whether the network continues now."""

    def finish_network(self, number: int, epoch: int, accuracy: float) -> None:
        """Report the last epoch of a network."""


@dataclass(frozen=True)
class TrainedEpoch:
    """An epoch that a GPU has trained.

    Attributes:
        now_s: Seconds since the beginning.
        gpu_s: Seconds of all GPUs in use so far, of ended epochs.
        accuracy: Accuracy of the network.
    """

    now_s: float
    gpu_s: float
    accuracy: float


def train(
    search: Search, curve_of: Callable[[int, Mapping[str, Any]], CurveLike], gpus: int
) -> Iterator[TrainedEpoch]:
    """Train networks on GPUs, one on each, as a search decides; yield each epoch at its end."""
    curves: dict[int, CurveLike] = {}
    done: dict[int, int] = {}
    ends: list[tuple[float, int]] = []  # (seconds, network) of current epochs
    idle, now, gpu_s = gpus, 0.0, 0.0
    while True:
        while idle:
            proposal = search.next_network()
            if proposal is None:
                break
            number, values = proposal
            if number not in curves:
                curves[number] = curve_of(number, values)
                done[number] = 0
            heapq.heappush(ends, (now + curves[number].seconds(done[number] + 1), number))
            idle -= 1
        if not ends:
            return
        now, number = heapq.heappop(ends)
        learning_curve, epoch = curves[number], done[number] + 1
        done[number] = epoch
        gpu_s += learning_curve.seconds(epoch)
        yield TrainedEpoch(now, gpu_s, learning_curve.accuracies[epoch - 1])
        measured = learning_curve.measured[epoch - 1]
        if epoch == len(learning_curve.measured):
            search.finish_network(number, epoch, measured)
        elif search.end_epoch(number, epoch, measured):
            heapq.heappush(ends, (now + learning_curve.seconds(epoch + 1), number))
            continue
        idle += 1


@dataclass(frozen=True)
class SearchCost:
    """The cost of a search.

    Attributes:
        until_near: GPU hours until one reaches ``NEAR`` of the best random one, or infinite.
        total: Total GPU hours.
        hours: Duration of the search.
        best: Accuracy of the best network, as a share of that of the best random one.
    """

    until_near: float
    total: float
    hours: float
    best: float


def simulate(search: Search, seed: int) -> SearchCost:
    """Train the networks of a search by the law of a seed."""
    reference = max(max(make_curve(values, seed).accuracies) for values in draw_networks(seed))
    now, gpu_s, best, near = 0.0, 0.0, 0.0, math.inf
    for epoch in train(search, lambda number, values: make_curve(values, seed), GPUS):
        now, gpu_s = epoch.now_s, epoch.gpu_s
        best = max(best, epoch.accuracy)
        if best >= NEAR * reference:
            near = min(near, gpu_s)
    return SearchCost(near / 3600, gpu_s / 3600, now / 3600, best / reference)
