"""Update all weights of a network at once by the rules of ``torch.optim``.

Weights and gradients are vectors (:mod:`fleet.engines.torch.flat_parameters`), so a rule takes a
few operations, however many parameters there are. On CPUs it computes the bits of ``torch.optim``,
which calls the same operations for one parameter after another. The state of the optimizer becomes
views of vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fleet.engines.torch.flat_parameters import FlatParameters

# Options of optimizers with which PyTorch computes something else.
_UNUSUAL = ("amsgrad", "capturable", "differentiable", "fused", "maximize")


class FlatRule:
    """The rule of an optimizer with one group of parameters, all of which have gradients.

    Args:
        optimizer: the optimizer; all parameters have taken equally many steps.
        flat: the parameters, on CPUs.
    """

    KEYS: tuple[str, ...] = ()  # of the state of a parameter that are as large as the parameter

    def __init__(self, optimizer: torch.optim.Optimizer, flat: FlatParameters) -> None:
        self._optimizer = optimizer
        self._flat = flat
        self._state: dict[str, Tensor] = {}
        state = self._states[0]
        self._count = int(state.get("step", 0))
        for key in self.KEYS:
            if state.get(key) is not None:
                self._add(key)

    @property
    def _states(self) -> list[dict[str, Any]]:
        """The state of each parameter."""
        return [self._optimizer.state[parameter] for parameter in self._flat.parameters.values()]

    @property
    def _options(self) -> Mapping[str, Any]:
        options: Mapping[str, Any] = self._optimizer.param_groups[0]
        return options

    def _add(self, key: str) -> Tensor:
        """Make a part of the state of all parameters views of a vector, which is returned."""
        vector = torch.zeros_like(self._flat.weights)
        for state, view in zip(self._states, self._flat.split(vector), strict=True):
            if state.get(key) is not None:
                view.copy_(state[key])
            state[key] = view
        self._state[key] = vector
        return vector

    def step(self, gradients: Tensor) -> None:
        """Update the weights from (n,) gradients, which may change, by the options of the group."""
        self._count += 1
        self.apply(self._flat.weights, gradients, self._options)

    def apply(self, weights: Tensor, gradients: Tensor, options: Mapping[str, Any]) -> None:
        """Update the weights and the state."""
        raise NotImplementedError

    def write_counts(self) -> None:
        """Write to the state of all parameters how many steps the optimizer has taken."""


class _Sgd(FlatRule):
    """``torch.optim.SGD``."""

    KEYS = ("momentum_buffer",)

    def apply(self, weights: Tensor, gradients: Tensor, options: Mapping[str, Any]) -> None:
        if options["weight_decay"]:
            gradients.add_(weights, alpha=options["weight_decay"])
        momentum = options["momentum"]
        if momentum:
            buffer = self._state.get("momentum_buffer")
            if buffer is None:  # the first gradient is the first momentum
                buffer = self._add("momentum_buffer").copy_(gradients)
            else:
                buffer.mul_(momentum).add_(gradients, alpha=1 - options["dampening"])
            if options["nesterov"]:
                gradients.add_(buffer, alpha=momentum)
            else:
                gradients = buffer
        weights.add_(gradients, alpha=-options["lr"])


class _Adam(FlatRule):
    """``torch.optim.Adam`` and ``AdamW``."""

    KEYS = ("exp_avg", "exp_avg_sq")

    def apply(self, weights: Tensor, gradients: Tensor, options: Mapping[str, Any]) -> None:
        rate = options["lr"]
        first, second = options["betas"]
        if options["weight_decay"]:
            if options["decoupled_weight_decay"]:
                weights.mul_(1 - rate * options["weight_decay"])
            else:
                gradients.add_(weights, alpha=options["weight_decay"])
        mean, square = (self._state.get(key, None) for key in self.KEYS)
        if mean is None or square is None:
            mean, square = map(self._add, self.KEYS)
            for state in self._states:
                state["step"] = torch.tensor(0.0)
        mean.lerp_(gradients, 1 - first)
        square.mul_(second).addcmul_(gradients, gradients, value=1 - second)
        divisor = square.sqrt().div_((1 - second**self._count) ** 0.5).add_(options["eps"])
        weights.addcdiv_(mean, divisor, value=-(rate / (1 - first**self._count)))

    def write_counts(self) -> None:
        for state in self._states:
            if "step" in state:
                state["step"].fill_(self._count)


_RULES: dict[type, type[FlatRule]] = {
    torch.optim.SGD: _Sgd,
    torch.optim.Adam: _Adam,
    torch.optim.AdamW: _Adam,
}


class FlatOptimizer:
    """Updates all parameters at once where an optimizer has a rule for that.

    Args:
        optimizer: the optimizer, of which each parameter has its own state.
        flat: the parameters.

    Attributes:
        is_used: False to let the optimizer update each parameter itself.
    """

    def __init__(self, optimizer: Any, flat: FlatParameters) -> None:
        self._optimizer = optimizer
        self._flat = flat
        self._make_rule = _find_rule(optimizer, flat)
        self.rule: FlatRule | None = None
        self.is_used = True

    def step(self, gradients: Tensor) -> bool:
        """Update all weights.

        Args:
            gradients: (n,) gradients of all parameters, which may change.

        Returns:
            False if the optimizer has to do it; then nothing has changed.
        """
        if self.rule is None:
            if not self.is_used or self._make_rule is None or not self._have_equal_counts():
                return False
            self.rule = self._make_rule(self._optimizer, self._flat)
        with torch.no_grad():
            self.rule.step(gradients)
        return True

    def _have_equal_counts(self) -> bool:
        """Return True if all parameters have taken equally many steps."""
        states = map(self._optimizer.state.get, self._flat.parameters.values())
        return len(set(map(_progress, states))) == 1

    def write_counts(self) -> None:
        """Write to the state of all parameters how many steps the optimizer has taken."""
        if self.rule is not None:
            self.rule.write_counts()

    def end(self) -> None:
        """Let the optimizer continue with its own state."""
        self.write_counts()
        self.rule = None


def _progress(state: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return how many steps a parameter has taken, and which state it has."""
    present = {key: value for key, value in (state or {}).items() if value is not None}
    return float(present.get("step", 0)), *sorted(present)


def _find_rule(optimizer: Any, flat: FlatParameters) -> type[FlatRule] | None:
    """Return the rule of an optimizer; None if it has to update each parameter itself."""
    rule = _RULES.get(type(optimizer))
    if rule is None or len(optimizer.param_groups) != 1 or flat.weights.device.type != "cpu":
        return None
    group = optimizer.param_groups[0]
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    if any(hooks) or any(group.get(option) for option in _UNUSUAL):
        return None
    if group.get("eps") == 0:  # the gaps between parameters would become NaN
        return None
    return rule
