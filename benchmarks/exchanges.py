"""Measure a step of a Keras network in a group, by how its ranks add up gradients: MPI or Horovod.

    python benchmarks/exchanges.py [--ranks 2 4] [--turns 3] [--json]

Networks with 1 to 25 MB of gradients take steps on random samples. Each exchange runs in its own
launch, because Horovod has a busy thread; launches take turns. Milliseconds of the slowest rank,
medians of nine rounds per turn. `sum` is the time that :meth:`fleet.comm.protocols.Group.sum` takes
of a step with MPI on rank 0, including the wait for other ranks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from fleet.api import mpirun
from fleet.commands.output import print_json
from fleet.engines.base import EngineContext
from fleet.engines.steps import StepBatches
from fleet.spec import Resources
from fleet.terminal import print_table

BATCH, ROUNDS, ROUND_S = 32, 9, 0.4  # BATCH is the number of samples per rank
NETWORKS: dict[str, dict[str, Any]] = {
    "cnn-1": {"family": "cnn", "args": {"filters": [16, 32], "dense": [128]}},
    "cnn-10": {"family": "cnn", "args": {"filters": [32, 64], "dense": [600]}},
    "cnn-25": {"family": "cnn", "args": {"filters": [32, 64], "dense": [1500]}},
    "resnet-11": {"family": "resnet", "args": {"blocks": [2, 2, 2, 2], "width": 32}},
}
_SPEC: dict[str, Any] = {
    "name": "exchanges",
    "data": {"source": "builtin:noise", "options": {"samples": 200, "size": 32}},
    "models": [{"name": name, **model} for name, model in NETWORKS.items()],
    "train": {
        "optimizer": {"name": "sgd", "learning_rate": 1e-3, "momentum": 0.9},
        "stopping": {"max_epochs": 1},
    },
}


def inside(exchange: Any, path: str) -> None:
    """Run one rank; the first one prints a row for each network."""
    from mpi4py import MPI

    from fleet.comm.mpi import start_mpi

    world, comm = start_mpi(), MPI.COMM_WORLD
    world.node_of()
    from fleet.engines.keras.engine import KerasEngine
    from fleet.runtime.startup.data import open_inputs, resolve_with_data
    from fleet.runtime.training.rate_measurement import make_samples
    from fleet.spec import load

    spec = load(path)
    opened = open_inputs(spec)
    [spec] = resolve_with_data(opened, spec)
    engine = KerasEngine(
        EngineContext(
            opened.sample, Resources(exchange=exchange), index=world.rank, trainers=world.size
        )
    )
    images, targets = make_samples(opened.sample, BATCH)
    for number, network in enumerate(spec.networks, 1):
        group = world.group(range(world.size), number)
        trainable, summed, group_sum = engine.build(network, group), [0.0], group.sum

        def timed_sum(
            buffer: Any, summed: list[float] = summed, group_sum: Any = group_sum
        ) -> None:
            began = time.perf_counter()
            group_sum(buffer)
            summed[0] += time.perf_counter() - began

        def steps(count: int, trainable: Any = trainable) -> float:
            comm.Barrier()
            began, ends = time.perf_counter(), [lambda: None]
            for _ in range(count):
                ends.append(
                    trainable.begin_steps(
                        StepBatches((images.copy(), targets.copy()), [BATCH * world.size], [BATCH])
                    )
                )
                ends.pop(0)()
            ends.pop()()
            return comm.allreduce(time.perf_counter() - began, op=MPI.MAX) / count

        group.sum = timed_sum  # type: ignore[method-assign, unused-ignore]
        steps(4)
        count = max(2, min(60, int(ROUND_S / steps(4))))
        summed[0] = 0.0
        took = [1000 * steps(count) for _ in range(ROUNDS)]
        if world.rank == 0:
            print(
                json.dumps(
                    {
                        "network": network.name,
                        "mb": round(4e-6 * trainable.count_parameters(), 1),
                        "ms": statistics.median(took),
                        "sum_ms": 1000 * summed[0] / count / ROUNDS,
                    }
                ),
                flush=True,
            )
        trainable.close()
    world.finish()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--exchanges", nargs="+", default=["mpi", "horovod"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(*args.inside)
        return
    results: dict[tuple[int, str, float], dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_text(yaml.safe_dump({**_SPEC, "output": folder}))
        for _ in range(args.turns):
            for ranks in args.ranks:
                for exchange in args.exchanges:
                    launch = subprocess.run(
                        [*mpirun(ranks), __file__, "--inside", exchange, str(path)],
                        check=True,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    for row in map(json.loads, launch.stdout.splitlines()):
                        times = results.setdefault((ranks, row["network"], row["mb"]), {})
                        times.setdefault(f"{exchange}_ms", []).append(row["ms"])
                        if exchange == "mpi":
                            times.setdefault("sum_ms", []).append(row["sum_ms"])
    rows = [
        {
            "ranks": ranks,
            "network": network,
            "mb": mb,
            **{name: round(statistics.median(ms), 1) for name, ms in times.items()},
        }
        for (ranks, network, mb), times in results.items()
    ]
    if args.json:
        print_json(rows)
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
