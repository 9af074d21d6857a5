"""A launch of a hundred and more ranks on this machine, oversubscribed: real MPI, networks that only sleep.

    python benchmarks/many_ranks.py [--trainers 100] [--networks 200] [--epochs 3] [--epoch-s 10] [--policy adaptive]
    python benchmarks/many_ranks.py --model --ms-per-epoch 1.5 --us-per-pace 28

The first prints what rank 0 heard, its CPU, the times of the first step and of the end, and delays: of messages until
rank 0 has them in hand, and of groups that have ended an epoch until they have their orders. All ranks share the cores
of this machine, which a cluster's do not.

The second measures nothing. It is a model: one server (rank 0), Poisson arrivals, first come first served, a fixed
service for each kind of message, as benchmarks/search_coordinator.py measures it, and a network on each trainer. The
wait is that of Pollaczek and Khinchine (M/G/1).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from emulated_spec import write_emulated

from fleet.api import mpirun, run
from fleet.comm.messages import EpochDone, Message, Tag
from fleet.domain.events import FirstStep, LaunchEnded, LaunchStarted, TrainersReady
from fleet.storage.event_log import read_events
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table

SAMPLES, STEPS, PACES_A_SECOND = (
    400,
    10,
    1000,
)  # no more reports of pace are sent, whatever the groups


class Notes:
    """What a rank notes of its messages: each to rank 0 goes with the time at which it was sent."""

    def __init__(self) -> None:
        self.heard: Counter[str] = Counter()  # what rank 0 heard since training began, by kind
        self.delays: list[float] = []  # seconds
        self.orders: list[float] = []  # likewise
        self._asked_s = 0.0
        self.began = (0.0, 0.0)  # time and CPU
        self.until = (0.0, 0.0)

    def patch(self) -> None:
        """Note all from now on."""
        from fleet.comm.world import MPIWorld

        def tell(world: MPIWorld, rank: int, tag: Tag, message: Message) -> None:
            if isinstance(message, EpochDone):
                self._asked_s = time.monotonic()
            world._send(
                rank, tag, (time.monotonic(), message) if tag == Tag.COORDINATOR else message
            )

        def hear(world: MPIWorld, tag: Tag) -> Message | None:
            message: Any = world._receive(tag)
            if message is None:
                return None
            if tag == Tag.COORDINATOR:
                sent_s, message = message
                self._note(message, time.monotonic() - sent_s)
            elif tag == Tag.TRAINER and self._asked_s:
                self.orders.append(time.monotonic() - self._asked_s)
                self._asked_s = 0.0
            return message

        world: Any = MPIWorld
        world.send, world.receive = tell, hear

    def _note(self, message: Message, delay_s: float) -> None:
        kind = type(message).__name__
        if not self.began[0] and kind in ("Ready", "Throughput"):  # of the start
            return
        self.until = (time.monotonic(), time.process_time())
        self.began = self.began if self.began[0] else self.until
        self.heard[kind] += 1
        self.delays.append(delay_s)


def inside(folder: Path) -> int:
    """A rank of the launch."""
    from fleet.run import main

    notes = Notes()
    notes.patch()
    status = main([str(folder / "spec.yaml"), "--plain"])
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    results: dict[str, Any] = (
        {"orders": notes.orders}
        if rank != "0"
        else {
            "orders": notes.orders,
            "heard": notes.heard,
            "delays": notes.delays,
            "seconds": notes.until[0] - notes.began[0],
            "cpu_s": notes.until[1] - notes.began[1],
        }
    )
    write_json(folder / f"{rank}.json", results)
    return status


def measured(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What a launch came to."""
    write_emulated(
        folder,
        SAMPLES,
        SAMPLES // STEPS,
        args.networks,
        args.epochs,
        args.epoch_s,
        args.trainers,
        args.policy,
        preprocessors=1,
    )
    launcher = [*mpirun(args.trainers + 1), __file__, "--inside", str(folder)]
    began = time.monotonic()
    run(folder / "spec.yaml", args.trainers + 1, launcher=[*launcher, "--"], log=sys.stderr)
    took_s = time.monotonic() - began
    account = [json.loads(path.read_text()) for path in folder.glob("[0-9]*.json")]
    (first,) = (note for note in account if "heard" in note)
    at = {
        type(event): t_s
        for t_s, event in read_events(
            RunPaths(folder / "run").events,
            kinds=(LaunchStarted, TrainersReady, FirstStep, LaunchEnded),
        )
    }
    messages = sum(first["heard"].values())
    return {
        "trainers": args.trainers,
        "networks": args.networks,
        "epochs": args.epochs,
        "epoch_s": args.epoch_s,
        "policy": args.policy,
        "messages": first["heard"],
        "messages_per_s": round(messages / first["seconds"], 1),
        "cpu_of_rank_0": round(first["cpu_s"] / first["seconds"], 3),
        "cpu_us_a_message": round(1e6 * first["cpu_s"] / messages),
        "ready_s": round(at[TrainersReady], 1),
        "first_step_s": round(at[FirstStep], 1),
        "end_s": round(at[LaunchEnded], 1),
        "whole_s": round(took_s, 1),
        "delay_ms": shares(first["delays"]),
        "orders_ms": shares([s for note in account for s in note["orders"]]),
    }


def shares(seconds: list[float]) -> dict[str, float]:
    """Median, 99 % and most, in ms."""
    return {
        name: round(1000 * float(np.quantile(seconds, share)), 1)
        for name, share in (("median", 0.5), ("p99", 0.99), ("most", 1.0))
    }


def modelled(trainers: int, args: argparse.Namespace) -> dict[str, float]:
    """How busy rank 0 is, and how long a message waits until its turn comes, in ms."""
    ends, paces = trainers / args.epoch_s, min(PACES_A_SECOND, trainers)  # a second
    end_s, pace_s = args.ms_per_epoch / 1000, args.us_per_pace / 1e6
    busy = ends * end_s + paces * pace_s
    wait_s = (ends * end_s**2 + paces * pace_s**2) / (2 * (1 - busy)) if busy < 1 else float("inf")
    full_s = (
        trainers * end_s / (1 - paces * pace_s)
    )  # the shortest epoch of which as many ends can be served
    return {
        "trainers": trainers,
        "epoch_s": args.epoch_s,
        "busy": round(busy, 3),
        "wait_ms": round(1000 * wait_s, 2),
        "shortest_epoch_s": round(full_s, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--epoch-s", type=float, default=10.0, help="seconds of an epoch on one trainer"
    )
    parser.add_argument("--policy", default="adaptive")
    parser.add_argument(
        "--model", action="store_true", help="measure nothing: print what the model says"
    )
    parser.add_argument(
        "--ms-per-epoch", type=float, default=1.5, help="CPU of rank 0 for an epoch's end, modelled"
    )
    parser.add_argument(
        "--us-per-pace",
        type=float,
        default=28.0,
        help="CPU of rank 0 for a report of pace, modelled",
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args()
    if args.inside is not None:
        return inside(args.inside)
    if args.model:
        rows = [modelled(trainers, args) for trainers in (100, 1024, 4096)]
        print_table(list(rows[0]), [list(row.values()) for row in rows])
        return 0
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(Path(folder), args), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
