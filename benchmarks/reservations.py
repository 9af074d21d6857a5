"""Measure how fast walltime requests are computed and a batch queue is simulated.

    python benchmarks/reservations.py

Medians of several runs, in milliseconds of wall-clock and of CPU time (one thread), which other
programs disturb less. The first call in a process is measured in new processes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from fleet.terminal import print_table
from scheduler.reservation.distributions import discretize, make_law
from scheduler.reservation.requests import at_optimal, t_optimal
from scheduler.simulation.batch_queue import Convention, simulate
from scheduler.simulation.workload import Rule, Sizes, draw_jobs

LAW = make_law("truncnorm", mu=8, sigma=2, low=0, high=20)
REPEATS = 9


@dataclass(frozen=True)
class Speed:
    """Median times and the target, in milliseconds."""

    label: str
    clock_ms: float
    processor_ms: float
    target_ms: float | None = None


def measure_work(
    label: str, work: Callable[[], object], target_ms: float | None = None, repeats: int = REPEATS
) -> Speed:
    """Return the median times of a few calls."""
    clock, processor = [], []
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        work()
        clock.append(1000 * (time.perf_counter() - start[0]))
        processor.append(1000 * (time.process_time() - start[1]))
    return Speed(label, statistics.median(clock), statistics.median(processor), target_ms)


def first_call() -> Speed:
    """Measure the first TOptimal of a process, without imports; medians over processes."""
    code = (
        "from functools import partial; from benchmarks.reservations import *; "
        "speed = measure_work('', partial(t_optimal, discretize(LAW, 10 ** 6)), repeats=1); "
        "print(speed.clock_ms, speed.processor_ms)"
    )
    root = Path(__file__).parents[1]
    times = [
        tuple(
            map(
                float,
                subprocess.run(
                    (sys.executable, "-c", code),
                    cwd=root,
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout.split(),
            )
        )
        for _ in range(REPEATS)
    ]
    clock, processor = zip(*times, strict=True)
    return Speed(
        "TOptimal, 10^6 points, first call in a process",
        statistics.median(clock),
        statistics.median(processor),
        150,
    )


def measure() -> list[Speed]:
    """Measure everything that has a target, and everything else that a user waits for."""
    million, thousand = discretize(LAW, 10**6), discretize(LAW, 1000)
    heavy = discretize(make_law("pareto", alpha=1.1, low=1, high=1000), 1000)
    jobs = draw_jobs(LAW, 100, 100, Sizes.BETA, Rule.TOPTIMAL, np.random.default_rng(0))
    speeds = [
        measure_work("TOptimal, 10^6 points", partial(t_optimal, million), 150),
        first_call(),
        measure_work("TOptimal, 200 points", lambda: t_optimal(discretize(LAW, 200))),
    ]
    for name, law in {"": thousand, " of a bounded Pareto": heavy}.items():
        for rate in (0.1, 0.5, 0.9):
            speeds.append(
                measure_work(
                    f"ATOptimal, 1000 points{name}, rate {rate}",
                    partial(at_optimal, law, rate),
                    100,
                )
            )
    for convention in Convention:
        speeds.append(
            measure_work(
                f"batch queue, 100 jobs, {convention}", partial(simulate, jobs, 100, convention)
            )
        )
    return speeds


def main() -> None:
    print_table(
        ["", "clock, ms", "processor, ms", "target, ms"],
        [
            [speed.label, round(speed.clock_ms, 1), round(speed.processor_ms, 1), speed.target_ms]
            for speed in measure()
        ],
    )


if __name__ == "__main__":
    main()
