"""How good estimates of a run's end were: python -m benchmarks.eta RUN...

Each RUN is the folder of a run whose last launch came to its end. The events of that launch are read, what an estimator
would have said is put beside what came true. The table of docs/measured/benchmarks.md comes from here.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from fleet.domain.events import Ended, EpochEnded, GroupStarted, Started
from fleet.domain.late import with_late
from fleet.monitor.eta import EstimateTimes, Estimator
from fleet.monitor.timeline import state_of
from fleet.spec import load
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths

FIRST = 0.2  # of a run: before, little is known


class Said(NamedTuple):
    """An estimate: when it was made, as a share of the launch, and its range as multiples of what was left."""

    at: float
    low: float
    high: float


def estimates(paths: RunPaths) -> list[Said]:
    """What would have been said in the last launch of a run, beside what came true."""
    log, spec = list(read_events(paths.events)), load(str(paths.spec))
    first = max(place for place, (_, event) in enumerate(log) if isinstance(event, Started))
    launch, run = log[first:], state_of(log[:first], spec)
    began_s = launch[0].t_s
    end_s = next(t_s for t_s, event in launch if isinstance(event, Ended))
    networks = with_late(spec, (event for _, event in log)).by_name
    estimator, times = Estimator(spec, networks, run), EstimateTimes(least_s=0.02 * (end_s - began_s))
    said = []
    for t_s, event in launch:
        run.apply(t_s, event)
        if isinstance(event, EpochEnded | GroupStarted) and times.is_due(t_s):
            found = estimator.estimate()
            times.made(t_s, 0.0, found)
            if found is not None and end_s > t_s:
                left = end_s - t_s
                said.append(Said((t_s - began_s) / (end_s - began_s), found.low_s / left, found.high_s / left))
    return said


def main(runs: list[str]) -> None:
    """Print a table, a row for each quarter of each run, and what all estimates together come to."""
    print("| run | part of the run | estimates | what came true was within | low / true | high / true |")
    print("| --- | --- | --- | --- | --- | --- |")
    every: list[Said] = []
    for run in runs:
        said = estimates(RunPaths(Path(run)))
        every += said
        for quarter in range(4):
            part = [one for one in said if quarter / 4 <= one.at < (quarter + 1) / 4]
            if part:
                lows, highs = sorted(one.low for one in part), sorted(one.high for one in part)
                print(f"| {Path(run).name} | {25 * quarter} to {25 * quarter + 25} % | {len(part)} | {_within(part)} | "
                      f"{lows[0]:.2f} to {lows[-1]:.2f} | {highs[0]:.2f} to {highs[-1]:.2f} |")
    later = [one.high / one.low for one in every if one.at >= FIRST]
    print(f"\n{_within(every)} of {len(every)} ranges held what came true ({_within(every) / len(every):.0%}); after a "
          f"fifth of a run the widest was {max(later):.2f} x, the median {statistics.median(later):.2f} x")


def _within(said: list[Said]) -> int:
    return sum(one.low <= 1 <= one.high for one in said)


if __name__ == "__main__":
    main(sys.argv[1:])
