"""Train the same networks with and without FLEET on the same cores, from the command to the prompt.

    python benchmarks/versus.py --jpegs cifar10_jpeg.tar [--transforms crop] [--epochs 3 10]
        [--without-ray] [--busy 0 2]

Six small CNNs on 2,400 JPEG files of 256 x 256 pixels, decoded, resized to 64 and flipped. With
`--transforms crop` images are decoded, randomly cropped to 224, flipped and resized to 64, so that
each epoch has more work. The programs are:

- FLEET: `mpirun -n 3`, and `-n 7`, with a default spec and no cached rates;
- a loop over Keras' `model.fit`, on one `tf.data` pipeline that caches decoded images in memory;
- Ray Tune, with one CPU and one such pipeline per trial. It has its own environment, which shares
  the TensorFlow of this one, and its own network namespace, because it listens on all addresses.

All programs take turns; the numbers are medians. Every program must train all networks. The table
also has accuracies, the CPU seconds of each program and its descendants, and *waits*: the share of
FLEET's epochs in which trainers wait for samples. With `--busy 0 2` everything is measured twice:
first as it is, then beside two processes that compute all the time, as those of other users do.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from images import make_jpegs
from rivals import ISOLATED, can_isolate

from fleet.api import mpirun, read_results
from fleet.commands.output import print_json
from fleet.domain.events import EpochEnded
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table

ROOT, FOLDER = Path(__file__).parents[1], Path(__file__).parent
RAY = "ray[tune]==2.49.2"
LOOP, TUNE = "model.fit in a loop", "Ray Tune"

Program = Callable[[Path, int], list[float]]  # (folder, epochs) -> best accuracy of each network


def spec(
    jpegs: Path, folder: Path, epochs: int, policy: str | None, transforms: str = "resize"
) -> dict:
    """Return a minimal spec, which a user would write; only ``policy`` is optional."""
    from versus_fit import BATCH, CROP, MOMENTUM, NETWORKS, PIXELS, RATE, VALIDATION

    resize, flip = {"resize": {"size": [PIXELS, PIXELS]}}, {"flip": {"horizontal": True}}
    steps = [resize, flip]
    if transforms == "crop":
        steps = [{"random_crop": {"size": [CROP, CROP]}}, flip, resize]
    return {
        "name": "versus",
        "output": str(folder / "run"),
        "data": {
            "source": "image_folder",
            "path": str(jpegs),
            "validation": VALIDATION,
            "transforms": ["decode", *steps, {"scale": {"mean": 0.5, "std": 0.25}}],
        },
        "models": [
            {"family": "cnn", "name": name, "args": arguments}
            for name, arguments in NETWORKS.items()
        ],
        "train": {
            "batch": {"size": BATCH},
            "stopping": {"max_epochs": epochs},
            "optimizer": {"name": "sgd", "learning_rate": RATE, "momentum": MOMENTUM},
        },
    } | ({"schedule": {"policy": policy}} if policy else {})


def fleet_program(
    jpegs: Path, ranks: int, policy: str | None = None, transforms: str = "resize"
) -> Program:
    """Return FLEET on ``ranks`` ranks; without a policy, with the default one."""

    def run(folder: Path, epochs: int) -> list[float]:
        path = folder / "versus.yaml"
        path.write_text(yaml.safe_dump(spec(jpegs, folder, epochs, policy, transforms)))
        _call(
            [*mpirun(ranks), "-m", "fleet.run", str(path), "--plain"],
            ROOT,
            XDG_CACHE_HOME=str(folder / "cache"),
        )
        return [
            result.val_accuracy
            for result in read_results(folder / "run")
            if result.val_accuracy is not None
        ]

    return run


def loop_program(jpegs: Path, transforms: str = "resize") -> Program:
    """Return the loop over `model.fit`, network after network."""

    def run(folder: Path, epochs: int) -> list[float]:
        return _accuracies(
            _call(
                [
                    sys.executable,
                    str(FOLDER / "versus_fit.py"),
                    str(jpegs),
                    str(epochs),
                    transforms,
                ],
                ROOT,
                PYTHONPATH=str(ROOT),
            )
        )

    return run


def ray_program(jpegs: Path, python: Path, cpus: int, transforms: str = "resize") -> Program:
    """Return Ray Tune with ``cpus`` concurrent trials."""

    def run(folder: Path, epochs: int) -> list[float]:
        command = [
            *ISOLATED,
            str(python),
            str(FOLDER / "versus_ray.py"),
            str(jpegs),
            str(epochs),
            str(cpus),
            transforms,
        ]
        return _accuracies(
            _call(
                command,
                FOLDER,
                VERSUS_STORAGE=str(folder),
                PYTHONPATH=str(ROOT),
                RAY_USAGE_STATS_ENABLED="0",
                RAY_DISABLE_IMPORT_WARNING="1",
            )
        )

    return run


def install_ray(folder: Path) -> Path:
    """Install Ray into its own environment, which sees our TensorFlow; return its interpreter."""
    python = folder / "bin/python"
    # An interrupted installation is repeated.
    if not list(folder.glob("lib/python*/site-packages/ray")):
        venv.create(folder, clear=True, with_pip=True)
        installed = next(path for path in sys.path if path.endswith("site-packages"))
        [required] = folder.glob("lib/python*/site-packages")
        (required / "beside.pth").write_text(installed + "\n")
        versions = ROOT / f"tools/constraints-{sys.version_info.major}.{sys.version_info.minor}.txt"
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", versions, RAY], check=True)
    return python


def _call(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    process = subprocess.run(
        command,
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
    )
    if process.returncode:
        raise RuntimeError(f"{command}: {process.stdout[-2000:]}\n{process.stderr[-2000:]}")
    return process.stdout


def _accuracies(printed: str) -> list[float]:
    return [float(line.split()[1]) for line in printed.splitlines() if line.startswith("cnn-")]


@dataclass(frozen=True)
class Measured:
    """One program in one round: seconds, CPU seconds, mean accuracy, and the waits of FLEET."""

    seconds: float
    cpu_s: float
    accuracy: float
    waits: float | None


def waits_of(run: Path) -> float | None:
    """Return the share of epochs in which trainers waited for samples; None without a FLEET run."""
    records = [event.record for event in events_of(RunPaths(run).events, EpochEnded)]
    if not records:
        return None
    return sum(record.waited_s for record in records) / sum(record.seconds for record in records)


def cpu_s() -> float:
    """Return the CPU seconds of all descendants that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that compute all the time, each of which would use a whole core."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(
    programs: dict[str, Program], epochs: int, rounds: int, networks: int, label: str
) -> dict[str, list[Measured]]:
    """Measure each program in each round; the starting program rotates."""
    measured: dict[str, list[Measured]] = {name: [] for name in programs}
    for turn in range(rounds):
        names = list(programs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with tempfile.TemporaryDirectory() as folder:
                began, used = time.perf_counter(), cpu_s()
                accuracies = programs[name](Path(folder), epochs)
                seconds, used = time.perf_counter() - began, cpu_s() - used
                waits = waits_of(Path(folder) / "run")
            assert len(accuracies) == networks, (
                f"{name} trained {len(accuracies)} of {networks} networks"
            )
            measured[name].append(Measured(seconds, used, statistics.mean(accuracies), waits))
            print(
                f"  {label}, round {turn + 1}, {name}: {measured[name][-1]}",
                file=sys.stderr,
                flush=True,
            )
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jpegs", required=True, metavar="TAR", help="CIFAR-10 as JPEG files")
    parser.add_argument("--epochs", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[3, 7], help="numbers of FLEET's ranks"
    )
    parser.add_argument(
        "--policies", nargs="*", default=[], metavar="POLICY", help="additional policies of FLEET"
    )
    parser.add_argument(
        "--transforms",
        choices=["resize", "crop"],
        default="resize",
        help="resize: to 64, then flip; crop: to 224 at random, flip, then resize to 64",
    )
    parser.add_argument(
        "--busy",
        type=int,
        nargs="+",
        default=[0],
        metavar="N",
        help="numbers of other processes that compute meanwhile",
    )
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the numbers of all rounds")
    arguments = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    jpegs = make_jpegs(arguments.jpegs, build / "versus-jpegs", 2400)
    programs: dict[str, Program] = {
        f"FLEET, {ranks} ranks": fleet_program(jpegs, ranks, transforms=arguments.transforms)
        for ranks in arguments.ranks
    }
    programs |= {
        f"FLEET, {ranks} ranks, {policy}": fleet_program(jpegs, ranks, policy, arguments.transforms)
        for policy in arguments.policies
        for ranks in arguments.ranks
    }
    programs[LOOP] = loop_program(jpegs, arguments.transforms)
    if not arguments.without_ray:
        if not can_isolate():
            raise SystemExit(
                "Ray requires its own network namespace (unshare --net): permit it, or use "
                "--without-ray"
            )
        programs[TUNE] = ray_program(
            jpegs,
            install_ray(build / "versus-ray"),
            len(os.sched_getaffinity(0)),
            arguments.transforms,
        )
    from versus_fit import NETWORKS

    outcomes = {}
    for busy in arguments.busy:
        with busy_processes(busy):
            for epochs in arguments.epochs:
                label = f"{epochs} epochs" + f" beside {busy} busy processes" * bool(busy)
                outcomes[label] = measure(programs, epochs, arguments.rounds, len(NETWORKS), label)
    if arguments.json:
        print_json(
            {
                label: {
                    name: [asdict(measurement) for measurement in rounds]
                    for name, rounds in measured.items()
                }
                for label, measured in outcomes.items()
            }
        )
        return
    for label, measured in outcomes.items():

        def median(name: str, key: str, rounds: dict[str, list[Measured]] = measured) -> float:
            return statistics.median(getattr(row, key) or 0.0 for row in rounds[name])

        print_table(
            ("", "seconds", "speedup over the loop", "CPU s", "waits", "accuracy"),
            [
                (
                    name,
                    f"{median(name, 'seconds'):.1f}",
                    f"{median(LOOP, 'seconds') / median(name, 'seconds'):.2f}",
                    # The processes of Ray outlive its command.
                    "" if name == TUNE else f"{median(name, 'cpu_s'):.0f}",
                    f"{median(name, 'waits'):.1%}" if name.startswith("FLEET") else "",
                    f"{median(name, 'accuracy'):.3f}",
                )
                for name in programs
            ],
        )
        print(f"{label}, medians of {arguments.rounds}, from the command to the prompt\n")


if __name__ == "__main__":
    main()
