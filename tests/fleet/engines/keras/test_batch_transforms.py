"""Batch transforms with Keras: equal to a plain loop, for every kind of target."""

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.engines.batch_transforms import BatchTransforms
from fleet.spec import Resources, parse
from fleet.vocabulary.batch_transforms import mixup
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.fleet.engines.async_steps import take_step

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))


def built(sample=SAMPLE, **train):
    from fleet.engines.keras.engine import KerasEngine

    optimizer = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}
    spec = parse({"models": [{"family": "softmax"}], "train": {"optimizer": optimizer, **train}})
    engine = KerasEngine(EngineContext(sample, Resources(exchange="mpi")))
    return engine.build(spec.networks[0], SingleRankGroup())


def step_with(network, transforms, rows, epoch):
    inputs, targets = transforms(*rows, epoch, 0)
    return take_step(network, inputs, targets["target"], len(inputs), weights=targets["weight"])


def test_keras_training_with_mixup_equals_a_plain_loop(batch):
    import keras
    import tensorflow as tf

    images, labels = batch
    network = built(batch_transforms=["mixup"])
    transforms = BatchTransforms.of(["mixup"], SAMPLE, 5)
    model = keras.models.clone_model(network.model)
    model.set_weights(network.model.get_weights())
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    scaled = SAMPLE.affine.apply(images)
    for epoch in range(10):
        totals = step_with(network, transforms, batch, epoch)
        rng = np.random.default_rng([5, 6, epoch, 0])
        mixed = mixup({"input": scaled, "target": np.eye(3, dtype=np.float32)[labels]}, rng)
        with tf.GradientTape() as tape:
            outputs = model(mixed["input"], training=True)
            loss = tf.reduce_mean(
                keras.losses.categorical_crossentropy(mixed["target"], outputs, from_logits=True)
            )
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [item.value for item in variables]), variables)
        assert totals.loss / totals.count == pytest.approx(float(loss), abs=1e-5)
    assert network.evaluate(images, labels).count == 12


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "huber"])
def test_keras_losses_take_shares_of_classes(batch, loss):
    network = built(
        loss=loss,
        batch_transforms=["mixup"],
        metrics=["AUC"],
        class_weights={"0": 2.0, "1": 1.0, "2": 1.0},
    )
    transforms = BatchTransforms.of(["mixup"], SAMPLE, 0)
    assert np.isfinite(step_with(network, transforms, batch, 0).loss)


@pytest.mark.parametrize("kind", ["multilabel", "value", "mask"])
def test_keras_batches_of_every_kind_are_transformed(batch, kind):
    target = TargetSpec(kind, 3, size=(8, 8) if kind == "mask" else None)
    sample = SampleSpec(SAMPLE.input, 3, SAMPLE.affine, target=target)
    transform = "cutmix" if kind == "mask" else "mixup"
    network = built(sample, batch_transforms=[transform])
    rows = batch[0], target.random_targets(np.random.default_rng(0), 12)
    transforms = BatchTransforms.of([transform], sample, 0)
    assert np.isfinite(step_with(network, transforms, rows, 0).loss)
