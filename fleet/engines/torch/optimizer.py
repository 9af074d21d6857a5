"""Update all weights at once with the optimizers of a spec.

Optimizers have the names, parameters and defaults of Keras: an ``epsilon`` of 1e-7, decoupled
weight decay before the step, running means that begin with the first weights. With accumulation, a
schedule counts all steps, as in Keras, and an optimizer counts updates.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fleet.engines.custom import make_custom_optimizer
from fleet.engines.torch.flat_parameters import FlatParameters
from fleet.errors import SettingError
from fleet.spec import Optimizer
from fleet.spec.model import one_line, wrapping_errors
from fleet.vocabulary.schedules import SCHEDULES

NAMES = ("sgd", "adam", "adamw", "rmsprop", "nadam")
_DECAY = 0.96  # decay of the momentum schedule of Nadam


class _Rule:
    """An update rule for weights, given gradients.

    Attributes:
        slots: state per weight: vectors (n,), as long as all weights.
    """

    slots: Mapping[str, torch.Tensor] = {}

    def numbers(self) -> Mapping[str, torch.Tensor]:
        """Return other state."""
        return {}

    def step(
        self, weights: torch.Tensor, gradients: torch.Tensor, rate: float, iteration: int
    ) -> None:
        """Update the weights.

        Args:
            weights: (n,) weights to change.
            gradients: (n,) gradients of the weights.
            rate: learning rate.
            iteration: number of earlier updates.
        """
        raise NotImplementedError

    def parameter_state(self, index: int) -> list[torch.Tensor]:
        """Return the state of one parameter besides the slots."""
        return []


class _Descent(_Rule):
    """SGD, with or without momentum."""

    def __init__(self, settings: Optimizer, zeros: Callable[[], torch.Tensor]) -> None:
        self._momentum = settings.momentum or 0.0
        self._nesterov = bool(settings.nesterov)
        self.slots = {"momentum": zeros()} if self._momentum else {}

    def step(
        self, weights: torch.Tensor, gradients: torch.Tensor, rate: float, iteration: int
    ) -> None:
        if not self._momentum:
            weights.add_(gradients, alpha=-rate)
            return
        velocity = self.slots["momentum"].mul_(self._momentum).add_(gradients, alpha=-rate)
        if self._nesterov:
            weights.add_(velocity, alpha=self._momentum).add_(gradients, alpha=-rate)
        else:
            weights.add_(velocity)


class _Adam(_Rule):
    """Adam, AdamW, and the base of Nadam, whose momentum follows a schedule."""

    def __init__(self, settings: Optimizer, zeros: Callable[[], torch.Tensor]) -> None:
        self._betas = (_or_default(settings.beta_1, 0.9), _or_default(settings.beta_2, 0.999))
        self._epsilon = _or_default(settings.epsilon, 1e-7)
        self.slots = {
            "momentum": zeros(),
            "velocity": zeros(),
            **({"velocity_hat": zeros()} if settings.amsgrad else {}),
        }

    def _moments(self, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self._betas
        mean = self.slots["momentum"].lerp_(gradients, 1 - first)
        return mean, self.slots["velocity"].mul_(second).addcmul_(
            gradients, gradients, value=1 - second
        )

    def step(
        self, weights: torch.Tensor, gradients: torch.Tensor, rate: float, iteration: int
    ) -> None:
        first, second = self._betas
        mean, square = self._moments(gradients)
        largest = self.slots.get("velocity_hat")
        if largest is not None:
            square = torch.maximum(largest, square, out=largest)
        rate *= (1 - second ** (iteration + 1)) ** 0.5 / (1 - first ** (iteration + 1))
        weights.addcdiv_(mean, square.sqrt().add_(self._epsilon), value=-rate)


class _Nadam(_Adam):
    def __init__(self, settings: Optimizer, zeros: Callable[[], torch.Tensor]) -> None:
        super().__init__(settings, zeros)
        self._product = torch.ones((), dtype=torch.float64)

    def numbers(self) -> Mapping[str, torch.Tensor]:
        return {"u_product": self._product}

    def step(
        self, weights: torch.Tensor, gradients: torch.Tensor, rate: float, iteration: int
    ) -> None:
        first, second = self._betas
        momentum, next_momentum = (
            first * (1 - 0.5 * _DECAY ** (iteration + offset)) for offset in (1, 2)
        )
        product = float(self._product.mul_(momentum))
        mean, square = self._moments(gradients)
        mean = (mean * (next_momentum / (1 - product * next_momentum))).add_(
            gradients, alpha=(1 - momentum) / (1 - product)
        )
        square = (square / (1 - second ** (iteration + 1))).sqrt_().add_(self._epsilon)
        weights.addcdiv_(mean, square, value=-rate)


class _Rms(_Rule):
    """RMSprop."""

    def __init__(self, settings: Optimizer, zeros: Callable[[], torch.Tensor]) -> None:
        self._rho = _or_default(settings.rho, 0.9)
        self._epsilon = _or_default(settings.epsilon, 1e-7)
        self._momentum = settings.momentum or 0.0
        self.slots = {
            "velocity": zeros(),
            **({"momentum": zeros()} if self._momentum else {}),
            **({"average_gradient": zeros()} if settings.centered else {}),
        }

    def step(
        self, weights: torch.Tensor, gradients: torch.Tensor, rate: float, iteration: int
    ) -> None:
        square = (
            self.slots["velocity"]
            .mul_(self._rho)
            .addcmul_(gradients, gradients, value=1 - self._rho)
        )
        mean = self.slots.get("average_gradient")
        if mean is not None:
            mean.lerp_(gradients, 1 - self._rho)
            square = square.addcmul(mean, mean, value=-1)
        root = (square + self._epsilon).sqrt_()
        if not self._momentum:
            weights.addcdiv_(gradients, root, value=-rate)
            return
        weights.sub_(
            self.slots["momentum"].mul_(self._momentum).addcdiv_(gradients, root, value=rate)
        )


class _Custom(_Rule):
    """A user-defined ``torch.optim.Optimizer``.

    Such an optimizer creates its state in its first step, but all ranks of a group need equal
    arrays before that step. So it takes a trial step, and its initial state is restored before the
    first real step.
    """

    def __init__(self, settings: Optimizer, flat: FlatParameters, rate: float) -> None:
        self._rate = rate or 1.0  # a schedule may begin at 0
        self._optimizer = _make_custom(settings, flat, self._rate)
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._initial_state = copy.deepcopy(self._optimizer.state_dict()["state"])
        before = flat.weights.clone()
        options = _options(self._optimizer)
        with wrapping_errors(
            f"the first step of {settings.name} raised", SettingError, "train", "optimizer"
        ):
            self._optimizer.step()
        flat.weights.copy_(before)
        self._parts = {
            f"{key}/{name}": (parameter, key)
            for name, parameter in flat.parameters.items()
            for key in self._optimizer.state[parameter]
        }
        numbers = self.numbers()
        wrong = [
            *(name for name, value in numbers.items() if not isinstance(value, torch.Tensor)),
            *(key for key, value in _options(self._optimizer).items() if options.get(key) != value),
        ]
        if wrong:
            raise SettingError(
                f"the state of {settings.name} cannot be saved, because {wrong[0]} is not a tensor",
                "train",
                "optimizer",
                "name",
            )
        self._parameters = list(flat.parameters.values())
        for index, parameter in enumerate(self._parameters):  # undo the trial step
            for key, value in self._optimizer.state[parameter].items():
                if key not in self._initial_state.get(index, {}):
                    value.zero_()

    def numbers(self) -> Mapping[str, torch.Tensor]:
        return {
            name: self._optimizer.state[parameter][key]
            for name, (parameter, key) in self._parts.items()
        }

    def parameter_state(self, index: int) -> list[torch.Tensor]:
        return [
            self._optimizer.state[parameter][key]
            for parameter, key in self._parts.values()
            if parameter is self._parameters[index]
        ]

    def step(
        self, weights: torch.Tensor, gradients: torch.Tensor, rate: float, iteration: int
    ) -> None:
        if iteration == 0:
            self._optimizer.load_state_dict(
                {**self._optimizer.state_dict(), "state": self._initial_state}
            )
        for group, base_rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = base_rate * rate / self._rate
        self._optimizer.step()


def _options(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the options of an optimizer's parameter groups except the learning rate."""
    return {
        f"param_groups[{index}][{key!r}]": repr(value)
        for index, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key not in ("params", "lr")
    }


def _make_custom(settings: Optimizer, flat: FlatParameters, rate: float) -> torch.optim.Optimizer:
    def make(function: Callable[..., Any]) -> Any:
        takes_lr = "lr" in inspect.signature(function).parameters
        rate_argument = {"lr" if takes_lr else "learning_rate": rate}
        return function(
            list(flat.parameters.values()), **rate_argument, **copy.deepcopy(settings.args or {})
        )

    optimizer: torch.optim.Optimizer = make_custom_optimizer(
        settings, torch.optim.Optimizer, "torch.optim.Optimizer", make
    )
    return optimizer


_RULES: dict[str, Callable[[Optimizer, Callable[[], torch.Tensor]], _Rule]] = {
    "sgd": _Descent,
    "adam": _Adam,
    "adamw": _Adam,
    "rmsprop": _Rms,
    "nadam": _Nadam,
}


class FlatOptimizer:
    """The optimizer of a network.

    Args:
        settings: settings of the optimizer.
        scale: factor of the learning rate of the spec.
        accumulate: number of steps whose gradients are averaged before each update.
        flat: parameters to train.
        module: module that has the parameters.

    Attributes:
        steps: number of steps taken, including steps that only accumulate.
        average: (n,) running means of the weights; None if not kept.
        statistics: running means of the statistics of batch normalization by name; empty if running
            means are not kept.
    """

    def __init__(
        self,
        settings: Optimizer,
        scale: float,
        accumulate: int,
        flat: FlatParameters,
        module: nn.Module,
    ) -> None:
        self._settings = settings
        self._scale = scale
        self._accumulate = accumulate
        self._flat = flat
        self._decay = settings.weight_decay
        if self._decay is None and settings.name == "adamw":
            self._decay = 0.004
        self.steps = 0
        self.learning_rate()  # raises now if the schedule cannot be computed

        def zeros() -> torch.Tensor:
            return torch.zeros_like(flat.weights)

        self.average = flat.weights.clone() if settings.use_ema else None
        self._owners = _statistics(module) if settings.use_ema else {}
        self.statistics = {
            name: getattr(owner, key).clone() for name, (owner, key) in self._owners.items()
        }
        self._idle: set[int] | None = None  # parameters without a gradient since the last change
        self._sum = zeros() if accumulate > 1 else None
        if ":" in settings.name:
            self._rule: _Rule = _Custom(settings, flat, self.learning_rate())
        else:
            self._rule = _RULES[settings.name](settings, zeros)
        self._views = [flat.weight_views, *map(flat.split, self._rule.slots.values())]

    def step(self, correction: float, unused: Collection[int] = ()) -> None:
        """Update the weights from the gradients.

        Args:
            correction: factor that turns a mean over all rows into a mean over readable rows.
            unused: indices of parameters without a gradient, which do not change, as in PyTorch.
        """
        gradients = self._flat.gradients
        iteration = self.steps // self._accumulate
        if correction != 1:
            gradients.mul_(correction)
        is_due = True
        if self._sum is not None:
            self._sum.add_(gradients)
            is_due = (self.steps + 1) % self._accumulate == 0
            if is_due:
                torch.mul(self._sum, 1 / self._accumulate, out=gradients)
                self._sum.zero_()
        if self._idle is None:
            self._idle = set(unused)
        else:
            self._idle = self._idle.intersection(unused)
        if is_due:
            self._update_except(gradients, iteration, sorted(self._idle))
            self._idle = None
        if self.average is not None:
            momentum = _or_default(self._settings.ema_momentum, 0.99) if iteration else 0.0
            self.average.lerp_(self._flat.weights, 1 - momentum)
            for name, (owner, key) in self._owners.items():
                self.statistics[name].lerp_(getattr(owner, key), 1 - momentum)
            every = self._settings.ema_overwrite_frequency
            if every and (iteration + 1) % every == 0:
                self._flat.weights.copy_(self.average)
        self.steps += 1

    def _update_except(self, gradients: torch.Tensor, iteration: int, idle: Sequence[int]) -> None:
        """Update the weights and their state, except those of idle parameters."""
        before = [tensor.clone() for tensor in self._tensors_of(idle)]
        self._update(gradients, iteration)
        for tensor, value in zip(self._tensors_of(idle), before, strict=True):
            tensor.copy_(value)

    def _tensors_of(self, indices: Sequence[int]) -> Iterator[torch.Tensor]:
        for index in indices:
            yield from (views[index] for views in self._views)
            yield from self._rule.parameter_state(index)

    def means(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return weights and statistics, each with its running mean, if kept."""
        if self.average is None:
            return []
        return [
            (self._flat.weights, self.average),
            *(
                (getattr(owner, key), self.statistics[name])
                for name, (owner, key) in self._owners.items()
            ),
        ]

    def _update(self, gradients: torch.Tensor, iteration: int) -> None:
        rate = self.learning_rate()
        settings = self._settings
        if settings.clipvalue:
            gradients.clamp_(-settings.clipvalue, settings.clipvalue)
        elif settings.global_clipnorm:
            norm = float(torch.linalg.vector_norm(gradients))
            if norm > settings.global_clipnorm:
                gradients.mul_(settings.global_clipnorm / norm)
        elif settings.clipnorm:
            limit = settings.clipnorm
            factors = [(limit / norm.clamp(min=limit)) for norm in self._flat.gradient_norms()]
            torch._foreach_mul_(self._flat.gradient_views, factors)
        if self._decay:
            self._flat.weights.mul_(1 - rate * self._decay)
        self._rule.step(self._flat.weights, gradients, rate, iteration)

    def learning_rate(self) -> float:
        """Return the learning rate of the next step."""
        rate = self._settings.learning_rate
        assert rate is not None  # defaults have been filled in
        return rate_at(rate, self.steps) * self._scale

    def scale_learning_rate(self, factor: float) -> None:
        """Set the learning rate to a multiple of the spec's from now on."""
        self._scale = factor

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all state that is needed to resume, except :attr:`steps`."""
        slots = dict(self._rule.slots)
        if self._sum is not None:
            slots["gradient_accumulator"] = self._sum
        if self.average is not None:
            slots["average"] = self.average
        return {
            **self._rule.numbers(),
            **{
                f"{slot}/{name}": view
                for slot, vector in slots.items()
                for name, view in zip(self._flat.parameters, self._flat.split(vector), strict=True)
            },
            **{f"average/{name}": mean for name, mean in self.statistics.items()},
        }


def _statistics(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the running statistics of a module by name: their layer and attribute."""
    return {
        f"{prefix}.{key}" if prefix else key: (owner, key)
        for prefix, owner in module.named_modules()
        for key in ("running_mean", "running_var")
        if isinstance(getattr(owner, key, None), torch.Tensor)
    }


def _or_default(value: float | None, default: float) -> float:
    if value is None:
        return default
    return value


def rate_at(rate: float | Mapping[str, Any], step: int) -> float:
    """Return the learning rate of a step, counted from 0.

    Args:
        rate: a number, or a schedule with its ``name`` and arguments.
        step: number of the step, from 0.

    Raises:
        SettingError: the arguments of a schedule yield no learning rate.
    """
    if not isinstance(rate, Mapping):
        return rate
    name = rate["name"]
    arguments = {key: value for key, value in rate.items() if key != "name" and value is not None}
    try:
        learning_rate = float(SCHEDULES[name](step, **arguments))
    except (TypeError, ValueError, ArithmeticError) as error:
        raise SettingError(
            f"the schedule {name}: {one_line(error)[:300]}", "train", "optimizer", "learning_rate"
        ) from error
    if not (math.isfinite(learning_rate) and learning_rate >= 0):
        raise SettingError(
            f"the schedule {name} yields the learning rate {learning_rate} at step {step}; it "
            "should be finite and at least 0",
            "train",
            "optimizer",
            "learning_rate",
        )
    return learning_rate
