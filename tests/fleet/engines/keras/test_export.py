"""Plain Keras loads exported networks, which return the same logits."""

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.errors import ModelError
from fleet.spec import Resources, parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from tests.examples import long_but_first
from tests.fleet.engines.async_steps import take_step
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ArraySpec((4, 4, 1), "uint8"), 3)
SCALED = SampleSpec(ArraySpec((4, 4, 1), "uint8"), 3, Affine(0.02, -1.0))
MODELS = '''
import keras
from keras import layers

class Branched(keras.Model):
    """Has a list of layers, batch normalization, a keras.ops function, and training-only code."""

    def __init__(self, sizes, classes):
        super().__init__()
        self.hidden = [layers.Dense(size, "relu") for size in sizes]
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.5)
        self.last = layers.Dense(classes)

    def call(self, images, training=None):
        x = keras.ops.reshape(images, (-1, 16))
        for layer in self.hidden:
            x = self.norm(layer(x), training=training)
        if training:
            x = self.drop(x, training=True)
        return self.last(x)

class RequiresTraining(Branched):
    def call(self, images, training):
        return super().call(images, training)

class Described(keras.Model):
    """Needs its own code, but has a get_config."""

    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
        self.classes, self.last = classes, layers.Dense(classes)

    def call(self, images):
        import tensorflow as tf
        return self.last(tf.reshape(images, (tf.shape(images)[0], 16)))

    def get_config(self):
        return {**super().get_config(), "classes": self.classes}

class Undescribed(Described):
    def get_config(self):
        raise NotImplementedError("no config")

def branched(input_shape, classes):
    return Branched((5, 5), classes)

def requires_training(input_shape, classes):
    return RequiresTraining((5, 5), classes)

def described(input_shape, classes):
    return Described(classes)

def undescribed(input_shape, classes):
    return Undescribed(classes)

def anonymous(input_shape, classes):
    double = layers.Lambda(lambda x: 2 * x)
    return keras.Sequential(
        [keras.Input(input_shape), layers.Flatten(), double, layers.Dense(classes)]
    )
'''


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    (tmp_path / "export_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)


def build(function, sample=SAMPLE):
    from fleet.engines.keras.engine import KerasEngine

    (network,) = parse({"models": [{"build": f"export_models:{function}"}]}).networks
    return KerasEngine(EngineContext(sample, Resources(exchange="mpi"))).build(
        network, SingleRankGroup()
    )


@pytest.mark.parametrize("sample", long_but_first(SCALED, SAMPLE), ids=["scaled", "plain"])
@pytest.mark.parametrize("function", long_but_first("branched", "requires_training"))
def test_export_model_of_subclass_loads_without_code(tmp_path, function, sample):
    import keras

    trainable = build(function, sample)
    images, labels = (
        np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1), np.uint8),
        np.arange(6) % 3,
    )
    for _ in range(3):
        take_step(trainable, images, labels, 6)
    before = trainable.evaluate(images, labels)
    path = tmp_path / "best.keras"
    trainable.export(trainable.state(), path)
    loaded = keras.saving.load_model(path)  # imports nothing, and knows no class of FLEET
    logits = np.asarray(loaded(images.astype("float32")), np.float64)
    predicted = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert -np.log(predicted[np.arange(6), labels]).sum() == pytest.approx(before.loss, rel=1e-4)
    assert trainable.try_export(tmp_path) == ""
    assert take_step(trainable, images, labels, 6).count == 6  # it can still be trained


def test_export_model_keeps_subclass_that_needs_its_code(tmp_path):
    assert build("described", SCALED).try_export(tmp_path) == (
        "loading best.keras requires the module export_models and custom_objects with Described"
    )


def test_build_refuses_models_without_a_config():
    with refused(ModelError, "best.keras: NotImplementedError: no config", "define get_config"):
        build("undescribed")


def test_try_export_says_if_safe_mode_must_be_off(tmp_path):
    assert build("anonymous").try_export(tmp_path) == "loading best.keras requires safe_mode=False"


def test_row_bytes_match_what_backward_pass_reads():
    # A dense layer of 16 inputs and 3 outputs after a scale by 2: its gradient reads the inputs,
    # the loss the logits.
    row = build("anonymous").row_bytes()
    assert 16 * 4 * 3 <= row <= 16 * 4 * 3 + 30 * 3 * 4
