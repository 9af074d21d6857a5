"""Compute losses and metrics by a function of the user instead of a named loss."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin

from fleet.engines.base import Rows
from fleet.engines.own_step import (
    ACCURACY,
    INDEX,
    INPUT,
    LOSS,
    TARGET,
    WEIGHT,
    OwnStep,
    StepBatch,
    StepMetrics,
)
from fleet.engines.torch.export import Exported
from fleet.engines.torch.flat_parameters import samples_to_device, targets_to_device, to_device
from fleet.engines.torch.models import Samples, seeded
from fleet.engines.torch.precision import autocasting
from fleet.spec import Train
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec

_ROWS = 2  # rows of a trial batch


class Sums(NamedTuple):
    """Sums over some rows.

    Attributes:
        losses: weighted loss by name, scalars to differentiate: ``loss``, or one per optimizer.
        loss: weighted loss to report, a scalar.
        correct: sum of the accuracy, a scalar.
        metric_totals: (metrics,) float32; None without metrics.
    """

    losses: Mapping[str, Tensor]
    loss: Tensor
    correct: Tensor
    metric_totals: Tensor | None


@dataclass(frozen=True)
class TorchStep:
    """A step of the user.

    Attributes:
        user_step: the function.
        target: target of a sample.
        optimizers: names of several optimizers; empty if there is one.
        metrics: what the function returns beside the loss and the accuracy.
        returns_accuracy: whether it returns an accuracy.
        accuracy_rounds: the members of :attr:`rounds` for which it does in training.
    """

    user_step: OwnStep
    target: TargetSpec
    optimizers: tuple[str, ...] = ()
    metrics: StepMetrics = field(default_factory=lambda: StepMetrics([]))
    returns_accuracy: bool = False
    accuracy_rounds: tuple[str | None, ...] = ()

    @classmethod
    def of(
        cls,
        train: Train,
        exported: Exported,
        sample: SampleSpec,
        device: torch.device,
        seed: int,
        optimizers: Iterable[str] = (),
    ) -> TorchStep:
        """Call the function on two made-up samples, and return it with what it returns.

        Args:
            train: settings that name the function.
            exported: the network, on the device.
            sample: shape and type of the samples.
            device: the device.
            seed: seed of random numbers.
            optimizers: names of several optimizers; none if there is one.

        Raises:
            SettingError: the function does not exist, raises, or returns something else.
        """
        trial = cls(OwnStep(train), sample.target, tuple(optimizers))
        trial.user_step.check_sample(sample)
        random = np.random.default_rng(0)
        inputs = sample.input.random_inputs(random, _ROWS)
        targets = sample.target.split(sample.target.random_targets(random, _ROWS))
        rows = (inputs, np.arange(_ROWS), *targets)
        names: dict[str, None] = {}
        accuracy_rounds: list[str | None] = []
        is_scalar = False
        for training, optimizer in (*((True, name) for name in trial.rounds), (False, None)):
            with (
                seeded(seed),
                unchanged(exported.module),
                autocasting(train.precision, device),
                torch.set_grad_enabled(training),
            ):
                exported.module.train(training)
                samples = samples_to_device(inputs, device)
                batch = trial.batch_of(exported.prepare(samples), rows, device)
                returned = trial.user_step(exported.module, batch, training, optimizer)
                losses = trial.losses_of(optimizer)
                trial.user_step.check_names(list(returned), losses)
                values, scalars = trial.read(returned, _ROWS, device)
            detached = [name for name in losses if not values[name].requires_grad]
            if training and detached:
                raise trial.user_step.error(
                    f"returned a {_named_loss(detached[0])} that has no gradient; compute it from "
                    "outputs of the model, without detach(), item() or torch.no_grad()"
                )
            is_scalar = is_scalar or not scalars.isdisjoint(losses)
            names.update(dict.fromkeys(returned))
            if training and ACCURACY in returned:
                accuracy_rounds.append(optimizer)
        if is_scalar:
            trial.user_step.warn_of_scalar()
        trial.user_step.check_monitor(train, [LOSS, *(name for name in names if name != LOSS)])
        metrics = StepMetrics([name for name in names if name not in (LOSS, ACCURACY)])
        return replace(
            trial,
            metrics=metrics,
            returns_accuracy=ACCURACY in names,
            accuracy_rounds=tuple(accuracy_rounds),
        )

    @property
    def rounds(self) -> tuple[str | None, ...]:
        """The optimizers for which a step calls the function one after another; None for all."""
        if self.user_step.alternates:
            return self.optimizers
        return (None,)

    def losses_of(self, optimizer: str | None) -> tuple[str, ...]:
        """Return the names of the losses of a call for an optimizer, or for all of them."""
        if optimizer is not None:
            return (optimizer,)
        return self.optimizers or (LOSS,)

    def batch_of(self, inputs: Samples, rows: Rows, device: torch.device) -> StepBatch:
        """Return the batch that the function is called with.

        Args:
            inputs: (n, ...) as modules take them; of several, by name.
            rows: inputs as they travel, rows in the data set, targets and, if samples are weighted,
                weights.
            device: the device of the inputs.
        """
        _, indices, targets, *weights = rows
        weight = (
            to_device(np.array(weights[0], np.float32), device)
            if weights
            else torch.ones(len(targets), device=device)
        )
        named = dict(inputs) if isinstance(inputs, Mapping) else {INPUT: inputs}
        moved = targets_to_device(targets, device)
        tensors = moved if isinstance(moved, dict) else {TARGET: moved}
        for name, target in self.target.by_name.items():
            if target.semantics.exists:
                is_number = len(target.shape) == 1  # values or labels; else classes
                named[name] = tensors[name].float() if is_number else tensors[name].long()
        index = to_device(np.array(indices, np.int64), device)
        return StepBatch({**named, WEIGHT: weight, INDEX: index})

    def read(
        self, returned: Mapping[str, Any], rows: int, device: torch.device
    ) -> tuple[dict[str, Tensor], set[str]]:
        """Return the numbers of what the function returned, and the names of single numbers.

        Args:
            returned: numbers by name.
            rows: number of rows of the batch.
            device: the device of the numbers.

        Returns:
            (rows,) float32 by name; and the names of single numbers.

        Raises:
            SettingError: a number has the wrong shape or type.
        """
        values = {}
        scalars = set()
        for name, value in returned.items():
            if isinstance(value, bool | numbers.Real | np.number | np.ndarray):
                value = torch.as_tensor(value, device=device)
            if not isinstance(value, Tensor):
                raise self.user_step.shape_error(name, f"a {type(value).__name__}", rows)
            if value.dim() and value.shape != (rows,):
                raise self.user_step.shape_error(name, value.shape, rows)
            values[name] = value.float()
            if not value.dim():
                scalars.add(name)
                values[name] = values[name].expand(rows)
        return values, scalars

    def sums(
        self, module: nn.Module, batch: StepBatch, training: bool, optimizer: str | None = None
    ) -> Sums:
        """Call the function, and sum what it returns over the rows of a batch.

        Args:
            module: the network.
            batch: the batch.
            training: False in evaluation.
            optimizer: the optimizer that steps next; None if all do.

        Raises:
            SettingError: it raised, or returned something else than in its first call.
        """
        weight = batch[WEIGHT]
        rows = len(weight)
        returned = self.user_step(module, batch, training, optimizer)
        names = self.losses_of(optimizer)
        if any(name not in returned for name in names):
            self.user_step.check_names(list(returned), names)
        values, _ = self.read(returned, rows, weight.device)
        losses = {name: (values[name] * weight).sum() for name in names}
        if optimizer is None and LOSS in values and LOSS not in losses:
            loss = (values[LOSS] * weight).sum()
        else:
            loss = torch.stack(list(losses.values())).sum() if len(losses) > 1 else losses[names[0]]
        with torch.no_grad():
            zero = loss.new_zeros(())
            correct = zero
            # An accuracy that several calls of a step return is that of the last one.
            is_last = not training or optimizer in self.accuracy_rounds[-1:]
            if ACCURACY in values and is_last:
                correct = values[ACCURACY].sum()
            parts: list[Tensor] = []
            for name in self.metrics.names:
                is_other = optimizer is not None and name in self.optimizers and name != optimizer
                if name in values and not is_other:
                    parts += [values[name].detach().sum(), zero + rows]
                else:
                    parts += [zero, zero]
            metric_totals = torch.stack(parts) if parts else None
        return Sums(losses, loss, correct, metric_totals)


def _named_loss(name: str) -> str:
    if name == LOSS:
        return "loss"
    return f"loss {name!r}"


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the buffers of a module, such as statistics, after the context."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Restore weights, buffers, gradients and the mode of a module after the context."""
    was_training = module.training
    tensors = [*module.parameters(), *module.buffers()]
    before = [
        (tensor, tensor.detach().clone())
        for tensor in tensors
        if not isinstance(tensor, UninitializedTensorMixin)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        for parameter in module.parameters():
            parameter.grad = None
        module.train(was_training)
