"""Compare the tree broadcast of chunks between nodes with MPI's own; each rank acts as a node.

    python benchmarks/between_nodes.py [--leaders 2 4 8 16] [--json]

Leaders only poll for chunks, a few of which are in flight (--in-flight), as in the stream. The root
rotates with every chunk (--one-root: always the first leader). Both ways take turns; medians of
five turns. Columns: how often a leader polls until a chunk has arrived (with --pause seconds
between two polls, as if samples were decoded); MB/s per leader; MB/s of a copy in memory. For the
tree also the bytes that the busiest leader receives and sends per chunk, as Open MPI's monitoring
counts them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from fleet.api import mpirun
from fleet.terminal import print_table


def leader(args: argparse.Namespace) -> None:
    """Run one rank; the first one prints the results."""
    from fleet.comm.group import MPIBroadcast
    from fleet.comm.mpi import start_mpi
    from fleet.comm.protocols import tree

    world = start_mpi()
    comm = world.group(range(world.size), 1).comm
    chunks = [np.zeros(args.bytes, np.uint8) for _ in range(args.in_flight)]

    def ibcast(chunk: np.ndarray, root: int, number: int) -> Callable[[], bool]:
        return comm.Ibcast(chunk, root=root).Test

    def tree_broadcast(chunk: np.ndarray, root: int, number: int) -> Callable[[], bool]:
        return MPIBroadcast(comm, [chunk], root, number).is_done

    counts: dict[str, list[tuple[float, float]]] = {"ibcast": [], "tree": []}
    for _ in range(args.turns):
        for name, begin in (("ibcast", ibcast), ("tree", tree_broadcast)):
            comm.Barrier()
            counts[name].append(_turn(begin, chunks, args, world.size))
    positions = [
        tree(comm.rank, comm.size, _root(number, args, comm.size)) for number in range(args.chunks)
    ]
    child_counts = comm.gather(max(len(children) for _, children in positions))
    if comm.rank == 0 and child_counts is not None:
        peer, began = np.empty_like(chunks[0]), time.perf_counter()
        for _ in range(args.chunks):
            peer[...] = chunks[0]
        copy_mb_s = args.chunks * args.bytes / (time.perf_counter() - began) / 1e6
        print(
            json.dumps(
                {
                    "leaders": comm.size,
                    "chunk_bytes": args.bytes,
                    "depth": comm.size.bit_length() - 1,
                    "sends_of_one_chunk": max(child_counts),
                    **{
                        f"{name}_{label}": round(median(turn[index] for turn in turns), 2)
                        for name, turns in counts.items()
                        for index, label in enumerate(("polls", "mb_s"))
                    },
                    "memcpy_mb_s": round(copy_mb_s),
                }
            ),
            flush=True,
        )
    world.finish()


def _root(number: int, args: argparse.Namespace, size: int) -> int:
    return 0 if args.one_root else number % size


def _turn(
    begin: Callable[[np.ndarray, int, int], Callable[[], bool]],
    chunks: list[np.ndarray],
    args: argparse.Namespace,
    size: int,
) -> tuple[float, float]:
    """Return how many polls a chunk takes, and MB/s."""
    in_flight: deque[tuple[int, Callable[[], bool]]] = deque()
    started, polls, used, began = 0, 0, list[int](), time.perf_counter()
    while len(used) < args.chunks:
        while started < args.chunks and len(in_flight) < args.in_flight:
            in_flight.append(
                (
                    polls,
                    begin(chunks[started % args.in_flight], _root(started, args, size), started),
                )
            )
            started += 1
        polls += 1
        done = [is_done() for _, is_done in in_flight]
        while done and done[0]:
            done.pop(0)
            used.append(polls - in_flight.popleft()[0])
        time.sleep(args.pause)
    return sum(used) / len(used), args.chunks * args.bytes / (time.perf_counter() - began) / 1e6


def count_bytes(folder: Path, chunks: int) -> dict[str, float]:
    """Return the bytes per chunk that the busiest leader received and sent, from Open MPI's files.

    Lines of its own collective calls are ignored.
    """
    received, sent = Counter[str](), Counter[str]()
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            if line.startswith("E\t"):
                _, source, target, size, *_ = line.split("\t")
                sent[source] += int(size.split()[0])
                received[target] += int(size.split()[0])
    return {
        "received_bytes": round(max(received.values()) / chunks),
        "sent_bytes": round(max(sent.values()) / chunks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--leaders", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--bytes", type=int, default=2**20, help="size of a chunk")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.002, help="seconds between two polls")
    parser.add_argument("--one-root", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-leader", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_leader:
        leader(args)
        return
    rows: list[dict[str, Any]] = []
    for leaders in args.leaders:
        with tempfile.TemporaryDirectory() as folder:
            measured = subprocess.run(
                [*mpirun(leaders), __file__, *sys.argv[1:], "--as-leader"],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "OMPI_MCA_pml_monitoring_enable": "2",
                    "OMPI_MCA_pml_monitoring_enable_output": "3",
                    "OMPI_MCA_pml_monitoring_filename": f"{folder}/counts",
                },
            )
            rows.append(
                {
                    **json.loads(measured.stdout),
                    **count_bytes(Path(folder), args.turns * args.chunks),
                }
            )
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
