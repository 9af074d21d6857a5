"""Simulate online rates: unknown at first, shown by simulated steps.

The estimate is that of a live run (:mod:`scheduler.ensemble.online`). Instead of counted operations
it is given true rates with large errors, and instead of timed steps true rates with small ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from launch.errors import InputError
from scheduler.base import Network, RateTable
from scheduler.ensemble.online import Observation, OnlineRates, Traits
from scheduler.ensemble.probing import Probes
from scheduler.ensemble.rates import curve
from scheduler.ensemble.sharing import share

_STEPS = 100  # steps per simulated observation


@dataclass(frozen=True)
class Learning:
    """Settings of how a policy learns rates during the run.

    Args:
        prior_error: standard deviation of the natural logarithms of the guessed rates on one GPU;
            0.7 is wrong by a factor of two.
        error: relative standard deviation of an observation; drawn per network and number of GPUs.
        after_s: seconds of training until the rate of a group is known.
        seed: the seed of the errors.

    Raises:
        InputError: a number is out of its range.
    """

    prior_error: float = 0.7
    error: float = 0.0
    after_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, high in (("prior_error", 5.0), ("error", 1.0), ("after_s", 1e9)):
            if not 0 <= (value := getattr(self, name)) <= high:
                raise InputError(f"{name} is {value}; it must be a number from 0 to {high:g}")


class Learner:
    """The rates known in one simulation.

    Args:
        rates: the true ones.
        gpus: the number of GPUs of the cluster.
        slots: the number of slots per GPU.

    Attributes:
        rates: the estimated rates.
        replans: number of new plans that they have caused.
    """

    def __init__(self, rates: RateTable, gpus: int, learning: Learning, slots: int = 1) -> None:
        rng = np.random.default_rng(learning.seed)
        wrong = np.exp(learning.prior_error * rng.standard_normal(len(rates.models)))
        self._errors = rng.spawn(len(rates.models))
        self._index = {network.name: index for index, network in enumerate(rates.models)}
        self._curves = [curve(network, gpus) for network in rates.models]
        self._learning = learning
        self.after_s = learning.after_s
        self.replans = 0
        self._observed: set[tuple[str, int, int]] = set()
        self._sharing = rates.sharing
        self.rates = OnlineRates(
            [
                _traits(network, float(factor))
                for network, factor in zip(rates.models, wrong, strict=True)
            ],
            rates.samples_per_epoch,
            rates.gpus_per_node,
            gpus,
            slots=slots,
        )

    def observe(self, name: str, gpus: int, networks_per_gpu: int) -> None:
        """Record the rate of a group with so many networks on its GPU."""
        if (name, gpus, networks_per_gpu) not in self._observed:
            self._observed.add((name, gpus, networks_per_gpu))
            index = self._index[name]
            error = self._learning.error
            noise = max(0.5, 1 + error * float(self._errors[index].standard_normal()))
            rate = float(self._curves[index][gpus - 1]) * share(self._sharing, networks_per_gpu)
            self.rates.observe(
                name, gpus, Observation(rate * noise, error * _STEPS**0.5, _STEPS, networks_per_gpu)
            )

    def table(self) -> RateTable:
        """Return the rates for the policy."""
        return self.rates.table()

    def record_plan(self, is_new: bool, probes: Probes) -> None:
        """Record that the policy has answered from the last table.

        Args:
            is_new: whether the answer has changed.
            probes: the probes of the answer.
        """
        self.replans += self.rates.has_news
        if is_new or self.rates.has_news:
            self.rates.record_plan(probes)


def _traits(network: Network, wrong: float) -> Traits:
    """Return a network whose rate on one GPU is guessed, in an arbitrary unit."""
    return Traits(
        network.name,
        network.name,
        operations=wrong / network.rates[0],
        min_gpus=network.min_gpus,
        max_gpus=network.max_gpus,
    )
