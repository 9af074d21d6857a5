"""Keras models of several targets: equal to plain loops, and what they return and export."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import load_ensemble, make_engine
from fleet.engines.steps import StepBatches
from fleet.errors import ModelError
from fleet.spec import parse
from preprocess.record_target import RecordTarget
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.places import ROOT

pytestmark = pytest.mark.tensorflow

EPOCHS, BATCHES, ROWS = 10, 4, 16
EXAMPLE = {"digit": TargetSpec("class", 10), "ink": TargetSpec("value", 1)}
TARGETS = {"price": TargetSpec("value", 2), "kind": TargetSpec("class", 3)}
MODULE = """
import keras
import tensorflow as tf
from keras import layers

def network(input_shape, outputs, form="named"):
    rows = keras.Input(input_shape)
    price = layers.Dense(outputs["price"], name="price")(rows)
    activation = "softmax" if form == "softmax" else None
    kind = layers.Dense(outputs["kind"], activation, name="kind")(rows)
    if form == "mapping":
        return keras.Model(rows, {"kind": kind, "price": price})
    if form == "lacking":
        return keras.Model(rows, {"kind": kind, "cost": price})
    if form == "wide":
        return keras.Model(rows, {"kind": price, "price": price})
    return keras.Model(rows, kind if form == "tensor" else [kind, price])

def step(model, batch, training):
    kind, price = model(batch["input"], training=training)
    hits = tf.cast(tf.argmax(kind, -1) == batch["kind"], tf.float32)
    return {"loss": tf.reduce_mean(tf.square(price - batch["price"]), -1), "hits": hits}
"""


@pytest.fixture
def network_of(tmp_path, monkeypatch):
    """Return a function that builds a network of the module above."""
    (tmp_path / "two_keras_targets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def build(form="named", **train):
        sample = SampleSpec(ArraySpec((4,), "float32"), 5, target=RecordTarget.of(TARGETS))
        content = {
            "models": [{"build": "two_keras_targets:network", "args": {"form": form}}],
            "resources": {"engine": "keras"},
            "train": {"stopping": {"monitor": "val_loss"}, **train},
        }
        spec = parse(content)
        engine = make_engine(spec, sample, None, 0, 1)
        return engine.build(spec.networks[0], SingleRankGroup()), sample, spec

    yield build
    sys.modules.pop("two_keras_targets", None)


def rows_of(sample, count=8):
    """Return random inputs, targets and weights."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(count, 4)).astype(np.float32)
    return (inputs, *sample.target.split(sample.target.random_targets(random, count)))


@pytest.mark.long
def test_example_equals_a_plain_loop(monkeypatch):
    import keras
    import tensorflow as tf

    monkeypatch.syspath_prepend(str(ROOT / "examples" / "steps"))
    target = RecordTarget.of(EXAMPLE)
    sample = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 11, Affine(0.0, 1.0), target=target)
    content = {
        "models": [{"build": "keras_two_outputs:network", "args": {"width": 8}}],
        "resources": {"engine": "keras"},
        "train": {
            "loss": {"digit": "categorical_crossentropy", "ink": "huber"},
            "loss_weights": {"ink": 10},
            "optimizer": {"name": "adam", "learning_rate": 0.002},
        },
    }
    [network] = parse(content).networks
    engine = make_engine(parse(content), sample, None, 0, 1)
    trainable = engine.build(replace(network, seed=5), SingleRankGroup())
    model = keras.models.clone_model(trainable.model)
    model.set_weights(trainable.model.get_weights())
    optimizer = keras.optimizers.Adam(0.002)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (BATCHES * ROWS, 8, 8, 1)).astype(np.uint8)
    targets = target.random_targets(random, len(images))
    digit_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ink_loss = keras.losses.Huber()
    for _ in range(EPOCHS):
        for order in random.permutation(len(images)).reshape(BATCHES, ROWS):
            rows = targets[order]
            local_rows = (images[order], rows["target"], rows["weight"])
            trainable.begin_steps(StepBatches(local_rows, [ROWS], [ROWS]))()
            with tf.GradientTape() as tape:
                outputs = model(images[order] / np.float32(255), training=True)
                loss = digit_loss(rows["target"]["digit"], outputs["digit"])
                loss += 10 * ink_loss(rows["target"]["ink"], outputs["ink"])
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
    sys.modules.pop("keras_two_outputs", None)
    for trained, plain in zip(trainable.model.weights, model.weights, strict=True):
        np.testing.assert_allclose(trained.numpy(), plain.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["named", "mapping"])
def test_outputs_are_found_by_name(network_of, form):
    built, sample, _ = network_of(
        form,
        metrics={"price": ["mae"], "kind": ["AUC"]},
        loss={"price": "mae", "kind": "categorical_crossentropy"},
        loss_weights={"kind": 0.25},
    )
    inputs, targets, weights = rows_of(sample)
    weights[3] = -1
    totals, outputs = built.predict(inputs, targets, weights)
    scores = built.scores(totals.metric_totals)
    assert list(scores) == [
        "price_loss",
        "price_mae",
        "kind_loss",
        "kind_accuracy",
        "kind_AUC",
    ]
    usable = weights > 0
    errors = abs(outputs[usable, :2] - targets["price"][usable])
    assert scores["price_mae"] == pytest.approx(errors.mean())
    assert scores["price_loss"] == pytest.approx(errors.mean())
    hits = outputs[usable, 2:].argmax(1) == targets["kind"][usable]
    assert scores["kind_accuracy"] == pytest.approx(hits.mean())
    loss = scores["price_loss"] + 0.25 * scores["kind_loss"]
    assert totals.loss / totals.count == pytest.approx(loss, rel=1e-5)


def test_softmax_of_an_output_is_removed(network_of):
    built, sample, _ = network_of("softmax")
    inputs, targets, weights = rows_of(sample)
    outputs = built.predict(inputs, targets, weights)[1]
    assert outputs[:, 2:].min() < 0


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("lacking", "no output for the target price"),
        ("wide", "for the target kind, returns outputs of shape"),
        ("tensor", "as a list in this order, or as a mapping by name: price, kind"),
    ],
)
def test_wrong_outputs_are_refused(network_of, form, message):
    with pytest.raises(ModelError, match=message):
        network_of(form)


def test_step_of_the_user_gets_each_target(network_of):
    built, sample, _ = network_of(step="two_keras_targets:step")
    inputs, targets, weights = rows_of(sample)
    totals = built.user_steps.evaluate((inputs, targets, weights), np.arange(8))
    outputs = built.predict(inputs, targets, weights)[1]
    hits = outputs[:, 2:].argmax(1) == targets["kind"]
    assert built.scores(totals.metric_totals)["hits"] == pytest.approx(hits.mean())


def test_export_and_ensembles_predict_each_target(network_of, tmp_path):
    import keras

    built, sample, spec = network_of("mapping")
    path = tmp_path / "best.keras"
    built.export(built.state(), path)
    inputs, targets, weights = rows_of(sample)
    built.check_learns(inputs, targets)
    outputs = built.predict(inputs, targets, weights)[1]
    assert set(keras.saving.load_model(path)(inputs)) == {"price", "kind"}
    expected = sample.target.semantics.predictions(outputs)
    ensemble = load_ensemble(spec, [path], [1.0], sample.target)
    np.testing.assert_allclose(ensemble.predict(inputs), expected, atol=1e-6)
    ensemble.save(tmp_path / "joined.keras")
    joined = keras.saving.load_model(tmp_path / "joined.keras")(inputs)
    np.testing.assert_allclose(joined["kind"], expected[:, 2:], atol=1e-6)
