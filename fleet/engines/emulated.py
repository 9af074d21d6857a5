"""Emulate training: take the time of training without computing anything.

A step sleeps for as long as it would take at the rate that a rates file gives for the group's size
(beyond the measured sizes by Eq. 5 of [FLEET]), times a scale; if the batch may change, for as long
as the file's step and exchange times say ([ELASTIC] Eq. 1). On a shared emulated GPU a network gets
the share of its rate that the file's ``sharing`` gives. Everything else is real: ranks, groups,
stream, queues, rounds and checkpoints. A network's weights are a few kB that the group exchanges in
every step. They count the samples it has seen by label, which shows whether it saw each sample once
per epoch. Its loss is a falling function of that count alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleet.comm.protocols import Group
from fleet.engines.base import WIDTH, Arrays, EngineContext, StepTotals, check_arrays
from fleet.errors import ModelError
from fleet.spec import NetworkSpec
from launch.errors import pluralize
from scheduler.ensemble.elastic import step_rate
from scheduler.ensemble.rates import rate
from scheduler.ensemble.sharing import share

WEIGHTS = 512  # 4 kB
_JITTER_S = 0.02  # a shorter pause between steps is a delay of this machine, not a wait for samples


class EmulatedEngine:
    """Builds emulated networks, whose steps sleep.

    Args:
        setup: context with the rates of every network in samples/s on 1, 2, ... GPUs; networks of a
            search share the rates of their entry.
    """

    exchange_name = "mpi"

    def __init__(self, setup: EngineContext) -> None:
        assert setup.rates is not None  # the engine requires a rates file
        rates = setup.rates
        self._time_scale = setup.resources.time_scale
        self._classes = setup.sample.classes
        self._samples = rates.samples_per_epoch
        self._networks = {network.name: network for network in rates.models}
        self._comm_s = rates.comm_s
        self._part = lambda: share(rates.sharing, setup.slot.count_active())

    def build(self, network: NetworkSpec, group: Group) -> EmulatedNetwork:  # noqa: D102 - see Engine
        rates = (
            self._networks.get(network.name)
            or self._networks[network.name.removesuffix(f"-{network.number}")]
        )

        def step_s(gpus: int, size: int) -> float:
            if not (network.train.batch.is_elastic and size):
                return self._time_scale * size / rate(rates, gpus)
            samples_per_s = step_rate(rates, self._comm_s, gpus, size)
            if not samples_per_s:
                raise ModelError(f"a batch of {size} does not fit on {pluralize(gpus, 'GPU')}")
            return self._time_scale * size / samples_per_s

        return EmulatedNetwork(
            group,
            step_s,
            LossCurve.from_seed(network.seed, self._classes, self._samples),
            self._part,
        )


@dataclass(frozen=True)
class LossCurve:
    """The loss as a function of the samples seen: its distance to the final loss halves repeatedly.

    Attributes:
        first, last: the initial and the final loss.
        half: number of samples after which half of the distance is covered.
        learning_rate: reported learning rate.
    """

    first: float
    last: float
    half: float
    learning_rate: float

    @classmethod
    def from_seed(cls, seed: int, classes: int, samples: int) -> LossCurve:
        """Draw the curve of a network from its seed, so that networks differ.

        Args:
            seed: seed of the network.
            classes: number of classes.
            samples: number of samples in an epoch.
        """
        random = np.random.default_rng(seed)
        return cls(
            math.log(max(classes, 2)),
            random.uniform(0.02, 0.5),
            samples * random.uniform(0.5, 3.0),
            random.uniform(0.01, 0.1),
        )

    def loss(self, seen: float) -> float:
        """Return the loss per sample after a number of samples."""
        return self.last + (self.first - self.last) * 0.5 ** (seen / self.half)


class EmulatedNetwork:
    """One emulated network on one rank of its group.

    Args:
        step_s: returns the seconds of a step from the number of GPUs and the global batch.
        part: returns the current share of the GPU that the network has.
    """

    def __init__(
        self,
        group: Group,
        step_s: Callable[[int, int], float],
        curve: LossCurve,
        part: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._step_s = step_s
        self._curve = curve
        self._share = part
        self._group = group
        self._factor = 1.0
        self._clock = time.perf_counter()  # time on the emulated GPU at the end of its last step
        self._step_ended_s = self._clock  # time on this machine at the end of that step
        self._is_between_epochs = True
        self._weights = np.zeros(WEIGHTS)

    def step(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        size: int,
        stop: bool = False,
        *weights: np.ndarray,
    ) -> StepTotals:
        buffer = np.concatenate([_by_label(targets, *weights), StepTotals(stop=stop).pack()])
        self._sleep(self._step_s(self._group.size, size) / self._share())
        self._group.sum(buffer)
        seen = buffer[:-WIDTH]
        totals = self._totals(seen) + StepTotals.unpack(buffer[-WIDTH:])
        self._weights += seen
        self._step_ended_s = time.perf_counter()
        return totals

    def _sleep(self, seconds: float) -> None:
        """Sleep until this step is over on the emulated GPU.

        The clock of the GPU advances by steps, by waits for samples and by time between epochs, but
        not by delays of this machine; later steps make up for these.
        """
        now = time.perf_counter()
        if self._is_between_epochs or now - self._step_ended_s > _JITTER_S:
            self._clock += now - self._step_ended_s
        self._is_between_epochs = False
        self._clock += seconds
        self._group.sleep(self._clock - now)

    def evaluate(self, *rows: np.ndarray) -> StepTotals:  # noqa: D102
        return self._totals(_by_label(*rows[1:]))

    def _totals(self, seen: np.ndarray) -> StepTotals:
        count = float(seen.sum())
        loss = self._curve.loss(float(self._weights.sum()))
        return StepTotals(count * loss, count * math.exp(-loss), count)

    def average_statistics(self) -> None:
        """Mark the end of an epoch: time until the next step counts on the emulated clock."""
        self._is_between_epochs = True

    def learning_rate(self) -> float:  # noqa: D102
        return self._curve.learning_rate * self._factor

    def scale_learning_rate(self, factor: float) -> None:  # noqa: D102 - see SupportsRateScaling
        self._factor = factor

    def state(self) -> dict[str, np.ndarray]:  # noqa: D102
        return {"weights": self._weights.copy()}

    def load(self, arrays: Arrays) -> None:  # noqa: D102
        check_arrays({"weights": self._weights.shape}, arrays)
        self._weights = np.array(arrays["weights"])

    def export(self, arrays: Arrays, path: Path) -> None:
        """Do nothing: there is no network to export."""

    def regroup(self, group: Group) -> None:  # noqa: D102
        self._group = group

    def close(self) -> None:
        """Do nothing: no resources are held."""


def _by_label(targets: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    """Count the readable samples of each label; other targets count as one label."""
    is_label = targets.ndim == 1 and targets.dtype.kind == "i"
    labels = targets if is_label else np.zeros(len(targets), np.int64)
    usable = (labels, *weights)[-1] >= 0
    return np.bincount(labels[usable] % WEIGHTS, minlength=WEIGHTS).astype(np.float64)
