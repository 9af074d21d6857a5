"""Update the weights of several networks at once, each by its own optimizer's settings.

The weights of K networks are the rows of a matrix, and so are their gradients, running means and
the state of their optimizers. What differs between networks, such as a learning rate, is a column
of K numbers. So an update takes as many operations as that of one network. The formulas are those
of ``torch.optim``, and the state has its names and shapes: a network can leave at any step and
continue with its own optimizer.

Optimizers and options that are not here update one network after another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from fleet.engines.torch.optimizer import EPSILON, ModuleOptimizer

# Options with which the formulas here differ from those of ``torch.optim``.
_UNUSUAL = ("amsgrad", "maximize", "centered", "differentiable", "capturable")
# Options that choose a formula.
_EQUAL = ("nesterov", "decoupled_weight_decay")
_CLIPS = ("clipvalue", "global_clipnorm", "clipnorm")


class FusedOptimizer:
    """The optimizers of several networks.

    Args:
        updates: the optimizer of each network, whose parameters and gradients are rows of the
            matrices.
        weights: (networks, n).
        gradients: (networks, n).
        statistics: (networks, ...) running statistics of batch normalization, by name.
    """

    def __init__(
        self,
        updates: Sequence[ModuleOptimizer],
        weights: Tensor,
        gradients: Tensor,
        statistics: dict[str, Tensor],
    ) -> None:
        self._updates = updates
        self._weights = weights
        self._gradients = gradients
        first = updates[0]
        self._settings = [update.settings for update in updates]
        self._sum = None
        self.average = None
        self.statistics: dict[str, Tensor] = {}
        self._live_statistics = statistics
        if first.sum is not None:
            self._sum = torch.stack([update.sum for update in updates if update.sum is not None])
        if first.average is not None:
            self.average = torch.stack(
                [update.average for update in updates if update.average is not None]
            )
            self.statistics = {
                name: torch.stack([update.statistics[name] for update in updates])
                for name in first.statistics
            }
        for index, update in enumerate(updates):
            update.use(
                None if self._sum is None else self._sum[index],
                None if self.average is None else self.average[index],
                {name: means[index] for name, means in self.statistics.items()},
                is_fused=True,
            )
        self._rule = self._choose_rule()

    def _choose_rule(self) -> _Rule | None:
        """Return the rule of all networks; None if each has to update itself."""
        kinds = {type(update.optimizer) for update in self._updates}
        make = _RULES.get(next(iter(kinds))) if len(kinds) == 1 else None
        if make is None or not all(update.is_plain for update in self._updates):
            return None
        groups = [update.optimizer.param_groups[0] for update in self._updates]
        if any(group.get(option) for group in groups for option in _UNUSUAL):
            return None
        equal = {
            (
                update.steps % update.accumulate,
                *(bool(getattr(update.settings, name)) for name in _CLIPS),
                *(bool(group.get(name)) for name in _EQUAL),
            )
            for update, group in zip(self._updates, groups, strict=True)
        }
        if len(equal) > 1:
            return None
        return make(self._updates, self._weights)

    def step(self, correction: float, unused: Collection[int]) -> None:
        """Update all weights; see :meth:`ModuleOptimizer.step`."""
        if self._rule is None or unused:
            if self._rule is not None:
                self._rule.write_counts()
                self._rule = None
            for update in self._updates:
                update.step(correction, unused)
            return
        gradients = self._gradients
        if correction != 1:
            gradients.mul_(correction)
        first = self._updates[0]
        is_due = True
        if self._sum is not None:
            self._sum.add_(gradients)
            is_due = (first.steps + 1) % first.accumulate == 0
            if is_due:
                torch.mul(self._sum, 1 / first.accumulate, out=gradients)
                self._sum.zero_()
        if is_due:
            self._clip(gradients)
            self._rule.step(gradients)
        if self.average is not None:
            self._average()
        for update in self._updates:
            update.steps += 1

    def _clip(self, gradients: Tensor) -> None:
        settings = self._settings
        if settings[0].clipvalue:
            limits = self._column([setting.clipvalue for setting in settings])
            torch.clamp(gradients, -limits, limits, out=gradients)
        elif settings[0].global_clipnorm:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            limits = self._column([setting.global_clipnorm for setting in settings])
            gradients.mul_((limits / (norms + EPSILON)).clamp(max=1.0))
        elif settings[0].clipnorm:
            limits = self._column([setting.clipnorm for setting in settings])
            for first, last in self._updates[0].flat.bounds:
                part = gradients[:, first:last]
                norms = torch.linalg.vector_norm(part, dim=1, keepdim=True)
                part.mul_((limits / (norms + EPSILON)).clamp(max=1.0))

    def _average(self) -> None:
        assert self.average is not None
        shares = self._column([1 - update.ema_momentum for update in self._updates])
        self.average.lerp_(self._weights, shares)
        for name, means in self.statistics.items():
            shape = (-1, *[1] * (means.dim() - 1))
            means.lerp_(self._live_statistics[name], shares.view(shape))
        for index, update in enumerate(self._updates):
            if update.overwrites:
                self._weights[index].copy_(self.average[index])

    def _column(self, values: Sequence[Any]) -> Tensor:
        return _column(values, self._weights)

    def write_counts(self) -> None:
        """Write to the state of all optimizers how many steps they have taken."""
        if self._rule is not None:
            self._rule.write_counts()

    def read_counts(self) -> None:
        """Read these numbers again, after optimizers have updated their networks themselves."""
        if self._rule is not None:
            self._rule.read_counts()

    def release(self) -> None:
        """Give each network its own state, in its own memory."""
        self.write_counts()
        if self._rule is not None:
            self._rule.release()
        for update in self._updates:
            update.use(
                None if update.sum is None else update.sum.clone(),
                None if update.average is None else update.average.clone(),
                {name: means.clone() for name, means in update.statistics.items()},
                is_fused=False,
            )


def _column(values: Sequence[Any], like: Tensor) -> Tensor:
    """Return (networks, 1) numbers on the device of a matrix."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1)


class _Rule:
    """The update of an optimizer of ``torch.optim`` for several networks.

    Args:
        updates: the optimizer of each network, with one group of parameters.
        weights: (networks, n).
    """

    KEYS: tuple[str, ...] = ()  # of the state of a parameter that are as large as the parameter
    HAS_COUNT = True  # whether the state counts steps

    def __init__(self, updates: Sequence[ModuleOptimizer], weights: Tensor) -> None:
        self._updates = updates
        self._weights = weights
        self._count = [0] * len(updates)
        self._counted = 0
        self._state = {key: torch.zeros_like(weights) for key in self.keys}
        self._cached: dict[str, Tensor] = {}
        self._options: list[dict[str, Any]] = [{} for _ in updates]
        self._is_constant = all(update.has_constant_rate for update in updates)
        for index, update in enumerate(updates):
            self._count[index] = self._adopt(index, update)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the state of a parameter that are as large as the parameter."""
        return self.KEYS

    @property
    def _have_momentum(self) -> bool:
        return any(update.optimizer.param_groups[0]["momentum"] for update in self._updates)

    def _adopt(self, index: int, update: ModuleOptimizer) -> int:
        """Make the state of a network's optimizer views of the matrices; returns its steps."""
        views = {key: update.flat.split(matrix[index]) for key, matrix in self._state.items()}
        count = 0.0
        for number, parameter in enumerate(update.flat.parameters.values()):
            state = update.optimizer.state[parameter]
            if self.HAS_COUNT:
                state.setdefault("step", torch.tensor(0.0))
                count = float(state["step"])
            for key, tensors in views.items():
                value = state.get(key)
                if value is not None:
                    tensors[number].copy_(value)
                state[key] = tensors[number]
        return int(count)

    def step(self, gradients: Tensor) -> None:
        """Update the weights from (networks, n) gradients, which may change."""
        if not (self._is_constant and self._cached):
            self._cached.clear()
            for update, options in zip(self._updates, self._options, strict=True):
                options.clear()
                options.update(update.options())
        self._counted += 1
        self.apply(gradients)

    def apply(self, gradients: Tensor) -> None:
        """Update the weights and the state."""
        raise NotImplementedError

    def column(self, name: str, value_of: Callable[[dict[str, Any]], float]) -> Tensor:
        """Return (networks, 1) numbers that follow from the options of each network.

        Args:
            name: name under which they are kept while no option changes.
            value_of: returns the number of a network.
        """
        if name not in self._cached:
            values = [value_of(options) for options in self._options]
            self._cached[name] = _column(values, self._weights)
        return self._cached[name]

    def counted(self, value_of: Callable[[dict[str, Any], int], float]) -> Tensor:
        """Return (networks, 1) numbers that follow from options and the number of the update."""
        return _column(
            [
                value_of(options, count + self._counted)
                for options, count in zip(self._options, self._count, strict=True)
            ],
            self._weights,
        )

    def has(self, name: str) -> bool:
        """Return True if an option is not 0 for a network."""
        return any(options[name] for options in self._options)

    def add_decay(self, gradients: Tensor) -> None:
        """Add the weights to the gradients, as L2 regularization does."""
        if self.has("weight_decay"):
            decay = self.column("decay", lambda options: options["weight_decay"])
            gradients.addcmul_(self._weights, decay)

    def read_counts(self) -> None:
        """Read the number of updates from the state of each optimizer, and adopt its state."""
        for index, update in enumerate(self._updates):
            self._count[index] = self._adopt(index, update)
        self._counted = 0
        self._cached.clear()

    def write_counts(self) -> None:
        """Write the number of updates to the state of each optimizer."""
        if not (self.HAS_COUNT and self._counted):
            return
        counts = [
            update.optimizer.state[parameter]["step"]
            for update in self._updates
            for parameter in update.flat.parameters.values()
        ]
        torch._foreach_add_(counts, float(self._counted))
        self._count = [count + self._counted for count in self._count]
        self._counted = 0

    def release(self) -> None:
        """Give each network its own state."""
        for update in self._updates:
            for parameter in update.flat.parameters.values():
                state = update.optimizer.state[parameter]
                for key in self._state:
                    if state.get(key) is not None:
                        state[key] = state[key].clone()


class _Sgd(_Rule):
    """``torch.optim.SGD``."""

    HAS_COUNT = False

    @property
    def keys(self) -> tuple[str, ...]:
        """A momentum buffer, if networks have momentum."""
        return ("momentum_buffer",) if self._have_momentum else ()

    def _adopt(self, index: int, update: ModuleOptimizer) -> int:
        parameters = list(update.flat.parameters.values())
        state = update.optimizer.state.get(parameters[0], {})
        begun = int(state.get("momentum_buffer") is not None)
        super()._adopt(index, update)
        return begun

    def apply(self, gradients: Tensor) -> None:
        self.add_decay(gradients)
        if self._state:
            momentum = self.column("momentum", lambda options: options["momentum"])
            buffer = self._state["momentum_buffer"].mul_(momentum)
            if all(self._count) and not self.has("dampening"):
                buffer.add_(gradients)
            else:  # the first gradient is the first momentum
                shares = [
                    1 - options["dampening"] if count + self._counted > 1 else 1.0
                    for options, count in zip(self._options, self._count, strict=True)
                ]
                buffer.addcmul_(gradients, _column(shares, self._weights))
            if self.has("nesterov"):
                gradients.addcmul_(buffer, momentum)
            else:
                gradients = buffer
        rates = self.column("rate", lambda options: -options["lr"])
        self._weights.addcmul_(gradients, rates)


class _Adam(_Rule):
    """``torch.optim.Adam``."""

    KEYS = ("exp_avg", "exp_avg_sq")
    IS_DECOUPLED = False

    def apply(self, gradients: Tensor) -> None:
        if self.IS_DECOUPLED or self._options[0].get("decoupled_weight_decay"):
            if self.has("weight_decay"):
                self._weights.mul_(
                    self.column("keep", lambda options: 1 - options["lr"] * options["weight_decay"])
                )
        else:
            self.add_decay(gradients)
        mean = self._state["exp_avg"]
        square = self._state["exp_avg_sq"]
        mean.lerp_(gradients, self.column("first", lambda options: 1 - options["betas"][0]))
        square.mul_(self.column("second", lambda options: options["betas"][1]))
        square.addcmul_(
            gradients * self.column("new", lambda options: 1 - options["betas"][1]), gradients
        )
        roots = self.counted(lambda options, count: (1 - options["betas"][1] ** count) ** 0.5)
        divisor = square.sqrt().div_(roots).add_(self.column("eps", lambda options: options["eps"]))
        sizes = self.counted(
            lambda options, count: -options["lr"] / (1 - options["betas"][0] ** count)
        )
        self._weights.addcdiv_(mean * sizes, divisor)


class _AdamW(_Adam):
    """``torch.optim.AdamW``."""

    IS_DECOUPLED = True


class _RmsProp(_Rule):
    """``torch.optim.RMSprop``."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The mean square, and a momentum buffer if networks have momentum."""
        return ("square_avg", "momentum_buffer") if self._have_momentum else ("square_avg",)

    def apply(self, gradients: Tensor) -> None:
        self.add_decay(gradients)
        square = self._state["square_avg"]
        square.mul_(self.column("alpha", lambda options: options["alpha"]))
        square.addcmul_(
            gradients * self.column("new", lambda options: 1 - options["alpha"]), gradients
        )
        divisor = square.sqrt().add_(self.column("eps", lambda options: options["eps"]))
        rates = self.column("rate", lambda options: -options["lr"])
        if "momentum_buffer" in self._state:
            buffer = self._state["momentum_buffer"]
            buffer.mul_(self.column("momentum", lambda options: options["momentum"]))
            buffer.addcdiv_(gradients, divisor)
            self._weights.addcmul_(buffer, rates)
        else:
            self._weights.addcdiv_(gradients * rates, divisor)


_RULES: dict[type, type[_Rule]] = {
    torch.optim.SGD: _Sgd,
    torch.optim.Adam: _Adam,
    torch.optim.AdamW: _AdamW,
    torch.optim.RMSprop: _RmsProp,
}
