"""Samplers and pruners of Optuna by name, with their options as a spec writes them.

A name is the class (``TPESampler``), the class in short (``tpe``), or an import path
``module:Class``. The options are the arguments of the constructor. An option that takes a sampler,
pruner, crossover or mutation is written in the same way: as a name, or as a mapping with the name
and options, such as ``wrapped_pruner: {pruner: median, n_startup_trials: 2}``.
"""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import optuna

from fleet.errors import SearchKeyError, UserError
from fleet.plugins import load_object
from fleet.spec.model import one_line
from fleet.spec.search import OPTUNA_PRUNERS
from launch.errors import did_you_mean

# Packages that Optuna's classes import when they are used first.
_NEEDS: Mapping[str, str] = {
    "CmaEsSampler": "cmaes",
    "GPSampler": "scipy torch",
    "QMCSampler": "scipy",
    "WilcoxonPruner": "scipy",
}
# Arguments with a default that suits searches better than Optuna's, where a class has them: a
# sequence that depends on the seed, proposals apart from those in training, and no warning for each
# trial.
_DEFAULTS = {"scramble": True, "constant_liar": True, "warn_independent_sampling": False}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}


@dataclass(frozen=True)
class _Kind:
    """A kind of object that a spec names.

    Attributes:
        module: the module of Optuna with its classes.
        base: the base class of them.
        aliases: further names.
    """

    module: ModuleType
    base: type
    aliases: Mapping[str, str]

    def by_word(self, suffix: str) -> dict[str, type]:
        """Return the classes by their short names."""
        classes = (getattr(self.module, name) for name in self.module.__all__)
        return {
            _normalize(member.__name__, suffix): member
            for member in classes
            if isinstance(member, type)
            and issubclass(member, self.base)
            and not inspect.isabstract(member)
        }


_KINDS: Mapping[str, _Kind] = {
    "sampler": _Kind(optuna.samplers, optuna.samplers.BaseSampler, {}),
    "pruner": _Kind(
        optuna.pruners,
        optuna.pruners.BasePruner,
        OPTUNA_PRUNERS,
    ),
    "crossover": _Kind(optuna.samplers.nsgaii, optuna.samplers.nsgaii.BaseCrossover, {}),
    "mutation": _Kind(optuna.samplers.nsgaii, optuna.samplers.nsgaii.BaseMutation, {}),
}


@contextmanager
def without_warnings() -> Iterator[None]:
    """Return a context without some of Optuna's warnings.

    Which of its classes are experimental is for its documentation to say, not for each launch. That
    a sampler does not use constraints is said when a search starts.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Constraints have been set")
        yield


def find_class(kind: str, name: Any, path: tuple) -> Callable[..., Any]:
    """Return a class of Optuna, or one of an import path, by its name.

    Args:
        kind: ``sampler``, ``pruner``, ``crossover`` or ``mutation``.
        name: the name in the spec.
        path: its key path below the search, for messages.

    Raises:
        SearchKeyError: nothing has this name.
    """
    names = _KINDS[kind].by_word(kind)
    listed = f"it should be one of {', '.join(names)}, or an import path module:Class"
    if not isinstance(name, str):
        raise SearchKeyError(path, f"{name!r} is no {kind}", listed)
    if ":" in name:
        try:
            loaded: Callable[..., Any] = load_object(name, kind)
        except UserError as error:
            wrong, _, right = str(error).partition("; ")
            raise SearchKeyError(path, wrong, right) from error
        if not callable(loaded):
            raise SearchKeyError(path, f"{name} is no class", listed)
        return loaded
    word = _normalize(name, kind)
    word = _KINDS[kind].aliases.get(word, word)
    if word not in names:
        hint = did_you_mean(word, names)
        raise SearchKeyError(path, f"Optuna has no {kind} {name!r}{hint}", listed)
    return names[word]


def build(
    kind: str,
    name: Any,
    options: Mapping[str, Any],
    path: tuple,
    context: Mapping[str, Any],
    name_path: tuple | None = None,
) -> Any:
    """Construct a sampler, pruner, crossover or mutation.

    Args:
        kind: as for :func:`find_class`.
        name: its name in the spec.
        options: its options in the spec.
        path: key path of the options below the search.
        context: argument -> value that it gets if it takes one and no option gives it.
        name_path: key path of the name; by default below that of the options.

    Raises:
        SearchKeyError: the name or an option is wrong, or a package is missing.
    """
    name_path = (*path, kind) if name_path is None else name_path
    construct = find_class(kind, name, name_path)
    label = getattr(construct, "__name__", str(name))
    _require(label, name_path)
    parameters = {
        parameter.name: parameter
        for parameter in inspect.signature(construct).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    arguments = {}
    for key, value in options.items():
        arguments[key] = _argument(label, key, value, parameters, (*path, key), context)
    for key, value in context.items():
        if key in parameters:
            arguments.setdefault(key, value)
    for key, value in _DEFAULTS.items():
        if key in parameters and parameters[key].default is (not value):
            arguments.setdefault(key, value)
    if "base_sampler" in parameters and "base_sampler" not in arguments:
        arguments["base_sampler"] = build("sampler", "tpe", {}, path, context)
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and key not in arguments
    ]
    if missing:
        raise SearchKeyError(path, f"{label} needs {', '.join(missing)}", "add it here")
    try:
        with without_warnings():
            return construct(**arguments)
    except Exception as error:  # Optuna's constructors raise anything
        raise SearchKeyError(path, f"{label} cannot be constructed: {one_line(error)}") from error


def _argument(
    label: str,
    key: str,
    value: Any,
    parameters: Mapping[str, inspect.Parameter],
    path: tuple,
    context: Mapping[str, Any],
) -> Any:
    """Return the argument for an option."""
    if key in _REFUSED:
        raise SearchKeyError(path, f"{key} is no option here", _REFUSED[key])
    if key not in parameters:
        names = [name for name in parameters if name not in _REFUSED]
        right = f"its options are {', '.join(names)}" if names else "it has no options"
        hint = did_you_mean(key, names)
        raise SearchKeyError(path, f"{label} has no option {key!r}{hint}", right)
    for kind in _KINDS:
        if key != kind and not key.endswith(f"_{kind}"):
            continue
        if isinstance(value, str):
            return build(kind, value, {}, path, context, name_path=path)
        if isinstance(value, Mapping) and kind in value:
            options = {name: item for name, item in value.items() if name != kind}
            return build(kind, value[kind], options, path, context)
        if value is not None:
            right = f"it should be a name, or a mapping with `{kind}` and options"
            raise SearchKeyError(path, f"{value!r} names no {kind}", right)
    annotation = str(parameters[key].annotation)
    if "Callable" in annotation and isinstance(value, str):
        return load_object(value, key)
    words = [word.strip() for word in annotation.split("|")]
    if all(word in _TYPES for word in words):
        types = tuple(kind for word in words for kind in _TYPES[word])
        is_flag = isinstance(value, bool) and bool not in types
        if is_flag or not isinstance(value, types):
            right = " or ".join(_IN_YAML[word] for word in words if word != "None")
            raise SearchKeyError(path, repr(value), f"it should be {right}")
    return value


_IN_YAML = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text"}
# Arguments of Optuna that another key of a spec gives.
_REFUSED = {
    "seed": "use `search: {seed: ...}`",
    "constraints_func": "use `search: {constraints: [parameters <= 1e6]}`",
}


def _require(label: str, path: tuple) -> None:
    """Check that the packages of a class are installed."""
    missing = [
        name for name in _NEEDS.get(label, "").split() if importlib.util.find_spec(name) is None
    ]
    if missing:
        packages = " ".join(missing)
        raise SearchKeyError(path, f"{label} needs {packages}", f"run `pip install {packages}`")


def _normalize(name: str, suffix: str) -> str:
    """Return a name without case, dashes and the suffix of its kind.

    >>> _normalize("TPESampler", "sampler"), _normalize("brute_force", "sampler")
    ('tpe', 'bruteforce')
    """
    return name.lower().replace("_", "").replace("-", "").removesuffix(suffix)
