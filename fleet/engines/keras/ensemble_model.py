"""Combine exported networks into one Keras model of plain Keras layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from fleet.engines.keras.export import short_error
from fleet.engines.keras.named_parts import input_structure, outputs_by_target, structured_for
from fleet.errors import UserError
from fleet.storage.files import atomic_write_with
from preprocess.base import flatten_rows
from preprocess.record_target import RecordTarget
from preprocess.target_kinds import KINDS

_BATCH = 256


class EnsembleModel:
    """The weighted mean of the predictions of several models.

    Args:
        files: exports that return logits, or values; all for samples of one shape.
        weights: weight of each model; they sum to 1.
        kind: kind of the targets (:mod:`preprocess.target`); or several targets.

    Raises:
        UserError: a file is missing or cannot be loaded.
    """

    def __init__(
        self, files: Sequence[Path], weights: Sequence[float], kind: str | RecordTarget
    ) -> None:
        models = [_load(file) for file in files]
        _check_separate_weights(files, models)
        first = models[0]
        structure = input_structure(first)
        if isinstance(structure, dict):
            inputs: Any = {
                name: keras.Input(symbolic.shape[1:], name=name, dtype=symbolic.dtype)
                for name, symbolic in structure.items()
            }
        elif isinstance(structure, list):
            inputs = {
                symbolic.name: keras.Input(
                    symbolic.shape[1:], name=symbolic.name, dtype=symbolic.dtype
                )
                for symbolic in structure
            }
        else:
            inputs = keras.Input(structure.shape[1:], name="images", dtype=structure.dtype)
        self._is_precise = any(symbolic.dtype == "float64" for symbolic in first.inputs)
        self._targets = None if isinstance(kind, str) else kind
        kinds: dict[str, str] = {"": kind} if isinstance(kind, str) else {}
        if self._targets is not None:
            kinds = {name: part.kind for name, part in self._targets.parts.items()}
        parts: dict[str, list[Any]] = {name: [] for name in kinds}
        for number, (model, weight) in enumerate(zip(models, weights, strict=True)):
            model.name = f"network_{number}"  # two models may have the same name
            returned = model(structured_for(model, inputs))
            outputs = {"": returned}
            if self._targets is not None:
                outputs = outputs_by_target(model, returned, self._targets)
            for name, output in outputs.items():
                ending = f"{number}_{name}".removesuffix("_")
                # Predictions are float32, whatever the precision of the network.
                predicted = keras.layers.Activation(
                    KINDS[kinds[name]].activation, dtype="float32", name=f"predicted_{ending}"
                )
                weighted = keras.layers.Rescaling(
                    weight, dtype="float32", name=f"weighted_{ending}"
                )
                parts[name].append(weighted(predicted(output)))
        means = {
            name: added[0] if len(added) == 1 else keras.layers.Add(name=name or "mean")(added)
            for name, added in parts.items()
        }
        mean = means if self._targets is not None else means[""]
        self._model = keras.Model(inputs, mean, name="joined")

    def predict(self, inputs: np.ndarray) -> np.ndarray:  # noqa: D102 - see ExportedEnsemble
        if self._is_precise:  # predict() of Keras would cast to float32
            parts = range(0, len(inputs), _BATCH)
            outputs = [
                self._flat(self._model(_by_name(inputs[first : first + _BATCH]))) for first in parts
            ]
            return np.concatenate(outputs)
        return self._flat(self._model.predict(_by_name(inputs), batch_size=_BATCH, verbose=0))

    def _flat(self, predicted: Any) -> np.ndarray:
        """Return predictions as an array; those of several targets side by side."""
        if self._targets is None:
            return np.asarray(keras.ops.convert_to_numpy(predicted))
        columns = [
            flatten_rows(keras.ops.convert_to_numpy(predicted[name]))
            for name in self._targets.parts
        ]
        return np.concatenate(columns, axis=1)

    def save(self, path: Path) -> None:  # noqa: D102 - see ExportedEnsemble
        atomic_write_with(path, self._model.save)


def _by_name(inputs: np.ndarray) -> Any:
    """Return samples as a model takes them: of several inputs, by name."""
    if inputs.dtype.names is None:
        return inputs
    return {name: np.ascontiguousarray(inputs[name]) for name in inputs.dtype.names}


def _check_separate_weights(files: Sequence[Path], models: Sequence[keras.Model]) -> None:
    """Refuse models that share weights: all would have the weights of the last file."""
    owners: dict[int, Path] = {}
    for file, model in zip(files, models, strict=True):
        for variable in model.variables:
            owner = owners.setdefault(id(variable), file)
            if owner != file:
                raise UserError(
                    f"{file} cannot be combined with {owner}: both models share the weights "
                    f"{variable.path}; create all layers inside the model"
                )


def to_onnx(file: Path, path: Path) -> None:
    """Write an exported network as ONNX with Keras' exporter.

    See :attr:`fleet.spec.engines.EngineInfo.to_onnx`.

    Args:
        file: the export.
        path: path of the ONNX file.

    Raises:
        UserError: a library is missing.
        Exception: a converter does not support a layer.
    """
    model = _load(file)
    try:
        # The exporter requires a model that has been called.
        model(
            keras.tree.map_structure(
                lambda symbolic: np.zeros((1, *symbolic.shape[1:]), symbolic.dtype),
                input_structure(model),
            )
        )
        model.export(path, format="onnx", verbose=False)
    except ImportError as error:
        raise UserError(
            f"--onnx: {short_error(error)}; Keras needs the packages onnx and tf2onnx"
        ) from error


def _load(file: Path) -> keras.Model:
    load: Callable[[Path], keras.Model] = keras.saving.load_model
    if keras.config.backend() == "tensorflow":  # which other backends do not need
        from fleet.engines.keras.devices import find_gpus

        find_gpus()  # before the first operation
    try:
        return load(file)
    except Exception as error:  # user-defined layers may raise anything
        raise UserError(f"{file} cannot be loaded: {short_error(error)}") from error
