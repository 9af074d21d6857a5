"""Measure what a group of ranks needs from PyTorch and MPI: sums, and changes of its size.

    mpirun -n 4 python benchmarks/gpu_groups.py [--cpu] [--mb 1 25 100] [--repeats 5]

Each rank uses a GPU of its own; with `--cpu`, cores and gloo. Rank 0 prints rows in JSON, each with
the median milliseconds of the slowest rank:

- `sum`: the gradients of a network of some MB, by a process group of PyTorch and by MPI;
- `new`: another process group, and its first sum, as FLEET changes groups within an epoch;
- `shrink`, `grow`: the same by the calls of NCCL, where `nccl4py` is installed;
- `memory`: MiB of the GPU that a process group takes, and that ten of them leave.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from fleet.comm.mpi import start_mpi
from fleet.comm.protocols import Group, World
from fleet.engines.torch.exchange import Exchange, MpiExchange, TorchExchange
from fleet.engines.torch.flat_parameters import FlatParameters

_LEFT_AFTER = 10  # process groups


class Bench:
    """One rank.

    Args:
        device: The rank's device.
        folder: A folder that all ranks share, for their rendezvous.
        repeats: Number of measurements of each row.
    """

    def __init__(self, world: World, device: torch.device, folder: Path, repeats: int) -> None:
        self._world = world
        self._device = device
        self._folder = folder
        self._repeats = repeats
        self.rows: list[dict[str, Any]] = []

    def _parameters(self, mb: float) -> FlatParameters:
        module = torch.nn.Linear(int(mb * 2**20 / 4), 1, bias=False, device=self._device)
        return FlatParameters(module, 0)

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)

    def _measure(self, ranks: int, act: Callable[[Group], Any] | None) -> float:
        """Return the median milliseconds of the slowest of the first ranks."""
        took = []
        for _ in range(self._repeats + 1):
            self._world.allgather(None)
            began = time.perf_counter()
            if act is not None:
                act(self._world.group(range(ranks), 1))
                self._synchronize()
            times = self._world.allgather(time.perf_counter() - began)
            took.append(max(times[:ranks]))
        return 1e3 * statistics.median(took[1:])

    def _add(self, name: str, ranks: int, value: float, unit: str = "ms", **more: Any) -> None:
        self.rows.append({"what": name, "ranks": ranks, unit: value, **more})

    def measure_sums(self, ranks: int, sizes_mb: list[float]) -> None:
        """Measure sums of some sizes over the first ranks."""
        group = self._world.group(range(ranks), 1) if self._world.rank < ranks else None
        ways: dict[str, Exchange | None] = {"library": None, "mpi": None}
        if group is not None:
            ways = {
                "library": TorchExchange(group, self._device, self._folder),
                "mpi": MpiExchange(group),
            }
        for mb in sizes_mb:
            for way, exchange in ways.items():
                act = None
                if exchange is not None:
                    act = partial(_sum, exchange, self._parameters(mb))
                self._add("sum", ranks, self._measure(ranks, act), by=way, mb=mb)
        for exchange in ways.values():
            if exchange is not None:
                exchange.close()

    def _open(self, group: Group) -> TorchExchange:
        exchange = TorchExchange(group, self._device, self._folder)
        flat = self._parameters(0.01)
        exchange.begin(flat)
        exchange.finish(flat)
        return exchange

    def measure_new(self, ranks: int) -> None:
        """Measure a process group and its first sum."""
        takes_part = self._world.rank < ranks
        act = (lambda group: self._open(group).close()) if takes_part else None
        self._add("new", ranks, self._measure(ranks, act))

    def _used_mib(self) -> float:
        free, total = torch.get_device_module(self._device).mem_get_info(self._device)
        return float(total - free) / 2**20

    def measure_memory(self, ranks: int) -> None:
        """Measure the memory of a process group, and what ten closed ones leave."""
        if self._device.type == "cpu":
            return
        used_mib, unreturned_mib = 0.0, 0.0
        if self._world.rank < ranks:
            group = self._world.group(range(ranks), 1)
            self._open(group).close()
            before = self._used_mib()
            exchange = self._open(group)
            used_mib = self._used_mib() - before
            exchange.close()
            for _ in range(_LEFT_AFTER):
                self._open(group).close()
            unreturned_mib = self._used_mib() - before
        for name, value in (("memory", used_mib), ("memory that ten leave", unreturned_mib)):
            self._add(name, ranks, max(self._world.allgather(value)), unit="mib")

    def measure_nccl(self, sizes: list[int]) -> None:
        """Measure how NCCL itself shrinks and grows communicators."""
        from nccl import core as nccl

        rank = self._world.rank
        torch.accelerator.set_device_index(self._device.index)
        for small, large in pairwise(sizes):
            shrinks, grows = [], []
            for _ in range(self._repeats):
                complete = self._nccl_communicator(nccl, large)
                self._world.allgather(None)
                began = time.perf_counter()
                part: Any = None
                if rank < small:
                    part = complete.shrink(list(range(small, large)))
                times = self._world.allgather(time.perf_counter() - began)
                shrinks.append(max(times[:small]))
                [unique, *_] = self._world.allgather(
                    part.get_unique_id().as_bytes if rank == 0 else b""
                )
                began = time.perf_counter()
                if rank < large:
                    grown = self._grow(nccl, part, unique, small, large)
                times = self._world.allgather(time.perf_counter() - began)
                grows.append(max(times[:large]))
                for communicator in (grown, part, complete) if rank < large else ():
                    if communicator is not None:
                        communicator.destroy()
            self._add("shrink", small, 1e3 * statistics.median(shrinks), before=large)
            self._add("grow", large, 1e3 * statistics.median(grows), before=small)

    def _nccl_communicator(self, nccl: Any, ranks: int) -> Any:
        [unique, *_] = self._world.allgather(
            nccl.get_unique_id().as_bytes if self._world.rank == 0 else b""
        )
        if self._world.rank >= ranks:
            return None
        return nccl.Communicator.init(ranks, self._world.rank, nccl.UniqueId.from_bytes(unique))

    def _grow(self, nccl: Any, part: Any, unique: bytes, small: int, large: int) -> Any:
        rank = self._world.rank
        if part is None:
            return nccl.Communicator().grow(large, nccl.UniqueId.from_bytes(unique), rank=rank)
        if rank == 0:
            return part.grow(large, nccl.UniqueId.from_bytes(unique))
        return part.grow(large)


def _sum(exchange: Exchange, flat: FlatParameters, group: Group) -> None:
    exchange.begin(flat)
    exchange.finish(flat)


def group_sizes(ranks: int) -> Iterator[int]:
    """Return the sizes of groups to measure: 2, 4, ... and all ranks."""
    size = 2
    while size < ranks:
        yield size
        size *= 2
    yield ranks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="use gloo on cores")
    parser.add_argument("--mb", type=float, nargs="+", default=[1.0, 25.0, 100.0])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    world = start_mpi()
    world.node_of()
    if world.size < 2:
        parser.error("a group needs at least 2 ranks; start this with mpirun -n 2 or more")
    device = torch.device("cpu")
    if not arguments.cpu:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or torch.accelerator.device_count() < world.size:
            parser.error(f"{world.size} ranks need as many GPUs; --cpu measures without any")
        device = torch.device(accelerator.type, world.rank)
        torch.accelerator.set_device_index(world.rank)
    [folder, *_] = world.allgather(tempfile.mkdtemp() if world.rank == 0 else "")
    bench = Bench(world, device, Path(folder), arguments.repeats)
    sizes = list(group_sizes(world.size))
    for ranks in sizes:
        bench.measure_sums(ranks, arguments.mb)
        bench.measure_new(ranks)
        bench.measure_memory(ranks)
    if device.type == "cuda" and importlib.util.find_spec("nccl") is not None:
        bench.measure_nccl([1, *sizes])
    if world.rank == 0:
        Path(folder).rmdir()
        print(json.dumps(bench.rows))
    world.finish()


if __name__ == "__main__":
    main()
