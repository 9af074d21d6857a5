"""What FLEET does on a machine with GPUs: one command for the first one, of at most eight minutes, without a network.

    python benchmarks/gpu.py [--out gpu] [--seconds 480] [--cpu]

For the engines keras and torch, as far as their libraries are there, it measures one network alone beside plain Keras,
or a plain PyTorch loop, on the same samples, K = 1, 2, 4 and 8 networks on one GPU, how fast inputs go to it, what
checkpoints and changes of a group take, whether limits of memory hold, and what becomes of a network that is too large.
It writes `gpu.json` and `gpu.md`: a row for each number, and what was skipped, and why. With `--cpu` all is small,
and runs on cores: that tries the script, and says nothing about GPUs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from document import table

from fleet.api import mpirun
from fleet.domain.events import EpochEnded, NetworkFailed
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from launch.devices import memory_mib, visible_gpus
from launch.mps import CONTROL

ROOT = Path(__file__).parents[1]
BATCH = 128
_LEAST_S = 15  # of what is left, below which no part is begun
TRAIN = {
    "batch": {"size": BATCH},
    "optimizer": {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9},
}

# The other sides of one network alone: nothing of FLEET but the network, and the same samples in memory.
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
    layers += [torch.nn.Conv2d(channels, number, 3, padding=1), torch.nn.BatchNorm2d(number), torch.nn.ReLU(),
               torch.nn.MaxPool2d(2)]
    channels, side = number, side // 2
model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(channels * side * side, 64), torch.nn.ReLU(),
                            torch.nn.Linear(64, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
images, labels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)
if device.type == "cuda":
    images = images.pin_memory()
for _ in range(epochs):
    began, order = time.perf_counter(), torch.randperm(samples)
    for rows in order.split(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images[rows].to(device, non_blocking=True)),
                                                 labels[rows].to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
    loss.item()
    rates.append(samples / (time.perf_counter() - began))
print(json.dumps(rates))
"""
)

# How fast arrays go to the device, from memory that its driver knows of and from other; and a network's state back.
_ENGINE = """
import json, sys, time
import numpy as np
from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.spec import parse
from preprocess.sample import Affine, ImageSpec, SampleSpec
spec = parse({"models": [{"family": "resnet", "args": json.loads(sys.argv[1])}], "resources": {"engine": sys.argv[2]}})
engine = make_engine(spec, SampleSpec(ImageSpec((32, 32, 3), "uint8"), 10, Affine(0.5, 0.5)), None, 0, 1)
said, found = [], {}
"""
_TIMED = """
for what, put in (("registered", registered), ("pageable", pageable)):
    for mb in (1, 10, 40):
        array, times = np.ones(mb << 20, np.uint8), []
        for _ in range(12):
            began = time.perf_counter()
            put(array)
            times.append(time.perf_counter() - began)
        found[f"{what}, {mb} MB"] = (mb << 20) / 1e9 / sorted(times)[len(times) // 2]
network = engine.build(spec.networks[0], SingleRankGroup())
times = []
for _ in range(5):
    began = time.perf_counter()
    state = network.state()
    times.append(time.perf_counter() - began)
print(json.dumps({"copies": found, "said": said, "state_mb": sum(array.nbytes for array in state.values()) / 1e6,
                  "state_ms": 1e3 * sorted(times)[2]}))
"""
KERAS_COPIES = (
    _ENGINE
    + """
from fleet.engines.keras.step_queue import InputBuffers
from launch.pinned_memory import Pinning
pinned, plain = InputBuffers(Pinning(0, said.append)), InputBuffers()
registered, pageable = lambda array: pinned.upload([array]), lambda array: plain.upload([array])
"""
    + _TIMED
)
TORCH_COPIES = (
    _ENGINE
    + """
import torch
from fleet.engines.torch.flat_parameters import to_device, as_tensor
cuda = torch.cuda.is_available()
device, wait = torch.device("cuda" if cuda else "cpu"), torch.cuda.synchronize if cuda else lambda: None
registered = lambda array: (to_device(array, device), wait())
pageable = lambda array: (as_tensor(array).to(device), wait())
"""
    + _TIMED
)

# A slot that is not the first of its GPU takes what it may, and then a little more.
KERAS_LIMIT = """
import json, sys
import tensorflow as tf
from fleet.engines.base import Slot
from fleet.engines.keras.engine import configure_device
slot = Slot(1, 2, memory_mib=int(sys.argv[1]))
configure_device(0, 2, slot=slot)
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
from fleet.engines.base import Slot
from fleet.engines.torch.engine import configure_device
slot = Slot(1, 2, memory_mib=int(sys.argv[1]))
device = configure_device(0, 2, slot=slot)
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
    """An engine, and what it is measured by.

    Attributes:
        library: that it takes.
        rival: what people write without it; ``loop`` is that.
        loop, copies, limit: scripts.
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
    """A part cannot be measured here; the message says why."""


@dataclass
class Found:
    """What was measured, as it is written.

    Attributes:
        device: what it was measured on.
        rows: ``what``, ``value`` and ``unit``; of some also what ``beside`` it was measured, and that one's ``ratio``.
        skipped: ``what`` and ``why``.
        seconds: that it took.
    """

    device: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(
        self, label: str, value: float, unit: str, comparison: str = "", ratio: float | None = None
    ) -> None:
        self.rows.append(
            {"what": label, "value": value, "unit": unit, "beside": comparison, "ratio": ratio}
        )
        comparison = f", {ratio:.3g} x {comparison}" if ratio else ""
        print(f"  {label}: {value:.4g} {unit}{comparison}", file=sys.stderr, flush=True)

    def skip(self, label: str, reason: str) -> None:
        self.skipped.append({"what": label, "why": reason})
        print(f"  {label}: skipped: {reason}", file=sys.stderr, flush=True)

    def markdown(self) -> str:
        """A page: the device, a table of rows, and what was skipped."""
        keys = ["what", "value", "unit", "beside", "ratio"]
        rows = table(
            keys,
            [
                [f"{row[key]:.4g}" if isinstance(row[key], float) else row[key] for key in keys]
                for row in self.rows
            ],
        )
        device = ", ".join(f"{name}: {value}" for name, value in self.device.items())
        skipped = (
            "\n".join(f"- {entry['what']}: {entry['why']}" for entry in self.skipped) or "Nothing."
        )
        return (
            f"# On a GPU\n\n{device}; {self.seconds:.0f} s.\n\n{rows}\n\n## Skipped\n\n{skipped}\n"
        )


class Bench:
    """All parts, within a time.

    Args:
        gpus: that this process is shown; none with ``--cpu``.
    """

    def __init__(self, gpus: tuple[str, ...], seconds: float, folder: Path) -> None:
        self.gpus, self._folder = gpus, folder
        self._ends, self._most_s = time.monotonic() + seconds, seconds / 4
        self._first: dict[tuple[str, str], float] = {}
        self.samples, self.epochs, self.filters = (32768, 5, [32, 64]) if gpus else (1024, 3, [8])
        memory = memory_mib(gpus[0]) if gpus else None
        self.memory = memory
        self.found = Found(
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
    def left_s(self) -> float:
        return self._ends - time.monotonic()

    def part(self, label: str, measure: Callable[[], None]) -> None:
        """A part, which may fail, or have no time left, without the others."""
        print(label, file=sys.stderr, flush=True)
        try:
            if self.left_s < _LEAST_S:
                raise Skipped("there is no time left: --seconds")
            measure()
        except Skipped as why:
            self.found.skip(label, str(why))
        except subprocess.TimeoutExpired:
            self.found.skip(label, "it did not end in the time that was left: --seconds")
        except Exception as error:  # a page with the other parts is worth more
            self.found.skip(
                label, f"it failed: {type(error).__name__}: {' '.join(str(error).split())[-400:]}"
            )

    # ---- what the parts do ----

    def call(
        self, command: list[str], status: int = 0, environment: dict[str, str] | None = None
    ) -> str:
        """Run a command in the time that is left; returns what it prints."""
        displayed = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}  # with --cpu none
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ
            | displayed
            | {
                "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                "XDG_CACHE_HOME": str(self._folder / "cache"),
                **(environment or {}),
            },
            timeout=min(self.left_s, self._most_s),
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode != status:
            raise RuntimeError(
                f"status {done.returncode}: {done.stdout[-300:]} {done.stderr[-600:]}"
            )
        return done.stdout

    def python(self, script: str, *arguments: str) -> Any:
        """The object that a script prints last."""
        return json.loads(self.call([sys.executable, "-c", script, *arguments]).splitlines()[-1])

    def run(
        self, name: str, ranks: int, models: list[dict[str, Any]], status: int = 0, **parts: Any
    ) -> RunPaths:
        """Run a spec."""
        folder = self._folder / name.replace(" ", "-")
        folder.mkdir()
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
            **parts,
        }
        (folder / "spec.yaml").write_text(yaml.safe_dump(content))
        self.call([*mpirun(ranks), "-m", "fleet.run", str(folder / "spec.yaml"), "--plain"], status)
        return RunPaths(folder / "run")

    # ---- the parts ----

    def alone(self, name: str) -> None:
        """One network alone, whose samples are kept, beside a plain loop over the same ones in memory."""
        model = {"family": "cnn", "name": "cnn", "args": {"filters": self.filters, "dense": [64]}}
        paths = self.run(f"alone {name}", 2, [model], resources=self.one_gpu(name))
        records = [event.record for event in events_of(paths.events, EpochEnded)][
            1:
        ]  # the first one compiles
        local_part = statistics.median(record.samples / record.seconds for record in records)
        rates = self.python(
            ENGINES[name].loop, json.dumps([self.samples, 32, self.epochs, BATCH, self.filters])
        )[1:]
        self.found.add(
            f"{name}: one network alone",
            local_part,
            "samples/s",
            ENGINES[name].rival,
            local_part / statistics.median(rates),
        )
        self.found.add(
            f"{name}: waits of one network alone for samples",
            100
            * sum(record.waited_s for record in records)
            / sum(record.seconds for record in records),
            "%",
        )

    def one_gpu(self, name: str) -> dict[str, Any]:
        """The resources of a run on one GPU, or on cores."""
        return {"engine": name, "preprocessors": 1} | ({"gpus_per_node": 1} if self.gpus else {})

    def together(self, name: str, slots: int) -> None:
        """So many networks on the first GPU; where there is MPS, with it."""
        options = (
            ["--epochs=6", f"--samples={2 * self.samples}"]
            if self.gpus
            else ["--epochs=6", "--samples=8192", "--filters", "8"]
        )
        account = json.loads(
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
        [network] = account["rounds"][str(slots)]
        for key, unit in (("together", "samples/s"), ("finished", "networks/min")):
            first = self._first.setdefault((name, key), network[key])
            self.found.add(
                f"{name}: {slots} on {account['device']}",
                network[key],
                unit,
                "the first of these",
                network[key] / first,
            )

    def copies(self, name: str) -> None:
        """How fast inputs go to the device, and what it takes to have the state of a network."""
        results = self.python(
            ENGINES[name].copies,
            json.dumps({} if self.gpus else {"blocks": [1, 1], "width": 16}),
            name,
        )
        for label, rate in results["copies"].items():
            self.found.add(f"{name}: inputs to the device: {label}", rate, "GB/s")
        self.found.add(
            f"{name}: state of a network of {results['state_mb']:.3g} MB to the host",
            results["state_ms"],
            "ms",
        )
        if results["said"]:
            self.found.skip(f"{name}: inputs from registered memory", results["said"][0])

    def regroup(self, name: str) -> None:
        """What checkpoints and changes of a group take; groups have a GPU for each rank."""
        ranks = 4 if len(self.gpus) >= 4 or not self.gpus else 0
        if not ranks:
            raise Skipped(f"groups of 1, 2 and 4 ranks want 4 GPUs, and there are {len(self.gpus)}")
        text = self.call(
            [
                *mpirun(ranks),
                "benchmarks/regroup.py",
                "--exchange=mpi",
                "--repeat=2",
                "--json",
                f"--engine={name if self.gpus else 'numpy'}",
            ]
        )
        for row in json.loads(text[text.index("[") :]):
            for way in ("regroup", "restart"):
                self.found.add(
                    f"{name}: a group from {row['before']} to {row['after']} ranks, by {way}",
                    row[way],
                    "ms",
                )

    def limit(self, name: str) -> None:
        """Whether a slot that is not the first of its GPU stays within its share."""
        if self.memory is None:
            raise Skipped(
                "the memory of a GPU is not known" if self.gpus else "cores have no limit of memory"
            )
        limit, took = self.python(ENGINES[name].limit, str(self.memory))
        self.found.add(
            f"{name}: a second slot, held to {limit} MiB, could take",
            took,
            "MiB",
            "its limit",
            took / limit,
        )

    def too_large(self, name: str) -> None:
        """What becomes of a network that needs more memory than there is, and of the one beside it."""
        if not self.gpus:
            raise Skipped("it would take the memory of the machine")
        fits = {"family": "cnn", "name": "fits", "args": {"filters": [8], "dense": [16]}}
        large = {
            "family": "cnn",
            "name": "large",
            "args": {"filters": [8192, 8192], "dense": [16]},
            "train": {"batch": {"size": self.samples}},
        }
        paths = self.run(
            f"too large {name}", 2, [large, fits], status=3, resources=self.one_gpu(name)
        )
        reasons = [event.reason for event in events_of(paths.events, NetworkFailed)]
        done = {event.network for event in events_of(paths.events, EpochEnded)}
        self.found.add(
            f"{name}: a network too large failed for lack of memory",
            float(len(reasons) == 1 and reasons[0].startswith("out of memory")),
            "(1: yes)",
        )
        self.found.add(
            f"{name}: and the one after it on its GPU trained to its end",
            float(done == {"fits"}),
            "(1: yes)",
        )

    def all(self) -> Found:
        """Measure everything."""
        began = time.monotonic()
        parts: dict[str, Callable[[str], None]] = {
            "one network alone, beside a plain loop": self.alone,
            "inputs and checkpoints": self.copies,
            "limits of memory": self.limit,
            "out of memory": self.too_large,
            "changes of a group": self.regroup,
        }
        for slots in (1, 2, 4, 8) if self.gpus else (1, 2):
            parts[f"{slots} on one device"] = partial(self.together, slots=slots)
        for name, engine in ENGINES.items():
            if importlib.util.find_spec(engine.library) is None:
                self.found.skip(name, f"{engine.library} is not installed")
                continue
            for label, measure in parts.items():
                self.part(f"{name}: {label}", partial(measure, name))
        if not self.found.device["mps"]:
            self.found.skip("networks on one GPU with MPS", f"{CONTROL} is not installed")
        self.found.seconds = time.monotonic() - began
        return self.found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="gpu", help="the files without their suffixes")
    parser.add_argument("--seconds", type=float, default=480.0, help="at most")
    parser.add_argument("--cpu", action="store_true", help="use no GPU: to try the script")
    args = parser.parse_args()
    gpus = () if args.cpu else visible_gpus(os.environ, os.listdir("/dev"))
    if not gpus and not args.cpu:
        parser.error("no GPU is at hand; --cpu tries the script without one")
    with tempfile.TemporaryDirectory() as folder:
        results = Bench(gpus, args.seconds, Path(folder)).all()
    out = Path(args.out)
    out.with_suffix(".json").write_text(json.dumps(asdict(results), indent=1))
    out.with_suffix(".md").write_text(results.markdown())
    print(results.markdown())


if __name__ == "__main__":
    main()
