"""Measure FLEET on a machine with GPUs: one command, at most eight minutes, without network access.

    python benchmarks/gpu.py [--out gpu] [--seconds 480] [--cpu] [--groups]

For each installed engine (keras, torch) it measures: one network, compared with plain Keras or a
plain PyTorch loop on the same samples; with PyTorch, a compiled network and a compiled loop; K = 1,
2, 4 and 8 networks on one GPU; the transfer rate of inputs; the time of checkpoints and of changes
of a group; whether memory limits hold; and what happens to a network that is too large. It writes
`gpu.json` and `gpu.md`: a row per number, and the skipped parts with reasons. With `--groups`, on a
machine with several GPUs, it measures in four minutes what groups of them need instead: sums,
process groups, changes of a group within an epoch, time for which GPUs wait for changes, and a
trainer that dies. With `--cpu` everything is small and runs on cores: that tests the script, and
says nothing about GPUs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from document import table

from fleet.api import mpirun
from fleet.domain.events import EpochEnded, GroupChanged, LaunchEnded, NetworkFailed, RankDied
from fleet.domain.network import EpochRecord
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from launch.devices import memory_mib, visible_gpus
from launch.mps import CONTROL

ROOT = Path(__file__).parents[1]
BATCH = 128
_MIN_PART_S = 15  # no part begins with less time left
TRAIN = {
    "batch": {"size": BATCH},
    "optimizer": {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9},
}

# The rivals of one network: only the network comes from FLEET; the same samples in memory.
_ARRAYS = """
import json, sys, time
import numpy as np
from fleet.spec.model import Architecture
from preprocess.sources.noise import open_noise
samples, pixels, epochs, batch, filters = json.loads(sys.argv[1])
source, _ = open_noise(None, samples=samples, size=pixels)
images = np.stack([source.read(index) for index in range(samples)]).astype(np.float32) / 127.5 - 1
labels = np.asarray(source.labels)
args = {"filters": filters, "dense": [64]}
rates = []
"""
KERAS = (
    _ARRAYS
    + """
import keras
from fleet.engines.keras.models import build_model
model = build_model(Architecture("cnn", args), (pixels, pixels, 1), 10, 0)
model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
              loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
for _ in range(epochs):
    began = time.perf_counter()
    model.fit(images, labels, batch_size=batch, epochs=1, verbose=0)
    rates.append(samples / (time.perf_counter() - began))
print(json.dumps(rates))
"""
)
TORCH = (
    _ARRAYS
    + """
import torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layers, channels, side = [], 1, pixels
for number in filters:
    layers += [torch.nn.Conv2d(channels, number, 3, padding=1), torch.nn.BatchNorm2d(number),
               torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    channels, side = number, side // 2
model = torch.nn.Sequential(*layers, torch.nn.Flatten(),
                            torch.nn.Linear(channels * side * side, 64), torch.nn.ReLU(),
                            torch.nn.Linear(64, 10)).to(device)
if len(sys.argv) > 2:
    model = torch.compile(model, mode=sys.argv[2])
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
labels = torch.from_numpy(labels)
if device.type == "cuda":
    images = images.pin_memory()
for _ in range(epochs):
    began, order = time.perf_counter(), torch.randperm(samples)
    for rows in order.split(batch):
        optimizer.zero_grad(set_to_none=True)
        outputs = model(images[rows].to(device, non_blocking=True))
        targets = labels[rows].to(device, non_blocking=True)
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        loss.backward()
        optimizer.step()
    loss.item()
    rates.append(samples / (time.perf_counter() - began))
print(json.dumps(rates))
"""
)

# Transfer rates of arrays from registered and other memory to the device, and of a state back.
_ENGINE = """
import json, sys, time
import numpy as np
from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.spec import parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
spec = parse({"models": [{"family": "resnet", "args": json.loads(sys.argv[1])}],
              "resources": {"engine": sys.argv[2]}})
sample = SampleSpec(ArraySpec((32, 32, 3), "uint8"), 10, Affine(0.5, 0.5))
engine = make_engine(spec, sample, None, 0, 1)
warnings, rates = [], {}
"""
_TIMED = """
for memory, upload in (("registered", registered), ("pageable", pageable)):
    for mb in (1, 10, 40):
        array, times = np.ones(mb << 20, np.uint8), []
        for _ in range(12):
            began = time.perf_counter()
            upload(array)
            times.append(time.perf_counter() - began)
        rates[f"{memory}, {mb} MB"] = (mb << 20) / 1e9 / sorted(times)[len(times) // 2]
network = engine.build(spec.networks[0], SingleRankGroup())
times = []
for _ in range(5):
    began = time.perf_counter()
    state = network.state()
    times.append(time.perf_counter() - began)
state_mb = sum(array.nbytes for array in state.values()) / 1e6
print(json.dumps({"copies": rates, "warnings": warnings, "state_mb": state_mb,
                  "state_ms": 1e3 * sorted(times)[2]}))
"""
KERAS_COPIES = (
    _ENGINE
    + """
from fleet.engines.keras.step_queue import InputBuffers
from launch.pinned_memory import Pinning
pinned, plain = InputBuffers(Pinning(0, warnings.append)), InputBuffers()
registered = lambda array: pinned.upload([array])
pageable = lambda array: plain.upload([array])
"""
    + _TIMED
)
TORCH_COPIES = (
    _ENGINE
    + """
import torch
from fleet.engines.torch.flat_parameters import to_device, as_tensor
cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
wait = torch.cuda.synchronize if cuda else lambda: None
registered = lambda array: (to_device(array, device), wait())
pageable = lambda array: (as_tensor(array).to(device), wait())
"""
    + _TIMED
)

# A second slot of a GPU allocates up to its limit, and then a little more.
KERAS_LIMIT = """
import json, sys
import tensorflow as tf
from fleet.engines.base import EngineContext, Slot
from fleet.engines.keras.engine import configure_device
from fleet.spec import Resources
from preprocess.sample import ArraySpec, SampleSpec
slot = Slot(1, 2, memory_mib=int(sys.argv[1]))
sample = SampleSpec(ArraySpec((1, 1, 1), "uint8"), 2)
configure_device(EngineContext(sample, Resources(), trainers=2, slot=slot))
held, mib = [], 0
try:
    while mib < slot.memory_limit + 2048:
        held.append(tf.zeros((256, 2**20), tf.uint8))
        mib += 256
except tf.errors.ResourceExhaustedError:
    pass
print(json.dumps([slot.memory_limit, mib]))
"""
TORCH_LIMIT = """
import json, sys
import torch
from fleet.engines.base import EngineContext, Slot
from fleet.engines.torch.engine import configure_device
from fleet.spec import Resources
from preprocess.sample import ArraySpec, SampleSpec
slot = Slot(1, 2, memory_mib=int(sys.argv[1]))
sample = SampleSpec(ArraySpec((1, 1, 1), "uint8"), 2)
device = configure_device(EngineContext(sample, Resources(), trainers=2, slot=slot))
held, mib = [], 0
try:
    while mib < slot.memory_limit + 2048:
        held.append(torch.zeros((256, 2**20), dtype=torch.uint8, device=device))
        mib += 256
except torch.OutOfMemoryError:
    pass
print(json.dumps([slot.memory_limit, mib]))
"""


class Engine(NamedTuple):
    """An engine, and its benchmark scripts.

    Attributes:
        library: The library that it requires.
        rival: Name of the program without FLEET, which is ``loop``.
        loop, copies, limit: Scripts.
    """

    library: str
    rival: str
    loop: str
    copies: str
    limit: str


ENGINES = {
    "keras": Engine("tensorflow", "model.fit", KERAS, KERAS_COPIES, KERAS_LIMIT),
    "torch": Engine("torch", "a loop", TORCH, TORCH_COPIES, TORCH_LIMIT),
}


class Skipped(Exception):
    """A part that cannot be measured here; the message is the reason."""


@dataclass
class Report:
    """The measurements.

    Attributes:
        device: The device and the machine.
        rows: ``measurement``, ``value`` and ``unit``; some with a ``reference`` and a ``ratio``.
        skipped: ``measurement`` and ``reason``.
        seconds: Duration of the benchmark.
    """

    device: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(
        self, label: str, value: float, unit: str, reference: str = "", ratio: float | None = None
    ) -> None:
        self.rows.append(
            {
                "measurement": label,
                "value": value,
                "unit": unit,
                "reference": reference,
                "ratio": ratio,
            }
        )
        text = f", {ratio:.3g} x {reference}" if ratio else ""
        print(f"  {label}: {value:.4g} {unit}{text}", file=sys.stderr, flush=True)

    def skip(self, label: str, reason: str) -> None:
        self.skipped.append({"measurement": label, "reason": reason})
        print(f"  {label}: skipped: {reason}", file=sys.stderr, flush=True)

    def markdown(self) -> str:
        """Format a page: the device, a table of rows, and the skipped parts."""
        keys = ["measurement", "value", "unit", "reference", "ratio"]
        rows = table(
            keys,
            [
                [f"{row[key]:.4g}" if isinstance(row[key], float) else row[key] for key in keys]
                for row in self.rows
            ],
        )
        device = ", ".join(f"{name}: {value}" for name, value in self.device.items())
        skipped = (
            "\n".join(f"- {entry['measurement']}: {entry['reason']}" for entry in self.skipped)
            or "Nothing."
        )
        title = f"# GPU benchmarks\n\n{device}; {self.seconds:.0f} s."
        return f"{title}\n\n{rows}\n\n## Skipped\n\n{skipped}\n"


class Bench:
    """All parts, within a time limit.

    Args:
        gpus: The visible GPUs; none with ``--cpu``.
        seconds: Limit of all parts.
        folder: Receives runs and caches.
    """

    def __init__(self, gpus: tuple[str, ...], seconds: float, folder: Path) -> None:
        self.gpus = gpus
        self._folder = folder
        self._deadline_s = time.monotonic() + seconds
        self._max_part_s = seconds / 4
        self._first: dict[tuple[str, str], float] = {}
        self.samples = 32768 if gpus else 1024
        self.epochs = 5 if gpus else 3
        self.filters = [32, 64] if gpus else [8]
        memory = memory_mib(gpus[0]) if gpus else None
        self.memory = memory
        self.report = Report(
            {
                "GPUs": len(gpus),
                "memory_mib": memory,
                "cores": len(os.sched_getaffinity(0)),
                "machine": platform.machine(),
                "python": platform.python_version(),
                "mps": shutil.which(CONTROL) is not None,
            }
        )

    @property
    def remaining_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def run_part(self, label: str, measure: Callable[[], None]) -> None:
        """Run one part, which may fail or lack time without affecting the others."""
        print(label, file=sys.stderr, flush=True)
        try:
            if self.remaining_s < _MIN_PART_S:
                raise Skipped("no time left; increase --seconds")
            measure()
        except Skipped as reason:
            self.report.skip(label, str(reason))
        except subprocess.TimeoutExpired:
            self.report.skip(label, "not finished in the remaining time; increase --seconds")
        except Exception as error:  # the other parts still go to the page
            self.report.skip(
                label, f"failed: {type(error).__name__}: {' '.join(str(error).split())[-400:]}"
            )

    # ---- helpers ----

    def call(
        self, command: list[str], status: int = 0, environment: dict[str, str] | None = None
    ) -> str:
        """Run a command in the remaining time; return its output."""
        process = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment() | (environment or {}),
            timeout=min(self.remaining_s, self._max_part_s),
            text=True,
            capture_output=True,
            check=False,
        )
        if process.returncode != status:
            raise RuntimeError(
                f"status {process.returncode}: {process.stdout[-300:]} {process.stderr[-600:]}"
            )
        return process.stdout

    def environment(self) -> dict[str, str]:
        """Return the variables of a command that sees the GPUs."""
        return os.environ | {
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),  # none with --cpu
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "XDG_CACHE_HOME": str(self._folder / "cache"),
        }

    def python(self, script: str, *arguments: str) -> Any:
        """Return the object in the last line of a script's output."""
        return json.loads(self.call([sys.executable, "-c", script, *arguments]).splitlines()[-1])

    def run(
        self, name: str, ranks: int, models: list[dict[str, Any]], status: int = 0, **sections: Any
    ) -> RunPaths:
        folder = self._folder / name.replace(" ", "-")
        folder.mkdir()
        spec = self.write_spec(folder, models, **sections)
        self.call([*mpirun(ranks), "-m", "fleet.run", str(spec), "--plain"], status)
        return RunPaths(folder / "run")

    def write_spec(self, folder: Path, models: list[dict[str, Any]], **sections: Any) -> Path:
        """Write a spec whose run is in the folder; return its path."""
        content = {
            "name": "gpu",
            "output": str(folder / "run"),
            "models": models,
            "data": {
                "source": "builtin:noise",
                "options": {"samples": self.samples, "size": 32},
                "validation": None,
                "cache": "memory",
                "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
            },
            "train": TRAIN | {"stopping": {"monitor": "loss", "max_epochs": self.epochs}},
            **sections,
        }
        path = folder / "spec.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    # ---- the parts ----

    def measure_one(self, name: str) -> None:
        """Measure one network with cached samples, and a plain loop over samples in memory."""
        records = self.train_one(name)
        rate = median_rate(records)
        rates = self.loop_rates(name)
        self.report.add(
            f"{name}: one network",
            rate,
            "samples/s",
            ENGINES[name].rival,
            rate / statistics.median(rates),
        )
        self.report.add(
            f"{name}: time that one network waits for samples",
            100
            * sum(record.waited_s for record in records)
            / sum(record.seconds for record in records),
            "%",
        )

    def measure_compiled(self) -> None:
        """Measure one network of PyTorch with ``train.compile``, a plain loop, and a compiled one.

        The compiled loop uses CUDA graphs, as FLEET does.
        """
        rate = median_rate(self.train_one("torch", compile=True))
        for reference, options in (
            ("a loop", ()),
            ("a loop, compiled with CUDA graphs", ("reduce-overhead",)),
        ):
            rates = self.loop_rates("torch", *options)
            self.report.add(
                f"torch: one compiled network, beside {reference}",
                rate,
                "samples/s",
                reference,
                rate / statistics.median(rates),
            )

    def train_one(self, name: str, **train: Any) -> list[EpochRecord]:
        """Train a network alone, with settings of its training; return its epochs but the first.

        The first epoch compiles.
        """
        model = {"family": "cnn", "name": "cnn", "args": {"filters": self.filters, "dense": [64]}}
        label = " ".join(["alone", name, *train])
        paths = self.run(label, 2, [model | {"train": train}], resources=self.resources(name))
        return [event.record for event in events_of(paths.events, EpochEnded)][1:]

    def loop_rates(self, name: str, *options: str) -> list[float]:
        """Return the samples per second of epochs of a loop without FLEET, but for the first."""
        sizes = json.dumps([self.samples, 32, self.epochs, BATCH, self.filters])
        rates: list[float] = self.python(ENGINES[name].loop, sizes, *options)
        return rates[1:]

    def resources(self, name: str) -> dict[str, Any]:
        """Return the resources of a run on one GPU, or on cores."""
        return {"engine": name, "preprocessors": 1} | ({"gpus_per_node": 1} if self.gpus else {})

    def measure_sharing(self, name: str, slots: int) -> None:
        """Measure ``slots`` networks on the first GPU, with MPS if available."""
        options = ["--epochs=6", "--samples=8192", "--filters", "8"]
        if self.gpus:
            options = ["--epochs=6", f"--samples={2 * self.samples}"]
        results = json.loads(
            self.call(
                [
                    sys.executable,
                    "benchmarks/sharing.py",
                    "--rounds=1",
                    "--json",
                    "--engine",
                    name,
                    "--slots",
                    str(slots),
                    *options,
                ]
            )
        )
        [network] = results["rounds"][str(slots)]
        for key, unit in (("samples_per_s", "samples/s"), ("networks_per_min", "networks/min")):
            first = self._first.setdefault((name, key), network[key])
            self.report.add(
                f"{name}: {slots} on {results['device']}",
                network[key],
                unit,
                "the fewest networks",
                network[key] / first,
            )

    def measure_copies(self, name: str) -> None:
        """Measure the transfer of inputs to the device, and of a network's state to the host."""
        results = self.python(
            ENGINES[name].copies,
            json.dumps({} if self.gpus else {"blocks": [1, 1], "width": 16}),
            name,
        )
        for label, rate in results["copies"].items():
            self.report.add(f"{name}: inputs to the device: {label}", rate, "GB/s")
        self.report.add(
            f"{name}: state of a network of {results['state_mb']:.3g} MB to the host",
            results["state_ms"],
            "ms",
        )
        if results["warnings"]:
            self.report.skip(f"{name}: inputs from registered memory", results["warnings"][0])

    def measure_regroup(self, name: str, exchange: str = "mpi") -> None:
        """Measure checkpoints and changes of a group; groups need a GPU per rank."""
        if 0 < len(self.gpus) < 4:
            raise Skipped(f"groups of 1, 2 and 4 ranks need 4 GPUs; found {len(self.gpus)}")
        text = self.call(
            [
                *mpirun(4),
                "benchmarks/regroup.py",
                f"--exchange={exchange}",
                *(["--repeat=2"] if self.gpus else ["--repeat=1", "--filters=4"]),
                "--json",
                f"--engine={name if self.gpus or exchange != 'mpi' else 'numpy'}",
            ]
        )
        for row in json.loads(text[text.index("[") :]):
            for way in ("regroup", "restart"):
                self.report.add(
                    f"{name}: a group from {row['before']} to {row['after']} ranks, by {way}",
                    row[way],
                    "ms",
                )

    def measure_limit(self, name: str) -> None:
        """Check that the second slot of a GPU stays within its share."""
        if self.memory is None:
            raise Skipped(
                "the memory of the GPU is unknown" if self.gpus else "cores have no limit"
            )
        limit, took = self.python(ENGINES[name].limit, str(self.memory))
        self.report.add(
            f"{name}: a second slot, limited to {limit} MiB, allocated",
            took,
            "MiB",
            "its limit",
            took / limit,
        )

    def check_too_large(self, name: str) -> None:
        """Check what happens to a network that does not fit into memory, and to the next one."""
        if not self.gpus:
            raise Skipped("it would exhaust the memory of the machine")
        fits = {"family": "cnn", "name": "fits", "args": {"filters": [8], "dense": [16]}}
        large = {
            "family": "cnn",
            "name": "large",
            "args": {"filters": [8192, 8192], "dense": [16]},
            "train": {"batch": {"size": self.samples}},
        }
        paths = self.run(
            f"too large {name}", 2, [large, fits], status=3, resources=self.resources(name)
        )
        reasons = [event.reason for event in events_of(paths.events, NetworkFailed)]
        done = {event.network for event in events_of(paths.events, EpochEnded)}
        self.report.add(
            f"{name}: a network that is too large failed: out of memory",
            float(len(reasons) == 1 and reasons[0].startswith("out of memory")),
            "(1: yes)",
        )
        self.report.add(
            f"{name}: the next network on that GPU trained to its end",
            float(done == {"fits"}),
            "(1: yes)",
        )

    # ---- groups of GPUs ----

    @property
    def _members(self) -> int:
        return len(self.gpus) or 2

    def measure_process_groups(self) -> None:
        """Measure sums, new process groups, and NCCL's own changes of them."""
        options = [] if self.gpus else ["--cpu", "--mb", "1", "--repeats", "2"]
        text = self.call([*mpirun(self._members), "benchmarks/gpu_groups.py", *options])
        for row in json.loads(text.splitlines()[-1]):
            label = " ".join(
                [
                    row["what"],
                    *([f"of {row['mb']:g} MB by {row['by']}"] if "mb" in row else []),
                    *([f"from {row['before']}"] if "before" in row else []),
                    f"on {row['ranks']} ranks",
                ]
            )
            unit = "ms" if "ms" in row else "mib"
            self.report.add(f"torch: {label}", row[unit], {"mib": "MiB"}.get(unit, unit))

    def _networks(self, epochs: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {
                "family": "cnn",
                "name": f"cnn-{index}",
                "args": {"filters": self.filters, "dense": [64]},
                "gpus": [1, self._members],
                "train": {"stopping": {"monitor": "loss", "max_epochs": count}},
            }
            for index, count in enumerate(epochs)
        ]

    def _group_sections(self) -> dict[str, Any]:
        gpus = {"gpus_per_node": self._members} if self.gpus else {}
        return {
            "resources": {"engine": "torch", "preprocessors": 1, "exchange": "library", **gpus},
            "schedule": {"policy": "adaptive"},
        }

    def measure_waiting(self) -> None:
        """Measure for how long GPUs wait for changes of groups, as networks end one by one."""
        epochs = [self.epochs * (1 + index) for index in range(self._members)]
        paths = self.run(
            "group changes", 1 + self._members, self._networks(epochs), **self._group_sections()
        )
        [end] = events_of(paths.events, LaunchEnded)
        changes = events_of(paths.events, GroupChanged)
        self.report.add("torch: changes of a group within an epoch", float(len(changes)), "")
        share = 100 * end.regrouping_s / (end.seconds * self._members)
        self.report.add("torch: GPU time that waits for changes of groups", share, "%")

    def measure_death(self) -> None:
        """Measure how long a group needs to train on after one of its ranks was killed."""
        folder = self._folder / "death"
        folder.mkdir()
        models = self._networks([20 * self.epochs])
        models[0]["gpus"] = self._members
        spec = self.write_spec(folder, models, **self._group_sections())
        command = [*mpirun(1 + self._members, survive=True), "-m", "fleet.run", str(spec)]
        paths = RunPaths(folder / "run")
        environment = self.environment()
        with subprocess.Popen(
            [*command, "--plain"],
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                self._wait_for(lambda: len(events_of(paths.events, EpochEnded)) > 1, process)
                epochs = len(events_of(paths.events, EpochEnded))
                killed_s = time.monotonic()
                os.kill(_process_of_rank(process.pid, self._members), signal.SIGKILL)
                self._wait_for(lambda: bool(events_of(paths.events, RankDied)), process)
                noticed_s = time.monotonic()
                # Fewer GPUs than the network asked for: it ends, unless it may have fewer.
                self._wait_for(
                    lambda: (
                        len(events_of(paths.events, EpochEnded)) > epochs
                        or bool(events_of(paths.events, LaunchEnded))
                    ),
                    process,
                )
                self.report.add(
                    "torch: the death of a rank was noticed after", noticed_s - killed_s, "s"
                )
                self.report.add(
                    "torch: its network had trained another epoch, or was saved, after",
                    time.monotonic() - killed_s,
                    "s",
                )
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _wait_for(self, happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + min(self.remaining_s, self._max_part_s)
        while not happened():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"not in time, or the launch ended: {process.poll()}")
            time.sleep(0.05)

    def run_groups(self) -> Report:
        """Run the parts on groups."""
        began = time.monotonic()
        if len(self.gpus) == 1:
            self.report.skip("groups", "they need at least 2 GPUs; found 1")
        elif importlib.util.find_spec("torch") is None:
            self.report.skip("groups", "torch is not installed")
        else:
            parts: dict[str, Callable[[], None]] = {
                "sums and process groups": self.measure_process_groups,
                "changes of a group": partial(self.measure_regroup, "torch", "library"),
                "GPUs that wait for changes": self.measure_waiting,
                "a death": self.measure_death,
            }
            for label, measure in parts.items():
                self.run_part(label, measure)
        self.report.seconds = time.monotonic() - began
        return self.report

    def run_all(self) -> Report:
        """Run all parts."""
        began = time.monotonic()
        parts: dict[str, Callable[[str], None]] = {
            "one network, and a plain loop": self.measure_one,
            "inputs and checkpoints": self.measure_copies,
            "memory limits": self.measure_limit,
            "out of memory": self.check_too_large,
            "changes of a group": self.measure_regroup,
        }
        for slots in (1, 2, 4, 8) if self.gpus else (1, 2):
            parts[f"{slots} on one device"] = partial(self.measure_sharing, slots=slots)
        for name, engine in ENGINES.items():
            if importlib.util.find_spec(engine.library) is None:
                self.report.skip(name, f"{engine.library} is not installed")
                continue
            for label, measure in parts.items():
                self.run_part(f"{name}: {label}", partial(measure, name))
        if importlib.util.find_spec("torch") is not None:
            self.run_part("torch: one compiled network", self.measure_compiled)
        if not self.report.device["mps"]:
            self.report.skip("networks on one GPU with MPS", f"{CONTROL} is not installed")
        self.report.seconds = time.monotonic() - began
        return self.report


def median_rate(records: Sequence[EpochRecord]) -> float:
    """Return the median samples per second of epochs."""
    return statistics.median(record.samples / record.seconds for record in records)


def _process_of_rank(session: int, rank: int) -> int:
    """Return the process id of a rank in a session.

    Raises:
        LookupError: there is none.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_member = os.getsid(int(entry.name)) == session
            variables = (entry / "environ").read_bytes().split(b"\0")
            if is_member and f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
                return int(entry.name)
    raise LookupError(f"no process is rank {rank}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="gpu", help="path of the files, without suffix")
    parser.add_argument("--seconds", type=float, default=480.0, help="time limit")
    parser.add_argument("--cpu", action="store_true", help="use no GPU, to test the script")
    parser.add_argument("--groups", action="store_true", help="measure groups of GPUs")
    args = parser.parse_args()
    gpus = () if args.cpu else visible_gpus(os.environ)
    if not gpus and not args.cpu:
        parser.error("no GPU found; --cpu tests the script without one")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(gpus, args.seconds, Path(folder))
        results = bench.run_groups() if args.groups else bench.run_all()
    out = Path(args.out)
    out.with_suffix(".json").write_text(json.dumps(asdict(results), indent=1))
    out.with_suffix(".md").write_text(results.markdown())
    print(results.markdown())


if __name__ == "__main__":
    main()
