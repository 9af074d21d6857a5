"""What a run asks of the file system that holds it: operations on metadata, each of which a file server has to serve.

    python benchmarks/files.py [--networks 8] [--epochs 4] [--ranks 3] [--json]
    python benchmarks/files.py --delay 5 [--epoch-s 2]
    python benchmarks/files.py --resume 10000

The first counts the operations of emulated networks below the run's folder, by strace where there is one and otherwise
by a library that is loaded first (files.c, built here). Three runs tell what is per network and epoch, per network and
per launch: the second has twice the epochs, the third twice the networks. Each epoch is better than those before it, so
that each writes a best checkpoint too. With --delay each operation takes so many milliseconds more; the run is timed
from its first step to its last, with and without, in turns. With --resume a launch takes up so many networks, half of
which have ended, and stops at once: `reads_s` is what it took to read and check them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from emulated_spec import write_emulated

from fleet.api import mpirun, run
from fleet.domain.events import (
    EpochEnded,
    FirstStep,
    LaunchEnded,
    LaunchStarted,
    NetworkFinished,
    ScheduleOptions,
)
from fleet.domain.network import EpochRecord, TrainingState, finished_reason
from fleet.errors import ExitStatus
from fleet.runtime.launch import Ranks
from fleet.runtime.prepare import prepare
from fleet.runtime.startup import Request
from fleet.storage.checkpoint import write_history, write_state
from fleet.storage.event_log import EventLog, events_of, read_events
from fleet.storage.identity import training_identity
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table

SAMPLES, BATCH = 200, 50
KINDS = ("open", "rename", "fsync", "stat", "mkdir", "unlink", "link")
_TRACED = "%file,fsync,fdatasync,fstat"
# The names of calls, without what tells their variants apart.
_CALL = re.compile(
    r"\b(open|creat|rename|fsync|fdatasync|newfstat|stat|lstat|fstat|access|faccess|mkdir|unlink|rmdir|"
    r"link|readlink|utimens)(?:64|x|at|at2)*\("
)
_KIND = {
    "creat": "open",
    "fdatasync": "fsync",
    "newfstat": "stat",
    "lstat": "stat",
    "fstat": "stat",
    "access": "stat",
    "faccess": "stat",
    "rmdir": "unlink",
    "readlink": "stat",
    "utimens": "stat",
}


def library(folder: Path) -> Path:
    """The library that counts and delays, built here."""
    compiled = folder / "files.so"
    subprocess.run(
        [
            os.environ.get("CC", "cc"),
            "-O2",
            "-w",
            "-shared",
            "-fPIC",
            "-o",
            compiled,
            Path(__file__).with_suffix(".c"),
            "-ldl",
        ],
        check=True,
    )
    return compiled


def write(folder: Path, networks: int, epochs: int, epoch_s: float) -> Path:
    """A spec of emulated networks, one epoch of each of which takes so long."""
    return write_emulated(folder, SAMPLES, BATCH, networks, epochs, epoch_s)


def operations(folder: Path, networks: int, epochs: int, args: argparse.Namespace) -> Counter[str]:
    """What a run asks for, by kind."""
    folder.mkdir()
    spec, trace_lines = write(folder, networks, epochs, args.epoch_s), folder / "told"
    if args.by == "strace":
        trace = [
            "strace",
            "-f",
            "--seccomp-bpf",
            "-y",
            "-qq",
            "-o",
            str(trace_lines),
            "-e",
            f"trace={_TRACED}",
        ]
        run(spec, args.ranks, "--plain", launcher=[*trace, *mpirun(args.ranks)], log=sys.stderr)
    else:
        run(
            spec,
            args.ranks,
            "--plain",
            log=sys.stderr,
            environment={
                "LD_PRELOAD": str(library(folder)),
                "FLEET_FILES_UNDER": str(folder / "run"),
                "FLEET_FILES_LOG": str(trace_lines),
            },
        )
    return Counter(_kinds(trace_lines, str(folder / "run"), args.by))


def _kinds(trace: Path, inside: str, by: str) -> Iterator[str]:
    with open(trace, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if by != "strace":
                yield line.partition(" ")[0]
            elif inside in line and "resumed>" not in line and (call := _CALL.search(line)):
                yield _KIND.get(call[1], call[1])


def count(folder: Path, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Operations per network and epoch, per network, and per launch, by kind."""
    networks, epochs = args.networks, args.epochs
    base = operations(folder / "base", networks, epochs, args)
    longer = operations(folder / "longer", networks, 2 * epochs, args)
    wider = operations(folder / "wider", 2 * networks, epochs, args)
    per_epoch = {kind: (longer[kind] - base[kind]) / (networks * epochs) for kind in KINDS}
    per_network = {
        kind: (wider[kind] - base[kind]) / networks - epochs * per_epoch[kind] for kind in KINDS
    }
    per_launch = {
        kind: base[kind] - networks * (per_network[kind] + epochs * per_epoch[kind])
        for kind in KINDS
    }
    return {"network and epoch": per_epoch, "network": per_network, "launch": per_launch}


def show(results: Mapping[str, Mapping[str, float]], as_json: bool) -> None:
    """Print what was counted."""
    rows = [
        {
            "per": per,
            **{kind: round(kinds[kind], 2) for kind in KINDS},
            "all": round(sum(kinds.values()), 2),
        }
        for per, kinds in results.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        print_table(["per", *KINDS, "all"], [list(row.values()) for row in rows])


def delayed(folder: Path, args: argparse.Namespace) -> None:
    """Time a run with and without a delay, in turns."""
    took: dict[float, list[float]] = {0.0: [], args.delay: []}
    built = library(folder)
    for turn in range(args.turns):
        for delay, seconds in took.items():
            inside = folder / f"{turn}-{delay}"
            inside.mkdir()
            spec = write(inside, args.networks, args.epochs, args.epoch_s)
            run(
                spec,
                args.ranks,
                "--plain",
                log=sys.stderr,
                environment={
                    "LD_PRELOAD": str(built),
                    "FLEET_FILES_UNDER": str(inside / "run"),
                    "FLEET_FILES_DELAY_US": str(round(1000 * delay)),
                },
            )
            times = [
                t_s
                for t_s, _ in read_events(
                    RunPaths(inside / "run").events, kinds=(FirstStep, NetworkFinished)
                )
            ]
            seconds.append(times[-1] - times[0])
    plain, slow = map(median, took.values())
    print(
        json.dumps(
            {
                "networks": args.networks,
                "epochs": args.epochs,
                "epoch_s": args.epoch_s,
                "delay_ms": args.delay,
                "plain_s": round(plain, 2),
                "slow_s": round(slow, 2),
                "loss": round(slow / plain - 1, 4),
            }
        )
    )


@contextmanager
def _unsynced() -> Iterator[None]:
    """A context in which nothing is put onto the disk: what is written in it is made up."""
    fsync, os.fsync = os.fsync, lambda fd: None
    try:
        yield
    finally:
        os.fsync = fsync


def resume(folder: Path, args: argparse.Namespace) -> None:
    """Time a launch that finds half of the networks at their ends and half on their way, and ends at once."""
    spec, paths = write(folder, args.resume, args.epochs, 0.001), RunPaths(folder / "run")
    launch = prepare(Request(str(spec)), Ranks((0,)))
    log = EventLog(paths.events)
    log.add(
        LaunchStarted(
            args.resume,
            1,
            1,
            1,
            1,
            "adaptive",
            (),
            0,
            SAMPLES,
            (0,),
            "own",
            ScheduleOptions(1.0, "auto", False, 0),
            {},
        )
    )
    with _unsynced():
        for number, network in enumerate(launch.spec.networks):
            history = tuple(
                EpochRecord(
                    epoch,
                    epoch,
                    1 / epoch,
                    0.1,
                    1 / epoch,
                    0.1,
                    0.01,
                    SAMPLES,
                    1,
                    1.0,
                    0.0,
                    batch=BATCH,
                )
                for epoch in range(1, 1 + (args.epochs if number % 2 else (1 + args.epochs) // 2))
            )
            final = finished_reason(history, "", network.train.stopping)
            state = TrainingState(
                {"weights": np.zeros(4)},
                training_identity(network, launch.spec, launch.sample),
                history,
                final=final,
                code={},
                generation=1,
                architecture=network.architecture.key,
            )
            for path in (
                paths.best(network.name),
                paths.last(network.name),
                paths.previous(network.name),
            ):
                write_state(path, state)
            write_history(paths.history(network.name), history)
            for record in history:
                log.add(EpochEnded(network.name, record))
            if final:
                log.add(NetworkFinished(network.name, final, len(history)))
    log.add(LaunchEnded(int(ExitStatus.RESUMABLE), 1.0))
    log.close()
    began = time.monotonic()
    run(spec, 1, "--plain", "--walltime", "1s", log=sys.stderr)
    results = events_of(paths.events, LaunchStarted)[-1].before_s
    print(
        json.dumps(
            {
                "networks": args.resume,
                "epochs": args.epochs,
                "seconds": round(time.monotonic() - began, 2),
                "reads_s": round(results["reading"] + results["setting up"], 2),
                "start_up": results,
            }
        )
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--epoch-s", type=float, default=0.5, help="seconds of an epoch")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument(
        "--by",
        choices=("strace", "library"),
        default="strace" if shutil.which("strace") else "library",
    )
    parser.add_argument("--delay", type=float, help="milliseconds of each operation")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--resume", type=int, help="so many networks")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.delay is not None:
            delayed(Path(folder), args)
        elif args.resume is not None:
            resume(Path(folder), args)
        else:
            show(count(Path(folder), args), args.json)


if __name__ == "__main__":
    main()
