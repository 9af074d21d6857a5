"""Build Keras models: families, ``keras.applications``, user functions.

Every model returns **logits**: its last layer has no softmax. The loss applies the softmax itself,
as log-sum-exp, which is exact where a probability would already be rounded to 0 or 1, and one rule
for all networks leaves one loss function. To get probabilities, call
``keras.ops.softmax(model(images))``.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from fleet.engines.custom import (
    build_custom_model,
    build_isolated,
    check_output_shape,
    find_activation,
    probabilities_error,
    seeded_generators,
)
from fleet.engines.keras.gradients import keep_gradients_with_graphs
from fleet.engines.keras.inputs import random_samples, symbolic_samples
from fleet.engines.keras.named_parts import outputs_by_target
from fleet.engines.keras.outputs import joined_outputs
from fleet.errors import ModelError, NetworkWarning, UserError
from fleet.spec.layers import Layer, layers_of
from fleet.spec.meant_keys import hint_at_key
from fleet.spec.measures import Measure
from fleet.spec.model import Architecture, InputShape, check_target, one_line, wrapping_errors
from preprocess.record_target import RecordTarget, record_of
from preprocess.target import ModelOutputs, TargetSpec, class_target

# The epsilon of keras.applications, so that its weights give the same outputs here. The
# momentum is the papers' 0.9: Keras' 0.99 takes hundreds of steps to reach the data's
# statistics, more than the first epochs of a small data set have.
_EPSILON = 1.001e-5
_MOMENTUM = 0.9

# Keyword arguments of keras.applications that follow from the spec.
_SET_BY_SPEC = (
    "include_top",
    "weights",
    "input_tensor",
    "input_shape",
    "classes",
    "classifier_activation",
)


def build_model(
    model: Architecture,
    input_shape: InputShape,
    classes: ModelOutputs,
    seed: int = 0,
    target: TargetSpec | None = None,
    loss: Measure | None = None,
    has_own_step: bool = False,
    integers: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> keras.Model:
    """Build a network that returns logits, or values.

    Args:
        model: what to build. A user function is called as ``function(input_shape=..., classes=...,
            **args)``, or with ``outputs`` instead of ``classes``.
        input_shape: height, width (pixels) and channels of an image; the shape of other inputs; of
            several inputs, by name. The model is then called with a mapping by name.
        classes: number of classes, labels or values; of several targets, by name.
        seed: equal seeds give equal initial weights and dropout masks.
        target: target of a sample; a class by default.
        loss: loss that the spec names, for a warning.
        has_own_step: True if a step of the user calls the model, which may then return anything.
        integers: the names of inputs that are whole numbers, and values of theirs in the data.

    Returns:
        A model from (batch, ...) to (batch, classes), or for masks to (batch, height, width,
        classes).

    Raises:
        UserError: the description is wrong: a function is missing, an argument is wrong, or images
            are too small.
        ModelError: a user function raised, or returned something else.
    """
    checked_target = _target_of(classes) if target is None else target

    def build() -> keras.Model:
        with _seeded(seed):
            built = _build_described(model, input_shape, classes, checked_target)
            if model.kind != "import":
                return built
            built = _with_chosen_output(model, built)
            if has_own_step:
                returns_predictions(built, input_shape, checked_target, integers)  # builds it
                return built
            if checked_target.parts:
                _check_several(model.target, built, input_shape, checked_target, integers)
                return built
            return _logits(model.target, built, input_shape, checked_target, integers)

    if model.kind != "import":
        return build()
    built = build_isolated(model.target, build, lambda built: built.variables)
    if has_own_step:
        return built
    _warn_of_unused_loss(model.target, built, checked_target, loss)
    return built


def returns_predictions(
    model: keras.Model,
    input_shape: InputShape,
    target: TargetSpec,
    integers: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> bool:
    """Return True if a model, called on samples, returns predictions of the target.

    Args:
        model: the model, which may be built by the call.
        input_shape: shape of a sample.
        target: target of a sample.
        integers: the names of inputs that are whole numbers, and values of theirs in the data.
    """
    try:
        join = partial(joined_outputs, model, target=target) if target.parts else None
        values = _call_on_samples("", model, input_shape, integers, join)
    except ModelError:
        return False
    return values.shape[1:] == target.output_shape


def count_keras_parameters(
    model: Architecture, input_shape: InputShape, classes: ModelOutputs, seed: int
) -> int:
    """Count the parameters of a network, trainable or not, without allocating them.

    If a function needs the values of weights, it is called again and its network is built.

    Args:
        model: what to build.
        input_shape: input shape of a sample.
        classes: number of classes, labels or values; of several targets, by name.
        seed: seed of the network.

    Raises:
        UserError, ModelError: as :func:`build_model`.
    """
    keep_gradients_with_graphs()

    target = _target_of(classes)

    def build() -> keras.Model:
        with _seeded(seed), keras.StatelessScope(initialize_variables=False):
            built = _build_described(model, input_shape, classes, target)
            if not built.built:
                built(symbolic_samples(input_shape, keras.KerasTensor))
            return built

    try:
        if model.kind != "import":
            return build().count_params()
        return build_isolated(model.target, build, lambda built: built.variables).count_params()
    except Exception:  # the error is raised again when the network is built
        keras.utils.clear_session(free_memory=False)
        with _seeded(seed):
            built = _build_described(model, input_shape, classes, target)
            if not built.built:
                _call_on_samples(model.target, built, input_shape, join=_first_output)
            return built.count_params()
    finally:
        # Otherwise Keras would initialize the skipped variables later.
        keras.utils.clear_session(free_memory=False)


def _build_described(
    model: Architecture, input_shape: InputShape, classes: ModelOutputs, target: TargetSpec
) -> keras.Model:
    """Build a network from its description; it may not have been called yet."""
    if model.kind == "import":
        return build_custom_model(model, input_shape, classes, keras.Model, "keras.Model")
    assert not isinstance(input_shape, dict)  # see fleet.spec.fit_checks
    assert isinstance(classes, int)
    if model.kind == "family":
        return _build_family(model, input_shape, classes, target)
    return _build_application(model, input_shape, classes)


def _target_of(classes: ModelOutputs) -> TargetSpec:
    """Return a target of as many classes, to build a network before its targets are known."""
    return class_target(max(classes, 2) if isinstance(classes, int) else 2)


def _first_output(outputs: Any) -> Any:
    """Return the first of several outputs."""
    return keras.tree.flatten(outputs)[0]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Make all random numbers deterministic, and restore Python's and NumPy's generators.

    Layers without a seed draw one from Python's generator when they are created. TensorFlow's
    global seed is not restored, because it cannot be read; FLEET does not use it.
    """
    with seeded_generators(seed):
        keras.utils.set_random_seed(seed % 2**32)
        yield


# --- families ------------------------------------------------------------------------------


def _build_family(
    model: Architecture, input_shape: tuple[int, ...], classes: int, target: TargetSpec
) -> keras.Model:
    descriptions = layers_of(model.settings, input_shape, classes, target.semantics.is_of_pixels)
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
    "conv": lambda layer: layers.Conv2D(
        layer.outputs,
        layer.side,
        strides=layer.stride,
        padding="same" if layer.pad is None else "valid",
        use_bias=layer.has_bias,
        kernel_initializer=layer.start,
        name=layer.name,
    ),
    "dense": lambda layer: layers.Dense(
        layer.outputs, kernel_initializer=layer.start, name=layer.name
    ),
    "norm": lambda layer: layers.BatchNormalization(
        epsilon=_EPSILON, momentum=_MOMENTUM, name=layer.name
    ),
    "relu": lambda layer: layers.Activation("relu", name=layer.name),
    "max_pool": lambda layer: layers.MaxPooling2D(
        layer.side, strides=layer.stride, name=layer.name
    ),
    "mean_pool": lambda layer: layers.AveragePooling2D(
        layer.side, strides=layer.stride, name=layer.name
    ),
    "average": lambda layer: layers.GlobalAveragePooling2D(name=layer.name),
    "flatten": lambda layer: layers.Flatten(name=layer.name),
    "dropout": lambda layer: layers.Dropout(layer.share, name=layer.name),
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
    prefix = f"keras.applications.{model.target} on {_describe_samples(input_shape)}:"
    # Keras raises these errors for shapes and arguments that it refuses.
    with wrapping_errors(prefix, UserError, of=(ValueError, TypeError)):
        return function(
            weights=None,
            input_shape=input_shape,
            classes=classes,
            classifier_activation=None,
            **args,
        )


def _check_application_args(model: Architecture, function: Callable[..., Any]) -> None:
    allowed = [name for name in inspect.signature(function).parameters if name not in _SET_BY_SPEC]
    for name in model.args:
        if name in _SET_BY_SPEC:
            raise UserError(
                f"keras.applications.{model.target}: FLEET sets {name} from the spec; remove it "
                "from args"
            )
        if name not in allowed:
            raise UserError(
                f"keras.applications.{model.target} has no argument {name!r}{hint_at_key(name)}; "
                f"its arguments are {', '.join(allowed)}"
            )


def _describe_samples(input_shape: InputShape) -> str:
    """Return a phrase such as ``images of 32x32x3``."""
    if isinstance(input_shape, dict):
        shapes = [f"{name} {'x'.join(map(str, part))}" for name, part in input_shape.items()]
        return f"samples of {', '.join(shapes)}, a mapping by name"
    noun = "images" if len(input_shape) == 3 else "samples"
    return f"{noun} of {'x'.join(map(str, input_shape))}"


# --- user functions ------------------------------------------------------------------------


def _warn_of_unused_loss(
    name: str, model: keras.Model, target: TargetSpec, used: Measure | None
) -> None:
    """Warn that the loss passed to ``compile`` is not used."""
    loss = getattr(model, "loss", None)
    if loss is not None:
        warnings.warn(
            f"{name} compiles its model with the loss {_loss_name(loss)}, which FLEET ignores: it "
            f"trains with {used or target.semantics.loss_text} and the optimizer of the spec; "
            "remove the call of compile",
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


def _with_chosen_output(model: Architecture, built: keras.Model) -> keras.Model:
    """Return a model with only the output that the spec names.

    Raises:
        ModelError: the output does not exist, or the layers of the model are unknown.
    """
    if model.output is None:
        return built
    if not getattr(built, "outputs", None):
        raise ModelError(
            f"{model.target}: output: {model.output} needs a functional keras.Model; let `call` "
            "return one output instead"
        )
    structure = built.output
    if isinstance(structure, dict):
        by_name = structure
    else:
        by_name = dict(zip(built.output_names, built.outputs, strict=True))
    chosen = by_name.get(model.output)
    if chosen is None and isinstance(model.output, int) and model.output < len(built.outputs):
        chosen = built.outputs[model.output]
    if chosen is None:
        raise ModelError(
            f"{model.target}: no output {model.output!r}; the model has {', '.join(by_name)}"
        )
    return keras.Model(built.input, chosen, name=built.name)


def _logits(
    name: str,
    model: keras.Model,
    input_shape: InputShape,
    target: TargetSpec,
    integers: Mapping[str, Sequence[int]],
) -> keras.Model:
    """Check the model on two samples, and remove a final softmax, or sigmoid for labels."""
    values = _call_on_samples(name, model, input_shape, integers)
    check_output_shape(name, values.shape, target.output_shape)
    if target.semantics.is_numeric:
        return model
    is_multilabel = target.semantics.has_label_sets
    random = np.random.default_rng(0)

    def noisy_outputs(deviation: float) -> np.ndarray:
        noisy = [
            (
                variable,
                variable + _noise(random, deviation, variable),
            )
            for variable in model.trainable_variables
        ]
        with keras.StatelessScope(state_mapping=noisy):
            return _call_on_samples(name, model, input_shape, integers)

    activation = find_activation(values, is_multilabel, noisy_outputs)
    if activation == "softmax" or (activation and is_multilabel and _ends_in(model, activation)):
        return _remove_activation(name, model, activation)
    if activation:
        raise probabilities_error(name, "model", activation)
    return model


def _check_several(
    name: str,
    model: keras.Model,
    input_shape: InputShape,
    target: TargetSpec,
    integers: Mapping[str, Sequence[int]],
) -> None:
    """Check a model of several targets on two samples, and remove its final activations."""
    targets = record_of(target)
    random = np.random.default_rng(0)

    def checked(returned: Any) -> Any:
        for part, output in outputs_by_target(model, returned, targets).items():
            expected = targets.parts[part].output_shape
            check_output_shape(f"{name}, for the target {part},", output.shape, expected)
        return joined_outputs(model, returned, target)

    def noisy_outputs(deviation: float, part: str) -> np.ndarray:
        noisy = [
            (variable, variable + _noise(random, deviation, variable))
            for variable in model.trainable_variables
        ]
        with keras.StatelessScope(state_mapping=noisy):
            joined = _call_on_samples(name, model, input_shape, integers, checked)
        outputs: np.ndarray = targets.split_outputs(joined)[part]
        return outputs

    values = _call_on_samples(name, model, input_shape, integers, checked)
    for part, outputs in targets.split_outputs(values).items():
        semantics = targets.parts[part].semantics
        if semantics.is_numeric:
            continue
        activation = find_activation(
            outputs, semantics.has_label_sets, partial(noisy_outputs, part=part)
        )
        if activation:
            _linearize(name, model, targets, part, activation)


def _linearize(
    name: str, model: keras.Model, target: RecordTarget, part: str, activation: str
) -> None:
    """Remove the softmax or sigmoid of the layer that returns the output for a target.

    Raises:
        ModelError: it is not an activation of that layer.
    """
    last: Any = None
    if getattr(model, "outputs", None):
        output = outputs_by_target(model, model.output, target)[part]
        last = output._keras_history.operation
    if getattr(last, "activation", None) is not getattr(keras.activations, activation):
        raise probabilities_error(f"{name}, for the target {part},", "model", activation)
    last.activation = keras.activations.linear


def _noise(random: np.random.Generator, deviation: float, variable: Any) -> np.ndarray:
    noise: np.ndarray = (deviation * random.standard_normal(variable.shape)).astype(variable.dtype)
    return noise


def _call_on_samples(
    name: str,
    model: keras.Model,
    input_shape: InputShape,
    integers: Mapping[str, Sequence[int]] = MappingProxyType({}),
    join: Callable[[Any], Any] | None = None,
) -> np.ndarray:
    """Call a model on two random samples, which also builds it if necessary.

    Args:
        name: name of the function, for messages.
        model: model to call.
        input_shape: shape of a sample.
        integers: the names of inputs that are whole numbers, and values of theirs in the data.
        join: makes one output of several; None if there should be one.

    Raises:
        ModelError: it has other inputs, several outputs, or fails on such samples.
    """
    inputs = getattr(model, "inputs", None) or ()
    if isinstance(input_shape, dict):
        input_names = _input_names(model) if inputs else []
        if input_names and set(input_names) != set(input_shape):
            raise ModelError(
                f"{name} returns a model with the inputs {', '.join(input_names)}; samples have "
                f"{', '.join(input_shape)}: name them so, as in keras.Input(shape, name=...)"
            )
    elif len(inputs) > 1:
        raise ModelError(
            f"{name} returns a model with {len(model.inputs)} inputs; it should have one, like the "
            "samples"
        )
    samples = random_samples(input_shape, 2, integers)
    try:
        with tf.GradientTape() as tape:
            outputs = model(samples, training=False)
        _check_self_contained(name, model, tape.watched_variables())
        if join is not None:
            outputs = join(outputs)
        if not isinstance(outputs, list | tuple | dict):
            return keras.ops.convert_to_numpy(outputs).astype("float32")
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name} failed on {_describe_samples(input_shape)}: {one_line(error)}"
        ) from error
    names = list(outputs) if isinstance(outputs, dict) else list(range(len(outputs)))
    raise ModelError(
        f"{name} returns a model with {len(outputs)} outputs; name one of them by `output:` beside "
        f"`build:`, such as output: {names[0]}"
    )


def _input_names(model: keras.Model) -> list[str]:
    """Return the names by which a mapping of inputs is passed to a model."""
    if isinstance(model.input, dict):
        return list(model.input)
    return [symbolic.name for symbolic in model.inputs]


def _check_self_contained(name: str, model: keras.Model, used: Iterable[tf.Variable]) -> None:
    """Check that a model computes only with its own weights.

    Raises:
        ModelError: Keras does not track some weights, such as weights of a layer in a plain object.
    """
    tracked_ids = {id(variable.value) for variable in model.variables}
    foreign = [variable for variable in used if id(variable) not in tracked_ids]
    if foreign:
        raise ModelError(
            f"{name}: the model uses weights that Keras does not track ({foreign[0].name}), so "
            "they are neither trained nor saved; make layers attributes of the model, and create "
            "single weights with add_weight"
        )


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
    # The last operation is the layer, or the function of keras.ops.
    is_separate = type(last).__name__ == function.capitalize()
    if is_separate and last is _last_operation(model, is_nested=False):
        return keras.Model(model.input, last.input, name=model.name)
    raise ModelError(
        f"{name} returns probabilities, from a {function} that FLEET cannot remove; remove the "
        f"last {function}, so that the model returns logits"
    )


def _last_operation(model: keras.Model, is_nested: bool = True) -> Any:
    """Return the operation that creates the output; None in a subclass's call.

    Args:
        model: model whose output is examined.
        is_nested: True to look inside a model that is the last layer.
    """
    if not getattr(model, "outputs", None):
        return None
    last = model.outputs[0]._keras_history.operation
    if is_nested and isinstance(last, keras.Model):
        return _last_operation(last)
    return last
