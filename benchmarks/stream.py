"""Compare the stream with its targets and with other loaders, side by side on the same cores.

    python benchmarks/stream.py --jpegs cifar10_jpeg.tar [--data DIR]
        [--tensorsocket-python PYTHON]

1. CPU seconds of preprocessing per epoch, for 1, 2, 4 and 8 consumers.
2. Samples/s of each of 4 consumers, which only read, compared with 4 independent `tf.data`
   pipelines, `tf.data` service with a cache that its consumers share, and TensorSocket over a
   PyTorch loader.
3. Bytes/s from the ring to 4 readers, of samples that need no preparation, compared with numpy's
   memcpy in one process; and of records of three arrays, compared with one array of as many bytes.
4. Images/s per core of decode, crop and flip, compared with `tf.data` and plain Pillow.
5. How long trainers wait for data in a real run.
6. How much memory the ranks of that run use.

The images are 256 x 256 JPEGs made from CIFAR-10; the work is decode, random crop to 224, flip,
scale. Consumers copy each batch into their own memory. With float32, tf.data and TensorSocket scale
where they decode; FLEET's consumers scale, like its trainers. All loaders take turns, --rounds
times for --seconds after a second of warm-up, because the speed of a shared machine varies. Numbers
and ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path

import decode  # this, images, pace, resident, rivals and stream_ranks are in this folder
import numpy as np
import yaml
from images import make_jpegs
from pace import each_consumer, growth, span_of
from resident import Resident, resident
from rivals import can_isolate, measure_consumers
from stream_ranks import MEMORY, RECORDS, Job, Outcome

from fleet.api import mpirun
from fleet.commands.output import print_json
from fleet.domain.events import StreamStarted
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from preprocess.sources.image_folder import ImageFolder

ROOT = Path(__file__).parents[1]
BATCH, CONSUMERS, PREPROCESSORS = 64, 4, 2
WINDOW = 512 * 2**20
_ATTEMPTS = 3  # per loader: TensorSocket may deadlock if its consumers do not join simultaneously


@dataclass(frozen=True)
class Row:
    """One measured number and its reference.

    Attributes:
        point: Number in the list of the module's docstring.
        label: What was measured.
        measured: The measured number.
        reference: The number that it is compared with, in the same unit.
        ratio: The ratio to which the target refers.
        target: The target in words; empty if there is none.
        is_met: Whether the target is met; None without a target.
    """

    point: int
    label: str
    measured: float
    reference: float | None = None
    ratio: float | None = None
    target: str = ""
    is_met: bool | None = None


@dataclass(frozen=True)
class Rival:
    """Another way to feed consumers.

    Attributes:
        label: Its name.
        target: The minimum ratio.
        python, program, servers, consumers: See :func:`rivals.measure_consumers`.
    """

    label: str
    target: float
    python: str
    program: str
    servers: tuple[tuple[str, ...], ...]
    consumers: tuple[tuple[str, ...], ...]


class Bench:
    """The measurements, with their common images and duration."""

    def __init__(self, folder: Path, seconds: float, rounds: int, tensorsocket: str | None) -> None:
        self._folder = folder
        self._seconds = seconds
        self._rounds = rounds
        self._tensorsocket = tensorsocket
        self.notes: list[str] = []

    # ---- 1: the cost of preprocessing ----

    def cost(self) -> list[Row]:
        """Measure the CPU seconds of preprocessing per epoch."""
        samples = len(ImageFolder(self._folder))
        seconds: dict[int, list[float]] = {readers: [] for readers in (1, 2, 4, 8)}
        for _ in range(self._rounds):
            for readers, results in seconds.items():
                results.append(
                    samples * _cpu_per_sample(self._stream(str(self._folder), readers, "uint8"))
                )
        rows = []
        for readers, results in seconds.items():
            ratio = _ratio(results, seconds[1])
            rows.append(
                Row(
                    1,
                    f"CPU s of preprocessing per epoch, {readers} consumers; reference: 1",
                    statistics.median(results),
                    statistics.median(seconds[1]),
                    ratio,
                    *_with_target(0.9 <= ratio <= 1.1, "within 10 %"),
                )
            )
        return rows

    # ---- 2: the rates of consumers ----

    def delivery(self) -> list[Row]:
        """Measure the samples/s of each consumer, with all loaders."""
        if not can_isolate():
            self.notes.append(
                "tf.data and TensorSocket are skipped: `unshare --net` is not permitted, and their "
                "servers would listen on all addresses"
            )
            return []
        if self._tensorsocket is None:
            self.notes.append("TensorSocket is skipped: --tensorsocket-python is not set")
        return [row for dtype in ("uint8", "float32") for row in self._deliveries(dtype)]

    def _deliveries(self, dtype: str) -> list[Row]:
        fleet_rate: list[float] = []
        rivals: dict[Rival, list[float]] = {rival: [] for rival in self._rivals(dtype)}
        for _ in range(self._rounds):
            fleet_rate.append(
                each_consumer(self._stream(str(self._folder), CONSUMERS, dtype).reads, BATCH)
            )
            for rival, results in rivals.items():
                results.append(self._rate(rival, dtype))
        rows = []
        for rival, results in rivals.items():
            ratio = _ratio(fleet_rate, results)
            rows.append(
                Row(
                    2,
                    f"samples/s of {CONSUMERS} consumers each, {dtype}; reference: {rival.label}",
                    statistics.median(fleet_rate),
                    _median(results),
                    ratio,
                    *_with_target(ratio >= rival.target, f"at least {rival.target}"),
                )
            )
        return rows

    def _rivals(self, dtype: str) -> list[Rival]:
        work = (str(self._folder), dtype, str(BATCH), str(self._seconds))
        script = (sys.executable, "stream_tfdata.py")
        results = [
            Rival(
                "one tf.data pipeline alone",
                0.9 if dtype == "uint8" else 0.75,
                *script,
                (),
                (("alone", *work),),
            ),
            Rival(
                "4 independent tf.data pipelines",
                3.5,
                *script,
                (),
                tuple(("alone", *work) for _ in range(CONSUMERS)),
            ),
            Rival(
                "tf.data service",
                5.0,
                *script,
                (("serve",),),
                tuple(("consume", *work, str(number)) for number in range(CONSUMERS)),
            ),
        ]
        if self._tensorsocket is not None:
            results.append(
                Rival(
                    "TensorSocket",
                    1.3,
                    self._tensorsocket,
                    "stream_tensorsocket.py",
                    (("serve", *work),),
                    tuple(("consume", *work) for _ in range(CONSUMERS)),
                )
            )
        return results

    def _rate(self, rival: Rival, dtype: str) -> float:
        """Return the samples/s of each consumer of another loader."""
        for remaining in reversed(range(_ATTEMPTS)):
            _log(f"{rival.label}, {dtype}")
            try:
                return each_consumer(
                    measure_consumers(rival.python, rival.program, rival.servers, rival.consumers),
                    BATCH,
                )
            except RuntimeError as error:
                self.notes.append(f"{rival.label}, {dtype}: {error}; {remaining} attempts left")
        return math.nan

    # ---- 3: from the ring to readers ----

    def ring(self) -> list[Row]:
        """Measure the bytes/s of all readers together."""
        rates: dict[str, list[float]] = {MEMORY: [], RECORDS: []}
        alone = []
        for _ in range(self._rounds):
            for source, results in rates.items():
                outcome = self._stream(source, CONSUMERS, "uint8")
                results.append(
                    each_consumer(outcome.reads, BATCH) * CONSUMERS * outcome.sample_bytes / 1e9
                )
            alone.append(memcpy(outcome.sample_bytes))
        together = rates[MEMORY]
        ratio = _ratio(together, alone)
        of_records = _ratio(rates[RECORDS], together)
        return [
            Row(
                3,
                f"GB/s from the ring to {CONSUMERS} readers together; reference: memcpy",
                statistics.median(together),
                statistics.median(alone),
                ratio,
                *_with_target(ratio >= 0.6, "at least 0.6"),
            ),
            Row(
                3,
                f"GB/s of records of three arrays to {CONSUMERS} readers; reference: one array",
                statistics.median(rates[RECORDS]),
                statistics.median(together),
                of_records,
                *_with_target(of_records >= 0.9, "at least 0.9"),
            ),
        ]

    def _stream(self, source: str, readers: int, dtype: str) -> Outcome:
        """Run the ranks of stream_ranks.py."""
        _log(f"{readers} readers of {source}, {dtype}")
        is_ready = source in (MEMORY, RECORDS)
        transforms = [] if is_ready else decode.TRAIN + decode.SCALE
        job = Job(source, transforms, PREPROCESSORS, readers, dtype, BATCH, self._seconds, WINDOW)
        program = str(ROOT / "benchmarks/stream_ranks.py")
        process = subprocess.run(
            [*mpirun(PREPROCESSORS + readers), program, json.dumps(vars(job))],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return Outcome(**json.loads(process.stdout.splitlines()[-1]))

    # ---- 4: decoding ----

    def decoding(self) -> list[Row]:
        """Measure the images/s per core of all transforms."""
        _log("decoding")
        ways = {
            name: way
            for name, way in decode.ways(ImageFolder(self._folder)).items()
            if name.startswith("train")
        }
        images = min(500, len(ImageFolder(self._folder)))
        rates = decode.measure(ways, images, self._rounds)
        rates |= decode.tensorflow_apart(self._folder, images, self._rounds)
        rows = []
        for dtype in ("uint8", "float32"):
            of_dtype = {
                name.split(": ")[1]: rate
                for name, rate in rates.items()
                if name.startswith(f"train, {dtype}")
            }
            best = next(way for way in of_dtype if way.startswith("preprocess"))
            rows += [
                Row(
                    4,
                    f"images/s per core, {dtype}, {best}; reference: {rival}",
                    of_dtype[best],
                    rate,
                    of_dtype[best] / rate,
                )
                for rival, rate in of_dtype.items()
                if rival != best
            ]
        return rows

    # ---- 5 and 6: a real run ----

    def training(self) -> list[Row]:
        """Train four networks on four trainers with one preprocessor."""
        _log("training")
        with tempfile.TemporaryDirectory() as name:
            largest, stall, bottleneck = train(self._folder, Path(name))
        self.notes.append(
            f"training: the bottleneck of the run is {bottleneck}; {largest.processes} ranks; "
            f"total RSS {largest.rss / 1e6:.0f} MB, PSS {largest.pss / 1e6:.0f} MB"
        )
        copies = largest.window_pss / largest.window
        return [
            Row(
                5,
                "share of training time that trainers wait for data",
                stall,
                None,
                stall,
                *_with_target(stall < 0.03, "under 0.03"),
            ),
            Row(
                6,
                f"MB of the window in the PSS of {largest.processes} ranks; reference: its size",
                largest.window_pss / 1e6,
                largest.window / 1e6,
                copies,
                *_with_target(copies <= 1.05, "once"),
            ),
            Row(
                6,
                f"MB of the window in the RSS of {largest.processes} ranks; reference: its size",
                largest.window_rss / 1e6,
                largest.window / 1e6,
                largest.window_rss / largest.window,
            ),
        ]


def _log(label: str) -> None:
    print(
        f"[{time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f}] {label}",
        file=sys.stderr,
        flush=True,
    )


def _with_target(is_met: bool, target: str) -> tuple[str, bool]:
    return target, is_met


def _ratio(fleet_rates: Sequence[float], rival_rates: Sequence[float]) -> float:
    """Return the median ratio of measurements that took turns."""
    return _median(
        [
            fleet_rate / rival_rate
            for fleet_rate, rival_rate in zip(fleet_rates, rival_rates, strict=True)
        ]
    )


def _median(results: Sequence[float]) -> float:
    """Return the median without the rounds in which a loader gave no result."""
    numbers = [number for number in results if not math.isnan(number)]
    return statistics.median(numbers) if numbers else math.nan


def _cpu_per_sample(outcome: Outcome) -> float:
    """Return the CPU seconds of all preprocessors per sample of the stream."""
    span = span_of(outcome.reads)
    # Times, CPU seconds and prepared samples of each preprocessor.
    notes = [list(zip(*work, strict=True)) for work in outcome.work]
    return sum(growth(times, seconds)(span) for times, seconds, _ in notes) / growth(
        notes[0][0], notes[0][2]
    )(span)


def memcpy(sample_bytes: int, total: int = WINDOW) -> float:
    """Return the GB/s of numpy in one process, from memory of the window's size, batch by batch."""
    rows = total // (BATCH * sample_bytes)
    source = np.ones((rows, BATCH, sample_bytes), np.uint8)
    private = np.zeros((BATCH, sample_bytes), np.uint8)
    began = time.perf_counter()
    for batch in source:
        np.copyto(private, batch)
    return source.nbytes / (time.perf_counter() - began) / 1e9


def train(images: Path, folder: Path, epochs: int = 1) -> tuple[Resident, float, str]:
    """Train one small CNN four times, side by side; one preprocessor is enough for them.

    Returns:
        The memory when the window was fullest, the share of all epochs that trainers waited for
        data, and the bottleneck that the run reported.
    """
    spec = folder / "spec.yaml"
    spec.write_text(
        yaml.safe_dump(
            {
                "name": "stream",
                "output": str(folder / "run"),
                "data": {
                    "source": "image_folder",
                    "path": str(images),
                    "transforms": decode.TRAIN + decode.SCALE,
                    "validation": 0.05,
                    "shared_memory": "256MB",
                    "cache": "none",
                },
                "models": [
                    {
                        "family": "cnn",
                        "name": f"cnn-{number}",
                        "args": {"filters": [4], "dense": []},
                        "gpus": [1, 1],
                    }
                    for number in range(CONSUMERS)
                ],
                "train": {
                    "batch": {"size": BATCH},
                    "optimizer": {"name": "sgd", "learning_rate": 0.001},
                    "stopping": {"max_epochs": epochs},
                },
                "resources": {"preprocessors": 1},
            }
        )
    )
    command = [*mpirun(1 + CONSUMERS), "-m", "fleet.run", str(spec), "--fresh", "--plain"]
    largest = Resident(0, 1, 0, 0, 0, 0)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as launch:
        while launch.poll() is None:
            time.sleep(2.0)
            memory = resident(launch.pid, re.compile(r"/dev/shm/fleet-\S+-train"))
            if (memory.processes, memory.window_rss) > (largest.processes, largest.window_rss):
                largest = memory
    if launch.returncode:
        raise RuntimeError(f"training ended with status {launch.returncode}")
    paths = RunPaths(folder / "run")
    history = [
        row
        for number in range(CONSUMERS)
        for row in DictReader(paths.history(f"cnn-{number}").read_text().splitlines())
    ]
    stall = sum(float(row["waited_s"]) for row in history) / sum(
        float(row["seconds"]) for row in history
    )
    bottleneck = events_of(paths.events, StreamStarted)[0].bottleneck
    return largest, stall, bottleneck


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jpegs", help="tar file of CIFAR-10 as JPEG files, train/<class>/<number>.jpg"
    )
    parser.add_argument(
        "--data", type=Path, help="folder that keeps the images (default: a temporary one)"
    )
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="duration of each rate measurement"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cores", type=int, default=2, help="for all processes of a loader together"
    )
    parser.add_argument(
        "--tensorsocket-python",
        help="Python of an environment with torch, tensorsocket and simplejpeg",
    )
    parser.add_argument("--points", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.jpegs is None and args.data is None:
        parser.error(
            "--jpegs (a tar file of JPEG files) or --data (a folder of images) is required"
        )
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.data or Path(temporary)
        if args.jpegs is not None:
            make_jpegs(args.jpegs, folder, args.images)
        bench = Bench(folder.resolve(), args.seconds, args.rounds, args.tensorsocket_python)
        began, load = time.perf_counter(), os.getloadavg()[0]
        rows = []
        for points, measure in (
            ({1}, bench.cost),
            ({2}, bench.delivery),
            ({3}, bench.ring),
            ({4}, bench.decoding),
            ({5, 6}, bench.training),
        ):
            if points & set(args.points):
                rows += measure()
    bench.notes.append(
        f"{args.cores} cores; load {load:.1f} at the start; {time.perf_counter() - began:.0f} s"
    )
    if args.json:
        print_json({"rows": [vars(row) for row in rows], "notes": bench.notes})
        return
    print_table(
        ["", "measurement", "measured", "reference", "ratio", "target", "met"],
        [
            [
                row.point,
                row.label,
                row.measured,
                row.reference,
                row.ratio,
                row.target,
                {None: "", True: "yes", False: "NO"}[row.is_met],
            ]
            for row in rows
        ],
    )
    print(*bench.notes, sep="\n")


if __name__ == "__main__":
    main()
