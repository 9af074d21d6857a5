"""Save and restore the state of any optimizer of PyTorch as named arrays.

An optimizer creates the state of a parameter when it first has a gradient, but all ranks of a group
need equal arrays before that. So the optimizer takes a trial step, which shows the shapes of its
state. Afterwards each parameter is again as it was, and an array says which have begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fleet.engines.torch.flat_parameters import as_tensor
from fleet.engines.torch.several_optimizers import SeveralOptimizers
from fleet.errors import SettingError
from fleet.spec.model import wrapping_errors

STARTED = "started"


@dataclass(frozen=True)
class _Part:
    """A part of the state of a parameter: a tensor, or a number.

    Attributes:
        kind: its type.
        shape, dtype, device: those of a tensor.
    """

    kind: type
    shape: torch.Size = torch.Size()  # noqa: RUF009 - a tuple
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @property
    def is_tensor(self) -> bool:
        return issubclass(self.kind, Tensor)

    @classmethod
    def of(cls, value: Any) -> _Part:
        if isinstance(value, Tensor):
            return cls(type(value), value.shape, value.dtype, value.device)
        return cls(type(value))


class OptimizerState:
    """The state of an optimizer.

    Args:
        optimizer: the optimizer, before its first step; parameters have gradients of zeros.
        parameters: parameters by name.
        weights: (n,) all weights, which the trial step may change.
        name: name of the optimizer, for messages.

    Raises:
        SettingError: the first step fails, or the state cannot be saved.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | SeveralOptimizers,
        parameters: Mapping[str, nn.Parameter],
        weights: Tensor,
        name: str,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters.values())
        self._initial = [self._copy(parameter) for parameter in self._parameters]
        before = weights.clone()
        options = _options_of(optimizer)
        with wrapping_errors(
            f"the first step of {name} raised", SettingError, "train", "optimizer"
        ):
            optimizer.step()
        weights.copy_(before)
        self._templates = [self._describe(parameter) for parameter in self._parameters]
        self._names = {
            f"{key}/{name}": (index, key)
            for index, name in enumerate(parameters)
            for key in self._templates[index]
        }
        wrong = [
            *(
                path
                for path, (index, key) in self._names.items()
                if not issubclass(self._templates[index][key].kind, Tensor | int | float)
            ),
            *(key for key, value in _options_of(optimizer).items() if options.get(key) != value),
        ]
        if wrong:
            raise SettingError(
                f"the state of {name} cannot be saved, because {wrong[0]} is neither a tensor nor "
                "a number of a parameter",
                "train",
                "optimizer",
                "name",
            )
        for index, initial in enumerate(self._initial):
            self._restart(index)
            if initial.keys() >= self._templates[index].keys():
                initial.clear()  # it is not needed again, and may be large

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name, with zeros for parameters that have not begun."""
        result = {}
        for path, (index, key) in self._names.items():
            template = self._templates[index][key]
            value = self._optimizer.state.get(self._parameters[index], {}).get(key)
            if not template.is_tensor:
                value = torch.tensor(float(value or 0), dtype=torch.float64)
            elif value is None:
                value = torch.zeros(template.shape, dtype=template.dtype, device=template.device)
            result[path] = value
        if self._names:
            begun = [self._has_begun(index) for index in range(len(self._parameters))]
            result[STARTED] = torch.tensor(begun, dtype=torch.uint8)
        return result

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore a state that :meth:`tensors` returned."""
        if not self._names:
            return
        begun = arrays[STARTED]
        for index, has_begun in enumerate(begun.tolist()):
            if not has_begun:
                self._restart(index)
        for path, (index, key) in self._names.items():
            if not begun[index]:
                continue
            template = self._templates[index][key]
            state = self._optimizer.state[self._parameters[index]]
            if template.is_tensor:
                value = as_tensor(arrays[path]).to(template.device, template.dtype, copy=True)
                state[key] = value.view(template.shape)
            else:
                state[key] = template.kind(arrays[path])

    def _has_begun(self, index: int) -> bool:
        state = self._optimizer.state.get(self._parameters[index], {})
        return all(state.get(key) is not None for key in self._templates[index])

    def _restart(self, index: int) -> None:
        """Give a parameter the state that it had before the first step."""
        parameter = self._parameters[index]
        self._optimizer.state.pop(parameter, None)
        initial = _copied(self._initial[index])
        if initial:
            self._optimizer.state[parameter] = initial

    def _describe(self, parameter: nn.Parameter) -> dict[str, _Part]:
        return {
            key: _Part.of(value)
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if value is not None
        }

    def _copy(self, parameter: nn.Parameter) -> dict[str, Any]:
        state = self._optimizer.state.get(parameter, {})
        return _copied({key: value for key, value in state.items() if value is not None})


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()
    }


def _options_of(optimizer: torch.optim.Optimizer | SeveralOptimizers) -> dict[str, str]:
    """Return the options of an optimizer's parameter groups except the learning rate."""
    return {
        f"param_groups[{index}][{key!r}]": repr(value)
        for index, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key not in ("params", "lr", "param_names")
    }
