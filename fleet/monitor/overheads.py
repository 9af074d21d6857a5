"""What the time of a launch was beside the steps of its networks, for the simulation of another run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.domain.network import EpochRecord
from fleet.domain.run import RunLaunch
from scheduler.base import Network
from scheduler.ensemble.rates import rate

FORWARD = 3.0  # samples that a network judges while it trains on one


@dataclass(frozen=True)
class Overheads:
    """Seconds, on average.

    Attributes:
        ready_s: from the command to the first group.
        start_s: what a group takes to form, and its first epoch longer than others: it builds and traces the network.
        epoch_s: what an epoch takes beside its steps, waiting for samples, and its validation.
    """

    ready_s: float
    start_s: float
    epoch_s: float


def measure_overheads(launch: RunLaunch, judging: int) -> Overheads | None:
    """What a launch shows; None where no network has come to a second epoch.

    Args:
        judging: samples that each network is judged by after an epoch.
    """
    if launch.first_step is None or not any(launch.timed.values()):
        return None
    forming = [seconds for found in launch.forming.values() for seconds in found] or launch.building
    beside = [
        record.seconds - record.waited_s - _passing_s(record, launch.rates[name], judging)
        for name, records in launch.timed.items()
        if name in launch.rates
        for record in records
    ]
    return Overheads(
        sum(launch.start.before_s.values()) + launch.first_step[2] - launch.began_s,
        mean_s(forming),
        mean_s(beside),
    )


def _passing_s(record: EpochRecord, rates: tuple[float, ...], judging: int) -> float:
    return (record.samples + judging / FORWARD) / rate(Network("", rates), record.gpus)


def mean_s(seconds: Sequence[float]) -> float:
    """The mean of what clocks have measured, which may be a little below 0; 0 of nothing."""
    if seconds:
        return max(0.0, statistics.fmean(seconds))
    return 0.0


def observed_rates(launch: RunLaunch, judging: int) -> dict[str, dict[int, float]]:
    """Network -> GPUs -> samples/s of its steps, by what its epochs took: for a launch that looked at no rates."""
    found: dict[str, dict[int, float]] = {}
    for name, records in launch.timed.items():
        for gpus in {record.gpus for record in records}:
            found.setdefault(name, {})[gpus] = statistics.median(
                (record.samples + judging / FORWARD) / max(record.seconds - record.waited_s, 1e-9)
                for record in records
                if record.gpus == gpus
            )
    return found
