"""How fast walltime requests are computed, and a batch queue simulated.

    python benchmarks/reservations.py

Medians of several runs, in milliseconds; compiling (once, then cached on disk) is measured apart.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fleet.show import print_table
from scheduler.batchqueue import Convention, simulate
from scheduler.distributions import discretise, make_law
from scheduler.reservation import at_optimal, t_optimal
from scheduler.workload import Rule, Sizes, draw_jobs

LAW = make_law("truncnorm", mu=8, sigma=2, low=0, high=20)
REPEATS = 9


@dataclass(frozen=True)
class Speed:
    """A median beside its target, both in milliseconds."""

    what: str
    median_ms: float
    target_ms: float | None = None


def median_ms(work: Callable[[], object]) -> float:
    """Median time of a few calls after one that warms up."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def measure() -> list[Speed]:
    """Everything there is a target for, and what else a user waits for."""
    million, thousand = discretise(LAW, 10 ** 6), discretise(LAW, 1000)
    heavy = discretise(make_law("pareto", alpha=1.1, low=1, high=1000), 1000)
    jobs = draw_jobs(LAW, 100, 100, Sizes.BETA, Rule.TOPTIMAL, np.random.default_rng(0))
    start = time.perf_counter()
    t_optimal(million)
    first = 1000 * (time.perf_counter() - start)
    speeds = [Speed("TOptimal, 10^6 points", median_ms(lambda: t_optimal(million)), 200),
              Speed("TOptimal, 10^6 points, first call (loads the compiled kernel)", first),
              Speed("TOptimal, 200 points", median_ms(lambda: t_optimal(discretise(LAW, 200))))]
    for name, law in {"": thousand, " of a bounded Pareto": heavy}.items():
        for rate in (0.1, 0.5, 0.9):
            took = median_ms(partial(at_optimal, law, rate))
            speeds.append(Speed(f"ATOptimal, 1000 points{name}, rate {rate}", took, 100))
    for convention in Convention:
        took = median_ms(partial(simulate, jobs, 100, convention))
        speeds.append(Speed(f"batch queue, 100 jobs, {convention}", took))
    return speeds


def main() -> None:
    print_table(["", "median, ms", "target, ms"],
                [[speed.what, round(speed.median_ms, 2), speed.target_ms] for speed in measure()])


if __name__ == "__main__":
    main()
