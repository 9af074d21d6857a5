"""Measure the memory of a process that builds many networks: a trainer, and ``fleet check``.

    python benchmarks/memory.py [--engine keras] [--family cnn] [--networks 220]
        [--of trainer check] [--json]

Each network has a different architecture. A trainer trains them one after another for one epoch, as
rank 1 of two ranks. The process in which ``fleet check`` tries networks builds each and takes a
step. RSS is read whenever a network is done. *Added* is the median of the last ten networks minus
that of the eleventh to the twentieth: by then libraries are loaded and caches filled. The goal is
10 MB for 200 networks.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from resident import descendants  # beside this file

from fleet.api import mpirun
from fleet.checks.trials import try_networks
from fleet.commands.output import print_json
from fleet.domain.events import NetworkFinished
from fleet.runtime.startup.data import open_inputs, resolve_with_data
from fleet.spec import load
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table

ROOT = Path(__file__).parents[1]
FIRST, SOME = 20, 10  # networks that do not count, and networks per median
GOAL_MB = 10.0
_EVERY_S = 0.2


def architectures(family: str) -> Iterator[dict[str, Any]]:
    """Yield arguments of networks of a family, all different, without a trend in size."""
    widths = [width for pair in zip(range(2, 14), range(25, 13, -1), strict=True) for width in pair]
    for number in itertools.count(4):
        for width in widths:
            if family == "cnn":
                yield {"filters": [width], "dense": [number]}
            else:
                yield {"blocks": [1, 1], "width": width, "dropout": number / 1000}


def write_spec(folder: Path, args: argparse.Namespace) -> Path:
    """Write the spec of a run of all networks."""
    networks = itertools.islice(architectures(args.family), args.networks)
    content = {
        "name": "memory",
        "output": str(folder / "run"),
        "data": {
            "source": "builtin:noise",
            "options": {"samples": 256, "size": 8},
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "models": [
            {"family": args.family, "name": f"net-{index}", "args": arguments}
            for index, arguments in enumerate(networks)
        ],
        "train": {
            "batch": {"size": 64},
            "stopping": {"max_epochs": 1},
            "optimizer": {"name": "sgd", "learning_rate": 0.01},
        },
        "resources": {"engine": args.engine, "preprocessors": 1},
    }
    path = folder / "memory.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def resident_mb(root: int) -> float:
    """Return the RSS of the largest descendant of a process, in MB."""
    return max(_rss_mb(process) for process in descendants(root) if process != os.getpid())


def _rss_mb(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:  # the process has ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_trainer(folder: Path, args: argparse.Namespace) -> list[float]:
    """Return the MB of a trainer after each network."""
    path = write_spec(folder, args)
    sizes: list[float] = []
    launch = subprocess.Popen(
        [*mpirun(2), "-m", "fleet.run", str(path), "--plain"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
    )
    log = RunPaths(folder / "run").events
    finished = 0
    while launch.poll() is None:
        text = log.read_text() if log.exists() else ""
        count = text.count(f'"event": "{NetworkFinished.word}"')
        size = resident_mb(launch.pid)
        sizes += [size] * (count - finished)
        finished = count
        time.sleep(_EVERY_S)
    if launch.returncode:
        raise RuntimeError(f"the launch ended with status {launch.returncode}")
    return sizes


def measure_check(folder: Path, args: argparse.Namespace) -> list[float]:
    """Return the MB of the process of ``fleet check`` after each network."""
    spec = load(write_spec(folder, args))
    opened = open_inputs(spec)
    [spec] = resolve_with_data(opened, spec)
    sizes: list[float] = []

    trials = try_networks(
        spec,
        opened.sample,
        range(len(spec.networks)),
        rates=None,
        steps=True,
        advance=lambda _: sizes.append(resident_mb(os.getpid())),
        samples=None,
    )
    problems = {trial.problem for trial in trials.trials.values() if trial.problem}
    if problems:
        raise RuntimeError("; ".join(problems))
    return sizes


def added(sizes: Sequence[float]) -> float:
    """Return the MB by which a process has grown after its first networks."""
    return statistics.median(sizes[-SOME:]) - statistics.median(sizes[FIRST - SOME : FIRST])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="keras")
    parser.add_argument("--family", choices=["cnn", "resnet"], default="cnn")
    parser.add_argument("--networks", type=int, default=220)
    parser.add_argument(
        "--of", nargs="+", choices=["trainer", "check"], default=["trainer", "check"]
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.networks < FIRST + SOME:
        parser.error(f"--networks is {args.networks}; it must be at least {FIRST + SOME}")
    measured = []
    for process in args.of:
        with tempfile.TemporaryDirectory() as name:
            sizes = (measure_trainer if process == "trainer" else measure_check)(Path(name), args)
        measured.append({"of": process, "sizes_mb": sizes, "added_mb": added(sizes)})
    if args.json:
        print_json(
            {
                "engine": args.engine,
                "family": args.family,
                "networks": args.networks,
                "goal_mb": GOAL_MB,
                "measured": measured,
            }
        )
        return
    print_table(
        ["of", f"MB after {FIRST}", f"MB after {args.networks}", "added, MB"],
        [
            [
                sample["of"],
                f"{sample['sizes_mb'][FIRST - 1]:.1f}",
                f"{sample['sizes_mb'][-1]:.1f}",
                f"{sample['added_mb']:.1f}",
            ]
            for sample in measured
        ],
    )


if __name__ == "__main__":
    main()
