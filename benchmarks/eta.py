"""Compare the estimates of a run's end with its actual end: python -m benchmarks.eta RUN...

Each RUN is the folder of a run whose last launch has finished. The script replays the events of
that launch and asks an estimator at each of them. It prints a table of docs/measured/benchmarks.md.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from fleet.domain.added_networks import with_added_networks
from fleet.domain.events import EpochEnded, GroupStarted, LaunchEnded, LaunchStarted
from fleet.domain.timeline import replay_log
from fleet.monitor.eta import EstimateSchedule, Estimator
from fleet.spec import load
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths

_FIRST = 0.2  # share of a run after which the width of a range counts


class TimeEstimate(NamedTuple):
    """An estimate: its time as a share of the launch, its range as multiples of the actual time."""

    at: float
    low: float
    high: float


def estimates(paths: RunPaths) -> list[TimeEstimate]:
    """Return the estimates of the last launch of a run, relative to its actual end."""
    log, spec = list(read_events(paths.events)), load(str(paths.spec))
    first = max(index for index, (_, event) in enumerate(log) if isinstance(event, LaunchStarted))
    launch, run = log[first:], replay_log(log[:first], spec)
    began_s = launch[0].t_s
    end_s = next(t_s for t_s, event in launch if isinstance(event, LaunchEnded))
    networks = with_added_networks(spec, replay_log(log)).by_name
    estimator, times = (
        Estimator(spec, networks, run),
        EstimateSchedule(least_s=0.02 * (end_s - began_s)),
    )
    results = []
    for t_s, event in launch:
        run.apply(t_s, event)
        if isinstance(event, EpochEnded | GroupStarted) and times.is_due(t_s):
            estimate = estimator.estimate()
            times.record(t_s, 0.0, estimate)
            if estimate is not None and end_s > t_s:
                remaining = end_s - t_s
                results.append(
                    TimeEstimate(
                        (t_s - began_s) / (end_s - began_s),
                        estimate.low_s / remaining,
                        estimate.high_s / remaining,
                    )
                )
    return results


def main(runs: list[str]) -> None:
    """Print a table with a row for each run and one for all of them."""
    print(
        "| run | estimates | actual end in range | low / actual | high / actual | "
        "widest range after a fifth |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    by_run = {Path(run).name: estimates(RunPaths(Path(run))) for run in runs}
    for name, results in by_run.items():
        print(_row(name, results))
    print(_row("all", [estimate for results in by_run.values() for estimate in results]))


def _row(name: str, estimates: list[TimeEstimate]) -> str:
    within = sum(estimate.low <= 1 <= estimate.high for estimate in estimates)
    low, high = (
        statistics.median(getattr(estimate, end) for estimate in estimates)
        for end in ("low", "high")
    )
    widest = max(
        (estimate.high / estimate.low for estimate in estimates if estimate.at >= _FIRST),
        default=float("nan"),
    )
    return (
        f"| {name} | {len(estimates)} | {within} ({within / len(estimates):.0%}) | {low:.2f} | "
        f"{high:.2f} | {widest:.2f} x |"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
