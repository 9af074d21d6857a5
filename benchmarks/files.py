"""Count the metadata operations that a run requests from its file system.

    python benchmarks/files.py [--networks 8] [--epochs 4] [--ranks 3] [--json]
    python benchmarks/files.py --delay 5 [--epoch-s 2]
    python benchmarks/files.py --resume 10000

The first command counts the operations of emulated networks below the run's folder, by strace
or, without it, by a preloaded library (files.c, compiled here). Three runs separate the
operations per network and epoch, per network and per launch: the second has twice the epochs,
the third twice the networks. Each epoch is better than those before it, so each also writes a best
checkpoint.

With --delay each operation takes that many milliseconds longer; the run is timed from its first
step to its last, with and without the delay, in turns. With --resume a launch resumes that many
networks, half of which have finished, and stops immediately: `reads_s` is the time to read and
check them.
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
from fleet.runtime.startup.launch import Ranks
from fleet.runtime.startup.prepare import prepare
from fleet.runtime.startup.request import Request
from fleet.storage.checkpoint import write_history, write_state
from fleet.storage.event_log import EventLog, events_of, read_events
from fleet.storage.identity import training_identity
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from scheduler.base import Delta

SAMPLES, BATCH = 200, 50
KINDS = ("open", "rename", "fsync", "stat", "mkdir", "unlink", "link")
_TRACED = "%file,fsync,fdatasync,fstat"
# The names of calls, without the suffixes of their variants.
_CALL = re.compile(
    r"\b(open|creat|rename|fsync|fdatasync|newfstat|stat|lstat|fstat|access|faccess|mkdir|unlink|"
    r"rmdir|link|readlink|utimens)(?:64|x|at|at2)*\("
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


def build_library(folder: Path) -> Path:
    """Compile the library that counts and delays operations."""
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


def write_spec(folder: Path, networks: int, epochs: int, epoch_s: float) -> Path:
    """Write a spec of emulated networks whose epochs take ``epoch_s`` seconds."""
    return write_emulated(folder, SAMPLES, BATCH, networks, epochs, epoch_s)


def count_operations(
    folder: Path, networks: int, epochs: int, args: argparse.Namespace
) -> Counter[str]:
    """Count the operations of a run, by kind."""
    folder.mkdir()
    spec, trace_lines = write_spec(folder, networks, epochs, args.epoch_s), folder / "trace"
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
                "LD_PRELOAD": str(build_library(folder)),
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
    """Return operations per network and epoch, per network, and per launch, by kind."""
    networks, epochs = args.networks, args.epochs
    base = count_operations(folder / "base", networks, epochs, args)
    longer = count_operations(folder / "longer", networks, 2 * epochs, args)
    wider = count_operations(folder / "wider", 2 * networks, epochs, args)
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
    """Print the counts."""
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


def measure_delay(folder: Path, args: argparse.Namespace) -> None:
    """Time a run with and without a delay, in turns."""
    took: dict[float, list[float]] = {0.0: [], args.delay: []}
    built = build_library(folder)
    for turn in range(args.turns):
        for delay, seconds in took.items():
            run_folder = folder / f"{turn}-{delay}"
            run_folder.mkdir()
            spec = write_spec(run_folder, args.networks, args.epochs, args.epoch_s)
            run(
                spec,
                args.ranks,
                "--plain",
                log=sys.stderr,
                environment={
                    "LD_PRELOAD": str(built),
                    "FLEET_FILES_UNDER": str(run_folder / "run"),
                    "FLEET_FILES_DELAY_US": str(round(1000 * delay)),
                },
            )
            times = [
                t_s
                for t_s, _ in read_events(
                    RunPaths(run_folder / "run").events, kinds=(FirstStep, NetworkFinished)
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
    """Skip fsync inside this context: its files are only made up."""
    fsync, os.fsync = os.fsync, lambda fd: None
    try:
        yield
    finally:
        os.fsync = fsync


def resume(folder: Path, args: argparse.Namespace) -> None:
    """Time a launch that resumes networks, half of them finished, and ends immediately."""
    spec, paths = write_spec(folder, args.resume, args.epochs, 0.001), RunPaths(folder / "run")
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
            ScheduleOptions(1.0, Delta(0.15, relative=True), False, 0),
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
    startup_s = events_of(paths.events, LaunchStarted)[-1].before_s
    print(
        json.dumps(
            {
                "networks": args.resume,
                "epochs": args.epochs,
                "seconds": round(time.monotonic() - began, 2),
                "reads_s": round(startup_s["reading"] + startup_s["setting up"], 2),
                "start_up": startup_s,
            }
        )
    )


def main() -> None:
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
    parser.add_argument("--delay", type=float, help="milliseconds that each operation takes longer")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--resume", type=int, help="number of networks to resume")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.delay is not None:
            measure_delay(Path(folder), args)
        elif args.resume is not None:
            resume(Path(folder), args)
        else:
            show(count(Path(folder), args), args.json)


if __name__ == "__main__":
    main()
