"""Eviction: how fast the plans for all deadlines are found.

    python benchmarks/eviction.py [--draws 5] [--json]

Prints CPU milliseconds beside the targets: the median over machines drawn at random, and over several runs on each.
A time runs from the list of jobs to the list of plans, with the actions of every job for every deadline. Loading
the compiler and compiling, which the largest tables do once in a process, are not in it and are shown apart.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleet.commands.show import print_json
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
    kernel: str = "numpy"  # that users get: the planner chooses it by the number of cells

    def draw(self, seed: int) -> list[RunningJob]:
        """The jobs of a machine; their times are in steps."""
        jobs = theta_like(self.jobs, seed, self.machine, self.granularity)
        return [in_seconds(job) if self.step == "1 s" else job.checkpointing.costs(STORAGE, resolution=1)
                for job in jobs]


@dataclass(frozen=True)
class Speed:
    """What a case took, CPU milliseconds; the kernel is compiled or numpy's."""

    case: Case
    kernel: str
    median_ms: float
    slowest_ms: float


def in_seconds(job: BatchJob) -> RunningJob:
    """The costs of a job with times in whole seconds."""
    known = job.checkpointing
    app, system = (STORAGE.seconds(known.sizes(way) or ()) for way in eviction.CHECKPOINTS)
    return RunningJob(known.id, known.nodes, known.loss, math.ceil(60 * (known.wait_min or 0) + app), math.ceil(system))


THETA = partial(Case, jobs=24, machine=4352, steps=15, step="1 min", target_ms=2)
LARGE = partial(Case, jobs=100, machine=10_000)
CASES = (
    *(THETA(nodes=nodes) for nodes in (512, 1024, 2048)),
    THETA(nodes=1024, granularity=128),
    *(LARGE(steps=60, step="1 min", nodes=nodes, target_ms=100) for nodes in (2500, 5000)),
    *(LARGE(steps=3600, step="1 s", nodes=nodes, target_ms=3000, kernel="compiled") for nodes in (2500, 5000)),
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


def measure(case: Case, draws: int, kernel: str) -> Speed:
    """Time a case on machines of several seeds."""
    eviction.COMPILE_FROM = 0 if kernel == "compiled" else sys.maxsize
    plan_evictions(case.draw(0)[:1], 1, 1)  # the compiler is loaded
    runs = 21 if case.steps < 3600 else 1
    times = []
    for seed in range(draws):
        jobs = case.draw(seed)
        times.append(cpu_ms(partial(plan_evictions, jobs, case.nodes, case.steps), runs))
    return Speed(case, kernel, statistics.median(times), max(times))


def speeds(draws: int) -> list[Speed]:
    """All cases with the kernel that users get, and the largest with the other one as well."""
    chosen = [measure(case, draws, case.kernel) for case in CASES]
    return [*chosen, *(measure(case, 1, "numpy" if case.kernel == "compiled" else "compiled") for case in CASES[-2:])]


def each_deadline(jobs: Sequence[RunningJob], nodes: int, steps: int) -> list[Plan]:
    """What greedy does for all deadlines."""
    return [greedy(jobs, nodes, deadline) for deadline in range(steps + 1)]


def others(draws: int) -> dict[str, float]:
    """CPU milliseconds of what stands beside the table, on the first question about 1,024 nodes."""
    case = CASES[1]
    jobs = [case.draw(seed) for seed in range(draws)]

    def median(method: Callable[[Sequence[RunningJob]], object], runs: int) -> float:
        return statistics.median(cpu_ms(partial(method, own), runs) for own in jobs)

    eviction.COMPILE_FROM = sys.maxsize
    return {"every count of nodes, 0 to 4,352, numpy": median(lambda own: Spectrum(own, case.steps), 5),
            "greedy, 16 runs": median(lambda own: each_deadline(own, case.nodes, case.steps), 21),
            "Algorithm 1 as printed, in Python": median(lambda own: algorithm_1(own, case.nodes, case.steps), 1)}


LOAD = """
import time; start = time.perf_counter()
from scheduler.eviction import plan as eviction
eviction.COMPILE_FROM = 0
eviction.plan_evictions([eviction.RunningJob("a", 1, 1, 1)], 1, 1)
print(time.perf_counter() - start)
"""


def loading_s() -> float:
    """Seconds until a fresh process has the compiled kernel from the disk."""
    times = [float(subprocess.run([sys.executable, "-c", LOAD], cwd=Path(__file__).parents[1], check=True,
                                  capture_output=True, text=True).stdout) for _ in range(3)]
    return statistics.median(times)


HEADERS = ("jobs", "nodes", "multiples of", "steps", "to free", "kernel", "CPU ms", "slowest draw", "target ms")


def digits(value: float) -> str:
    """Three digits that count.

    >>> digits(1234.5), digits(0.98765)
    ('1,230', '0.988')
    """
    return f"{float(f'{value:.3g}'):,.10g}"


def cells(speed: Speed) -> list[str | int]:
    case = speed.case
    return [case.jobs, case.machine, case.granularity, f"{case.steps} of {case.step}", case.nodes,
            speed.kernel if speed.kernel == case.kernel else f"{speed.kernel}, forced",
            digits(speed.median_ms), digits(speed.slowest_ms), digits(case.target_ms)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5, help="machines drawn for each case (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    loading = loading_s()
    found, beside = speeds(args.draws), others(args.draws)
    if args.json:
        print_json({"speeds": [asdict(speed) for speed in found], "others_ms": beside, "loading_s": loading})
        return
    print_table(HEADERS, [cells(speed) for speed in found])
    print_table(["24 jobs, 4,352 nodes, 15 steps, 1,024 to free", "CPU ms"],
                [[name, digits(value)] for name, value in beside.items()])
    print(f"loading the compiled kernel in a fresh process: {loading:.2f} s")


if __name__ == "__main__":
    main()
