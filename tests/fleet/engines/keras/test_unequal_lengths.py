"""Keras models of inputs of unequal length, whose batches are cut to their longest row."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.engines.steps import StepBatches
from fleet.spec import Resources, parse
from preprocess.sample import ArraySpec, SampleSpec, cut_rows, longest_rows
from preprocess.target import class_target

pytestmark = pytest.mark.tensorflow

PARTS = {
    "tokens": SampleSpec(ArraySpec((9,), "int64"), 3),
    "tokens_mask": SampleSpec(ArraySpec((9,), "uint8"), 3),
}
SAMPLE = SampleSpec.of_parts(PARTS, class_target(3), ("tokens",), ("tokens",))
RATE = 0.05


def built(model, sample=SAMPLE, **train):
    from fleet.engines.keras.engine import KerasEngine

    train = {"optimizer": {"name": "sgd", "learning_rate": RATE}, **train}
    model = {"build": f"tests.keras_models:{model}"}
    [network] = parse({"models": [model], "train": train}).networks
    engine = KerasEngine(EngineContext(sample, Resources(exchange="mpi")))
    return engine.build(replace(network, seed=0), SingleRankGroup())


def batches_of(count):
    for seed in range(count):
        random = np.random.default_rng(seed)
        inputs = SAMPLE.input.random_inputs(random, 12)
        inputs["tokens"] *= random.integers(1, 7, inputs["tokens"].shape)
        longest = 3 + seed % 5
        inputs["tokens_mask"][:, longest:] = 0
        inputs["tokens"][:, longest:] = 0
        yield inputs, random.integers(0, 3, 12)


@pytest.mark.long_but_first
@pytest.mark.parametrize("model", ["tokens_of_any_length", "tokens_subclass"])
def test_cut_batches_equal_a_plain_loop(model):
    import keras
    import tensorflow as tf

    trainable = built(model)
    plain = built(model).model
    optimizer = keras.optimizers.SGD(RATE)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert trainable.capabilities.lengths == "any"
    assert trainable.capabilities.max_steps_per_call == 1
    for inputs, labels in batches_of(10):
        cut = trainable.capabilities.cut(inputs, SAMPLE.varying)
        length = cut["tokens"].shape[1]
        assert length == inputs["tokens_mask"].sum(axis=1).max() < 9
        totals = trainable.begin_steps(StepBatches((cut, labels), [12], [12]))().sums[0]
        with tf.GradientTape() as tape:
            # The models do not use their masks, so their outputs depend on the length.
            named = {name: inputs[name][:, :length] for name in PARTS}
            loss = loss_of(labels, plain(named, training=True))
        weights = plain.trainable_variables
        optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)
        assert totals.loss / 12 == pytest.approx(float(loss), abs=1e-6)
    for weight, expected in zip(trainable.model.get_weights(), plain.get_weights(), strict=True):
        assert weight == pytest.approx(expected, abs=1e-6)


def test_evaluation_and_prediction_take_cut_rows():
    trainable = built("tokens_of_any_length")
    [(inputs, labels)] = batches_of(1)
    cut = cut_rows(inputs, longest_rows(inputs, ["tokens"]))
    _, outputs = trainable.predict(cut, labels)
    named = {name: cut[name] for name in PARTS}
    assert outputs == pytest.approx(np.asarray(trainable.model(named)), abs=1e-6)


@pytest.mark.parametrize(
    ("model", "train"), [("tokens_of_one_length", {}), ("tokens_of_any_length", {"xla": True})]
)
def test_models_of_one_length_get_whole_rows(model, train):
    trainable = built(model, **train)
    assert trainable.capabilities.lengths == "one"
    [(inputs, labels)] = batches_of(1)
    assert trainable.capabilities.cut(inputs, SAMPLE.varying) is inputs
    trainable.begin_steps(StepBatches((inputs, labels), [12], [12]))()


def test_network_of_unequal_lengths_is_exported(tmp_path):
    trainable = built("tokens_of_any_length")
    [(inputs, labels)] = batches_of(1)
    trainable.check_learns(inputs, labels)
    assert trainable.try_export(tmp_path) == ""
