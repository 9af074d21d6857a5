"""The example of several inputs equals a plain ``model.fit`` of Keras, over ten epochs."""

import sys

import pytest

from tests.fleet.engines.record_examples import (
    FOLDER,
    RATE,
    build_example,
    scaled_batches,
    train_example,
)

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def _import_examples(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    sys.modules.pop("keras_two_inputs", None)


def test_two_inputs_equal_a_plain_fit():
    import keras

    trainable = build_example("keras_two_inputs", "keras")
    train_example(trainable)
    plain = build_example("keras_two_inputs", "keras").model
    plain.compile(keras.optimizers.Adam(RATE), "mean_squared_error")
    for photos, facts, weights in scaled_batches():
        plain.train_on_batch({"photo": photos, "facts": facts}, weights)
    for weight, expected in zip(trainable.model.weights, plain.weights, strict=True):
        assert weight.numpy() == pytest.approx(expected.numpy(), abs=1e-5), weight.path
