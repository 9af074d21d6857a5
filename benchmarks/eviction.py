"""Measure how fast eviction plans for all deadlines are computed.

    python benchmarks/eviction.py [--draws 5] [--json]

Prints CPU milliseconds with the targets: medians over randomly drawn machines, and over several
runs on each. A time covers everything from the list of jobs to the list of plans, with the actions
of every job for every deadline.
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
    """A timed question."""

    jobs: int
    machine: int  # nodes
    steps: int
    step: str
    nodes: int  # to free
    target_ms: float
    granularity: int = 1

    def draw(self, seed: int) -> list[RunningJob]:
        """Draw the jobs of a machine; their times are in steps."""
        jobs = theta_like(self.jobs, seed, self.machine, self.granularity)
        if self.step == "1 s":
            return [in_seconds(job) for job in jobs]
        return [job.checkpointing.running_job(STORAGE, resolution=1) for job in jobs]


@dataclass(frozen=True)
class Speed:
    """The CPU milliseconds of a case."""

    case: Case
    median_ms: float
    slowest_ms: float


def in_seconds(job: BatchJob) -> RunningJob:
    """Return the costs of a job, with times in whole seconds."""
    checkpointing = job.checkpointing
    app, system = (STORAGE.seconds(checkpointing.sizes(way) or ()) for way in eviction.CHECKPOINTS)
    return RunningJob(
        checkpointing.id,
        checkpointing.nodes,
        checkpointing.loss,
        math.ceil(60 * (checkpointing.wait_min or 0) + app),
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
    """Return the median CPU time of a few runs, in ms."""
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
    """Return the plans of greedy for all deadlines."""
    return [greedy(jobs, nodes, deadline) for deadline in range(steps + 1)]


def measure_rivals(draws: int) -> dict[str, float]:
    """Return the CPU milliseconds of other methods on the first question about 1,024 nodes."""
    case = CASES[1]
    machines = [case.draw(seed) for seed in range(draws)]

    def median(method: Callable[[Sequence[RunningJob]], object], runs: int) -> float:
        return statistics.median(cpu_ms(partial(method, jobs), runs) for jobs in machines)

    return {
        "every number of nodes, 0 to 4,352": median(lambda jobs: Spectrum(jobs, case.steps), 5),
        "greedy, 16 runs": median(lambda jobs: each_deadline(jobs, case.nodes, case.steps), 21),
        "Algorithm 1 as printed, in Python": median(
            lambda jobs: algorithm_1(jobs, case.nodes, case.steps), 1
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
    """Format a number with three significant digits.

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
    parser.add_argument("--draws", type=int, default=5, help="machines drawn per case (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    results = [measure(case, args.draws) for case in CASES]
    rivals = measure_rivals(args.draws)
    if args.json:
        print_json({"speeds": [asdict(speed) for speed in results], "rivals_ms": rivals})
        return
    print_table(HEADERS, [cells(speed) for speed in results])
    print_table(
        ["24 jobs, 4,352 nodes, 15 steps, 1,024 to free", "CPU ms"],
        [[name, digits(value)] for name, value in rivals.items()],
    )


if __name__ == "__main__":
    main()
