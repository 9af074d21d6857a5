"""Build Keras models: families, ``keras.applications``, user functions.

Every model returns **logits**: its last layer has no softmax. The loss applies the softmax itself,
as log-sum-exp, which is exact where a probability would already be rounded to 0 or 1, and one rule
for all networks leaves one loss function. ``keras.ops.softmax(model(images))`` gives probabilities.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from fleet.engines.custom import build_custom_model, build_isolated, seeded_generators
from fleet.engines.keras.gradients import keep_gradients_with_graphs
from fleet.errors import ModelError, NetworkWarning, UserError
from fleet.spec.layers import Layer, layers_of
from fleet.spec.measures import Measure
from fleet.spec.model import Architecture, check_target, one_line, wrapping_errors
from preprocess.target import TargetSpec, class_target

# The epsilon of keras.applications, so that its weights give the same outputs here. The
# momentum is the papers' 0.9: Keras' 0.99 takes hundreds of steps to reach the data's
# statistics, more than the first epochs of a small data set have.
_EPSILON = 1.001e-5
_MOMENTUM = 0.9

# On weights, which would take logits out of the range of probabilities.
_NOISES = (0.1, 1.0) * 8

# Keyword arguments of keras.applications that follow from the spec
_GIVEN = (
    "include_top",
    "weights",
    "input_tensor",
    "input_shape",
    "classes",
    "classifier_activation",
)


def build_model(
    model: Architecture,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int = 0,
    target: TargetSpec | None = None,
    loss: Measure | None = None,
) -> keras.Model:
    """Build a network that returns logits, or values.

    Args:
        model: what to build. A user function is called as ``function(input_shape=..., classes=...,
            **args)``, or with ``outputs`` instead of ``classes``.
        input_shape: height, width (pixels) and channels of an image; the shape of other inputs.
        classes: number of classes, labels or values.
        seed: equal seeds give equal initial weights and dropout masks.
        target: target of a sample; a class by default.
        loss: named by the spec, for a warning.

    Returns:
        A model from (batch, ...) to (batch, classes), or for masks to (batch, height, width,
        classes).

    Raises:
        UserError: the description is wrong: a missing function, a wrong argument, an image too
            small.
        ModelError: a user function raised, or returned something else.
    """
    checked_target = class_target(classes) if target is None else target

    def build() -> keras.Model:
        with _seeded(seed):
            built = _build_described(model, input_shape, classes, checked_target)
            if model.kind != "import":
                return built
            return _logits(model.target, built, input_shape, checked_target)

    if model.kind != "import":
        return build()
    built = build_isolated(model.target, build, lambda built: built.variables)
    _warn_of_unused_loss(model.target, built, checked_target, loss)
    return built


def count_keras_parameters(
    model: Architecture, input_shape: tuple[int, ...], classes: int, seed: int
) -> int:
    """Count the parameters of a network, trainable or not, without allocating them.

    A function that needs values is called once more and its network is built.

    Args:
        model: what to build.
        input_shape: input shape of a sample.
        classes: number of classes, labels or values.
        seed: seed of the network.

    Raises:
        UserError, ModelError: as :func:`build_model`.
    """
    keep_gradients_with_graphs()

    def build() -> keras.Model:
        with _seeded(seed), keras.StatelessScope(initialize_variables=False):
            built = _build_described(model, input_shape, classes, class_target(max(classes, 2)))
            if not built.built:
                built(keras.KerasTensor((None, *input_shape)))
            return built

    try:
        if model.kind != "import":
            return build().count_params()
        return build_isolated(model.target, build, lambda built: built.variables).count_params()
    except Exception:  # it says why when it is built
        keras.utils.clear_session(free_memory=False)
        with _seeded(seed):
            built = _build_described(model, input_shape, classes, class_target(max(classes, 2)))
            if not built.built:
                _call_on_samples(model.target, built, input_shape)
            return built.count_params()
    finally:
        keras.utils.clear_session(
            free_memory=False
        )  # else Keras makes up for what was not initialized here


def _build_described(
    model: Architecture, input_shape: tuple[int, ...], classes: int, target: TargetSpec
) -> keras.Model:
    """Build a network from its description; it need not have been called yet."""
    if model.kind == "family":
        return _build_family(model, input_shape, classes, target)
    if model.kind == "application":
        return _build_application(model, input_shape, classes)
    return build_custom_model(model, input_shape, classes, keras.Model, "keras.Model")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Make all random numbers deterministic, and restore Python's and NumPy's generators.

    Layers without a seed take one from Python's generator when they are created. TensorFlow's
    global seed cannot be read, hence is not restored; FLEET draws nothing from it.
    """
    with seeded_generators(seed):
        keras.utils.set_random_seed(seed % 2**32)
        yield


# --- families ------------------------------------------------------------------------------


def _build_family(
    model: Architecture, input_shape: tuple[int, ...], classes: int, target: TargetSpec
) -> keras.Model:
    descriptions = layers_of(model.settings, input_shape, classes, target.kind == "mask")
    inputs = keras.Input(input_shape, name="image")
    return keras.Model(inputs, _apply_layers(descriptions, inputs), name=model.target)


def _apply_layers(descriptions: Iterable[Layer], x: Any) -> Any:
    """Apply layers to a tensor, one after another."""
    for layer in descriptions:
        if layer.pad:
            x = layers.ZeroPadding2D(layer.pad, name=f"{layer.name.removesuffix('_conv')}_pad")(x)
        match layer.kind:
            case "add":
                x = layers.Add(name=layer.name)(
                    [_apply_layers(layer.shortcut, x), _apply_layers(layer.branch, x)]
                )
            case "concat":
                x = layers.Concatenate(name=layer.name)([x, _apply_layers(layer.branch, x)])
            case _:
                x = _LAYERS[layer.kind](layer)(x)
    return x


_LAYERS: dict[str, Callable[[Layer], keras.layers.Layer]] = {
    "conv": lambda one: layers.Conv2D(
        one.outputs,
        one.side,
        strides=one.stride,
        padding="same" if one.pad is None else "valid",
        use_bias=one.has_bias,
        kernel_initializer=one.start,
        name=one.name,
    ),
    "dense": lambda one: layers.Dense(one.outputs, kernel_initializer=one.start, name=one.name),
    "norm": lambda one: layers.BatchNormalization(
        epsilon=_EPSILON, momentum=_MOMENTUM, name=one.name
    ),
    "relu": lambda one: layers.Activation("relu", name=one.name),
    "max_pool": lambda one: layers.MaxPooling2D(one.side, strides=one.stride, name=one.name),
    "mean_pool": lambda one: layers.AveragePooling2D(one.side, strides=one.stride, name=one.name),
    "average": lambda one: layers.GlobalAveragePooling2D(name=one.name),
    "flatten": lambda one: layers.Flatten(name=one.name),
    "dropout": lambda one: layers.Dropout(one.share, name=one.name),
}


# --- keras.applications --------------------------------------------------------------------


def _build_application(
    model: Architecture, input_shape: tuple[int, ...], classes: int
) -> keras.Model:
    check_target(model.target)
    function = getattr(keras.applications, model.target)
    _check_application_args(model, function)
    args = dict(model.args)
    if "include_preprocessing" in inspect.signature(function).parameters:
        args.setdefault("include_preprocessing", False)  # the spec's transforms scale the pixels
    prefix = f"keras.applications.{model.target} on {_pixels(input_shape)}:"
    with wrapping_errors(
        prefix, UserError, of=(ValueError, TypeError)
    ):  # as Keras refuses shapes and arguments
        return function(
            weights=None,
            input_shape=input_shape,
            classes=classes,
            classifier_activation=None,
            **args,
        )


def _check_application_args(model: Architecture, function: Callable[..., Any]) -> None:
    allowed = [name for name in inspect.signature(function).parameters if name not in _GIVEN]
    for name in model.args:
        if name in _GIVEN:
            raise UserError(
                f"keras.applications.{model.target}: {name} follows from the spec; leave it out"
            )
        if name not in allowed:
            raise UserError(
                f"keras.applications.{model.target} has no argument {name!r}; its arguments: "
                f"{', '.join(allowed)}"
            )


def _pixels(input_shape: tuple[int, ...]) -> str:
    """Return a phrase for samples of a shape."""
    return ("images of " if len(input_shape) == 3 else "samples of ") + "x".join(
        map(str, input_shape)
    )


# --- a function of one's own ---------------------------------------------------------------

_USED = {
    "class": "the softmax cross-entropy of its logits",
    "multilabel": "the sigmoid cross-entropy of its logits",
    "value": "the mean squared error of its values",
    "mask": "the softmax cross-entropy of each pixel's logits",
}


def _warn_of_unused_loss(
    name: str, model: keras.Model, target: TargetSpec, used: Measure | None
) -> None:
    """Warn that a loss given to ``compile`` is not used, and which one is."""
    loss = getattr(model, "loss", None)
    if loss is not None:
        warnings.warn(
            f"{name} compiles its model with the loss {_loss_name(loss)}, which is not used: FLEET "
            f"trains every network with {used or _USED[target.kind]}, and the optimizer of the "
            "spec; leave the compile out",
            NetworkWarning,
            stacklevel=2,
        )


def _loss_name(loss: Any) -> str:
    if isinstance(loss, list | tuple):
        return ", ".join(map(_loss_name, loss))
    if isinstance(loss, dict):
        return _loss_name(list(loss.values()))
    if isinstance(loss, str):
        return loss
    return getattr(loss, "__name__", "") or getattr(loss, "name", "") or type(loss).__name__


def _logits(
    name: str, model: keras.Model, input_shape: tuple[int, ...], target: TargetSpec
) -> keras.Model:
    """Check the model on two samples, and remove a final softmax, or sigmoid for labels."""
    values = _call_on_samples(name, model, input_shape)
    if target.kind == "mask":
        shape = (*target.shape, target.outputs)
    else:
        shape = (target.outputs,)
    if values.shape != (2, *shape):
        raise ModelError(
            f"{name} gives outputs of shape {(None, *values.shape[1:])}, not {(None, *shape)}"
        )
    if target.kind == "value":
        return model
    if target.kind != "multilabel" and _are_probabilities(values):
        return _remove_activation(name, model, "softmax")
    if not _are_bounded(values) or np.isnan(values).any():  # NaN is reported later
        return model
    if target.kind == "multilabel" and _ends_in(model, "sigmoid"):
        return _remove_activation(name, model, "sigmoid")
    if all(map(_are_bounded, _with_other_weights(name, model, input_shape))):
        raise ModelError(
            f"{name} gives probabilities, by a sigmoid; leave it out, so that it returns logits"
        )
    return model


def _are_bounded(values: np.ndarray) -> bool:
    return bool(((values >= 0) & (values <= 1) | np.isnan(values)).all())


def _with_other_weights(
    name: str, model: keras.Model, input_shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """Yield the outputs for two samples with noise added to the weights."""
    random = np.random.default_rng(0)
    for deviation in _NOISES:
        noisy = [
            (
                variable,
                variable
                + (deviation * random.standard_normal(variable.shape)).astype(variable.dtype),
            )
            for variable in model.trainable_variables
        ]
        with keras.StatelessScope(state_mapping=noisy):
            yield _call_on_samples(name, model, input_shape)


def _call_on_samples(name: str, model: keras.Model, input_shape: tuple[int, ...]) -> np.ndarray:
    """Call a model on two random samples, which also builds it if necessary.

    Raises:
        ModelError: it takes several inputs, returns several outputs, or cannot take such samples.
    """
    if len(getattr(model, "inputs", None) or ()) > 1:
        raise ModelError(
            f"{name} takes {len(model.inputs)} inputs; samples have one, so a network should take "
            "one"
        )
    samples = np.random.uniform(-1.0, 1.0, (2, *input_shape)).astype("float32")
    try:
        with tf.GradientTape() as tape:
            outputs = model(samples, training=False)
        _check_self_contained(name, model, tape.watched_variables())
        if not isinstance(outputs, list | tuple | dict):
            return keras.ops.convert_to_numpy(outputs).astype("float32")
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{name} cannot take {_pixels(input_shape)}: {one_line(error)}") from error
    raise ModelError(
        f"{name} gives {len(outputs)} outputs; samples have one target, so a network should give "
        "one"
    )


def _check_self_contained(name: str, model: keras.Model, used: Iterable[tf.Variable]) -> None:
    """Check that a model computes only with its own weights.

    Raises:
        ModelError: Keras does not track some of them, such as those of a layer in a plain object.
    """
    known_ids = {id(variable.value) for variable in model.variables}
    foreign = [variable for variable in used if id(variable) not in known_ids]
    if foreign:
        raise ModelError(
            f"{name}: the model computes with weights that Keras does not know as its own "
            f"({foreign[0].name}): they would not be trained, and are not saved; keep layers as "
            "attributes of the model or in a list of its own, single weights by add_weight"
        )


def _are_probabilities(values: np.ndarray) -> bool:
    return bool((values >= 0).all() and np.allclose(values.sum(axis=-1), 1.0, atol=1e-2))


def _ends_in(model: keras.Model, function: str) -> bool:
    last = _last_operation(model)
    return getattr(last, "activation", None) is getattr(keras.activations, function) or (
        type(last).__name__ == function.capitalize()
    )


def _remove_activation(name: str, model: keras.Model, function: str) -> keras.Model:
    """Return the model without its final softmax or sigmoid."""
    last = _last_operation(model)
    if getattr(last, "activation", None) is getattr(keras.activations, function):
        last.activation = keras.activations.linear
        return model
    is_itself = (
        type(last).__name__ == function.capitalize()
    )  # the layer, or the function of keras.ops
    if is_itself and last is _last_operation(model, inside=False):
        return keras.Model(model.input, last.input, name=model.name)
    raise ModelError(
        f"{name} gives probabilities, by a {function} that cannot be removed here; leave out "
        f"the last {function}, so that it returns logits"
    )


def _last_operation(model: keras.Model, inside: bool = True) -> Any:
    """Return the operation that creates the output; None in a subclass's call."""
    if not getattr(model, "outputs", None):
        return None
    last = model.outputs[0]._keras_history.operation
    if inside and isinstance(last, keras.Model):
        return _last_operation(last)
    return last
