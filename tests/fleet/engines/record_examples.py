"""The data of the examples of several inputs, as an engine gets it and as a plain loop does."""

from dataclasses import replace

import numpy as np

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches
from fleet.spec import parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.places import ROOT

EPOCHS, BATCHES, ROWS = 10, 4, 16
RATE = 0.01
FOLDER = ROOT / "examples" / "records"
TARGET = TargetSpec("value", 1)
PARTS = {
    "photo": SampleSpec(ArraySpec((16, 16, 1), "uint8"), 1, Affine(0.5, 0.5), None, TARGET),
    "facts": SampleSpec(
        ArraySpec((2,), "float32"), 1, Affine((5.0, 40.0), (3.0, 12.0), 1.0), None, TARGET
    ),
}
SAMPLE = SampleSpec.of_parts(PARTS, TARGET)


def batches():
    """Yield photos, facts and weights of fish of all steps of ten epochs."""
    random = np.random.default_rng(0)
    count = BATCHES * ROWS
    photos = random.integers(0, 256, (count, 16, 16, 1)).astype(np.uint8)
    facts = random.uniform((1, 20), (10, 60), (count, 2)).astype(np.float32)
    weights = (facts[:, :1] / 10 + photos.mean((1, 2)) / 255).astype(np.float32)
    for _ in range(EPOCHS):
        for rows in random.permutation(count).reshape(BATCHES, ROWS):
            yield photos[rows], facts[rows], weights[rows]


def scaled_batches():
    """Yield batches as networks take them."""
    for photos, facts, weights in batches():
        yield (
            ((photos / 255 - 0.5) / 0.5).astype(np.float32),
            (facts - np.float32((5, 40))) / np.float32((3, 12)),
            weights,
        )


def build_example(name, engine):
    """Build the network of an example."""
    content = {
        "models": [{"build": f"{name}:network"}],
        "resources": {"engine": engine, "exchange": "mpi"},
        "train": {"optimizer": {"name": "adam", "learning_rate": RATE}},
    }
    [network] = parse(content).networks
    built = make_engine(parse(content), SAMPLE, None, 0, 1)
    return built.build(replace(network, seed=5), SingleRankGroup())


def train_example(trainable):
    """Train a network of an example for ten epochs."""
    for photos, facts, weights in batches():
        inputs = np.zeros(ROWS, SAMPLE.input.dtype)
        inputs["photo"], inputs["facts"] = photos, facts
        targets = np.zeros(ROWS, TARGET.wire)
        targets["target"], targets["weight"] = weights, 1
        local_rows = (inputs, *TARGET.split(targets))
        trainable.begin_steps(StepBatches(local_rows, [ROWS], [ROWS]))()
