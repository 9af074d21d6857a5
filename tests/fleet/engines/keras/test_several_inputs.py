"""Keras models of several inputs, which they take by name."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.engines.steps import StepBatches
from fleet.errors import ModelError
from fleet.spec import Resources, parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import class_target
from tests.examples import long_but_first
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

PARTS = {
    "image": SampleSpec(ArraySpec((4, 4, 1), "uint8"), 3, Affine(0.5, 0.5)),
    "facts": SampleSpec(ArraySpec((5,), "float32"), 3, Affine((1.0,) * 5, (2.0,) * 5, 1.0)),
    "tokens": SampleSpec(ArraySpec((3,), "int64"), 3),
}
SAMPLE = SampleSpec.of_parts(PARTS, class_target(3))
RATE = 0.05
MODELS = ("three_inputs", "three_inputs_subclass")


def built(model="three_inputs", sample=SAMPLE, **train):
    from fleet.engines.keras.engine import KerasEngine

    train = {"optimizer": {"name": "sgd", "learning_rate": RATE}, **train}
    model = {"build": f"tests.keras_models:{model}"}
    [network] = parse({"models": [model], "train": train}).networks
    engine = KerasEngine(EngineContext(sample, Resources(exchange="mpi")))
    return engine.build(replace(network, seed=0), SingleRankGroup())


def rows_of(seed, count=12):
    random = np.random.default_rng(seed)
    return SAMPLE.input.random_inputs(random, count), random.integers(0, 3, count)


def plain_losses(model, batches):
    """Train a copy of a model by a plain loop; return it with its losses."""
    import keras
    import tensorflow as tf

    optimizer = keras.optimizers.SGD(RATE)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = []
    for inputs, labels in batches:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(SAMPLE.scale(inputs), training=True))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)
        losses.append(float(loss))
    return losses


@pytest.mark.long_but_first
@pytest.mark.parametrize("model", MODELS)
def test_network_of_several_inputs_equals_a_plain_loop(model):
    batches = [rows_of(seed) for seed in range(10)]
    plain = built(model).model
    expected = plain_losses(plain, batches)
    trainable = built(model)
    for rows, loss in zip(batches, expected, strict=True):
        totals = trainable.begin_steps(StepBatches(rows, [12], [12]))().sums[0]
        assert totals.loss / 12 == pytest.approx(loss, abs=1e-6)
    for weight, reference in zip(trainable.model.get_weights(), plain.get_weights(), strict=True):
        assert weight == pytest.approx(reference, abs=1e-6)


def test_several_steps_a_call_equal_single_steps():
    batches = [rows_of(seed) for seed in range(4)]
    at_once, one_by_one = built(), built()
    joined = tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
    sums = at_once.begin_steps(StepBatches(joined, [12] * 4, [12] * 4))().sums
    for rows, expected in zip(batches, sums, strict=True):
        single = one_by_one.begin_steps(StepBatches(rows, [12], [12]))().sums[0]
        assert single.loss == pytest.approx(expected.loss, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("train", long_but_first({"precision": "mixed_bfloat16"}, {"xla": True}))
def test_network_of_several_inputs_trains_with(train):
    batches = [rows_of(0)] * 8
    trainable = built(**train)
    losses = [
        trainable.begin_steps(StepBatches(rows, [12], [12]))().sums[0].loss for rows in batches
    ]
    assert losses == pytest.approx(
        12 * np.array(plain_losses(built().model, batches)), rel=1e-4 if "xla" in train else 0.05
    )


@pytest.mark.long
def test_unreadable_rows_of_several_inputs_are_left_out():
    inputs, labels = rows_of(0)
    readable = np.arange(12) != 3
    trainable, reference = built(), built()
    totals = trainable.begin_steps(
        StepBatches((inputs, np.where(readable, labels, -1)), [12], [12])
    )().sums[0]
    rows = inputs[readable], labels[readable]
    expected = reference.begin_steps(StepBatches(rows, [11], [11]))().sums[0]
    assert totals.loss == pytest.approx(expected.loss, abs=1e-5)


@pytest.mark.parametrize("model", long_but_first(*MODELS))
def test_network_of_several_inputs_is_exported(tmp_path, model):
    import keras

    from fleet.engines.keras.ensemble_model import EnsembleModel

    trainable = built(model)
    assert trainable.try_export(tmp_path) == ""
    file = tmp_path / "best.keras"
    inputs, labels = rows_of(0)
    _, outputs = trainable.predict(inputs, labels)
    by_name = {name: inputs[name] for name in inputs.dtype.names}
    alone = keras.saving.load_model(file)(by_name)
    assert np.asarray(alone) == pytest.approx(outputs, abs=1e-5)
    joined = EnsembleModel([file], [1.0], "class")
    expected = np.asarray(keras.ops.softmax(outputs))
    assert joined.predict(inputs) == pytest.approx(expected, abs=1e-5)
    joined.save(tmp_path / "joined.keras")
    again = keras.saving.load_model(tmp_path / "joined.keras")
    assert np.asarray(again(by_name)) == pytest.approx(expected, abs=1e-5)


def test_network_of_several_inputs_tells_rows_and_parameters():
    trainable = built()
    assert trainable.row_bytes() > 0
    trainable.check_learns(*rows_of(0))


def test_build_names_the_inputs_that_a_model_lacks():
    with refused(ModelError, "a model with the inputs image;", "image, facts, tokens", "name="):
        built("one_of_three_inputs")
