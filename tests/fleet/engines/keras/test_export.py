"""What is written of a network: plain Keras loads it, and it gives the same logits."""

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.errors import ModelError
from fleet.spec import Resources, parse
from preprocess.sample import Affine, ImageSpec, SampleSpec

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ImageSpec((4, 4, 1), "uint8"), 3)
SCALED = SampleSpec(ImageSpec((4, 4, 1), "uint8"), 3, Affine(0.02, -1.0))
MODELS = '''
import keras
from keras import layers

class Branched(keras.Model):
    """Has a list of layers, batch normalisation, an operation of keras.ops, and does something in training only."""

    def __init__(self, sizes, classes):
        super().__init__()
        self.hidden = [layers.Dense(size, "relu") for size in sizes]
        self.norm, self.drop, self.last = layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(classes)

    def call(self, images, training=None):
        x = keras.ops.reshape(images, (-1, 16))
        for layer in self.hidden:
            x = self.norm(layer(x), training=training)
        if training:
            x = self.drop(x, training=True)
        return self.last(x)

class Insists(Branched):
    def call(self, images, training):
        return super().call(images, training)

class Described(keras.Model):
    """Only its own code can run it, but it says what it is."""

    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
        self.classes, self.last = classes, layers.Dense(classes)

    def call(self, images):
        import tensorflow as tf
        return self.last(tf.reshape(images, (tf.shape(images)[0], 16)))

    def get_config(self):
        return {**super().get_config(), "classes": self.classes}

class Silent(Described):
    def get_config(self):
        raise NotImplementedError("it says nothing of itself")

def branched(input_shape, classes):
    return Branched((5, 5), classes)

def insists(input_shape, classes):
    return Insists((5, 5), classes)

def described(input_shape, classes):
    return Described(classes)

def silent(input_shape, classes):
    return Silent(classes)

def anonymous(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), layers.Lambda(lambda x: 2 * x),
                             layers.Dense(classes)])
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


@pytest.mark.parametrize("sample", [SAMPLE, SCALED], ids=["plain", "scaled"])
@pytest.mark.parametrize("function", ["branched", "insists"])
def test_export_model_of_subclass_loads_without_code(tmp_path, function, sample):
    import keras

    trainable = build(function, sample)
    images, labels = (
        np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1), np.uint8),
        np.arange(6) % 3,
    )
    for _ in range(3):
        trainable.step(images, labels, 6)
    before = trainable.evaluate(images, labels)
    path = tmp_path / "best.keras"
    trainable.export(trainable.state(), path)
    loaded = keras.saving.load_model(path)  # which imports nothing, and knows no class of ours
    logits = np.asarray(loaded(images.astype("float32")), np.float64)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert -np.log(chances[np.arange(6), labels]).sum() == pytest.approx(before.loss, rel=1e-4)
    assert trainable.try_export(tmp_path) == ""
    assert trainable.step(images, labels, 6).count == 6  # it can be trained on


def test_export_model_keeps_subclass_that_needs_its_code(tmp_path):
    assert build("described", SCALED).try_export(tmp_path) == (
        "loading best.keras requires the module export_models and custom_objects with Described"
    )


def test_one_that_says_nothing_of_itself_fails_before_it_trains():
    with pytest.raises(
        ModelError,
        match="cannot be exported as best.keras: NotImplementedError: it says nothing of "
        "itself; build it from Keras layers, or define get_config in its classes",
    ):
        build("silent")


def test_what_keras_loads_in_unsafe_mode_only_is_said_to_be_so(tmp_path):
    assert build("anonymous").try_export(tmp_path) == "loading best.keras requires safe_mode=False"


def test_row_bytes_match_what_backward_pass_reads():
    # Behind a scale by 2, a dense layer of 16 inputs and 3 outputs: its gradient reads the inputs, the loss the logits.
    row = build("anonymous").row_bytes()
    assert 16 * 4 * 3 <= row <= 16 * 4 * 3 + 30 * 3 * 4
