"""How good estimates of a run's end were: python -m benchmarks.eta RUN...

Each RUN is the folder of a run whose last launch came to its end. The events of that launch are read, what an estimator
would have said is put beside what came true. The table of docs/measured/benchmarks.md comes from here.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from fleet.domain.added_networks import with_added_networks
from fleet.domain.events import EpochEnded, GroupStarted, LaunchEnded, LaunchStarted
from fleet.monitor.eta import EstimateSchedule, Estimator
from fleet.monitor.timeline import replay_log
from fleet.spec import load
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths

_FIRST = 0.2  # of a run: before, little is known


class Said(NamedTuple):
    """An estimate: when it was made, as a share of the launch, and its range as multiples of what was left."""

    at: float
    low: float
    high: float


def estimates(paths: RunPaths) -> list[Said]:
    """What would have been said in the last launch of a run, beside what came true."""
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
    estimate_list = []
    for t_s, event in launch:
        run.apply(t_s, event)
        if isinstance(event, EpochEnded | GroupStarted) and times.is_due(t_s):
            estimate = estimator.estimate()
            times.record(t_s, 0.0, estimate)
            if estimate is not None and end_s > t_s:
                remaining = end_s - t_s
                estimate_list.append(
                    Said(
                        (t_s - began_s) / (end_s - began_s),
                        estimate.low_s / remaining,
                        estimate.high_s / remaining,
                    )
                )
    return estimate_list


def main(runs: list[str]) -> None:
    """Print a table, a row for each run and one for all of them."""
    print(
        "| run | estimates | held what came true | low / true | high / true | widest after a fifth |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    every = {Path(run).name: estimates(RunPaths(Path(run))) for run in runs}
    for name, estimate_list in every.items():
        print(_row(name, estimate_list))
    print(_row("all", [estimate for estimate_list in every.values() for estimate in estimate_list]))


def _row(name: str, estimates: list[Said]) -> str:
    within = sum(estimate.low <= 1 <= estimate.high for estimate in estimates)
    low, high = (
        statistics.median(getattr(estimate, end) for estimate in estimates)
        for end in ("low", "high")
    )
    widest = max(
        (estimate.high / estimate.low for estimate in estimates if estimate.at >= _FIRST),
        default=float("nan"),
    )
    return f"| {name} | {len(estimates)} | {within} ({within / len(estimates):.0%}) | {low:.2f} | {high:.2f} | {widest:.2f} x |"


if __name__ == "__main__":
    main(sys.argv[1:])
