"""Time the imports of ranks, and find out how to speed them up (``fleet doctor --startup``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median

from fleet.comm.protocols import World
from fleet.spec import Resources, Spec
from fleet.spec.engines import EngineInfo, find_engine
from fleet.terminal import print_table
from launch.systems import SYSTEMS

# Ratio to the time on a rank alone; busy cores do not slow imports down that much.
_SLOW = 2.0
# An engine may import mpi4py, which must not initialize MPI in this extra process.
_TIMED = """import importlib, json, sys, time
import mpi4py
mpi4py.rc.initialize = False
took = {}
for name in sys.argv[1:]:
    began = time.perf_counter()
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    took[name] = round(time.perf_counter() - began, 3)
print(json.dumps(took))"""


@dataclass(frozen=True)
class Imports:
    """The import times of one rank.

    Attributes:
        rank: the rank.
        host: its node.
        seconds: package -> seconds, in the order of imports; ``python`` is the interpreter.
    """

    rank: int
    host: str
    seconds: dict[str, float]

    @property
    def all_s(self) -> float:
        """The total time, in seconds."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Startup:
    """The import times of all ranks, and the programs that could shorten them.

    Attributes:
        alone: the times on rank 0 alone; they warm the disk cache of its node.
        ranks: the times of all ranks together.
        image: the program that runs container images, or None.
        broadcast: the program that copies a file to all nodes of a job, or None.
    """

    alone: Imports
    ranks: tuple[Imports, ...]
    image: str | None
    broadcast: str | None

    @property
    def advice(self) -> str:
        """A recommendation."""
        slowest = max(imports.all_s for imports in self.ranks)
        middle = median(imports.all_s for imports in self.ranks)
        summary = (
            f"imports: {self.alone.all_s:.1f} s on one rank alone; on all ranks together, the "
            f"median is {middle:.1f} s and the slowest takes {slowest:.1f} s"
        )
        if slowest <= _SLOW * self.alone.all_s:
            return f"{summary}: an image would not help"
        if self.image is None:
            return (
                f"{summary}; a container image would relieve the file system, but neither "
                "apptainer nor singularity is installed: ask the site, or install the environment "
                "on a local disk of each node"
            )
        broadcast = f" --broadcast (with {self.broadcast})" if self.broadcast else ""
        return f"{summary}; fleet submit --image FILE.sif{broadcast} reads one file instead"


def time_imports(world: World, spec: Spec | None) -> Startup:
    """Time the imports on rank 0 alone, then on all ranks together; collective."""
    names = _packages(find_engine(Resources().engine) if spec is None else spec.engine)
    alone = world.broadcast_value(_timed(world, names) if world.rank == 0 else None)
    ranks = world.allgather(_timed(world, names))
    programs = [system.broadcast[0] for system in SYSTEMS.values() if system.broadcast]
    return Startup(alone, tuple(ranks), _first("apptainer", "singularity"), _first(*programs))


def _packages(engine: EngineInfo) -> list[str]:
    if isinstance(engine.make, str):
        module = engine.make.partition(":")[0]
    else:
        module = engine.make.__module__
    return ["h5py", "fleet.run", f"fleet.engines{module}" if module.startswith(".") else module]


def _timed(world: World, names: list[str]) -> Imports:
    """Import packages in a new interpreter, since this one has imported them already."""
    began = time.perf_counter()
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)  # includes the spec's folder
    result = subprocess.run(
        [sys.executable, "-c", _TIMED, *names],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": path},
    )
    took: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    python = round(time.perf_counter() - began - sum(took.values()), 3)
    return Imports(world.rank, world.host, {"python": python, **took})


def _first(*programs: str) -> str | None:
    return next((program for program in programs if shutil.which(program)), None)


def print_startup(startup: Startup) -> None:
    """Print a line for each rank, and the recommendation."""
    names = list(startup.alone.seconds)
    print_table(
        ["rank", "host", *names, "all"],
        [
            [
                label,
                imports.host,
                *(imports.seconds.get(name) for name in names),
                round(imports.all_s, 3),
            ]
            for label, imports in (
                ("0 alone", startup.alone),
                *((imports.rank, imports) for imports in startup.ranks),
            )
        ],
    )
    print(
        f"image: {startup.image or 'no apptainer'}; broadcast: {startup.broadcast or 'no sbcast'}"
    )
    print(startup.advice, flush=True)
