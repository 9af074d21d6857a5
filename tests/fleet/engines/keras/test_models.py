"""Keras models: families, keras.applications, user functions."""

import inspect
import random

import numpy as np
import pytest

from fleet.engines.base import collect_warnings
from fleet.errors import ModelError, UserError
from fleet.spec.layers import count_parameters
from fleet.spec.model import Architecture, application_names
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

IMAGENET = (224, 224, 3)
APPLICATIONS = {
    "ResNet50": Architecture("resnet"),
    "ResNet101": Architecture("resnet", {"blocks": [3, 4, 23, 3]}),
    "ResNet152": Architecture("resnet", {"blocks": [3, 8, 36, 3]}),
    "DenseNet121": Architecture("densenet"),
    "DenseNet169": Architecture("densenet", {"blocks": [6, 12, 32, 32]}),
    "DenseNet201": Architecture("densenet", {"blocks": [6, 12, 48, 32]}),
}
MODELS = """
import keras
from keras import layers

def features(input_shape):
    image = keras.Input(input_shape)
    return image, layers.Dropout(0.5)(layers.Flatten()(image))

def logits(input_shape, classes, units=4):
    image, x = features(input_shape)
    return keras.Model(image, layers.Dense(classes)(layers.Dense(units)(x)))

def softmax_activation(input_shape, classes):
    image, x = features(input_shape)
    return keras.Model(image, layers.Dense(classes, "softmax", name="last")(x))

def softmax_layer(input_shape, classes):
    image, x = features(input_shape)
    return keras.Model(image, layers.Softmax()(layers.Dense(classes, name="last")(x)))

def softmax_operation(input_shape, classes):
    image, x = features(input_shape)
    return keras.Model(image, keras.ops.softmax(layers.Dense(classes, name="last")(x)))

def softmax_nested(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), softmax_activation(input_shape, classes)])

def unbuilt(input_shape, classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(classes)])

class Softmax(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.last = layers.Dense(classes)

    def call(self, images):
        return keras.ops.softmax(self.last(keras.ops.mean(images, (1, 2))))

def probabilities(input_shape, classes):
    return Softmax(classes)

def one_class_more(input_shape, classes):
    return logits(input_shape, classes + 1)

def other_images(input_shape, classes):
    return logits((5, 5, 1), classes)

def raises(input_shape, classes):
    raise ValueError("two\\nlines")

def no_model(input_shape, classes):
    return [layers.Dense(classes)]

def my_loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

def compiled(input_shape, classes, loss=None):
    built = logits(input_shape, classes)
    named = {"object": keras.losses.MeanSquaredError(), "function": my_loss}
    loss = named.get(loss, loss) if isinstance(loss, str) else loss
    built.compile("sgd", loss=loss, metrics=["accuracy"])
    return built

def random_weights(input_shape, classes):
    import numpy
    import tensorflow
    image, x = features(input_shape)
    bias = numpy.random.normal() + tensorflow.random.normal(()).numpy()
    bias = keras.initializers.Constant(bias + keras.random.normal(()).numpy())
    return keras.Model(image, layers.Dense(classes, bias_initializer=bias)(x))
"""


@pytest.fixture(scope="module")
def keras():
    import keras

    return keras


@pytest.fixture(scope="module")
def build(keras):
    from fleet.engines.keras.models import build_model

    return build_model


@pytest.fixture
def my_models(tmp_path, monkeypatch):
    (tmp_path / "my_test_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    return "my_test_models"


@pytest.mark.long
@pytest.mark.parametrize("name", APPLICATIONS)
def test_imagenet_families_have_published_parameter_counts(build, name):
    # Only FLEET's families are built: test_families.py has the counts of keras.applications, and
    # the next test builds two of its models.
    family = build(APPLICATIONS[name], IMAGENET, classes=1000).count_params()
    assert family == count_parameters(APPLICATIONS[name].settings, IMAGENET, classes=1000)


@pytest.mark.long
@pytest.mark.parametrize("name", ["ResNet50", "DenseNet121"])
def test_families_match_keras_applications_with_same_weights(keras, build, name):
    shape = (64, 64, 3)
    model = Architecture(APPLICATIONS[name].target, {**APPLICATIONS[name].args, "stem": "imagenet"})
    family = build(model, shape, classes=7)
    expected = build(Architecture(name), shape, classes=7, seed=3)
    assert family.count_params() == expected.count_params()
    images = np.random.default_rng(0).normal(size=(2, *shape)).astype("float32")
    expected(images, training=True)  # changes the statistics
    pairs = _layers_with_weights(family), _layers_with_weights(expected)
    for layer, expected_layer in zip(*pairs, strict=True):
        layer.set_weights(expected_layer.get_weights())
    np.testing.assert_allclose(family(images), expected(images), rtol=1e-4, atol=1e-4)


def _layers_with_weights(model):
    """Return the layers with weights, in the order of building; shortcuts come first in both."""
    return [layer for layer in model.layers if layer.weights]


SMALL = [
    ("resnet", {"blocks": [1, 2], "width": 4}),
    ("resnet", {"blocks": [2, 1], "width": 4, "bottleneck": True, "norm": "none", "dropout": 0.3}),
    ("resnet", {"blocks": [1, 1, 1], "width": 3, "stem": "imagenet", "bottleneck": False}),
    ("densenet", {"blocks": [2, 3], "growth": 3, "compression": 0.4}),
    (
        "densenet",
        {"blocks": [1, 1, 1], "growth": 2, "norm": "none", "stem": "imagenet", "dropout": 0.1},
    ),
    ("cnn", {"filters": [4, 8], "dense": [16, 8], "dropout": 0.5}),
    ("cnn", {"filters": [4], "dense": [], "kernel": 5, "norm": "none"}),
    ("mlp", {"hidden": [8, 4], "norm": "batch", "dropout": 0.2}),
    ("mlp", {}),
    ("softmax", {}),
]


@pytest.mark.long_but_first
@pytest.mark.parametrize(("target", "args"), SMALL)
@pytest.mark.parametrize("shape", [(28, 28, 1), pytest.param((33, 64, 3), marks=pytest.mark.long)])
def test_small_families_give_logits_and_are_counted(build, target, args, shape):
    model = Architecture(target, args)
    built = build(model, shape, classes=5)
    assert built.count_params() == count_parameters(model.settings, shape, classes=5)
    logits = np.asarray(built(np.random.default_rng(0).normal(size=(3, *shape)).astype("float32")))
    assert logits.shape == (3, 5)
    assert not np.allclose(logits.sum(axis=1), 1.0)


def test_output_without_normalization_ignores_other_images(build):
    images = np.random.default_rng(0).normal(size=(4, 16, 16, 1)).astype("float32")
    for target, args in (
        ("resnet", {"blocks": [1, 1]}),
        ("densenet", {"blocks": [1, 1]}),
        ("cnn", {}),
    ):
        built = build(Architecture(target, {"norm": "none", **args}), (16, 16, 1), classes=3)
        combined = np.asarray(built(images, training=True))
        alone = np.concatenate(
            [np.asarray(built(images[i : i + 1], training=True)) for i in range(4)]
        )
        np.testing.assert_allclose(combined, alone, rtol=1e-4, atol=1e-5)


def test_deep_resnet_without_normalization_starts_bounded(build):
    model = Architecture("resnet", {"blocks": [6, 6, 6], "width": 8, "norm": "none"})
    built = build(model, (16, 16, 1), classes=3)
    images = np.random.default_rng(0).normal(size=(8, 16, 16, 1)).astype("float32")
    assert np.abs(np.asarray(built(images))).max() < 10


# --- seeds ---------------------------------------------------------------------------------


def _weights(model):
    return [np.asarray(value) for value in model.variables]  # including random states of dropout


@pytest.mark.parametrize(
    "model",
    [
        Architecture("cnn", {"dropout": 0.5}),
        pytest.param(Architecture("MobileNet", {"alpha": 0.25}), marks=pytest.mark.long),
        Architecture("my_test_models:random_weights"),
    ],
    ids=lambda model: model.kind,
)
def test_build_model_is_deterministic_by_seed(build, my_models, model):
    python, numpy = random.getstate(), np.random.get_state()[1].copy()
    first, repeated, other_seed = (
        _weights(build(model, (32, 32, 3), 4, seed=seed)) for seed in (5, 5, 2**40)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, repeated, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other_seed, strict=True))
    assert random.getstate() == python
    assert np.array_equal(np.random.get_state()[1], numpy)


def test_layers_of_one_shape_start_with_different_weights(build):
    built = build(Architecture("cnn", {"filters": [4, 4, 4]}), (32, 32, 4), classes=2)
    kernels = [np.asarray(layer.kernel) for layer in built.layers if layer.name.endswith("conv")]
    assert not np.array_equal(kernels[1], kernels[2])


# --- keras.applications --------------------------------------------------------------------


def test_application_names_are_functions_of_keras(keras):
    names = [name for name in vars(keras.applications) if name[0].isupper()]
    assert sorted(names) == sorted(application_names())
    arguments = {"weights", "input_shape", "classes", "classifier_activation"}
    functions = [getattr(keras.applications, name) for name in names]
    assert all(arguments <= set(inspect.signature(function).parameters) for function in functions)


@pytest.mark.long
def test_application_gives_logits_for_any_channels(build):
    built = build(Architecture("MobileNet", {"alpha": 0.25}), (32, 32, 1), classes=3)
    assert built.output_shape == (None, 3)
    combined = build(Architecture("MobileNet"), (32, 32, 1), classes=3)
    assert built.count_params() < combined.count_params()
    assert built.layers[-1].get_config().get("activation", "linear") == "linear"


def test_applications_do_not_scale_pixels_by_default(build):
    def first_layers(args):
        built = build(Architecture("MobileNetV3Small", args), (32, 32, 3), classes=2)
        return [layer.__class__.__name__ for layer in built.layers[:3]]

    assert "Rescaling" not in first_layers({})
    assert "Rescaling" in first_layers({"include_preprocessing": True})


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("ResNet5", {}, "did you mean ResNet50"),
        ("resnet50", {}, "did you mean ResNet50"),
        ("MobileNet", {"alhpa": 0.5}, "has no argument 'alhpa'; its arguments are alpha"),
        ("MobileNet", {"lr": 0.5}, "'lr' (did you mean train.optimizer.learning_rate?)"),
        ("MobileNet", {"weights": "imagenet"}, "FLEET sets weights from the spec"),
        ("Xception", {}, "Xception on images of 32x32x3: ValueError: Input size must be at least"),
        ("densenet", {"blocks": [1] * 7}, "needs at least 64x64 pixels, not 32x32"),
    ],
)
def test_build_model_refuses_bad_description_in_one_line(build, target, args, message):
    with refused(UserError, message) as caught:
        build(Architecture(target, args), (32, 32, 3), classes=2)
    assert "\n" not in str(caught.value)


# --- user functions ------------------------------------------------------------------------


def test_build_model_passes_arguments(build, my_models):
    built = build(Architecture("my_test_models:logits", {"units": 6}), (4, 4, 1), classes=3)
    assert built.count_params() == 16 * 6 + 6 + 6 * 3 + 3


def test_build_model_builds_models_without_input_shape(build, my_models):
    built = build(Architecture("my_test_models:unbuilt"), (4, 4, 1), classes=3)
    assert built.count_params() == 16 * 3 + 3


@pytest.mark.parametrize("name", ["activation", "layer", "operation", "nested"])
def test_build_model_removes_a_last_softmax(keras, build, my_models, name, tmp_path):
    built = build(Architecture(f"my_test_models:softmax_{name}"), (4, 4, 1), classes=3)
    images = np.random.default_rng(0).normal(size=(5, 4, 4, 1)).astype("float32")
    outputs = np.asarray(built(images))
    kernel, bias = map(np.asarray, built.weights[-2:])
    np.testing.assert_allclose(outputs, images.reshape(5, 16) @ kernel + bias, atol=1e-5)
    built.save(tmp_path / "model.keras")
    np.testing.assert_allclose(
        keras.saving.load_model(tmp_path / "model.keras")(images), outputs, atol=1e-6
    )


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        ("mse", "mse"),
        ("sparse_categorical_crossentropy", "sparse_categorical_crossentropy"),
        ("object", "mean_squared_error"),
        ("function", "my_loss"),
        (["mae"], "mae"),
        ({"logits": "mae"}, "mae"),
    ],
)
def test_build_model_warns_of_unused_compiled_loss(build, my_models, loss, named):
    with collect_warnings() as messages:
        build(Architecture("my_test_models:compiled", {"loss": loss}), (4, 4, 1), classes=3)
    assert len(messages) == 1
    assert messages[0].startswith(
        f"my_test_models:compiled compiles its model with the loss {named}, which FLEET ignores: "
        "it trains with the softmax cross-entropy of its logits"
    )


@pytest.mark.parametrize("name", ["logits", "compiled"])
def test_build_model_does_not_warn_without_a_loss(build, my_models, name):
    with collect_warnings() as messages:
        build(Architecture(f"my_test_models:{name}"), (4, 4, 1), classes=3)
    assert messages == []


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("name", "error", "names"),
    [
        ("logits", UserError, ["input_shape, classes, depth", "'depth'"]),
        ("raises", ModelError, ["my_test_models:raises raised ValueError: two lines"]),
        ("no_model", ModelError, ["returned a list; it should return a keras.Model"]),
        ("one_class_more", ModelError, ["outputs of shape (None, 4)", "(None, 3)"]),
        ("other_images", ModelError, ["failed on images of 4x4x1: "]),
        ("probabilities", ModelError, ["remove the last softmax"]),
    ],
)
def test_build_model_refuses_unusable_model_in_one_line(build, my_models, name, error, names):
    args = {"depth": 3} if name == "logits" else {}
    with refused(error, f"my_test_models:{name}", *names) as caught:
        build(Architecture(f"my_test_models:{name}", args), (4, 4, 1), classes=3)
    assert "\n" not in str(caught.value)
