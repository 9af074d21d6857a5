"""How long ranks take to import what they need, and what a site has against that: ``fleet doctor --startup``."""

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

_SLOW = 2.0  # times as long as alone; more cores than ranks make no such difference
# An engine may import MPI, which takes this process for the rank that waits for it, and waits for
# the others.
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
    """What one rank imported.

    Attributes:
        seconds: of each package, one behind the other; ``python`` is the interpreter itself.
    """

    rank: int
    host: str
    seconds: dict[str, float]

    @property
    def all_s(self) -> float:
        """How long it took."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Startup:
    """How long imports take, and what can be done about it here.

    Attributes:
        alone: on rank 0, while no other imports; the disk's cache is warm then for rank 0's node.
        ranks: of all at a time.
        image: the program that runs images; None where there is none.
        broadcast: the program that copies a file to all nodes of a job; None where there is none.
    """

    alone: Imports
    ranks: tuple[Imports, ...]
    image: str | None
    broadcast: str | None

    @property
    def advice(self) -> str:
        """What to do."""
        slowest = max(imports.all_s for imports in self.ranks)
        middle = median(imports.all_s for imports in self.ranks)
        summary = (
            f"imports: {self.alone.all_s:.1f} s on a rank alone, {middle:.1f} s in the middle of all at a time, "
            f"{slowest:.1f} s on the slowest"
        )
        if slowest <= _SLOW * self.alone.all_s:
            return f"{summary}: nothing to gain"
        if self.image is None:
            return (
                f"{summary}; one image file would spare the file system, but neither apptainer nor singularity is "
                "here: ask the site, or put the environment on a disk of each node"
            )
        return (
            f"{summary}; fleet submit --image FILE.sif"
            + (f" --broadcast (by {self.broadcast})" if self.broadcast else "")
            + " reads one file instead"
        )


def time_imports(world: World, spec: Spec | None) -> Startup:
    """Time it; collective."""
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
    """Import packages in an interpreter of their own: here they are there already."""
    began = time.perf_counter()
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)  # beside the spec, too
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
    """Print a line for each rank, and the advice."""
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
