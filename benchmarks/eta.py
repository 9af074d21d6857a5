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
    first = max(place for place, (_, event) in enumerate(log) if isinstance(event, LaunchStarted))
    launch, run = log[first:], replay_log(log[:first], spec)
    began_s = launch[0].t_s
    end_s = next(t_s for t_s, event in launch if isinstance(event, LaunchEnded))
    networks = with_added_networks(spec, replay_log(log)).by_name
    estimator, times = (
        Estimator(spec, networks, run),
        EstimateSchedule(least_s=0.02 * (end_s - began_s)),
    )
    said = []
    for t_s, event in launch:
        run.apply(t_s, event)
        if isinstance(event, EpochEnded | GroupStarted) and times.is_due(t_s):
            found = estimator.estimate()
            times.record(t_s, 0.0, found)
            if found is not None and end_s > t_s:
                left = end_s - t_s
                said.append(
                    Said(
                        (t_s - began_s) / (end_s - began_s), found.low_s / left, found.high_s / left
                    )
                )
    return said


def main(runs: list[str]) -> None:
    """Print a table, a row for each run and one for all of them."""
    print(
        "| run | estimates | held what came true | low / true | high / true | widest after a fifth |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    every = {Path(run).name: estimates(RunPaths(Path(run))) for run in runs}
    for name, said in every.items():
        print(_row(name, said))
    print(_row("all", [one for said in every.values() for one in said]))


def _row(name: str, said: list[Said]) -> str:
    within = sum(one.low <= 1 <= one.high for one in said)
    low, high = (statistics.median(getattr(one, end) for one in said) for end in ("low", "high"))
    widest = max((one.high / one.low for one in said if one.at >= _FIRST), default=float("nan"))
    return f"| {name} | {len(said)} | {within} ({within / len(said):.0%}) | {low:.2f} | {high:.2f} | {widest:.2f} x |"


if __name__ == "__main__":
    main(sys.argv[1:])
