"""Load weights from a ``.weights.h5`` or ``.keras`` file, and freeze some of them.

Such a file addresses weights by the position of their layer in the model, and records layer names.
If the file has all positions of the network, these are used, because unnamed layers are renumbered
in each process. Otherwise layer names are used, so the layers of a model fit into one with
different layers around them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import keras
from keras.src.saving import saving_lib

from fleet.engines.initial_weights import match_patterns, match_weights
from fleet.errors import SettingError
from fleet.spec.model import wrapping_errors

# Groups of a file that are no layers; the last holds random states.
_NOT_LAYERS = ("optimizer", "metrics", "compile_metrics", "seed_generator")


class _Layer(NamedTuple):
    """A layer and its weights, by their keys in a file."""

    path: str
    name: str
    weights: dict[str, Any]


def load_pretrained(model: keras.Model, file: Path, skip: Sequence[str]) -> None:
    """Load weights; see :meth:`fleet.engines.base.SupportsPretrained.load_pretrained`.

    Args:
        model: model to load into.
        file: path of the weights.
        skip: patterns of weight names to leave out.
    """
    names = _names(model)
    network_layers = [
        _Layer(
            path,
            name,
            {key: variable for key, variable in content.items() if id(variable) in names},
        )
        for path, name, content in _Recorder.of(model)
    ]
    network_layers = [layer for layer in network_layers if layer.weights]
    with _open_weights(file) as content:
        file_layers = {layer.path: layer for layer in _layers(content)}
        is_by_path = all(layer.path in file_layers for layer in network_layers)
        if is_by_path:
            sources = file_layers
        else:
            sources = {layer.name: layer for layer in file_layers.values()}
        variables: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for layer in network_layers:
            source = sources.pop(layer.path if is_by_path else layer.name, None)
            variables |= {names[id(variable)]: variable for variable in layer.weights.values()}
            for key, value in ({} if source is None else source.weights).items():
                target = layer.weights.get(key)
                values[f"{layer.name}/{key}" if target is None else names[id(target)]] = value
        values |= {
            f"{layer.name}/{key}": value
            for layer in sources.values()
            for key, value in layer.weights.items()
        }
        for name in match_weights(
            str(file),
            {name: variable.shape for name, variable in variables.items()},
            {name: value.shape for name, value in values.items()},
            skip,
        ):
            variables[name].assign(values[name][()])


def freeze(model: keras.Model, patterns: Sequence[str]) -> None:
    """Exclude the weights that patterns match from training.

    A layer whose statistics are among them behaves in training as in evaluation.

    Args:
        model: model to change.
        patterns: patterns of weight names.

    Raises:
        SettingError: a pattern matches nothing, or no weight is left to train.
    """
    names = _names(model)
    frozen = match_patterns(patterns, names.values(), "freeze")
    for layer in model._flatten_layers():
        selected = {
            id(candidate): candidate
            for candidate in (*layer._trainable_variables, *layer._non_trainable_variables)
            if names.get(id(candidate)) in frozen
        }
        if any(id(candidate) in selected for candidate in layer._non_trainable_variables):
            layer.trainable = False
        for variable in selected.values():
            variable.trainable = False
    if not model.trainable_variables:
        raise SettingError(
            "the patterns freeze all weights; at least one must be trained",
            "train",
            "start",
            "freeze",
        )


def _names(model: keras.Model) -> dict[int, str]:
    """Return names of weights by variable identity: paths of Keras inside the model."""
    names: dict[int, str] = {}
    for variable in model.weights:
        name = variable.path.removeprefix(f"{model.name}/")
        names[id(variable)] = name if name not in names.values() else f"{name}_{len(names)}"
    return names


class _Recorder(saving_lib.H5IOStore):
    """A stand-in for a file that records the variables that a model would write."""

    def __init__(self) -> None:
        self.layers: list[_Layer] = []

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: dict[str, str] | None = None) -> _Recorder:
        self.layers.append(_Layer(str(path), (metadata or {}).get("name", ""), {}))
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        self.layers[-1].weights[key] = value

    @classmethod
    def of(cls, model: keras.Model) -> list[_Layer]:
        """Return the layers of a model."""
        recorder = cls()
        saving_lib._save_state(model, recorder, None, "", set())
        return recorder.layers


def _layers(file: h5py.File) -> list[_Layer]:
    """Return the layers in a file with their weights."""
    layers = []

    def add_layer(path: str, group: Any) -> None:
        parts = path.split("/")
        if (
            parts[-1] == "vars"
            and len(group)
            and not any(part.startswith(_NOT_LAYERS) for part in parts[:-1])
        ):
            layers.append(
                _Layer(
                    "/".join(parts[:-1]),
                    str(group.attrs.get("name", parts[-2] if parts[1:] else "")),
                    dict(group),
                )
            )

    file.visititems(add_layer)
    return layers


@contextmanager
def _open_weights(file: Path) -> Iterator[h5py.File]:
    """Open the weights in a file."""
    with wrapping_errors(
        f"{file} cannot be read as .weights.h5 or .keras:",
        SettingError,
        "train",
        "start",
        of=(OSError, KeyError, zipfile.BadZipFile),
    ):
        if zipfile.is_zipfile(file):
            with (
                zipfile.ZipFile(file) as parts,
                parts.open("model.weights.h5") as part,
                h5py.File(part) as weights,
            ):
                yield weights
        else:
            with h5py.File(file) as weights:
                yield weights
