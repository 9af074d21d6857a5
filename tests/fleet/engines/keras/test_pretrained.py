"""Networks start from the weights of a file, and freeze some of them."""

import numpy as np
import pytest
import yaml

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.engines.initial_weights import match_patterns, match_weights
from fleet.errors import SettingError
from fleet.spec import Resources, parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from tests.examples import long_but_first
from tests.fleet.engines.async_steps import take_step
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

MODELS = """
import keras
from keras import layers

def unnamed(input_shape, classes, width=4):
    hidden = layers.Dense(width, "relu")
    return keras.Sequential(
        [layers.Input(input_shape), layers.Flatten(), hidden, layers.Dense(classes)]
    )

class Sub(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.body, self.drop = [layers.Flatten(), layers.Dense(4, "relu")], layers.Dropout(0.5)
        self.last = layers.Dense(classes)

    def call(self, images, training=None):
        for layer in self.body:
            images = layer(images)
        return self.last(self.drop(images, training=training))

def sub(input_shape, classes):
    return Sub(classes)
"""
CNN = "family: cnn, args: {filters: [2, 3], dense: [4], dropout: 0.1}"


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Return a function that builds a network of an entry, with settings of ``train``."""
    from fleet.engines.keras.engine import KerasEngine

    (tmp_path / "starting_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def build(entry=CNN, classes=3, train="", affine=None, seed=0):
        spec = parse(
            yaml.safe_load(
                f"{{models: [{{name: a, {entry}}}], output: runs/x, seed: {seed}, data: {{source: "
                f"builtin:digits}}, train: {{batch: {{size: 8}}, {train}}}}}"
            )
        )
        sample = SampleSpec(ArraySpec((8, 8, 1), "uint8"), classes, affine)
        return KerasEngine(EngineContext(sample, Resources(exchange="mpi"))).build(
            spec.networks[0], SingleRankGroup()
        )

    return build


def weights(network):
    return {variable.path: variable.numpy() for variable in network.model.weights}


def have_equal_weights(network, reference):
    actual, expected = weights(network).values(), weights(reference).values()
    return all(map(np.array_equal, actual, expected)) and len(actual) == len(expected)


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "entry",
    long_but_first("build: starting_models:sub", CNN, "build: starting_models:unnamed"),
)
@pytest.mark.parametrize(
    ("ending", "affine"), [("weights.h5", None), ("keras", None), ("keras", Affine(0.02, -1.0))]
)
def test_load_pretrained_reads_exports_and_keras_files(built, tmp_path, entry, ending, affine):
    first = built(entry, affine=affine)
    take_step(first, np.ones((4, 8, 8, 1), np.uint8), np.array([0, 1, 2, 0]), 4)
    if ending == "keras":
        first.export(first.state(), tmp_path / "best.keras")
    else:
        first.model.save_weights(tmp_path / "best.weights.h5")
    second = built(entry, seed=1)
    second.load_pretrained(tmp_path / f"best.{ending}", ())
    assert have_equal_weights(second, first)


def test_load_pretrained_skips_head_and_freezes_rest(built, tmp_path):
    images, labels = (
        np.random.default_rng(0).integers(0, 255, (8, 8, 8, 1), np.uint8),
        np.arange(8) % 5,
    )
    first = built(classes=3)
    first.export(first.state(), tmp_path / "best.keras")
    second = built(
        classes=5, seed=1, train="start: {file: best.keras, skip: ['logits.*'], freeze: ['stage*']}"
    )
    second.load_pretrained(tmp_path / "best.keras", ["logits.*"])
    started = weights(second)
    for _ in range(3):
        take_step(second, images, labels, 8)
    changed = {
        name for name, value in weights(second).items() if not np.array_equal(value, started[name])
    }
    # The statistics are frozen, too.
    assert changed == {"dense0/kernel", "dense0/bias", "logits/kernel", "logits/bias"}
    assert {name for name in started if name.startswith("stage")} | {
        "dense0/kernel",
        "dense0/bias",
    } == {name for name, value in weights(first).items() if np.array_equal(value, started[name])}
    second.export(second.state(), tmp_path / "more.keras")
    # The optimizer has no state for frozen weights.
    assert len(second.state()) < len(built(classes=5).state()) + len(started)


def test_load_pretrained_names_what_does_not_fit(built, tmp_path):
    first = built(classes=3)
    first.export(first.state(), tmp_path / "best.keras")
    with refused(
        SettingError,
        "best.keras",
        "logits/kernel has shape (4, 3) in the file and (4, 5) in the network",
        "logits/bias has shape (3,) in the file and (5,) in the network",
        "train.start.skip",
    ):
        built(classes=5).load_pretrained(tmp_path / "best.keras", ())
    with refused(SettingError, "the network has no stage0_conv/0, "):
        built("build: starting_models:unnamed").load_pretrained(
            tmp_path / "best.keras", ["dense/*"]
        )


def test_patterns_that_match_nothing_are_refused(built, tmp_path):
    first = built()
    first.export(first.state(), tmp_path / "best.keras")
    with refused(SettingError, "'head.*' matches no weight", "stage0_conv/kernel, ") as caught:
        built().load_pretrained(tmp_path / "best.keras", ["head.*"])
    assert caught.value.setting == ("train", "start", "skip")
    with refused(SettingError, "'body' matches no weight") as caught:
        built(train="start: {file: best.keras, freeze: [body]}")
    assert caught.value.setting == ("train", "start", "freeze")
    with refused(SettingError, "the patterns freeze all weights"):
        built(train="start: {file: best.keras, freeze: ['*']}")


@pytest.mark.parametrize(("file", "content"), [("gone.keras", None), ("torn.weights.h5", b"torn")])
def test_load_pretrained_names_unreadable_files(built, tmp_path, file, content):
    if content:
        (tmp_path / file).write_bytes(content)
    with refused(SettingError, f"{file} cannot be read as .weights.h5 or .keras"):
        built().load_pretrained(tmp_path / file, ())


def test_messages_shorten_long_lists_of_weights():
    shapes = {f"w{number:02}": (1,) for number in range(30)}
    with refused(SettingError, "w18, w19, ..."):
        match_patterns(["x"], shapes, "skip")
    with refused(SettingError, "w19 has ", "; 10 more; "):
        match_weights("a", shapes, dict.fromkeys(shapes, (2,)), ())
