"""Assign the inputs and outputs of a model to their names; works with any backend of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from fleet.errors import ModelError
from preprocess.record_target import RecordTarget
from preprocess.sample import SampleSpec


def integer_inputs(sample: SampleSpec) -> dict[str, tuple[int, ...]]:
    """Return the names of the inputs that stay whole numbers, with some of their values.

    Without values of the data, those of several inputs are 0 and 1; a single input is left out.
    """
    integers = {}
    for name, part in sample.by_input.items():
        values = getattr(part.input, "values", ())
        if not values and sample.parts:
            values = (0, 1)
        is_whole = len(part.input.shape) != 3 and np.dtype(part.input.dtype).kind in "iu"
        if values and is_whole and part.affine is None:
            integers[name] = values
    return integers


def input_structure(model: keras.Model) -> Any:
    """Return the symbolic inputs of a model in the structure that it was made with.

    A sequential model that was loaded from a file has no attribute ``input`` before a call.
    """
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def structured_for(model: keras.Model, samples: Any) -> Any:
    """Return named samples in the structure that a functional model has been made with.

    Keras sorts a mapping by name before a symbolic call, also for a model of a list of inputs.
    """
    if not isinstance(samples, dict) or not getattr(model, "inputs", None):
        return samples
    structure = input_structure(model)
    if isinstance(structure, list | tuple):
        return [samples[symbolic.name] for symbolic in structure]
    if isinstance(structure, keras.KerasTensor):
        return samples[structure.name]
    return samples


def outputs_by_target(model: keras.Model, returned: Any, target: RecordTarget) -> dict[str, Any]:
    """Return what a model returned for each of several targets by name.

    Args:
        model: the model, whose outputs may have the names of the targets.
        returned: a mapping by name, or a list in the order of the targets.
        target: the targets.

    Raises:
        ModelError: it is something else, or lacks a target.
    """
    names = tuple(target.parts)
    listed = ", ".join(names)
    if isinstance(returned, Mapping):
        outputs = dict(returned)
    elif isinstance(returned, tuple | list):
        of_model = list(getattr(model, "output_names", None) or ())
        if len(returned) != len(names):
            raise ModelError(
                f"the model returns {len(returned)} outputs, and there are {len(names)} targets; "
                f"it should return one for each, in this order: {listed}"
            )
        in_order = of_model if set(of_model) == set(names) else names
        outputs = dict(zip(in_order, returned, strict=True))
    elif len(names) == 1:
        outputs = {names[0]: returned}
    else:
        raise ModelError(
            "the model returns one output; it should return one for each target, as a list in this "
            f"order, or as a mapping by name: {listed}"
        )
    missing = [name for name in names if name not in outputs]
    if missing:
        raise ModelError(
            f"the model returns no output for the target {missing[0]}; it returns "
            f"{', '.join(map(str, outputs))}, and should return one for each of {listed}"
        )
    return {name: outputs[name] for name in names}
