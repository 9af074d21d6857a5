"""Create the optimizer of a spec: a class of ``torch.optim``, or the user's."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

import torch

# PyTorch imports it with the first optimizer. It sets an environment variable. If that happened
# while user code runs, each step would restore the environment twice.
import torch._dynamo
from torch import nn

from fleet.engines.custom import make_custom_optimizer
from fleet.errors import SettingError
from fleet.spec import Optimizer
from fleet.spec.model import wrapping_errors
from fleet.vocabulary.torch_optimizers import ARGUMENTS, EQUAL_WITH_FOREACH

Group: TypeAlias = dict[str, Any]
_KEYS = ("train", "optimizer")


class MadeOptimizer(NamedTuple):
    """An optimizer, and what it leaves to the engine.

    Attributes:
        optimizer: the optimizer; each of its groups has the names of its parameters as
            ``param_names``.
        decays: weight decay of each group that the optimizer does not apply itself, a multiple of
            the learning rate.
    """

    optimizer: torch.optim.Optimizer
    decays: Sequence[float]


def make_optimizer(
    settings: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    rate: float,
    options: Mapping[str, Any] | None = None,
) -> MadeOptimizer:
    """Create the optimizer of a spec.

    Args:
        settings: settings of the optimizer.
        parameters: parameters to train, by name.
        rate: learning rate of parameters without their own.
        options: arguments to use instead of those of the settings.

    Raises:
        SettingError: the optimizer does not exist or refuses its arguments, or a group matches no
            parameter.
    """
    groups = _split(settings, parameters)
    if options is None:
        options = arguments_of(settings)
    if ":" in settings.name:
        created = _make_custom(settings, groups, rate, options)
    else:
        kind = class_of(settings.name)
        is_on_cpu = all(parameter.device.type == "cpu" for parameter in parameters.values())
        if is_on_cpu and settings.name in EQUAL_WITH_FOREACH and not settings.fused:
            options = {"foreach": True, **options}
        with wrapping_errors(f"{settings.name}:", SettingError, *_KEYS):
            created = MadeOptimizer(
                kind(list(map(_without_names, groups)), lr=rate, **options), [0.0] * len(groups)
            )
    _name_parameters(created.optimizer, parameters)
    return created


def class_of(name: str) -> Callable[..., torch.optim.Optimizer]:
    """Return the class of ``torch.optim`` for a lower-case name in a spec.

    Raises:
        SettingError: this version of PyTorch does not have it.
    """
    for key, kind in vars(torch.optim).items():
        if key.lower() == name and inspect.isclass(kind):
            return kind
    raise SettingError(
        f"PyTorch {torch.__version__} has no optimizer {name}; install a newer one",
        *_KEYS,
        "name",
    )


def arguments_of(settings: Optimizer) -> dict[str, Any]:
    """Return the arguments of an optimizer by PyTorch's names, without the learning rate."""
    values = {name: getattr(settings, name) for name in (*sorted(ARGUMENTS), *_OF_KERAS)}
    return _with_torch_names(values, settings.name)


# Keras' arguments that FLEET 0.2 had.
_OF_KERAS = ("beta_1", "beta_2", "epsilon")
_BETAS = (0.9, 0.999)


def _with_torch_names(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return arguments that have been given, under the names of ``torch.optim``."""
    arguments = {
        key: value for key, value in values.items() if value is not None and key not in _OF_KERAS
    }
    betas = [values.get(key) for key in ("beta_1", "beta_2")]
    if betas != [None, None]:
        arguments["betas"] = tuple(
            default if beta is None else beta for beta, default in zip(betas, _BETAS, strict=True)
        )
    if values.get("epsilon") is not None:
        arguments["eps"] = values["epsilon"]
    if name == "rmsprop" and "rho" in arguments:
        arguments["alpha"] = arguments.pop("rho")
    return arguments


# ---- groups of parameters -----------------------------------------------------------------------


def _split(settings: Optimizer, parameters: Mapping[str, nn.Parameter]) -> list[Group]:
    """Split parameters into groups with equal settings: names, parameters and arguments."""
    options: dict[str, Group] = {name: {} for name in parameters}
    for number, group in enumerate(settings.groups or ()):
        for pattern in group["match"]:
            matching = [name for name in parameters if fnmatchcase(name, pattern)]
            if not matching:
                raise SettingError(
                    f"group {number + 1}: no trainable parameter matches {pattern!r}; their names "
                    f"are {_listed(list(parameters))}",
                    *_KEYS,
                    "groups",
                )
            for name in matching:
                options[name] |= group
    groups: list[Group] = []
    for name, parameter in parameters.items():
        values = {key: value for key, value in options[name].items() if key != "match"}
        rate = {"lr": values.pop("learning_rate")} if "learning_rate" in values else {}
        arguments = {**_with_torch_names(values, settings.name), **rate}
        for group in groups:
            if group["options"] == arguments:
                break
        else:
            group = {"names": [], "params": [], "options": arguments}
            groups.append(group)
        group["names"].append(name)
        group["params"].append(parameter)
    return groups


def _listed(names: Sequence[str]) -> str:
    if len(names) <= 8:
        return ", ".join(names)
    return f"{', '.join(names[:8])} and {len(names) - 8} more"


def _without_names(group: Group) -> Group:
    return {"params": group["params"], **group["options"]}


def _name_parameters(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> None:
    """Give each group of an optimizer the names of its parameters, as PyTorch does."""
    names = {parameter: name for name, parameter in parameters.items()}
    for group in optimizer.param_groups:
        group.setdefault("param_names", [names.get(parameter, "") for parameter in group["params"]])


# ---- optimizers of users ------------------------------------------------------------------------


def _make_custom(
    settings: Optimizer, groups: Sequence[Group], rate: float, options: Mapping[str, Any]
) -> MadeOptimizer:
    """Call the user's class or function.

    Its first parameter gets the parameters, or mappings if there are several groups; if it is
    called ``named_...``, pairs of a name and a parameter in their place.
    """
    takes: dict[str, inspect.Parameter] = {}
    arguments = dict(options)
    decay = 0.0

    def make(function: Callable[..., Any]) -> Any:
        nonlocal decay
        takes.update(inspect.signature(function).parameters)
        if not _takes(takes, "weight_decay"):
            decay = arguments.pop("weight_decay", 0.0)
        is_named = bool(takes) and next(iter(takes)).startswith("named")
        if len(groups) == 1 and not groups[0]["options"]:
            parameters: Any = _members(groups[0], is_named)
        else:
            parameters = [
                {"params": _members(group, is_named), **group["options"]} for group in groups
            ]
        rate_argument = {"lr" if "lr" in takes else "learning_rate": rate}
        further = copy.deepcopy(settings.args or {})
        return function(parameters, **rate_argument, **{**arguments, **further})

    optimizer: torch.optim.Optimizer = make_custom_optimizer(
        settings, torch.optim.Optimizer, "torch.optim.Optimizer", make
    )
    unknown = {key for group in groups for key in group["options"]} - {
        *optimizer.defaults,
        "weight_decay",
        "lr",
    }
    if unknown:
        raise SettingError(
            f"{settings.name} has no argument {min(unknown)}, which a group of parameters sets; "
            f"its arguments are {', '.join(sorted(optimizer.defaults))}",
            *_KEYS,
            "groups",
        )
    is_native = "weight_decay" in optimizer.defaults
    explicit = {
        parameter: group["options"]["weight_decay"]
        for group in groups
        for parameter in group["params"]
        if "weight_decay" in group["options"]
    }
    decays = []
    for group in optimizer.param_groups:
        value = explicit.get(group["params"][0], decay)
        if is_native and group["params"][0] in explicit:
            value = 0.0
        decays.append(float(value))
    return MadeOptimizer(optimizer, decays)


def _takes(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _members(group: Group, is_named: bool) -> list[Any]:
    """Return the parameters of a group, or pairs of a name and a parameter."""
    if is_named:
        return list(zip(group["names"], group["params"], strict=True))
    return list(group["params"])
