"""Update all weights of a module with an optimizer, and with what FLEET adds around any optimizer.

Outside of the optimizer, in this order: gradients are averaged over accumulated steps, divided by
the scale of float16 losses, and clipped; the learning rate follows its schedule; weights decay if
the optimizer cannot do it; after the step running means follow the weights. With accumulation, a
schedule counts all steps, as in Keras, and an optimizer counts updates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fleet.engines.base import EpochProgress
from fleet.engines.schedules import Clock, nominal_rate
from fleet.engines.torch.flat_optimizer import FlatOptimizer
from fleet.engines.torch.flat_parameters import FlatParameters, as_tensor
from fleet.engines.torch.keras_rules import NAMES, KerasRules, with_torch_state
from fleet.engines.torch.learning_rates import LearningRates
from fleet.engines.torch.make_optimizer import make_optimizer
from fleet.engines.torch.optimizer_state import OptimizerState
from fleet.engines.torch.precision import GradientScaler
from fleet.engines.torch.several_optimizers import SeveralOptimizers
from fleet.spec import Optimizer

_EMA_MOMENTUM = 0.99
EPSILON = 1e-6  # added to a norm before dividing by it, as in torch.nn.utils.clip_grad_norm_


class ModuleOptimizer:
    """The optimizer of a network.

    Args:
        settings: settings of the optimizer.
        scale: factor of the learning rate of the spec.
        accumulate: number of steps whose gradients are averaged before each update.
        flat: parameters to train.
        module: module that has the parameters.
        as_keras: True for a run that began with FLEET 0.2, whose optimizers were those of Keras.
        mode: ``min`` or ``max``: which values of the monitored metric are better.
        several: optimizers of the user, to use instead of the one of the settings, whose learning
            rate multiplies theirs.
        precision: ``train.precision`` of the network; losses of float16 are scaled.

    Attributes:
        settings: settings of the optimizer.
        accumulate: number of steps whose gradients are averaged before each update.
        flat: parameters to train.
        steps: number of steps taken, including steps that only accumulate.
        sum: (n,) gradients of the steps since the last update; None without accumulation.
        optimizer: the optimizer itself.
        flat_optimizer: updates all parameters in its place, where it can.
        average: (n,) running means of the weights; None if not kept.
        statistics: running means of the statistics of batch normalization by name; empty if running
            means are not kept.

    Raises:
        SettingError: the optimizer cannot be created, or the schedule cannot be computed.
    """

    def __init__(
        self,
        settings: Optimizer,
        scale: float,
        accumulate: int,
        flat: FlatParameters,
        module: nn.Module,
        as_keras: bool = False,
        mode: str = "min",
        several: SeveralOptimizers | None = None,
        precision: str = "float32",
    ) -> None:
        self.settings = settings
        self._scale = scale
        self.accumulate = accumulate
        self.flat = flat
        self.steps = 0
        self.average = flat.weights.clone() if settings.use_ema else None
        self._owners = _statistics(module) if settings.use_ema else {}
        self.statistics = {
            name: getattr(owner, key).clone() for name, (owner, key) in self._owners.items()
        }
        self._idle: set[int] | None = None  # parameters without a gradient since the last change
        self.sum = torch.zeros_like(flat.weights) if accumulate > 1 else None
        self._keras = None
        if as_keras and several is None and settings.name in NAMES:
            self._keras = KerasRules(settings)
        rate = settings.learning_rate
        assert rate is not None  # defaults have been filled in
        self.optimizer: torch.optim.Optimizer | SeveralOptimizers
        if several is not None:
            self.optimizer = several
            for group in several.param_groups:  # the rate of the spec multiplies theirs
                group["lr"] *= nominal_rate(rate)
            decays: Sequence[float] = [0.0] * len(several.param_groups)
        else:
            self.optimizer, decays = make_optimizer(
                settings,
                flat.parameters,
                nominal_rate(rate),
                None if self._keras is None else self._keras.arguments,
            )
        self._rates = LearningRates(rate, self.optimizer)
        self._clock = Clock(mode=mode)
        self.learning_rate()  # raises now if the schedule cannot be computed
        self._parameters = list(flat.parameters.values())
        parts: Sequence[Sequence[int]] = [range(len(self._parameters))]
        if several is not None:
            parts = [*several.indices(self._parameters).values()]
        self._scaler = GradientScaler.of(precision, parts, accumulate)
        indices = {parameter: index for index, parameter in enumerate(self._parameters)}
        if self._keras is not None:
            decays = [self._keras.decay] * len(decays)
        self._decays = [
            (
                group,
                decay,
                [indices[parameter] for parameter in group["params"] if parameter in indices],
            )
            for decay, group in zip(decays, self.optimizer.param_groups, strict=True)
            if decay
        ]
        name = settings.name if several is None else "train.optimizers"
        self._state = OptimizerState(self.optimizer, flat.parameters, flat.weights, name)
        self.flat_optimizer = FlatOptimizer(self.optimizer, flat)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return what to differentiate instead of a loss: in float16 a multiple of it."""
        return loss if self._scaler is None else self._scaler.scaled(loss)

    def step(self, correction: float, unused: Collection[int] = ()) -> None:
        """Update the weights from the gradients.

        Args:
            correction: factor that turns a mean over all rows into a mean over readable rows.
            unused: indices of parameters without a gradient, which do not change, as in PyTorch.
        """
        gradients = self.flat.gradients
        iteration = self.steps // self.accumulate
        if correction != 1:
            gradients.mul_(correction)
        is_due = True
        if self.sum is not None:
            self.sum.add_(gradients)
            is_due = (self.steps + 1) % self.accumulate == 0
            if is_due:
                torch.mul(self.sum, 1 / self.accumulate, out=gradients)
                self.sum.zero_()
        idle = self._note_idle(unused)
        if is_due:
            self._update(gradients, iteration, idle)
            self._idle = None
            if self._scaler is not None:
                self._scaler.update()
        if self.average is not None:
            momentum = self.ema_momentum
            self.average.lerp_(self.flat.weights, 1 - momentum)
            for name, (owner, key) in self._owners.items():
                self.statistics[name].lerp_(getattr(owner, key), 1 - momentum)
            if self.overwrites:
                self.flat.weights.copy_(self.average)
        self.steps += 1

    @property
    def ema_momentum(self) -> float:
        """The decay of running means in the present step; 0 in the first, which begins them."""
        if self.steps < self.accumulate:
            return 0.0
        if self.settings.ema_momentum is None:
            return _EMA_MOMENTUM
        return self.settings.ema_momentum

    @property
    def overwrites(self) -> bool:
        """True if the weights are set to their running means at the end of the present step."""
        every = self.settings.ema_overwrite_frequency
        if not every:
            return False
        return (self.steps // self.accumulate + 1) % every == 0

    # ---- several networks at once: see fleet.engines.torch.fused_optimizer ----

    @property
    def is_plain(self) -> bool:
        """True if an update is clipping and a step of an optimizer with one group."""
        return (
            self._keras is None
            and self._scaler is None
            and not self._decays
            and isinstance(self.optimizer, torch.optim.Optimizer)
            and len(self.optimizer.param_groups) == 1
        )

    @property
    def has_constant_rate(self) -> bool:
        """True if the options of the optimizer are the same in all steps."""
        return not isinstance(self.settings.learning_rate, Mapping)

    @property
    def has_constant_scale(self) -> bool:
        """True if losses of all steps are scaled alike."""
        return self._scaler is None

    @property
    def loss_scale(self) -> float:
        """The factor of a loss that is differentiated."""
        return 1.0 if self._scaler is None else float(self._scaler.scaled(torch.tensor(1.0)))

    def options(self) -> dict[str, Any]:
        """Return the options of the optimizer's first group in the present step."""
        options = self._rates.options(self.steps, self._clock, self._scale)[0]
        return {**self.optimizer.param_groups[0], **options}

    def use(
        self,
        total: Tensor | None,
        average: Tensor | None,
        statistics: Mapping[str, Tensor],
        is_fused: bool,
    ) -> None:
        """Keep sums and running means in other memory, which has their values.

        Args:
            total, average, statistics: as the attributes :attr:`sum`, :attr:`average` and
                :attr:`statistics`.
            is_fused: True if the network becomes one of several that are fused, False if it leaves.
        """
        self.flat_optimizer.end()
        self.flat_optimizer.is_used = not is_fused
        self.sum = total
        self.average = average
        self.statistics = dict(statistics)

    def step_part(self, correction: float, unused: Collection[int] = ()) -> None:
        """Update some weights in a step of several optimizers, before the last of them steps.

        With accumulation all weights change together, when the last one does.

        Args:
            correction: as in :meth:`step`.
            unused: indices of parameters without a gradient, such as those of other optimizers.
        """
        gradients = self.flat.gradients
        if correction != 1:
            gradients.mul_(correction)
        idle = self._note_idle(unused)
        if self.sum is not None:
            self.sum.add_(gradients)
        else:
            self._update(gradients, self.steps, idle)
            self._idle = None

    def _note_idle(self, unused: Collection[int]) -> set[int]:
        """Return the parameters without a gradient since the last update."""
        if self._idle is None:
            self._idle = set(unused)
        else:
            self._idle = self._idle.intersection(unused)
        return self._idle

    def _update(self, gradients: Tensor, iteration: int, idle: Collection[int]) -> None:
        if self._scaler is not None:
            skipped = self._scaler.unscale(gradients, self.flat.gradient_views)
            idle = skipped.union(idle)
            if skipped and len(idle) == len(self._parameters):
                return
        self._clip(gradients)
        options = self._rates.options(self.steps, self._clock, self._scale)
        for group, values in zip(self.optimizer.param_groups, options, strict=True):
            group.update(values)
        with torch.no_grad():
            for group, decay, indices in self._decays:
                views = [self.flat.weight_views[index] for index in indices if index not in idle]
                torch._foreach_mul_(views, 1 - group["lr"] * decay)
        for index in idle:
            self._parameters[index].grad = None
        if self._keras is not None:
            assert isinstance(self.optimizer, torch.optim.Optimizer)
            before = self._learning_rate_at(max(0, self.steps - self.accumulate))
            self._keras.prepare(self.optimizer, iteration, before)
            self.optimizer.step()
            self._keras.finish(self.optimizer)
        elif idle or not self.flat_optimizer.step(gradients):
            self.flat_optimizer.end()
            self.optimizer.step()
        for index in idle:
            self._parameters[index].grad = self.flat.gradient_views[index]

    def _clip(self, gradients: Tensor) -> None:
        settings = self.settings
        if settings.clipvalue:
            gradients.clamp_(-settings.clipvalue, settings.clipvalue)
        elif settings.global_clipnorm:
            norm = torch.linalg.vector_norm(gradients)
            gradients.mul_((settings.global_clipnorm / (norm + EPSILON)).clamp(max=1.0))
        elif settings.clipnorm:
            limit = settings.clipnorm
            factors = [
                (limit / (norm + EPSILON)).clamp(max=1.0) for norm in self.flat.gradient_norms()
            ]
            torch._foreach_mul_(self.flat.gradient_views, factors)

    def means(self) -> list[tuple[Tensor, Tensor]]:
        """Return weights and statistics, each with its running mean, if kept."""
        if self.average is None:
            return []
        return [
            (self.flat.weights, self.average),
            *(
                (getattr(owner, key), self.statistics[name])
                for name, (owner, key) in self._owners.items()
            ),
        ]

    def learning_rate(self) -> float:
        """Return the learning rate of the next step."""
        return self._learning_rate_at(self.steps)

    def _learning_rate_at(self, step: int) -> float:
        return self._rates.rate(step, self._clock, self._scale)

    def begin_epoch(self, progress: EpochProgress) -> None:
        """Prepare the remaining steps of an epoch, on which a schedule may depend."""
        self._clock = replace(self._clock, first=self.steps - progress.done, progress=progress)

    def scale_learning_rate(self, factor: float) -> None:
        """Set the learning rate to a multiple of the spec's from now on."""
        self._scale = factor

    # ---- state ----

    def tensors(self) -> dict[str, Tensor]:
        """Return all state that is needed to resume, except :attr:`steps`."""
        self.flat_optimizer.write_counts()
        return {**self._state.tensors(), **self._own_tensors()}

    def load(self, arrays: Mapping[str, np.ndarray], steps: int) -> None:
        """Restore the state of :meth:`tensors`, and :attr:`steps`."""
        self.flat_optimizer.end()
        self.steps = steps
        self._state.load(arrays)
        for name, tensor in self._own_tensors().items():
            tensor.copy_(as_tensor(arrays[name]))

    def upgraded(self, arrays: Mapping[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
        """Return arrays of a checkpoint, possibly of FLEET 0.2, as :meth:`tensors` names them."""
        updates = steps // self.accumulate
        rate = self._learning_rate_at(max(0, updates * self.accumulate - 1))
        return with_torch_state(arrays, self.tensors(), updates, rate)

    def _own_tensors(self) -> dict[str, Tensor]:
        """Return the state outside of the optimizer."""
        vectors = {}
        if self.sum is not None:
            vectors["gradient_accumulator"] = self.sum
        if self.average is not None:
            vectors["average"] = self.average
        return {
            **({} if self._scaler is None else self._scaler.tensors()),
            **{
                f"{key}/{name}": view
                for key, vector in vectors.items()
                for name, view in zip(self.flat.parameters, self.flat.split(vector), strict=True)
            },
            **{f"average/{name}": mean for name, mean in self.statistics.items()},
        }


def _statistics(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the running statistics of a module by name: their layer and attribute."""
    return {
        f"{prefix}.{key}" if prefix else key: (owner, key)
        for prefix, owner in module.named_modules()
        for key in ("running_mean", "running_var")
        if isinstance(getattr(owner, key, None), Tensor)
    }
