"""Eviction: how fast the plans for all deadlines are found.

    python benchmarks/eviction.py [--draws 5] [--json]

Prints CPU milliseconds beside the targets: the median over machines drawn at random, and over several runs on each.
A time runs from the list of jobs to the list of plans, with the actions of every job for every deadline.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleet.commands.output import print_json
from fleet.terminal import print_table
from scheduler.eviction import plan as eviction
from scheduler.eviction.plan import Plan, RunningJob, Spectrum, plan_evictions
from scheduler.simulation.greedy import greedy
from scheduler.simulation.theta import STORAGE, BatchJob, theta_like
from tests.oracles.eviction import algorithm_1


@dataclass(frozen=True)
class Case:
    """A question whose answer is timed."""

    jobs: int
    machine: int  # nodes
    steps: int
    step: str
    nodes: int  # to free
    target_ms: float
    granularity: int = 1

    def draw(self, seed: int) -> list[RunningJob]:
        """The jobs of a machine; their times are in steps."""
        jobs = theta_like(self.jobs, seed, self.machine, self.granularity)
        return [
            in_seconds(job)
            if self.step == "1 s"
            else job.checkpointing.running_job(STORAGE, resolution=1)
            for job in jobs
        ]


@dataclass(frozen=True)
class Speed:
    """What a case took, CPU milliseconds."""

    case: Case
    median_ms: float
    slowest_ms: float


def in_seconds(job: BatchJob) -> RunningJob:
    """The costs of a job with times in whole seconds."""
    plan_jobs = job.checkpointing
    app, system = (STORAGE.seconds(plan_jobs.sizes(way) or ()) for way in eviction.CHECKPOINTS)
    return RunningJob(
        plan_jobs.id,
        plan_jobs.nodes,
        plan_jobs.loss,
        math.ceil(60 * (plan_jobs.wait_min or 0) + app),
        math.ceil(system),
    )


THETA = partial(Case, jobs=24, machine=4352, steps=15, step="1 min", target_ms=2)
LARGE = partial(Case, jobs=100, machine=10_000)
CASES = (
    *(THETA(nodes=nodes) for nodes in (512, 1024, 2048)),
    THETA(nodes=1024, granularity=128),
    *(LARGE(steps=60, step="1 min", nodes=nodes, target_ms=100) for nodes in (2500, 5000)),
    *(LARGE(steps=3600, step="1 s", nodes=nodes, target_ms=3000) for nodes in (2500, 5000)),
    LARGE(steps=3600, step="1 s", nodes=5000, granularity=8, target_ms=3000),
)


def cpu_ms(method: Callable[[], object], runs: int) -> float:
    """Median CPU time of a few runs."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        method()
        times.append(time.process_time() - start)
    return 1000 * statistics.median(times)


def measure(case: Case, draws: int) -> Speed:
    """Time a case on machines of several seeds."""
    runs = 21 if case.steps < 3600 else 1
    times = []
    for seed in range(draws):
        jobs = case.draw(seed)
        times.append(cpu_ms(partial(plan_evictions, jobs, case.nodes, case.steps), runs))
    return Speed(case, statistics.median(times), max(times))


def each_deadline(jobs: Sequence[RunningJob], nodes: int, steps: int) -> list[Plan]:
    """What greedy does for all deadlines."""
    return [greedy(jobs, nodes, deadline) for deadline in range(steps + 1)]


def others(draws: int) -> dict[str, float]:
    """CPU milliseconds of what stands beside the table, on the first question about 1,024 nodes."""
    case = CASES[1]
    jobs = [case.draw(seed) for seed in range(draws)]

    def median(method: Callable[[Sequence[RunningJob]], object], runs: int) -> float:
        return statistics.median(cpu_ms(partial(method, timings), runs) for timings in jobs)

    return {
        "every count of nodes, 0 to 4,352": median(lambda own: Spectrum(own, case.steps), 5),
        "greedy, 16 runs": median(lambda own: each_deadline(own, case.nodes, case.steps), 21),
        "Algorithm 1 as printed, in Python": median(
            lambda own: algorithm_1(own, case.nodes, case.steps), 1
        ),
    }


HEADERS = (
    "jobs",
    "nodes",
    "multiples of",
    "steps",
    "to free",
    "CPU ms",
    "slowest draw",
    "target ms",
)


def digits(value: float) -> str:
    """Three digits that count.

    >>> digits(1234.5), digits(0.98765)
    ('1,230', '0.988')
    """
    return f"{float(f'{value:.3g}'):,.10g}"


def cells(speed: Speed) -> list[str | int]:
    case = speed.case
    return [
        case.jobs,
        case.machine,
        case.granularity,
        f"{case.steps} of {case.step}",
        case.nodes,
        digits(speed.median_ms),
        digits(speed.slowest_ms),
        digits(case.target_ms),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5, help="machines drawn for each case (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    results, comparison = [measure(case, args.draws) for case in CASES], others(args.draws)
    if args.json:
        print_json({"speeds": [asdict(speed) for speed in results], "others_ms": comparison})
        return
    print_table(HEADERS, [cells(speed) for speed in results])
    print_table(
        ["24 jobs, 4,352 nodes, 15 steps, 1,024 to free", "CPU ms"],
        [[name, digits(value)] for name, value in comparison.items()],
    )


if __name__ == "__main__":
    main()
