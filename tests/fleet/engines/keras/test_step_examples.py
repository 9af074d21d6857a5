"""Each example of a training step of its own equals a plain loop of Keras, over ten epochs."""

import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.engines.steps import StepBatches
from fleet.spec import Resources, parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.places import ROOT

pytestmark = pytest.mark.tensorflow

EPOCHS, BATCHES, ROWS = 10, 4, 16
FOLDER = ROOT / "examples" / "steps"


@pytest.fixture(autouse=True)
def _import_examples(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("keras_vae", "keras_simclr"):
        sys.modules.pop(name, None)


def batches():
    """Yield images of blurred spots, and their rows, of all steps of ten epochs."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (BATCHES * ROWS, 4, 4, 1)).astype(np.uint8)
    images = images.repeat(4, 1).repeat(4, 2)
    for _ in range(EPOCHS):
        for rows in random.permutation(len(images)).reshape(BATCHES, ROWS):
            yield images[rows], rows


def built(name, mean, std, rate):
    """Build the network of an example."""
    from fleet.engines.keras.engine import KerasEngine

    target = TargetSpec("none", 0)
    sample = SampleSpec(ArraySpec((16, 16, 1), "uint8"), 0, Affine(mean, std), None, target)
    content = {
        "models": [{"build": f"{name}:network"}],
        "train": {
            "step": f"{name}:step",
            "optimizer": {"name": "adam", "learning_rate": rate},
            "stopping": {"monitor": "loss"},
        },
    }
    [network] = parse(content).networks
    engine = KerasEngine(EngineContext(sample, Resources(exchange="mpi")))
    return engine.build(replace(network, seed=5), SingleRankGroup())


def check_equal(name, mean, std, rate, loss_of):
    """Check that training equals a plain loop with a loss of (model, images, rows)."""
    import keras
    import tensorflow as tf

    trainable = built(name, mean, std, rate)
    for images, indices in batches():
        rows = (images, np.zeros(ROWS, np.int64))
        trainable.user_steps.begin(StepBatches(rows, [ROWS], [ROWS]), indices)()
    model = built(name, mean, std, rate).model
    optimizer = keras.optimizers.Adam(rate)
    for images, rows in batches():
        inputs = tf.constant(Affine(mean, std).apply(images))
        with tf.GradientTape() as tape:
            loss = loss_of(model, inputs, rows)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)
    for weight, expected in zip(trainable.model.weights, model.weights, strict=True):
        assert weight.numpy() == pytest.approx(expected.numpy(), abs=1e-5), weight.path


@pytest.mark.long
def test_vae_equals_a_plain_loop():
    import keras
    import tensorflow as tf

    error_of = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")

    def loss_of(model, images, _):
        logits, mean, log_variance = model(images, training=True)
        pixels = tf.reshape(images, (ROWS, 256, 1))
        error = error_of(pixels, logits[..., None])
        divergence = -0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance))
        return (error + divergence) / ROWS

    check_equal("keras_vae", 0.0, 1.0, 0.002, loss_of)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::fleet.errors.NetworkWarning")
def test_simclr_equals_a_plain_loop():
    import tensorflow as tf

    example = importlib.import_module("keras_simclr")

    def loss_of(model, images, rows):
        seed = np.array([rows[0], rows.sum()], np.int32)
        views = [model(example.view(images, seed + part), training=True) for part in (0, 1)]
        codes = tf.math.l2_normalize(tf.concat(views, 0), axis=1)
        loss = 0.0
        for first in range(2 * ROWS):
            similarities = tf.linalg.matvec(codes, codes[first]) / 0.5
            negatives = np.arange(2 * ROWS) != first
            partner = similarities[(first + ROWS) % (2 * ROWS)]
            loss += tf.reduce_logsumexp(similarities[negatives]) - partner
        return loss / (2 * ROWS)

    check_equal("keras_simclr", 0.5, 0.5, 0.003, loss_of)
