"""Training under FLEET against what people do without it; ratios, side by side, medians.

    python benchmarks/training.py [--repeat 5] [--ensembles 3]

1. samples/s of one network alone under FLEET (1 preprocessor, 1 trainer) against Keras' `model.fit` on the same
   decoded samples: same network, batch, optimizer, validation.
2. the demo's ensemble as its spec has it against `baseline` (one network a core, each preparing its own samples):
   seconds from the first group's start to the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from fleet.api import mpirun
from fleet.commands.show import print_json
from fleet.domain.events import EpochEnded, GroupStarted, GroupStopped
from fleet.storage.event_log import Logged, read_events
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table

ROOT = Path(__file__).parents[1]
EPOCHS, BATCH = 8, 64
MODEL = {"family": "cnn", "name": "cnn", "args": {"filters": [16, 32], "dense": [128]}}
TRANSFORMS = [{"decode": {"mode": "L"}}, {"scale": {"mean": 0.5, "std": 0.5}}]

# The other side: nothing of FLEET but the network and the decoded arrays.
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
    pipeline = Pipeline.probed(source, parse_transforms({TRANSFORMS!r}), 0)
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
model.fit(*train, batch_size={BATCH}, epochs={EPOCHS}, validation_data=validation, verbose=0, callbacks=[clock])
print(json.dumps(clock.rates))
"""


def launch(content: dict, folder: Path, ranks: int) -> list[Logged]:
    """Run a spec; returns its log."""
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({**content, "output": str(folder / "run")}))
    subprocess.run([*mpirun(ranks), "-m", "fleet.run", str(path), "--fresh", "--plain"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    return list(read_events(RunPaths(folder / "run").events))


def fleet_rate(folder: Path, digits: str) -> float:
    """Median samples/s of an epoch, validation included; the first epoch compiles."""
    log = launch({
        "name": "alone", "data": {"source": "builtin:digits", "path": digits, "transforms": TRANSFORMS},
        "models": [MODEL], "schedule": {"policy": "global"},
        "train": {"batch": {"size": BATCH}, "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
                  "converge": {"max_epochs": EPOCHS}},
        "resources": {"preprocessors": 1}}, folder, 2)
    epochs = [event.record for _, event in log if isinstance(event, EpochEnded)]
    return statistics.median(epoch.samples / epoch.seconds for epoch in epochs[1:])


def fit_rate(digits: str) -> float:
    """The same of `model.fit`."""
    done = subprocess.run([sys.executable, "-c", FIT, digits], cwd=ROOT, check=True, capture_output=True, text=True)
    return statistics.median(json.loads(done.stdout.splitlines()[-1])[1:])


def ensemble_seconds(folder: Path, digits: str, policy: str | None = None) -> float:
    """Seconds of training of the demo's ensemble, from the first group to the last."""
    content = yaml.safe_load((ROOT / "examples/digits.yaml").read_text())
    content["data"]["path"] = digits
    if policy is not None:
        content["schedule"] = {"policy": policy}
    log = launch(content, folder, 5)
    groups = [t_s for t_s, event in log if isinstance(event, GroupStarted)]
    stops = [t_s for t_s, event in log if isinstance(event, GroupStopped)]
    return max(stops) - min(groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ensembles", type=int, help="of the second comparison, which takes minutes (as --repeat)")
    parser.add_argument("--digits", default="data/digits", help="where the digits are, or go")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    digits = str(Path(arguments.digits).resolve())
    measured: dict[str, list[float]] = {"fleet": [], "fit": [], "demo": [], "baseline": []}
    ensembles = arguments.repeat if arguments.ensembles is None else arguments.ensembles
    for turn in range(max(arguments.repeat, ensembles)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if turn < arguments.repeat:
                measured["fleet"].append(fleet_rate(folder, digits))
                measured["fit"].append(fit_rate(digits))
            if turn < ensembles:
                measured["demo"].append(ensemble_seconds(folder, digits))
                measured["baseline"].append(ensemble_seconds(folder, digits, "baseline"))
    median = {name: statistics.median(values) for name, values in measured.items()}
    if arguments.json:
        print_json({"median": median, "all": measured})
        return
    print_table(["what", "FLEET", "without", "ratio"], [
        ["one network alone: samples/s, against model.fit", median["fleet"], median["fit"],
         median["fleet"] / median["fit"]],
        ["the demo's ensemble: seconds, as it is against baseline", median["demo"], median["baseline"],
         median["baseline"] / median["demo"]],
    ], title=f"medians of {arguments.repeat} and {ensembles}")


if __name__ == "__main__":
    main()
