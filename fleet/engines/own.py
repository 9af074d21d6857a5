"""Functions of the user's own: what a spec names by an import path, for whichever library."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from fleet.errors import ModelError, SettingError, UserError, exit_reason
from fleet.plugins import load_object
from fleet.spec import Optimizer, Train
from fleet.spec.measures import name_of, parameters_of
from fleet.spec.model import Architecture, call_of, load_function, one_line, told_as

T = TypeVar("T")


def load_own(path: str, role: str, *key: str) -> Any:
    """What a setting of ``train`` names by an import path.

    Raises:
        SettingError: there is none.
    """
    try:
        return load_object(path, role)
    except UserError as error:
        raise SettingError(str(error), "train", *key) from error


def own_loss(train: Train, kind: type, **always: Any) -> tuple[Any, dict[str, Any]]:
    """A loss of the user's own, and what it is called with; one of a class of the library is made.

    Args:
        kind: of the library's losses.
        always: what they are made with, unless the user says otherwise.

    Raises:
        SettingError: there is none, or it cannot be made.
    """
    assert train.loss is not None
    name, given = name_of(train.loss), parameters_of(train.loss)
    if train.label_smoothing:
        raise SettingError(
            "label_smoothing works with the losses that FLEET has; your own loss may do it itself",
            "train",
            "label_smoothing",
        )
    found = load_own(name, "loss", "loss")
    if not callable(found):
        raise SettingError(f"{name} is a {type(found).__name__}, not a function", "train", "loss")
    if not (isinstance(found, type) and issubclass(found, kind)):
        return found, given
    with told_as(f"{name}:", SettingError, "train", "loss"):
        return found(**{**always, **given}), {}


def own_optimizer(settings: Optimizer, kind: type, what: str, make: Callable[[Any], Any]) -> Any:
    """An optimizer of the user's own.

    Args:
        kind: of the library's optimizers, and what it is called.
        make: calls the user's function.

    Raises:
        SettingError: there is no such function, or it makes none.
    """
    function = load_own(settings.name, "optimizer", "optimizer", "name")
    with told_as(f"{settings.name} raised", SettingError, "train", "optimizer"):
        made = make(function)
    if not isinstance(made, kind):
        raise SettingError(
            f"{settings.name} returned a {type(made).__name__}, not a {what}",
            "train",
            "optimizer",
            "name",
        )
    return made


def own_model(
    architecture: Architecture, shape: tuple[int, ...], outputs: int, kind: type[T], what: str
) -> T:
    """What a function of the user's own builds.

    Args:
        kind: of the library's models, and what it is called.

    Raises:
        UserError: there is no such function, or it does not take such arguments.
        ModelError: it builds none.
    """
    name, function = architecture.target, load_function(architecture.target)
    keywords = call_of(function, architecture, shape, outputs)
    try:
        inspect.signature(function).bind(**keywords)
    except (TypeError, ValueError) as error:  # wrong arguments, or a builtin that has no signature
        raise UserError(f"{name} is called with {', '.join(keywords)}: {error}") from error
    try:
        built = function(**keywords)
    except SystemExit as error:
        raise ModelError(
            f"{name} returned no {what.rpartition('.')[2].lower()}: {exit_reason(error)}"
        ) from error
    except Exception as error:  # the user's function may raise anything
        raise ModelError(f"{name} raised {one_line(error)}") from error
    if not isinstance(built, kind):
        raise ModelError(f"{name} returned a {type(built).__name__}, not a {what}")
    return built


@contextmanager
def generators_kept() -> Iterator[None]:
    """Give Python's and NumPy's generators of random numbers back as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
