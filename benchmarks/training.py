"""Compare training under FLEET with training without it: ratios of medians, side by side.

    python benchmarks/training.py [--repeat 5] [--ensembles 3] [--groups 3]

1. Samples/s of one network under FLEET (1 preprocessor, 1 trainer) and with Keras' `model.fit`, on
   the same decoded samples: same network, batch, optimizer, validation.
2. The demo's ensemble with its own policy and with `baseline` (one network per core, each of which
   prepares its own samples): seconds from the first group's start to the end.
3. Steps/s of a small and of a middle network on two ranks with Horovod, with as many steps per call
   of TensorFlow as FLEET takes and with one step per call: alternating epochs of the same launches.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from fleet.api import mpirun
from fleet.commands.output import print_json
from fleet.domain.events import EpochEnded, GroupStarted, GroupStopped
from fleet.domain.timeline import LoggedEvent
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table

ROOT = Path(__file__).parents[1]
EPOCHS, BATCH = 8, 64
MODEL = {"family": "cnn", "name": "cnn", "args": {"filters": [16, 32], "dense": [128]}}
GROUPS = {"small": [4], "middle": [16, 32]}  # filters of the networks on two ranks
SAMPLES = 8_192  # of the networks on two ranks
TRANSFORMS = [{"decode": {"mode": "L"}}, {"scale": {"mean": 0.5, "std": 0.5}}]

# The rival: only the network and the decoded arrays come from FLEET.
FIT = f"""
import json, sys, time
import numpy as np
from fleet.spec.model import Architecture
from fleet.engines.keras.models import build_model
from preprocess.pipeline import Pipeline
from preprocess.source import open_data
from preprocess.transforms import parse_transforms
import keras

data = open_data("builtin:digits", sys.argv[1], None, 0)
def arrays(source):
    pipeline = Pipeline.from_source(source, parse_transforms({TRANSFORMS!r}), 0)
    images, labels = pipeline.empty(len(source))
    pipeline.load(range(len(source)), 0, images, labels)
    return pipeline.sample.affine.apply(images), labels
model = build_model(Architecture("cnn", {MODEL["args"]!r}), (32, 32, 1), 10, 0)
model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), metrics=["accuracy"],
              loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
class Clock(keras.callbacks.Callback):
    rates = []
    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()
    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(len(data.train) / (time.perf_counter() - self.began))
clock = Clock()
train, validation = arrays(data.train), arrays(data.validation)
model.fit(*train, batch_size={BATCH}, epochs={EPOCHS}, validation_data=validation, verbose=0,
          callbacks=[clock])
print(json.dumps(clock.rates))
"""


# A rank that takes one step per call in half of its epochs. After the first epoch it takes
# several, one, one, several steps per call, and so on.
IN_TURNS = """
from fleet.run import main
from fleet.runtime.training import steps
from fleet.runtime.training.loop import TrainingLoop
several, consume = steps._MAX_STEPS, TrainingLoop._consume
def in_turns(self, training, state, *rest):
    steps._MAX_STEPS = several if state.epoch % 4 < 2 else 1
    return consume(self, training, state, *rest)
TrainingLoop._consume = in_turns
raise SystemExit(main())
"""


def launch(content: dict, folder: Path, ranks: int, *program: str) -> list[LoggedEvent]:
    """Run a spec with a program (default: the main job); return its log."""
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({**content, "output": str(folder / "run")}))
    subprocess.run(
        [*mpirun(ranks), *(program or ("-m", "fleet.run")), str(path), "--fresh", "--plain"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return list(read_events(RunPaths(folder / "run").events))


def fleet_rate(folder: Path, digits: str) -> float:
    """Return the median samples/s of an epoch, including validation; the first epoch compiles."""
    log = launch(
        {
            "name": "alone",
            "data": {"source": "builtin:digits", "path": digits, "transforms": TRANSFORMS},
            "models": [MODEL],
            "schedule": {"policy": "global"},
            "train": {
                "batch": {"size": BATCH},
                "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
                "stopping": {"max_epochs": EPOCHS},
            },
            "resources": {"preprocessors": 1},
        },
        folder,
        2,
    )
    epochs = [event.record for _, event in log if isinstance(event, EpochEnded)]
    return statistics.median(epoch.samples / epoch.seconds for epoch in epochs[1:])


def fit_rate(digits: str) -> float:
    """Return the median samples/s of an epoch of `model.fit`."""
    process = subprocess.run(
        [sys.executable, "-c", FIT, digits], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return statistics.median(json.loads(process.stdout.splitlines()[-1])[1:])


def ensemble_seconds(folder: Path, digits: str, policy: str | None = None) -> float:
    """Return the seconds of training of the demo's ensemble, from the first group to the last."""
    content = yaml.safe_load((ROOT / "examples/digits.yaml").read_text())
    content["data"]["path"] = digits
    if policy is not None:
        content["schedule"] = {"policy": policy}
    log = launch(content, folder, 5)
    groups = [t_s for t_s, event in log if isinstance(event, GroupStarted)]
    stops = [t_s for t_s, event in log if isinstance(event, GroupStopped)]
    return max(stops) - min(groups)


def group_rates(folder: Path, filters: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return steps/s of epochs on two ranks: with several steps per call, and with one."""
    (folder / "in_turns.py").write_text(IN_TURNS)
    log = launch(
        {
            "name": "pair",
            "data": {
                "source": "builtin:noise",
                "options": {"samples": SAMPLES, "size": 32},
                "validation": None,
                "cache": "memory",
                "transforms": TRANSFORMS[1:],
            },
            "models": [
                {
                    "family": "cnn",
                    "name": "pair",
                    "gpus": 2,
                    "args": {"filters": list(filters), "dense": [16]},
                }
            ],
            "train": {"batch": {"size": BATCH}, "stopping": {"monitor": "loss", "max_epochs": 7}},
            "resources": {"preprocessors": 1, "exchange": "horovod"},
        },
        folder,
        3,
        str(folder / "in_turns.py"),
    )
    rates = [
        SAMPLES / BATCH / event.record.seconds for _, event in log if isinstance(event, EpochEnded)
    ]
    return [rates[1], *rates[4:6]], [*rates[2:4], rates[6]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--ensembles",
        type=int,
        help="repetitions of the second comparison, which takes minutes (default: --repeat)",
    )
    parser.add_argument(
        "--groups", type=int, help="repetitions of the third comparison (default: --repeat)"
    )
    parser.add_argument(
        "--digits", default="data/digits", help="folder of the digits; created if missing"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    digits = str(Path(arguments.digits).resolve())
    measured: dict[str, list[float]] = {"fleet": [], "fit": [], "demo": [], "baseline": []}
    ensembles = arguments.repeat if arguments.ensembles is None else arguments.ensembles
    groups = arguments.repeat if arguments.groups is None else arguments.groups
    measured |= {f"{network}, {way}": [] for network in GROUPS for way in ("several", "one")}
    for turn in range(max(arguments.repeat, ensembles, groups)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for network, filters in GROUPS.items() if turn < groups else ():
                for way, rates in zip(
                    ("several", "one"), group_rates(folder, filters), strict=True
                ):
                    measured[f"{network}, {way}"] += rates
            if turn < arguments.repeat:
                measured["fleet"].append(fleet_rate(folder, digits))
                measured["fit"].append(fit_rate(digits))
            if turn < ensembles:
                measured["demo"].append(ensemble_seconds(folder, digits))
                measured["baseline"].append(ensemble_seconds(folder, digits, "baseline"))
    median = {
        name: statistics.median(values) if values else math.nan for name, values in measured.items()
    }
    if arguments.json:
        print_json({"median": median, "all": measured})
        return
    print_table(
        ["comparison", "FLEET", "without", "ratio"],
        [
            [
                "one network: samples/s; model.fit",
                median["fleet"],
                median["fit"],
                median["fleet"] / median["fit"],
            ],
            [
                "the demo's ensemble: seconds; policy baseline",
                median["demo"],
                median["baseline"],
                median["baseline"] / median["demo"],
            ],
            *(
                [
                    f"{network} network on two ranks: steps/s; one step per call",
                    median[f"{network}, several"],
                    median[f"{network}, one"],
                    median[f"{network}, several"] / median[f"{network}, one"],
                ]
                for network in GROUPS
            ),
        ],
        title=f"medians of {arguments.repeat}, {ensembles} and {groups}",
    )


if __name__ == "__main__":
    main()
