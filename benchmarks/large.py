"""Measure commands on the largest input that they support, as you call them.

    python benchmarks/large.py [--repeat 3] [--only NAME ...]

Each command runs in its own process on new files, so imports and first calls count. Prints medians
of wall and CPU seconds and the peak memory, with the target. Replaying the trace would take hours
and is omitted: it is read and validated. All takes five minutes of CPU time; each command writes a
line of progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from fleet.terminal import print_table

LINES = 10_000_000


@dataclass(frozen=True)
class Task:
    """A command, its input, and its target in seconds."""

    name: str
    target_s: float
    command: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None


def write_run_times(count: int, digits: int) -> Callable[[Path], None]:
    """Return a writer of lognormal run times, which nearly all differ with six digits."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(0)
        with open(folder / "runs.txt", "w") as file:
            for first in range(0, count, 1_000_000):
                chunk = np.exp(rng.normal(8, 1.5, min(1_000_000, count - first)))
                file.write("".join(f"{value:.{digits}f}\n" for value in chunk.tolist()))

    return write


def write_trace(folder: Path) -> None:
    """Write a trace of 4,000 nodes, one of which changes every second."""
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, 4000, LINES)
    order = np.argsort(nodes, kind="stable")
    first = np.searchsorted(nodes[order], np.arange(4000))
    turn = np.empty(LINES, np.int64)
    turn[order] = np.arange(LINES) - first[nodes[order]]
    with open(folder / "idle.csv", "w") as file:
        file.write("t_s,node,delta\n")
        for start in range(0, LINES, 1_000_000):
            file.write(
                "".join(
                    f"{start + row},{node},{1 - 2 * (count % 2)}\n"
                    for row, (node, count) in enumerate(
                        zip(
                            nodes[start : start + 1_000_000].tolist(),
                            turn[start : start + 1_000_000].tolist(),
                            strict=True,
                        )
                    )
                )
            )


def write_rates(folder: Path) -> None:
    subprocess.run(
        (
            sys.executable,
            "-m",
            "fleet",
            "simulate",
            "draw",
            "--networks",
            "100",
            "--out",
            folder / "rates.json",
        ),
        check=True,
        stdout=subprocess.DEVNULL,
    )


def write_unlimited_rates(folder: Path) -> None:
    """Write rates of networks that scale without limit."""
    models = [
        {"name": f"n{number}", "rates": [10 + number, 2 * (10 + number) + 1]}
        for number in range(100)
    ]
    (folder / "unlimited.json").write_text(
        json.dumps({"samples_per_epoch": 100, "gpus_per_node": 4, "models": models})
    )


FLEET = (sys.executable, "-m", "fleet")
PLAN = (*FLEET, "plan", "--rates", "rates.json", "--gpus", "1000000", "--policy")
FIRST_CALL = (
    "import time; from scheduler.reservation.requests import t_optimal; "
    "from scheduler.reservation.distributions import discretize, make_law; "
    "law = discretize(make_law('truncnorm', mu=8, sigma=2, low=0, high=20), 10**6); "
    "start = time.perf_counter(), time.process_time(); t_optimal(law); "
    "print(time.perf_counter() - start[0], time.process_time() - start[1])"
)
READ = "from scheduler.simulation.idle_trace import read_events; read_events('idle.csv')"
TASKS = (
    Task(
        "TOptimal, 10^6 points: first call in a process", 0.15, (sys.executable, "-c", FIRST_CALL)
    ),
    Task(
        "reserve --log, 10^7 lines",
        10,
        (*FLEET, "reserve", "--log", "runs.txt"),
        write_run_times(LINES, 4),
    ),
    Task(
        "as above with --backfill-rate 0.3",
        10,
        (*FLEET, "reserve", "--log", "runs.txt", "--backfill-rate", "0.3"),
    ),
    Task(
        "reserve --log, 2 x 10^5 values, --backfill-rate 0.3",
        10,
        (*FLEET, "reserve", "--log", "runs.txt", "--backfill-rate", "0.3"),
        write_run_times(200_000, 6),
    ),
    *(
        Task(f"plan --gpus 1000000 --policy {policy}", 2, (*PLAN, policy), write_rates)
        for policy in ("baseline", "homogeneous", "local", "global", "adaptive")
    ),
    *(
        Task(
            f"plan, networks with unlimited scaling, {policy}",
            2,
            (
                *FLEET,
                "plan",
                "--rates",
                "unlimited.json",
                "--gpus",
                "1000000",
                "--policy",
                policy,
            ),
            write_unlimited_rates,
        )
        for policy in ("global", "adaptive")
    ),
    Task("trace of 10^7 rows, read and validated", 60, (sys.executable, "-c", READ), write_trace),
)


def measure(task: Task, folder: Path) -> tuple[float, float, float]:
    """Return the wall and CPU seconds of one run, and its peak memory in MB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.run(
        (sys.executable, "-c", PRINT_MEMORY, *task.command),
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if task.command[-1] == FIRST_CALL:  # it times itself, without imports
        wall_s, cpu_s = map(float, process.stdout.split()[-2:])
    return wall_s, cpu_s, int(process.stderr.split()[-1]) / 1024


# Runs a command and prints its peak memory in KB; the peak of this process itself may be higher.
PRINT_MEMORY = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="run tasks with WORD in their names"
    )
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for task in TASKS:
            if any(word in task.name for word in args.only):
                task.prepare(Path(folder))
                times = [measure(task, Path(folder)) for _ in range(args.repeat)]
                wall_s, cpu_s, memory_mb = map(statistics.median, zip(*times, strict=True))
                rows.append(
                    [
                        task.name,
                        f"{wall_s:.2f}",
                        f"{cpu_s:.2f}",
                        f"{task.target_s:g}",
                        round(memory_mb),
                    ]
                )
                print(f"{task.name}: {cpu_s:.2f} s of CPU time", file=sys.stderr, flush=True)
    print_table(["", "wall, s", "CPU, s", "target, s", "memory, MB"], rows)


if __name__ == "__main__":
    main()
