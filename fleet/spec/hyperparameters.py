"""The hyper-parameters of a network as flat names and plain values, for trackers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fleet.spec.schema import NetworkSpec
from fleet.spec.section import plain

Plain: TypeAlias = bool | int | float | str


def hyperparameters_of(network: NetworkSpec) -> dict[str, Plain]:
    """Return the hyper-parameters of a network by the names used in spaces.

    They include all arguments of a family, the optimizer, its learning rate, the batch size, and
    the training settings that differ from their defaults.
    """
    architecture = network.architecture
    train = network.train
    if architecture.kind == "family":
        args: Mapping[str, Any] = dataclasses.asdict(architecture.settings)
    else:
        args = architecture.args
    always = {
        "batch": {"size": train.batch.size},
        "optimizer": {"name": train.optimizer.name, "learning_rate": train.optimizer.learning_rate},
    }
    values = {
        "model": architecture.target,
        **dict(flatten("", args)),
        **dict(flatten("train", always)),
        **dict(flatten("train", plain(train))),
        **({} if network.fold is None else {"fold": network.fold}),
        **({} if network.repeat is None else {"repeat": network.repeat}),
    }
    return {
        name: to_scalar(value)
        for name, value in (values | network.parameters).items()
        if value is not None
    }


def to_scalar(value: Any) -> Plain:
    """Return a number, text or flag as it is, and anything else as JSON.

    >>> to_scalar(0.5), to_scalar([1, 2])
    (0.5, '[1, 2]')
    """
    if isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value)


def flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested settings by dotted names.

    >>> list(flatten("train", {"batch": {"size": 8}, "class_weights": {"a cat": 2.0}}))
    [('train.batch.size', 8), ('train.class_weights', {'a cat': 2.0})]
    """
    if not (isinstance(value, Mapping) and all(str(key).isidentifier() for key in value)):
        yield path, value
        return
    for key, part in value.items():
        yield from flatten(f"{path}.{key}" if path else str(key), part)
