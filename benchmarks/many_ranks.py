"""Run a launch of a hundred ranks on this machine: real MPI, oversubscribed, emulated training.

    python benchmarks/many_ranks.py [--trainers 100] [--networks 200] [--epochs 3]
        [--epoch-s 10] [--policy adaptive]
    python benchmarks/many_ranks.py --model --ms-per-epoch 1.5 --us-per-pace 28

The first command prints the messages and the CPU of rank 0, the times of the first step and of the
end, and delays: of messages until rank 0 receives them, and of groups from the end of an epoch
until they receive their orders. All ranks share the cores of this machine, unlike those of a
cluster.

The second measures nothing. It is a model of rank 0: one server, Poisson arrivals, first come first
served, a fixed service time per kind of message (as benchmarks/search_coordinator.py measures it),
and one network per trainer. The wait follows Pollaczek and Khinchine (M/G/1).
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

SAMPLES = 400
STEPS = 10
PACES_A_SECOND = 1000  # the maximum number of pace reports, independent of the groups


class MessageLog:
    """Records the messages of a rank; messages to rank 0 carry the time at which they were sent."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()  # by rank 0 since training began, by kind
        self.delays: list[float] = []  # seconds
        self.orders: list[float] = []  # seconds
        self._epoch_done_s = 0.0
        self.began = (0.0, 0.0)  # time and CPU
        self.ended = (0.0, 0.0)

    def patch(self) -> None:
        """Record all messages from now on."""
        from fleet.comm.world import MPIWorld

        def send(world: MPIWorld, rank: int, tag: Tag, message: Message) -> None:
            if isinstance(message, EpochDone):
                self._epoch_done_s = time.monotonic()
            world._send(
                rank, tag, (time.monotonic(), message) if tag == Tag.COORDINATOR else message
            )

        def receive(world: MPIWorld, tag: Tag) -> Message | None:
            message: Any = world._receive(tag)
            if message is None:
                return None
            if tag == Tag.COORDINATOR:
                sent_s, message = message
                self._record(message, time.monotonic() - sent_s)
            elif tag == Tag.TRAINER and self._epoch_done_s:
                self.orders.append(time.monotonic() - self._epoch_done_s)
                self._epoch_done_s = 0.0
            return message

        world: Any = MPIWorld
        world.send, world.receive = send, receive

    def _record(self, message: Message, delay_s: float) -> None:
        kind = type(message).__name__
        if not self.began[0] and kind in ("Ready", "Throughput"):  # startup
            return
        self.ended = (time.monotonic(), time.process_time())
        if not self.began[0]:
            self.began = self.ended
        self.received[kind] += 1
        self.delays.append(delay_s)


def run_rank(folder: Path) -> int:
    """Run one rank of the launch."""
    from fleet.run import main

    messages = MessageLog()
    messages.patch()
    status = main([str(folder / "spec.yaml"), "--plain"])
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    results: dict[str, Any] = {"orders": messages.orders}
    if rank == "0":
        results |= {
            "received": messages.received,
            "delays": messages.delays,
            "seconds": messages.ended[0] - messages.began[0],
            "cpu_s": messages.ended[1] - messages.began[1],
        }
    write_json(folder / f"{rank}.json", results)
    return status


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run a launch and return its numbers."""
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
    ranks = [json.loads(path.read_text()) for path in folder.glob("[0-9]*.json")]
    (rank_0,) = (rank for rank in ranks if "received" in rank)
    at = {
        type(event): t_s
        for t_s, event in read_events(
            RunPaths(folder / "run").events,
            kinds=(LaunchStarted, TrainersReady, FirstStep, LaunchEnded),
        )
    }
    messages = sum(rank_0["received"].values())
    return {
        "trainers": args.trainers,
        "networks": args.networks,
        "epochs": args.epochs,
        "epoch_s": args.epoch_s,
        "policy": args.policy,
        "messages": rank_0["received"],
        "messages_per_s": round(messages / rank_0["seconds"], 1),
        "cpu_of_rank_0": round(rank_0["cpu_s"] / rank_0["seconds"], 3),
        "cpu_us_a_message": round(1e6 * rank_0["cpu_s"] / messages),
        "ready_s": round(at[TrainersReady], 1),
        "first_step_s": round(at[FirstStep], 1),
        "end_s": round(at[LaunchEnded], 1),
        "total_s": round(took_s, 1),
        "delay_ms": quantiles(rank_0["delays"]),
        "orders_ms": quantiles([s for rank in ranks for s in rank["orders"]]),
    }


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum, in ms."""
    return {
        name: round(1000 * float(np.quantile(seconds, share)), 1)
        for name, share in (("median", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def model(trainers: int, args: argparse.Namespace) -> dict[str, float]:
    """Return how busy rank 0 is, and how long a message waits for its turn, in ms."""
    ends, paces = trainers / args.epoch_s, min(PACES_A_SECOND, trainers)  # per second
    end_s, pace_s = args.ms_per_epoch / 1000, args.us_per_pace / 1e6
    busy = ends * end_s + paces * pace_s
    wait_s = (ends * end_s**2 + paces * pace_s**2) / (2 * (1 - busy)) if busy < 1 else float("inf")
    # With shorter epochs rank 0 cannot serve all their ends.
    full_s = trainers * end_s / (1 - paces * pace_s)
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
    parser.add_argument("--model", action="store_true", help="measure nothing; evaluate the model")
    parser.add_argument(
        "--ms-per-epoch", type=float, default=1.5, help="CPU of rank 0 per epoch's end, for --model"
    )
    parser.add_argument(
        "--us-per-pace",
        type=float,
        default=28.0,
        help="CPU of rank 0 per pace report, for --model",
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args()
    if args.inside is not None:
        return run_rank(args.inside)
    if args.model:
        rows = [model(trainers, args) for trainers in (100, 1024, 4096)]
        print_table(list(rows[0]), [list(row.values()) for row in rows])
        return 0
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), args), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
