"""Emulate training: take the time of training without computing anything.

A step sleeps for as long as it would take at the rate that a rates file gives for the group's size
and for how it lies on nodes (beyond the measured sizes by Eq. 5 of [FLEET]), times a scale; if the
batch may change, for as long as the file's step and exchange times say ([ELASTIC] Eq. 1). On a
shared emulated GPU a network gets the share of its rate that the file's ``sharing`` gives.
Everything else is real: ranks, groups,
stream, queues, rounds and checkpoints. A network's weights are a few kB that the group exchanges in
every step. They count the samples it has seen by label, which shows whether it saw each sample once
per epoch. Its loss is a falling function of that count alone.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np

from fleet.comm.protocols import Group
from fleet.engines.base import WIDTH, Arrays, EngineContext, StepTotals, check_arrays
from fleet.errors import ModelError
from fleet.spec import NetworkSpec
from launch.errors import pluralize
from scheduler.base import Network
from scheduler.ensemble.elastic import step_rate
from scheduler.ensemble.rates import median_rates, rate
from scheduler.ensemble.sharing import share

WEIGHTS = 512  # 4 kB
_JITTER_S = 0.02  # a shorter pause between steps is a delay of this machine, not a wait for samples


class EmulatedEngine:
    """Builds emulated networks, whose steps sleep.

    Args:
        setup: context with the rates of every network in samples/s on 1, 2, ... GPUs; networks of a
            search share the rates of their entry. A network that is added without rates has the
            median.
    """

    exchange_name = "mpi"

    def __init__(self, setup: EngineContext) -> None:
        assert setup.rates is not None  # the engine requires a rates file
        self._setup = setup
        self._networks = {network.name: network for network in setup.rates.models}

    def build(self, network: NetworkSpec, group: Group) -> EmulatedNetwork:  # noqa: D102 - see Engine
        # A network that was added later has the rates of its trial's entry.
        names = (network.name, network.stem, network.stem.removesuffix(f"-{network.number}"))
        rates = next((self._networks[name] for name in names if name in self._networks), None)
        if rates is None:
            rates = Network(network.name, median_rates(list(self._networks.values())))
        return EmulatedNetwork(network, group, rates, self._setup)


class EmulatedNetwork:
    """One emulated network on one rank of its group.

    Its loss approaches a final loss as it sees samples: the distance halves repeatedly. Both
    losses, the number of samples until then, and the reported learning rate are drawn from the
    network's seed, so that networks differ.

    Args:
        rates: rates of the network.
        setup: context of the engine.
    """

    def __init__(
        self, network: NetworkSpec, group: Group, rates: Network, setup: EngineContext
    ) -> None:
        assert setup.rates is not None
        self._setup = setup
        self._table = setup.rates
        self._rates = rates
        self._is_elastic = network.train.batch.is_elastic
        self._group = group
        random = np.random.default_rng(network.seed)
        self._first_loss = math.log(max(setup.sample.classes, 2))
        self._last_loss = random.uniform(0.02, 0.5)
        self._half = self._table.samples_per_epoch * random.uniform(0.5, 3.0)
        self._learning_rate = random.uniform(0.01, 0.1)
        self._factor = 1.0
        self._clock = time.perf_counter()  # time on the emulated GPU at the end of its last step
        self._step_ended_s = self._clock  # time on this machine at the end of that step
        self._is_between_epochs = True
        self._weights = np.zeros(WEIGHTS)

    def step(  # noqa: D102
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        size: int,
        stop: bool = False,
        *weights: np.ndarray,
    ) -> StepTotals:
        buffer = np.concatenate([_by_label(targets, *weights), StepTotals(stop=stop).pack()])
        self._sleep(self._step_s(size))
        self._group.sum(buffer)
        seen = buffer[:-WIDTH]
        totals = self._totals(seen) + StepTotals.unpack(buffer[-WIDTH:])
        self._weights += seen
        self._step_ended_s = time.perf_counter()
        return totals

    def _step_s(self, size: int) -> float:
        """Return the seconds of a step on a global batch, with the present share of the GPU."""
        gpus = self._group.size
        if self._is_elastic and size:
            samples_per_s = step_rate(self._rates, self._table.comm_s, gpus, size)
            if not samples_per_s:
                raise ModelError(f"a batch of {size} does not fit on {pluralize(gpus, 'GPU')}")
        else:
            samples_per_s = rate(self._rates, gpus, self._setup.span_of(self._group.ranks))
        part = share(self._table.sharing, self._setup.slot.count_active())
        return self._setup.resources.time_scale * size / samples_per_s / part

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
        distance = 0.5 ** (float(self._weights.sum()) / self._half)
        loss = self._last_loss + (self._first_loss - self._last_loss) * distance
        return StepTotals(count * loss, count * math.exp(-loss), count)

    def average_statistics(self) -> None:
        """Mark the end of an epoch: time until the next step counts on the emulated clock."""
        self._is_between_epochs = True

    def learning_rate(self) -> float:  # noqa: D102
        return self._learning_rate * self._factor

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
