"""The stream against its targets and against what people use instead, side by side on the same cores.

    python benchmarks/stream.py --jpegs cifar10_jpeg.tar [--data DIR] [--tensorsocket-python PYTHON]

1. CPU seconds of preprocessing per epoch, for 1, 2, 4 and 8 consumers.
2. samples/s that each of 4 consumers gets, which only read, against 4 independent `tf.data` pipelines, `tf.data`
   service with a cache that its consumers share, and TensorSocket over a PyTorch loader.
3. bytes/s from the ring to 4 readers, of samples that need no preparation, against numpy's memcpy in one process.
4. images/s per core of decode, crop and flip, against `tf.data` and plain Pillow.
5. what trainers wait for data in a real run, and
6. what its ranks hold in memory.

The images are 256 x 256 JPEGs made of CIFAR-10's; the work is decode, random crop to 224, flip, scale. Consumers
end with each batch in memory of their own: what a loader gives them as a view of shared memory, they copy. With
float32, tf.data and TensorSocket scale where they decode; FLEET's consumers scale, as its trainers do. All sides are
measured in turns, --rounds times for --seconds after a second of warm-up: a machine that others use as well is faster
in one minute than in the next. Numbers are medians over the rounds, and so are ratios.
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

import decode  # this, images, pace, resident, rivals and stream_ranks are beside this file
import numpy as np
import yaml
from images import make_jpegs
from pace import each_consumer, growth, span_of
from resident import Resident, resident
from rivals import can_isolate, consumed
from stream_ranks import MEMORY, Job, Outcome

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
_TRIES = 3  # of another loader: consumers that TensorSocket finds a moment apart may wait for each other for ever


@dataclass(frozen=True)
class Row:
    """One measured number beside what it is compared with.

    Attributes:
        point: of the list in the module's docstring.
        label: what was measured.
        measured, against: two numbers of one unit.
        ratio: that the target speaks of.
        target: in words; empty where there is none.
        is_met: None without a target.
    """

    point: int
    label: str
    measured: float
    against: float | None = None
    ratio: float | None = None
    target: str = ""
    is_met: bool | None = None


@dataclass(frozen=True)
class Other:
    """Another way to feed consumers.

    Attributes:
        label: its name.
        target: of the ratio.
        python, program, servers, consumers: see :func:`rivals.consumed`.
    """

    label: str
    target: float
    python: str
    program: str
    servers: tuple[tuple[str, ...], ...]
    consumers: tuple[tuple[str, ...], ...]


class Bench:
    """The measurements, with the images and the patience that they have in common."""

    def __init__(self, folder: Path, seconds: float, rounds: int, tensorsocket: str | None) -> None:
        self._folder, self._seconds, self._rounds, self._tensorsocket = (
            folder,
            seconds,
            rounds,
            tensorsocket,
        )
        self.notes: list[str] = []

    # ---- 1: the cost of preprocessing ----

    def cost(self) -> list[Row]:
        """CPU seconds per epoch, whoever reads."""
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
                    f"CPU s of preprocessing per epoch, {readers} consumers; against 1",
                    statistics.median(results),
                    statistics.median(seconds[1]),
                    ratio,
                    *_judge(0.9 <= ratio <= 1.1, "within 10 %"),
                )
            )
        return rows

    # ---- 2: what consumers get ----

    def delivery(self) -> list[Row]:
        """Samples/s of each consumer, by all sides."""
        if not can_isolate():
            self.notes.append(
                "no tf.data and no TensorSocket: `unshare --net` is not allowed here, and their servers "
                "would listen on all addresses"
            )
            return []
        if self._tensorsocket is None:
            self.notes.append(
                "no TensorSocket: --tensorsocket-python names no environment that has it"
            )
        return [row for dtype in ("uint8", "float32") for row in self._deliveries(dtype)]

    def _deliveries(self, dtype: str) -> list[Row]:
        fleet_rate: list[float] = []
        rivals: dict[Other, list[float]] = {rival: [] for rival in self._others(dtype)}
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
                    f"samples/s of each of {CONSUMERS} consumers, {dtype}; against {rival.label}",
                    statistics.median(fleet_rate),
                    _median(results),
                    ratio,
                    *_judge(ratio >= rival.target, f"at least {rival.target}"),
                )
            )
        return rows

    def _others(self, dtype: str) -> list[Other]:
        work = (str(self._folder), dtype, str(BATCH), str(self._seconds))
        script_folder, four = (sys.executable, "stream_tfdata.py"), range(CONSUMERS)
        results = [
            Other(
                "one tf.data pipeline alone",
                0.9 if dtype == "uint8" else 0.75,
                *script_folder,
                (),
                (("alone", *work),),
            ),
            Other(
                "4 independent tf.data pipelines",
                3.5,
                *script_folder,
                (),
                tuple(("alone", *work) for _ in four),
            ),
            Other(
                "tf.data service",
                5.0,
                *script_folder,
                (("serve",),),
                tuple(("consume", *work, str(number)) for number in four),
            ),
        ]
        if self._tensorsocket is not None:
            results.append(
                Other(
                    "TensorSocket",
                    1.3,
                    self._tensorsocket,
                    "stream_tensorsocket.py",
                    (("serve", *work),),
                    tuple(("consume", *work) for _ in four),
                )
            )
        return results

    def _rate(self, rival: Other, dtype: str) -> float:
        """Samples/s of each consumer of another loader."""
        for remaining in reversed(range(_TRIES)):
            _say(f"{rival.label}, {dtype}")
            try:
                return each_consumer(
                    consumed(rival.python, rival.program, rival.servers, rival.consumers), BATCH
                )
            except RuntimeError as error:
                self.notes.append(
                    f"{rival.label}, {dtype}: {error}; {f'{remaining} tries left' if remaining else 'given up'}"
                )
        return math.nan

    # ---- 3: from the ring to readers ----

    def ring(self) -> list[Row]:
        """Bytes/s of all readers together."""
        together, alone = [], []
        for _ in range(self._rounds):
            outcome = self._stream(MEMORY, CONSUMERS, "uint8")
            together.append(
                each_consumer(outcome.reads, BATCH) * CONSUMERS * outcome.sample_bytes / 1e9
            )
            alone.append(memcpy(outcome.sample_bytes))
        ratio = _ratio(together, alone)
        return [
            Row(
                3,
                f"GB/s from the ring to {CONSUMERS} readers together; against memcpy",
                statistics.median(together),
                statistics.median(alone),
                ratio,
                *_judge(ratio >= 0.6, "at least 0.6"),
            )
        ]

    def _stream(self, source: str, readers: int, dtype: str) -> Outcome:
        """What real ranks do."""
        _say(f"{readers} readers of {source}, {dtype}")
        transforms = [] if source == MEMORY else decode.TRAIN + decode.SCALE
        job = Job(source, transforms, PREPROCESSORS, readers, dtype, BATCH, self._seconds, WINDOW)
        program = str(ROOT / "benchmarks/stream_ranks.py")
        done = subprocess.run(
            [*mpirun(PREPROCESSORS + readers), program, json.dumps(vars(job))],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return Outcome(**json.loads(done.stdout.splitlines()[-1]))

    # ---- 4: decoding ----

    def decoding(self) -> list[Row]:
        """Images/s per core of the whole transform."""
        _say("decoding")
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
                    f"images/s per core, {dtype}, {best}; against {rival}",
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
        """Four networks, four trainers and a preprocessor."""
        _say("training")
        with tempfile.TemporaryDirectory() as name:
            largest, stall, bottleneck = train(self._folder, Path(name))
        self.notes.append(
            f"training: the run says that the bottleneck is {bottleneck}; {largest.processes} ranks; RSS "
            f"{largest.rss / 1e6:.0f} MB in all, PSS {largest.pss / 1e6:.0f} MB"
        )
        counted = largest.window_pss / largest.window
        return [
            Row(
                5,
                "share of training that trainers wait for data",
                stall,
                None,
                stall,
                *_judge(stall < 0.03, "under 0.03"),
            ),
            Row(
                6,
                f"MB of the window in the PSS of {largest.processes} ranks; against its size",
                largest.window_pss / 1e6,
                largest.window / 1e6,
                counted,
                *_judge(counted <= 1.05, "once"),
            ),
            Row(
                6,
                f"MB of the window in the RSS of {largest.processes} ranks; against its size",
                largest.window_rss / 1e6,
                largest.window / 1e6,
                largest.window_rss / largest.window,
            ),
        ]


def _say(label: str) -> None:
    print(
        f"[{time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f}] {label}",
        file=sys.stderr,
        flush=True,
    )


def _judge(is_met: bool, target: str) -> tuple[str, bool]:
    return target, is_met


def _ratio(fleet_rates: Sequence[float], rival_rates: Sequence[float]) -> float:
    """Of what was measured in turns."""
    return _median(
        [
            fleet_rate / rival_rate
            for fleet_rate, rival_rate in zip(fleet_rates, rival_rates, strict=True)
        ]
    )


def _median(results: Sequence[float]) -> float:
    """Rounds in which a side gave nothing do not count."""
    numbers = [number for number in results if not math.isnan(number)]
    return statistics.median(numbers) if numbers else math.nan


def _cpu_per_sample(outcome: Outcome) -> float:
    """CPU seconds of all preprocessors for a sample of the stream."""
    span = span_of(outcome.reads)
    notes = [
        list(zip(*work, strict=True)) for work in outcome.work
    ]  # of each: times, CPU seconds, samples made
    return sum(growth(times, seconds)(span) for times, seconds, _ in notes) / growth(
        notes[0][0], notes[0][2]
    )(span)


def memcpy(sample_bytes: int, total: int = WINDOW) -> float:
    """GB/s of numpy in one process, from as much memory as the window has, a batch at a time into one place."""
    rows = total // (BATCH * sample_bytes)
    source = np.ones((rows, BATCH, sample_bytes), np.uint8)
    private = np.zeros((BATCH, sample_bytes), np.uint8)
    began = time.perf_counter()
    for batch in source:
        np.copyto(private, batch)
    return source.nbytes / (time.perf_counter() - began) / 1e9


def train(images: Path, folder: Path, epochs: int = 1) -> tuple[Resident, float, str]:
    """Train the same small convolutional network four times, side by side: one preprocessor is enough for them.

    Returns:
        Memory when the window was fullest, the share of all epochs that trainers waited for data, and what the run
        took for its bottleneck.
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
            results = resident(launch.pid, re.compile(r"/dev/shm/fleet-\S+-train"))
            if (results.processes, results.window_rss) > (largest.processes, largest.window_rss):
                largest = results
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
    verdict = events_of(paths.events, StreamStarted)[0].bottleneck
    return largest, stall, verdict


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jpegs", help="tar file of CIFAR-10 as JPEG files, train/<class>/<number>.jpg"
    )
    parser.add_argument(
        "--data", type=Path, help="where the images are made, and stay (else they go when it ends)"
    )
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of a rate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2, help="for all processes of a side together")
    parser.add_argument(
        "--tensorsocket-python", help="of an environment with torch, tensorsocket and simplejpeg"
    )
    parser.add_argument("--points", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.jpegs is None and args.data is None:
        parser.error("--jpegs: the images are made of these; or --data: where they are")
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
        f"{args.cores} cores; load {load:.1f} when it began; {time.perf_counter() - began:.0f} s"
    )
    if args.json:
        print_json({"rows": [vars(row) for row in rows], "notes": bench.notes})
        return
    print_table(
        ["", "what", "measured", "against", "ratio", "target", "met"],
        [
            [
                row.point,
                row.label,
                row.measured,
                row.against,
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
