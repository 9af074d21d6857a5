"""Continue runs of FLEET 0.2, whose optimizers under PyTorch followed Keras' formulas.

``torch.optim`` computes the same updates with other settings: epsilon is divided by the correction
of the second moment, or is a part of it for RMSprop; the momentum is measured in learning rates;
and weights decay outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleet.engines.torch.make_optimizer import arguments_of
from fleet.engines.torch.optimizer_state import STARTED
from fleet.spec import Optimizer

NAMES = frozenset({"sgd", "adam", "adamw", "nadam", "rmsprop"})  # the optimizers that 0.2 had
_EPSILON = 1e-7
_DECAY_OF_ADAMW = 0.004
_DEFAULTS: dict[str, dict[str, Any]] = {
    "adam": {"eps": _EPSILON},
    "adamw": {"eps": _EPSILON},
    "nadam": {"eps": _EPSILON, "momentum_decay": 1.0},
    "rmsprop": {"eps": _EPSILON, "alpha": 0.9},
}
# Name of a state in FLEET 0.2 -> its name in torch.optim.
_STATES = {
    "velocity_hat": "max_exp_avg_sq",
    "average_gradient": "grad_avg",
    "u_product": "mu_product",
}


class KerasRules:
    """The settings with which an optimizer of PyTorch computes Keras' updates.

    Args:
        settings: settings of the optimizer, one of :data:`NAMES`.

    Attributes:
        arguments: arguments of the optimizer.
        decay: weight decay before each update, a multiple of the learning rate.
    """

    def __init__(self, settings: Optimizer) -> None:
        self.arguments = {**_DEFAULTS.get(settings.name, {}), **arguments_of(settings)}
        self.arguments["weight_decay"] = 0.0
        decay = settings.weight_decay
        if decay is None and settings.name == "adamw":
            decay = _DECAY_OF_ADAMW
        self.decay = decay or 0.0
        self._name = settings.name
        self._epsilon = self.arguments.get("eps", 0.0)
        if self._name == "rmsprop":
            self.arguments["eps"] = 0.0  # it is added under the root

    def prepare(self, optimizer: torch.optim.Optimizer, iteration: int, rate_before: float) -> None:
        """Prepare an update; parameters that do not change have no gradient.

        Args:
            optimizer: the optimizer, with the learning rate of the update.
            iteration: number of earlier updates.
            rate_before: learning rate of the update before this one.
        """
        for group in optimizer.param_groups:
            if self._name in ("adam", "adamw"):
                correction = 1 - group["betas"][1] ** (iteration + 1)
                group["eps"] = self.arguments["eps"] / correction**0.5
            elif group.get("momentum") and rate_before != group["lr"] > 0:
                for parameter in group["params"]:
                    momentum = optimizer.state[parameter].get("momentum_buffer")
                    if momentum is not None:
                        momentum.mul_(rate_before / group["lr"])
            if self._name == "rmsprop":
                for parameter in _changed(group):
                    state = optimizer.state[parameter]
                    _begin(state, parameter, group)
                    state["square_avg"].add_(self._epsilon / group["alpha"])

    def finish(self, optimizer: torch.optim.Optimizer) -> None:
        """Restore what :meth:`prepare` has changed for the update."""
        if self._name == "rmsprop":
            for group in optimizer.param_groups:
                for parameter in _changed(group):
                    optimizer.state[parameter]["square_avg"].sub_(self._epsilon).clamp_(min=0)


def _changed(group: Mapping[str, Any]) -> list[torch.nn.Parameter]:
    """Return the parameters of a group that an update changes."""
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def _begin(state: dict[str, Any], parameter: Tensor, group: Mapping[str, Any]) -> None:
    """Give a parameter the state with which RMSprop begins, unless it has one."""
    if state:
        return
    state["step"] = torch.zeros(())
    state["square_avg"] = torch.zeros_like(parameter)
    if group["momentum"]:
        state["momentum_buffer"] = torch.zeros_like(parameter)
    if group["centered"]:
        state["grad_avg"] = torch.zeros_like(parameter)


def with_torch_state(
    arrays: Mapping[str, np.ndarray],
    tensors: Mapping[str, Tensor],
    updates: int,
    rate_before: float,
) -> dict[str, np.ndarray]:
    """Return the arrays of an optimizer under the names of PyTorch, if FLEET 0.2 has saved them.

    Args:
        arrays: the arrays by name.
        tensors: the tensors that the optimizer expects, by name.
        updates: number of updates before.
        rate_before: learning rate of the last update.
    """
    if STARTED not in tensors or STARTED in arrays:
        return dict(arrays)
    is_adam = any(name.startswith("exp_avg/") for name in tensors)
    names = {**_STATES, "momentum": "exp_avg", "velocity": "exp_avg_sq"}
    if not is_adam:
        names |= {"momentum": "momentum_buffer", "velocity": "square_avg"}
    is_rmsprop = any(name.startswith("square_avg/") for name in tensors)
    result = {}
    for name, array in arrays.items():
        key, slash, parameter = name.partition("/")
        renamed = names.get(key, key) + slash + parameter
        if renamed == name or (slash and renamed not in tensors):
            result[name] = array
        elif key == "u_product":
            result |= {
                path: np.full(tensor.shape, array, np.float32)
                for path, tensor in tensors.items()
                if path.startswith("mu_product/")
            }
        elif renamed.startswith("momentum_buffer/"):
            sign = 1 if is_rmsprop else -1
            result[renamed] = array * np.float32(sign / (rate_before or 1.0))
        else:
            result[renamed] = array
    for path, tensor in tensors.items():
        if path.startswith("step/") and path not in result:
            result[path] = np.full(tensor.shape, updates, np.float32)
    result[STARTED] = np.full(tensors[STARTED].shape, updates > 0, np.uint8)
    return result
