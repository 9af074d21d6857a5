"""What was chosen for a network, flat: a name and a plain value for each hyper-parameter, as other tools want it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fleet.spec.schema import NetworkSpec
from fleet.spec.yaml_file import plain

Plain: TypeAlias = bool | int | float | str


def hyperparameters_of(network: NetworkSpec) -> dict[str, Plain]:
    """The hyper-parameters of a network, by the names that a space has for them.

    All arguments of a family are among them, and of the training settings the optimizer, its learning rate, the batch,
    and what is not as it is by default.
    """
    what = network.architecture
    train = network.train
    if what.kind == "family":
        args: Mapping[str, Any] = dataclasses.asdict(what.settings)
    else:
        args = what.args
    always = {
        "batch": {"size": train.batch.size},
        "optimizer": {"name": train.optimizer.name, "learning_rate": train.optimizer.learning_rate},
    }
    found = {
        "model": what.target,
        **dict(flatten("", args)),
        **dict(flatten("train", always)),
        **dict(flatten("train", plain(train))),
        **({} if network.fold is None else {"fold": network.fold}),
    }
    return {
        name: to_scalar(value)
        for name, value in (found | network.parameters).items()
        if value is not None
    }


def to_scalar(value: Any) -> Plain:
    """A value that is no number, text or flag as JSON.

    >>> as_plain(0.5), as_plain([1, 2])
    (0.5, '[1, 2]')
    """
    if isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value)


def flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values of nested settings, by dotted names; what is named by other things than settings stays whole.

    >>> list(leaves("train", {"batch": {"size": 8}, "class_weights": {"a cat": 2.0}}))
    [('train.batch.size', 8), ('train.class_weights', {'a cat': 2.0})]
    """
    if not (isinstance(value, Mapping) and all(str(key).isidentifier() for key in value)):
        yield path, value
        return
    for key, part in value.items():
        yield from flatten(f"{path}.{key}" if path else str(key), part)
