"""Compare sums of a group with MPI's own calls, on ranks of this machine that share memory.

    python benchmarks/sums.py --json
    python benchmarks/sums.py --ranks 2 --mb 1 10

Each row is the median of nine: the time of :meth:`fleet.comm.protocols.Group.sum`, and the best of
MPI's blocking and non-blocking calls, in place and from one buffer into another. A barrier precedes
each call; the slowest rank counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fleet.commands.output import print_json

RANKS, SIZES_MB, ROUNDS = (2, 4, 8), (0.1, 1.0, 10.0, 100.0), 9


def measure(mb: float) -> dict[str, Any]:
    """Return a row of the table; all ranks of a launch call it."""
    from mpi4py import MPI

    from fleet.comm.mpi import start_mpi

    world = start_mpi()
    world.node_of()
    group, comm = world.group(range(world.size), 1), MPI.COMM_WORLD
    buffer = np.full(max(1, int(mb * 1e6 / 4)), 1.0, np.float32)
    out = np.empty_like(buffer)
    calls: dict[str, Callable[[], Any]] = {
        "sum": lambda: group.sum(buffer),
        "allreduce in place": lambda: comm.Allreduce(MPI.IN_PLACE, buffer),
        "allreduce": lambda: comm.Allreduce(buffer, out),
        "iallreduce in place": lambda: comm.Iallreduce(MPI.IN_PLACE, buffer).Wait(),
        "iallreduce": lambda: comm.Iallreduce(buffer, out).Wait(),
    }
    # A call that is shorter than a barrier is timed several times.
    repeats = max(1, int(5 / mb))
    took: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            buffer.fill(1.0)
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            slowest = comm.allreduce(time.perf_counter() - began, op=MPI.MAX)
            if turn:  # the first one warms up
                took[name].append(1000 * slowest / repeats)
    ms = {name: statistics.median(times) for name, times in took.items()}
    best = min((name for name in ms if name != "sum"), key=lambda name: ms[name])
    if world.rank == 0:
        print(
            f"the fastest MPI call with {world.size} ranks and {mb:g} MB: {best}",
            file=sys.stderr,
        )
    world.finish()
    return {
        "ranks": world.size,
        "mb": mb,
        "ms": round(ms["sum"], 4),
        "best_ms": round(ms[best], 4),
        "ratio": round(ms[best] / ms["sum"], 3),
    }


def launch_row(ranks: int, mb: float) -> dict[str, Any]:
    """Return a row of the table from its own launch."""
    command = [
        "mpirun",
        "-n",
        str(ranks),
        "--oversubscribe",
        "--mca",
        "mpi_yield_when_idle",
        "1",
        sys.executable,
        __file__,
        "--inside",
        str(mb),
    ]
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        timeout=170,
        check=False,
        env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}")
    row: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--mb", type=float, nargs="+", default=SIZES_MB)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--inside", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside is not None:
        row = measure(args.inside)
        if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
            print(json.dumps(row), flush=True)
        return
    rows = []
    for ranks in args.ranks:
        for mb in args.mb:
            rows.append(launch_row(ranks, mb))
            if not args.json:
                row = rows[-1]
                print(
                    f"{ranks} ranks, {mb:g} MB: {row['ms']:.2f} ms, the fastest MPI call "
                    f"{row['best_ms']:.2f} ms: {row['ratio']:.2f}",
                    flush=True,
                )
    if args.json:
        print_json(rows)


if __name__ == "__main__":
    main()
