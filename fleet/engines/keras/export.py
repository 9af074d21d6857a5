"""Export networks as models that plain Keras loads."""

from __future__ import annotations

import inspect
import json
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from fleet.engines.keras.named_parts import integer_inputs, structured_for
from fleet.errors import ModelError
from fleet.spec.model import one_line
from preprocess.base import flatten_rows
from preprocess.sample import SampleSpec

_ADVICE = "build it from Keras layers, or define get_config in its classes"


def export_model(model: keras.Model, sample: SampleSpec) -> keras.Model:
    """Return the model to write, which shares its weights with the network.

    It takes samples as the stream carries them and returns logits. A subclass of ``keras.Model`` is
    written as the layers that it calls, so it can be loaded without its code; if its ``call`` needs
    the code, it is written as itself.

    Args:
        model: the network.
        sample: shape and type of its inputs.

    Raises:
        ModelError: it cannot be exported.
    """
    try:
        if _is_keras(type(model).__module__):
            if all(part.affine is None for part in sample.by_input.values()):
                return model
            return _with_scaling(model, sample, model)
        for call in (_layers_of(model), model):
            try:
                written = _with_scaling(model, sample, call)
            except Exception:  # a call that cannot take symbolic tensors
                if call is model:
                    raise
                continue
            if call is model or _agree(model, written, sample):
                return written
        raise AssertionError("the last call returns or raises")
    except Exception as error:
        raise _export_error(error) from error


def check_config(model: keras.Model) -> None:
    """Check that a model can be described in a file, before training.

    Raises:
        ModelError: it cannot be described.
    """
    try:
        keras.saving.serialize_keras_object(model)
    except Exception as error:  # a user's get_config may raise anything
        raise _export_error(error) from error


def try_load(
    path: Path, model: keras.Model, sample: SampleSpec, has_predictions: bool = True
) -> str:
    """Load a network as a user would, and compare its outputs with the original.

    Args:
        path: path of the export.
        model: the network.
        sample: shape and type of its inputs.
        has_predictions: False for a model whose outputs cannot be compared.

    Returns:
        What loading needs besides Keras, as one line; empty if nothing.

    Raises:
        ModelError: it cannot be loaded, or its outputs differ.
    """
    classes = {type(layer) for layer in model._flatten_layers()}
    custom = {kind.__name__: kind for kind in classes if not _is_keras(kind.__module__)}
    attempts: list[dict[str, Any]] = [
        {},
        {"custom_objects": custom},
        {"safe_mode": False},
        {"custom_objects": custom, "safe_mode": False},
    ]
    for options in attempts:
        try:
            loaded = keras.saving.load_model(path, **options)
        except Exception as caught:  # a user's from_config may raise anything
            error = caught
            continue
        break
    else:
        raise ModelError(
            f"the exported best.keras cannot be loaded: {short_error(error)}; {_ADVICE}"
        ) from error
    if has_predictions and not outputs_agree(model, loaded, sample):
        raise ModelError(
            "the exported best.keras returns other logits than the network, because its config is "
            f"incomplete; {_ADVICE}"
        )
    requirements = [f"the module {module}" for module in _modules(path)]
    if "custom_objects" in options:
        requirements.append(f"custom_objects with {', '.join(sorted(custom))}")
    if "safe_mode" in options:
        requirements.append("safe_mode=False")
    if requirements:
        return f"loading best.keras requires {' and '.join(requirements)}"
    return ""


def outputs_agree(model: keras.Model, written: keras.Model, sample: SampleSpec) -> bool:
    """Return True if a network and its export return the same logits for random inputs.

    If a network draws random numbers in evaluation, only the shapes are compared.

    Args:
        model: the network.
        written: the exported network.
        sample: shape and type of the inputs.
    """
    random = np.random.default_rng(0)
    inputs, scaled = _made_up(sample, random)
    outputs, repeated, exported = (
        _flat(network(batch, training=False))
        for network, batch in ((model, scaled), (model, scaled), (written, inputs))
    )
    tolerance = 1e-3 if model.compute_dtype == "float32" else 5e-2
    atol = tolerance * max(1.0, float(np.abs(outputs).max()))
    return outputs.shape == exported.shape and bool(
        np.allclose(outputs, exported, rtol=tolerance, atol=atol)
        or not np.allclose(outputs, repeated, rtol=tolerance, atol=atol)
    )


def _flat(outputs: Any) -> np.ndarray:
    """Return outputs as an array, float64; several side by side."""
    arrays = [
        np.asarray(keras.ops.convert_to_numpy(output)).astype(np.float64)
        for output in keras.tree.flatten(outputs)
    ]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate([flatten_rows(array) for array in arrays], axis=1)


def _made_up(sample: SampleSpec, random: np.random.Generator) -> tuple[Any, Any]:
    """Return two random samples as they travel, and as the network takes them."""
    if sample.parts:
        made_up = {name: _made_up(part, random) for name, part in sample.parts.items()}
        for name in integer_inputs(sample):
            inputs = sample.parts[name].input.random_inputs(random, 2)
            made_up[name] = inputs, inputs
        raw = {name: inputs for name, (inputs, _) in made_up.items()}
        return raw, {name: scaled for name, (_, scaled) in made_up.items()}
    shape = (2, *sample.input.shape)
    inputs = sample.input.random_inputs(random, 2).astype(np.float32)
    affine = sample.affine
    if affine is not None and affine.precise:
        inputs = affine.unit * (np.array(affine.mean) + affine.std * random.normal(size=shape))
    return inputs, inputs if affine is None else affine.apply(inputs)


def _agree(model: keras.Model, written: keras.Model, sample: SampleSpec) -> bool:
    """Return True if outputs agree, or cannot be compared, because there are several."""
    if isinstance(written.output, list | tuple | dict):
        return True
    return outputs_agree(model, written, sample)


def _with_scaling(model: keras.Model, sample: SampleSpec, call: Any) -> keras.Model:
    """Return a model that scales its inputs, unless the stream does, and applies a call."""
    if not sample.parts:
        raw, scaled = _scaled_input(sample, "raw_image")
        return keras.Model(raw, call(scaled), name=model.name)
    integers = integer_inputs(sample)
    pairs = {
        name: _scaled_input(part, name, str(part.input.dtype) if name in integers else "float32")
        for name, part in sample.parts.items()
    }
    scaled_by_name = {name: scaled for name, (_, scaled) in pairs.items()}
    outputs = call(structured_for(call, scaled_by_name))
    return keras.Model({name: raw for name, (raw, _) in pairs.items()}, outputs, name=model.name)


def _scaled_input(sample: SampleSpec, name: str, dtype: str = "float32") -> tuple[Any, Any]:
    """Return an input of an exported model, and the same scaled."""
    affine = sample.affine
    if affine is not None and affine.precise:
        raw = keras.Input(sample.input.shape, name=name, dtype="float64")
        # Keras stores the parameters of layers in float32.
        shift, affine = affine.split_shift()
        shifted = keras.layers.Rescaling(1.0, (-shift).tolist(), dtype="float64")(raw)
        scaled = keras.ops.cast(shifted, "float32")
    else:
        raw = scaled = keras.Input(sample.input.shape, name=name, dtype=dtype)
    if affine is not None:
        scaled = keras.layers.Rescaling(affine.multiplier.tolist(), affine.offset.tolist())(scaled)
    return raw, scaled


def _layers_of(model: keras.Model) -> Any:
    """Return the call of a subclass of ``keras.Model``, without the subclass itself."""
    training = inspect.signature(model.call).parameters.get("training")
    is_required = training is not None and training.default is inspect.Parameter.empty
    options = {"training": False} if is_required else {}
    return lambda inputs: model.call(inputs, **options)


def _modules(path: Path) -> list[str]:
    """Return the modules besides Keras that the config of an export names."""
    names: set[str] = set()

    def collect(config: Any) -> None:
        if isinstance(config, dict):
            module = config.get("module")
            if isinstance(module, str) and "class_name" in config:
                names.add(module)
            config = list(config.values())
        if isinstance(config, list):
            for entry in config:
                collect(entry)

    with zipfile.ZipFile(path) as file:
        collect(json.loads(file.read("config.json")))
    return sorted(module for module in names if not _is_keras(module) and module != "builtins")


def _is_keras(module: str) -> bool:
    return f"{module}.".startswith("keras.")


def _export_error(error: Exception) -> ModelError:
    if isinstance(error, ModelError):
        return error
    return ModelError(
        f"the network cannot be exported as best.keras: {short_error(error)}; {_ADVICE}"
    )


def short_error(error: Exception) -> str:
    """Return an error in one line, without the advice that Keras appends."""
    text = one_line(error).rpartition(" Exception encountered: ")[2]
    for advice in (" Please implement", " Example:", " Make sure", " Full object config"):
        text = text.partition(advice)[0]
    return text[:300]
