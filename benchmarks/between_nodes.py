"""Chunks between nodes: the tree of messages beside the MPI's own broadcast, each rank a node of its own.

    python benchmarks/between_nodes.py [--leaders 2 4 8 16] [--json]

Leaders do nothing but look for chunks, a few of which are under way (--under-way), as the stream has them. The root of
each chunk is the next leader (--one-root: always the first). Of each way, in turns: how often a leader looks until a
chunk is through (with --pause seconds between two looks, as if samples were decoded), and MB/s that arrive at each
leader, beside a copy in memory; medians of five turns. Of the tree: the bytes that the leader with most of them gets
and sends for a chunk, as Open MPI's monitoring counts its messages.
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
    """One rank's part; the first prints what was found."""
    from fleet.comm.group import MPIBroadcast
    from fleet.comm.mpi import start_mpi
    from fleet.comm.protocols import tree

    world = start_mpi()
    comm = world.group(range(world.size), 1).comm
    chunks = [np.zeros(args.bytes, np.uint8) for _ in range(args.under_way)]

    def ibcast(chunk: np.ndarray, root: int, number: int) -> Callable[[], bool]:
        return comm.Ibcast(chunk, root=root).Test

    def by_tree(chunk: np.ndarray, root: int, number: int) -> Callable[[], bool]:
        return MPIBroadcast(comm, [chunk], root, number).is_done

    counts: dict[str, list[tuple[float, float]]] = {"ibcast": [], "tree": []}
    for _ in range(args.turns):
        for name, begin in (("ibcast", ibcast), ("tree", by_tree)):
            comm.Barrier()
            counts[name].append(_turn(begin, chunks, args, world.size))
    places = [
        tree(comm.rank, comm.size, _root(number, args, comm.size)) for number in range(args.chunks)
    ]
    at_once = comm.gather(max(len(children) for _, children in places))
    if comm.rank == 0 and at_once is not None:
        peer, began = np.empty_like(chunks[0]), time.perf_counter()
        for _ in range(args.chunks):
            peer[...] = chunks[0]
        copied = args.chunks * args.bytes / (time.perf_counter() - began) / 1e6
        print(
            json.dumps(
                {
                    "leaders": comm.size,
                    "chunk_bytes": args.bytes,
                    "depth": comm.size.bit_length() - 1,
                    "sends_of_one": max(at_once),
                    **{
                        f"{name}_{label}": round(median(turn[index] for turn in turns), 2)
                        for name, turns in counts.items()
                        for index, label in enumerate(("looks", "mb_s"))
                    },
                    "memcpy_mb_s": round(copied),
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
    """How many looks a chunk takes, and MB/s."""
    under_way: deque[tuple[int, Callable[[], bool]]] = deque()
    started, looks, used, began = 0, 0, list[int](), time.perf_counter()
    while len(used) < args.chunks:
        while started < args.chunks and len(under_way) < args.under_way:
            under_way.append(
                (
                    looks,
                    begin(chunks[started % args.under_way], _root(started, args, size), started),
                )
            )
            started += 1
        looks += 1
        done = [is_done() for _, is_done in under_way]
        while done and done[0]:
            done.pop(0)
            used.append(looks - under_way.popleft()[0])
        time.sleep(args.pause)
    return sum(used) / len(used), args.chunks * args.bytes / (time.perf_counter() - began) / 1e6


def counted(folder: Path, chunks: int) -> dict[str, float]:
    """How many bytes the MPI has counted, in its files, of messages between leaders: of the leader that has most.

    What a collective call of its own sends is in other lines.
    """
    got, sent = Counter[str](), Counter[str]()
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            if line.startswith("E\t"):
                _, source, to, size, *_ = line.split("\t")
                sent[source] += int(size.split()[0])
                got[to] += int(size.split()[0])
    return {
        "got_bytes": round(max(got.values()) / chunks),
        "sent_bytes": round(max(sent.values()) / chunks),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--leaders", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--bytes", type=int, default=2**20, help="of a chunk")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--under-way", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.002, help="seconds between two looks")
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
                    "OMPI_MCA_pml_monitoring_filename": f"{folder}/counted",
                },
            )
            rows.append(
                {**json.loads(measured.stdout), **counted(Path(folder), args.turns * args.chunks)}
            )
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
