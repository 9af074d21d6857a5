"""Several optimizers of the user, ``train.optimizers``, each with parameters of its own, as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from fleet.engines.custom import load_custom
from fleet.errors import SettingError
from fleet.spec.model import wrapping_errors

_EXAMPLE = "{'generator': torch.optim.Adam(model.generator.parameters(), lr=1e-3), ...}"


class SeveralOptimizers:
    """Optimizers that step one after another.

    Args:
        path: import path of the function that creates them; its only argument is the module or, if
            its parameter is called ``named_parameters``, a list of names and parameters.
        module: the module.

    Attributes:
        by_name: the optimizers, in the order in which they step.
        state: the state of each parameter, as ``torch.optim.Optimizer`` has it.

    Raises:
        SettingError: the function does not exist, raises, or returns something else.
    """

    def __init__(self, path: str, module: nn.Module) -> None:
        self._path = path
        function: Callable[..., Any] = load_custom(path, "function of optimizers", "optimizers")
        takes_names = False
        try:
            first = next(iter(inspect.signature(function).parameters), "")
            takes_names = first.startswith("named")
        except (TypeError, ValueError):  # no function, or a builtin without a signature
            pass
        named = dict(module.named_parameters())
        with wrapping_errors(f"{path} raised", SettingError, "train", "optimizers"):
            returned = function(list(named.items()) if takes_names else module)
        self.by_name: Mapping[str, torch.optim.Optimizer] = self._checked(returned)
        self._owners: dict[nn.Parameter, tuple[str, torch.optim.Optimizer]] = {}
        names = {parameter: name for name, parameter in named.items()}
        for key, optimizer in self.by_name.items():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._claim(key, optimizer, parameter, names)
        self.state = _JointState(self._owners)

    def _checked(self, returned: Any) -> dict[str, torch.optim.Optimizer]:
        if (
            not isinstance(returned, Mapping)
            or not returned
            or not all(isinstance(name, str) for name in returned)
        ):
            raise self._error(
                f"returned a {type(returned).__name__}; it should return optimizers by name, like "
                f"{_EXAMPLE}"
            )
        for name, optimizer in returned.items():
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise self._error(
                    f"returned a {type(optimizer).__name__} as {name!r}; it should be a "
                    "torch.optim.Optimizer"
                )
        return dict(returned)

    def _claim(
        self,
        key: str,
        optimizer: torch.optim.Optimizer,
        parameter: nn.Parameter,
        names: Mapping[nn.Parameter, str],
    ) -> None:
        if parameter not in names:
            raise self._error(
                f"gives {key!r} a tensor of shape {tuple(parameter.shape)} that is no parameter "
                "of the model"
            )
        if parameter in self._owners:
            raise self._error(
                f"gives {names[parameter]} to both {self._owners[parameter][0]!r} and {key!r}; "
                "each parameter should have one optimizer"
            )
        self._owners[parameter] = (key, optimizer)

    def _error(self, problem: str) -> SettingError:
        return SettingError(f"{self._path} {problem}", "train", "optimizers")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers."""
        return [group for part in self.by_name.values() for group in part.param_groups]

    @property
    def defaults(self) -> dict[str, Any]:
        """The arguments that all optimizers have."""
        first, *further = (optimizer.defaults for optimizer in self.by_name.values())
        return {key: value for key, value in first.items() if all(key in part for part in further)}

    def indices(self, parameters: Collection[nn.Parameter]) -> dict[str, list[int]]:
        """Return the positions of the parameters of each optimizer in a list of parameters."""
        result: dict[str, list[int]] = {name: [] for name in self.by_name}
        for index, parameter in enumerate(parameters):
            if parameter in self._owners:
                result[self._owners[parameter][0]].append(index)
        return result

    def step(self) -> None:
        """Step all optimizers, in order; a parameter without a gradient does not change."""
        for optimizer in self.by_name.values():
            optimizer.step()


class _JointState:
    """The states of the parameters of several optimizers."""

    def __init__(self, owners: Mapping[nn.Parameter, tuple[str, torch.optim.Optimizer]]) -> None:
        self._owners = owners

    def get(self, parameter: nn.Parameter, default: Any = None) -> Any:
        if parameter not in self._owners:
            return default
        return self._owners[parameter][1].state.get(parameter, default)

    def __getitem__(self, parameter: nn.Parameter) -> Any:
        return self._owners[parameter][1].state[parameter]

    def __setitem__(self, parameter: nn.Parameter, value: Any) -> None:
        self._owners[parameter][1].state[parameter] = value

    def pop(self, parameter: nn.Parameter, default: Any = None) -> Any:
        if parameter not in self._owners:
            return default
        return self._owners[parameter][1].state.pop(parameter, default)
