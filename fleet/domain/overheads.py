"""Overheads of a launch besides training steps, for the simulation of another run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.domain.network import EpochRecord
from fleet.domain.run_launch import RunLaunch
from scheduler.ensemble.rates import rate

FORWARD = 3.0  # samples that a network evaluates in the time of training on one


@dataclass(frozen=True)
class Overheads:
    """Mean overheads in seconds.

    Attributes:
        ready_s: from the command to the first group.
        start_s: forming a group, and the excess of its first epoch: building and tracing the
            network.
        epoch_s: an epoch besides its steps, validation, and waiting for samples.
    """

    ready_s: float
    start_s: float
    epoch_s: float


def measure_overheads(launch: RunLaunch, validated: int) -> Overheads | None:
    """Return the overheads of a launch; None before a network's second epoch.

    Args:
        launch: the launch.
        validated: number of validation samples after each epoch.
    """
    if launch.first_step is None or not any(launch.timed.values()):
        return None
    forming = [
        seconds for group_times in launch.forming.values() for seconds in group_times
    ] or launch.building
    overheads = [
        record.seconds
        - record.waited_s
        - _passing_s(record, rate(launch.network_rates(name), record.gpus, span), validated)
        for name, records in launch.timed.items()
        if name in launch.rates
        for record, span in zip(records, launch.timed_spans[name], strict=True)
    ]
    return Overheads(
        sum(launch.start.before_s.values()) + launch.first_step[2] - launch.began_s,
        mean_s(forming),
        mean_s(overheads),
    )


def _passing_s(record: EpochRecord, samples_per_s: float, validated: int) -> float:
    return (record.samples + validated / FORWARD) / samples_per_s


def mean_s(seconds: Sequence[float]) -> float:
    """Return the mean of measured seconds, at least 0; 0 of none."""
    if seconds:
        return max(0.0, statistics.fmean(seconds))
    return 0.0


def observed_rates(launch: RunLaunch, validated: int) -> dict[str, dict[int, float]]:
    """Return network -> GPUs -> samples/s from its epochs, for a launch without rates."""
    rates: dict[str, dict[int, float]] = {}
    for name, records in launch.timed.items():
        for gpus in {record.gpus for record in records}:
            rates.setdefault(name, {})[gpus] = statistics.median(
                (record.samples + validated / FORWARD) / max(record.seconds - record.waited_s, 1e-9)
                for record in records
                if record.gpus == gpus
            )
    return rates
