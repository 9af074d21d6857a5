"""Measure how long a group takes to change its ranks: live, and by checkpoint and restart.

    mpirun -n 4 python benchmarks/regroup.py [--engine torch] [--exchange library]
        [--filters 32 64]

Medians in milliseconds for each change of the group's size: `regroup`, the pause of the group
(communicator, exchange, broadcast of the network); `restart`, the same via a checkpoint (write,
build, read, broadcast); the `first` step after either, including tracing; and any other `step`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fleet.comm.mpi import start_mpi
from fleet.comm.protocols import Group, World
from fleet.commands.output import print_json
from fleet.domain.network import TrainingState
from fleet.engines.base import Engine, Trainable
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches, steps_of
from fleet.spec import Spec, parse
from fleet.storage.checkpoint import read_state, write_state
from fleet.terminal import print_table
from preprocess.sample import Affine, ArraySpec, SampleSpec

SAMPLE = SampleSpec(ArraySpec((32, 32, 3), "uint8"), 10, Affine(0.5, 0.5))
SIZES, BATCH = (1, 2, 4, 2, 1), 64


class Bench:
    """One rank: the network that it trains while it is in the group."""

    def __init__(self, world: World, spec: Spec, engine: Engine, path: Path) -> None:
        self.world = world
        self.network = spec.networks[0]
        self.engine = engine
        self.path = path
        self.trainable: Trainable | None = None
        random = np.random.default_rng(0)
        self.images = random.integers(0, 256, (BATCH, *SAMPLE.input.shape), np.uint8)
        self.labels = random.integers(0, SAMPLE.classes, BATCH)

    def share(self, group: Group, trainable: Trainable) -> None:
        """Broadcast the master's network to all ranks."""
        arrays = trainable.state()
        group.broadcast(list(arrays.values()))
        trainable.load(arrays)

    def step(self, trainable: Trainable, group: Group) -> float:
        """Train on a batch; return the milliseconds."""
        began = time.perf_counter()
        local_rows = slice(group.rank, None, group.size)
        rows = (self.images[local_rows], self.labels[local_rows])
        steps_of(trainable, group.size == 1).begin_steps(
            StepBatches(rows, [BATCH], [len(rows[0])])
        )()
        return 1e3 * (time.perf_counter() - began)

    def regroup(self, before: int, size: int) -> list[float]:
        """Change the group as a trainer does; return the ms of regroup, first step and step."""
        alone = self.world.group((self.world.rank,), 1)
        if before <= self.world.rank < size:
            self.trainable = self.engine.build(self.network, alone)
        self.world.allgather(None)
        if self.world.rank >= size:
            if self.trainable is not None:
                self.trainable.close()
            self.trainable = None
            return []
        began = time.perf_counter()
        group = self.world.group(range(size), 1)
        assert self.trainable is not None
        self.trainable.regroup(group)
        if size > before:
            self.share(group, self.trainable)
        group.barrier()
        took = 1e3 * (time.perf_counter() - began)
        return [took, self.step(self.trainable, group), self.step(self.trainable, group)]

    def restart(self, before: int, size: int) -> list[float]:
        """Change the group via a checkpoint; return the ms of restart, first step and step."""
        if self.world.rank == 0:
            assert self.trainable is not None
            state = TrainingState(arrays=self.trainable.state(), identity="")
        self.world.allgather(None)
        began = time.perf_counter()
        if self.trainable is not None:
            self.trainable.close()
            self.trainable = None
        if self.world.rank == 0:
            write_state(self.path, state)
        if self.world.rank >= size:
            return []
        group = self.world.group(range(size), 1)
        self.trainable = self.engine.build(self.network, group)
        if group.is_master:
            self.trainable.load(read_state(self.path).arrays)
        self.share(group, self.trainable)
        group.barrier()
        took = 1e3 * (time.perf_counter() - began)
        return [took, self.step(self.trainable, group), self.step(self.trainable, group)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["keras", "torch", "numpy"], default="keras")
    parser.add_argument("--exchange", choices=["horovod", "mpi", "library"], default="horovod")
    parser.add_argument("--filters", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    world = start_mpi()
    world.node_of()
    model: dict[str, Any] = {
        "family": "cnn",
        "args": {"filters": arguments.filters, "dense": [128], "norm": "none"},
    }
    if arguments.engine == "numpy":
        model = {"family": "softmax"}
    # Ranks write there and rendezvous.
    folder = Path(world.allgather(tempfile.mkdtemp() if world.rank == 0 else "")[0])
    spec = parse(
        {
            "output": str(folder),
            "models": [model],
            "train": {"optimizer": {"learning_rate": 0.01, "momentum": 0.9}},
            "resources": {"engine": arguments.engine, "exchange": arguments.exchange},
        }
    )
    bench = Bench(
        world,
        spec,
        make_engine(spec, SAMPLE, None, world.rank, world.size),
        folder / "last.h5",
    )
    changes = list(pairwise(SIZES))
    times: dict[tuple, list] = {}
    for way in (bench.regroup, bench.restart):
        if world.rank == 0:  # the first group
            alone = world.group((0,), 1)
            bench.trainable = bench.engine.build(bench.network, alone)
            bench.step(bench.trainable, alone)
        for _ in range(arguments.repeat):
            for before, size in changes:
                times.setdefault((way.__name__, before, size), []).append(way(before, size))
                world.allgather(None)
        if bench.trainable is not None:
            bench.trainable.close()
            bench.trainable = None
    world.allgather(None)
    if world.rank == 0:
        shutil.rmtree(folder)

        def medians_of(name: str, *change: int) -> list[float]:
            return [statistics.median(column) for column in zip(*times[name, *change], strict=True)]

        medians = [
            (*change, medians_of("regroup", *change), medians_of("restart", *change))
            for change in changes
        ]
        if arguments.json:
            print_json(
                [
                    {"before": before, "after": size, "regroup": regroup[0], "restart": restart[0]}
                    for before, size, regroup, restart in medians
                ]
            )
        else:
            print_table(
                ["GPUs", "regroup", "first", "step", "restart", "first", "step"],
                [
                    [f"{before} to {size}", *(f"{number:.1f}" for number in (*regroup, *restart))]
                    for before, size, regroup, restart in medians
                ],
                title=f"{arguments.engine}, {arguments.exchange}, medians of "
                f"{arguments.repeat}, ms",
            )
    world.finish()


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
