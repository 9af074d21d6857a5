"""Turn timed training steps into step times and exchange times, for the job scalability analyzer.

Steps of a network are timed on one GPU with some batches, and on several GPUs with one batch each.
One GPU exchanges nothing, so these are the step times ([ELASTIC] section III-B1). The extra time of
a step on several GPUs over a step on one GPU with as many samples is the exchange (section III-B2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from launch.errors import InputError
from scheduler.base import CommTime, Network, StepTime
from scheduler.elastic.allocate import step_seconds

BYTES = 4  # of a parameter in an exchange


@dataclass(frozen=True)
class StepTimings:
    """The timed steps of one network.

    Args:
        steps: number of GPUs -> global batches and the seconds of their steps.
        parameters: number of exchanged parameters of the network.
    """

    steps: Mapping[int, Sequence[StepTime]] = field(default_factory=dict)
    parameters: int = 0

    def with_steps(self, gpus: int, steps: Sequence[StepTime], parameters: int) -> StepTimings:
        """Return these timings with those of another number of GPUs."""
        return StepTimings({**self.steps, gpus: steps}, max(parameters, self.parameters))

    def has_batches(self, batches: Sequence[int]) -> bool:
        """Return True if these batches were timed on one GPU, up to the first that does not fit.

        >>> timings = StepTimings({1: [StepTime(8, 0.5), StepTime(16, 0.9)]})
        >>> timings.has_batches((8, 16, 32)), StepTimings({}).has_batches((8, 16))
        (True, False)
        """
        timed = tuple(step.batch for step in self.steps.get(1, ()))
        return bool(timed) and timed == tuple(batches[: len(timed)])

    @property
    def params_mb(self) -> float:
        """The size of one exchange, MB."""
        return max(1, self.parameters) * BYTES / 1e6


def batches_to_time(
    batches: tuple[int, int], least_gpus: int, gpus: int, fits: int | None = None
) -> tuple[int, ...]:
    """Return the global batches whose steps should be timed, ascending.

    On one GPU these are the smallest batch of the range that it may ever hold, the largest, and the
    one in the middle; on several GPUs the largest that fits, which may be below the range.

    Args:
        batches: the range.
        least_gpus: the fewest GPUs on which the network may train.
        gpus: number of GPUs to time.
        fits: the largest batch that is known to fit on one GPU.

    >>> batches_to_time((64, 512), 1, 1), batches_to_time((64, 512), 1, 4, fits=100)
    ((64, 181, 512), (400,))
    >>> batches_to_time((8, 8), 1, 1)
    (4, 6, 8)
    >>> batches_to_time((1, 1), 1, 1), batches_to_time((100, 128), 4, 2, fits=32)
    ((1, 2), (64,))
    """
    low, high = (-(-batch // least_gpus) for batch in batches)
    if gpus > 1:
        return (min(batches[1], gpus * (fits or high)),)
    if low == high:  # from one time nothing follows about others
        low = max(1, high // 2)
        high = max(2, high)
    return tuple(sorted({low, round((low * high) ** 0.5), high}))


def analyze(network: Network, timed: StepTimings) -> tuple[Network, tuple[CommTime, ...]]:
    """Return a network with its step times and the size of its exchanges, and the exchange times.

    Args:
        timed: on one GPU, and perhaps on more.

    Raises:
        InputError: fewer than two batches were timed on one GPU, or a time is not positive.

    On two GPUs a step on 16 samples takes 0.3 s longer than one on 8 samples takes on one.

    >>> steps = {1: [StepTime(8, 0.5), StepTime(16, 0.9)], 2: [StepTime(16, 0.8)]}
    >>> seen = StepTimings(steps, parameters=250_000)
    >>> analyze(Network("a", (1.0,)), seen)[1]
    (CommTime(params_mb=1.0, gpus=2, seconds=0.30000000000000004),)
    """
    steps = tuple(sorted(timed.steps.get(1, ()), key=lambda step: step.batch))
    if len(steps) < 2:
        raise InputError(f"network {network.name!r}: two batches or more must be timed on one GPU")
    exchanges = []
    for gpus, several in sorted(timed.steps.items()):
        if gpus == 1 or not several:
            continue
        alone = step_seconds(steps, np.array([-(-step.batch // gpus) for step in several]))
        exchange_s = float(np.median([step.seconds for step in several] - alone))
        if np.isfinite(exchange_s):  # else one GPU was never seen with so many samples
            exchanges.append(CommTime(timed.params_mb, gpus, max(0.0, exchange_s)))
    return replace(network, step_s=steps, params_mb=timed.params_mb), tuple(exchanges)


def merge_exchanges(exchanges: Iterable[CommTime]) -> tuple[CommTime, ...]:
    """Merge the exchanges of several networks; exchanges of the same size are averaged.

    >>> merge_exchanges([CommTime(2.0, 2, 0.3), CommTime(1.0, 2, 0.2), CommTime(2.0, 2, 0.5)])
    (CommTime(params_mb=1.0, gpus=2, seconds=0.2), CommTime(params_mb=2.0, gpus=2, seconds=0.4))
    """
    seconds_of: defaultdict[tuple[int, float], list[float]] = defaultdict(list)
    for exchange in exchanges:
        seconds_of[exchange.gpus, exchange.params_mb].append(exchange.seconds)
    return tuple(
        CommTime(params_mb, gpus, float(np.mean(seconds)))
        for (gpus, params_mb), seconds in sorted(seconds_of.items())
    )
