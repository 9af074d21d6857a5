"""How long the companions take on the largest input that they promise to answer for, as a user calls them.

    python benchmarks/large.py [--repeat 3] [--only NAME ...]

Each command runs in a process of its own, so that imports and first calls are part of it, on files that are made
anew. Prints medians of wall seconds and of CPU seconds, and the largest memory, beside the target. What takes hours,
the replay of such a trace, is left out: it is read and checked. Five minutes of processor time; a line of progress for
each command goes to standard error.
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
    """A command, what it reads, and in how many seconds it should answer."""

    name: str
    target_s: float
    words: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None


def runs(count: int, digits: int) -> Callable[[Path], None]:
    """Run times that follow a lognormal law, nearly all of them different with six digits."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(0)
        with open(folder / "runs.txt", "w") as file:
            for first in range(0, count, 1_000_000):
                chunk = np.exp(rng.normal(8, 1.5, min(1_000_000, count - first)))
                file.write("".join(f"{value:.{digits}f}\n" for value in chunk.tolist()))

    return write


def trace(folder: Path) -> None:
    """4,000 nodes of which one changes at a time, once a second."""
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


def rates(folder: Path) -> None:
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


def straight_rates(folder: Path) -> None:
    """Networks that scale without end."""
    models = [
        {"name": f"n{number}", "rates": [10 + number, 2 * (10 + number) + 1]}
        for number in range(100)
    ]
    (folder / "straight.json").write_text(
        json.dumps({"samples_per_epoch": 100, "gpus_per_node": 4, "models": models})
    )


FLEET = (sys.executable, "-m", "fleet")
PLAN = (*FLEET, "plan", "--rates", "rates.json", "--gpus", "1000000", "--policy")
FIRST_CALL = (
    "import time; from scheduler.reservation.requests import t_optimal; "
    "from scheduler.reservation.distributions import discretise, make_law; "
    "law = discretise(make_law('truncnorm', mu=8, sigma=2, low=0, high=20), 10**6); "
    "start = time.perf_counter(), time.process_time(); t_optimal(law); "
    "print(time.perf_counter() - start[0], time.process_time() - start[1])"
)
READ = "from scheduler.simulation.idle_trace import read_events; read_events('idle.csv')"
TASKS = (
    Task(
        "TOptimal, 10^6 points: first call of a process", 0.15, (sys.executable, "-c", FIRST_CALL)
    ),
    Task("reserve --log, 10^7 lines", 10, (*FLEET, "reserve", "--log", "runs.txt"), runs(LINES, 4)),
    Task(
        "the same with --backfill-rate 0.3",
        10,
        (*FLEET, "reserve", "--log", "runs.txt", "--backfill-rate", "0.3"),
    ),
    Task(
        "reserve --log, 2 x 10^5 values, --backfill-rate 0.3",
        10,
        (*FLEET, "reserve", "--log", "runs.txt", "--backfill-rate", "0.3"),
        runs(200_000, 6),
    ),
    *(
        Task(f"plan --gpus 1000000 --policy {policy}", 2, (*PLAN, policy), rates)
        for policy in ("baseline", "homogeneous", "local", "global", "adaptive")
    ),
    *(
        Task(
            f"the same, 100 networks that scale without end, {policy}",
            2,
            (*FLEET, "plan", "--rates", "straight.json", "--gpus", "1000000", "--policy", policy),
            straight_rates,
        )
        for policy in ("global", "adaptive")
    ),
    Task("trace of 10^7 rows, read and checked", 60, (sys.executable, "-c", READ), trace),
)


def measure(task: Task, folder: Path) -> tuple[float, float, float]:
    """Wall and CPU seconds of one run, and the MB of memory that it had at most."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(
        (sys.executable, "-c", MEASURED, *task.words),
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if task.words[-1] == FIRST_CALL:  # which takes its own time, imports apart
        wall_s, cpu_s = map(float, done.stdout.split()[-2:])
    return wall_s, cpu_s, int(done.stderr.split()[-1]) / 1024


# Runs a command and says the KB of memory that it had at most; this process itself may have had more.
MEASURED = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="tasks with such a word in the name"
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
