"""Simulate online rates: unknown at first, shown by simulated steps.

The estimate is that of a live run (:mod:`scheduler.ensemble.online`). Instead of counted operations
it is given true rates with large errors, and instead of timed steps true rates with small ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from launch.errors import InputError
from scheduler.base import GroupShape, Network, RateTable
from scheduler.ensemble.online import Observation, OnlineRates, Traits
from scheduler.ensemble.probing import Probes
from scheduler.ensemble.rates import rate
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
        spans: whether observed rates also belong to how GPUs lie on nodes, as in a live run.

    Raises:
        InputError: a number is out of its range.
    """

    prior_error: float = 0.7
    error: float = 0.0
    after_s: float = 10.0
    seed: int = 0
    spans: bool = True

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
        self._networks = rates.by_name
        self._learning = learning
        self.after_s = learning.after_s
        self.replans = 0
        # network, what its observations belong to, networks on a GPU -> the newest shape
        self._observed: dict[tuple[str, GroupShape, int], GroupShape] = {}
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

    def observe(self, name: str, shape: GroupShape, networks_per_gpu: int) -> None:
        """Record the rate of a group with so many networks on its GPU."""
        visible = self._visible_shape(shape)
        if self._observed.get((name, visible, networks_per_gpu)) == shape:
            return
        self._observed[name, visible, networks_per_gpu] = shape
        error = self._learning.error
        random = self._errors[self._index[name]]
        noise = max(0.5, 1 + error * float(random.standard_normal()))
        true = rate(self._networks[name], shape.gpus, shape.span)
        together = true * share(self._sharing, networks_per_gpu)
        self.rates.observe(
            name,
            visible,
            Observation(together * noise, error * _STEPS**0.5, _STEPS, networks_per_gpu),
        )

    def has_seen(self, name: str, shape: GroupShape) -> bool:
        """Return True if the rate of a group has been observed."""
        return self.rates.has_seen(name, self._visible_shape(shape))

    def _visible_shape(self, shape: GroupShape) -> GroupShape:
        """Return what observations of a shape belong to."""
        return shape if self._learning.spans else GroupShape(shape.gpus)

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
    """Return a network whose rate on one GPU is guessed, in an arbitrary unit.

    Names that differ by their numbers are of one family.
    """
    return Traits(
        network.name,
        network.name,
        network.name.rstrip("0123456789"),
        operations=wrong / network.rates[0],
        min_gpus=network.min_gpus,
        max_gpus=network.max_gpus,
    )
