"""Compute losses and metrics by a function of the user instead of a named loss."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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
from fleet.engines.torch.flat_parameters import to_device
from fleet.engines.torch.models import seeded
from fleet.spec import Train
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec

_ROWS = 2  # rows of a trial batch


class Returned(NamedTuple):
    """What a step returned for some rows.

    Attributes:
        losses: (n,) float32.
        values: (n,) float32 by name: the other numbers.
        is_scalar: True if the loss was one number for all rows.
    """

    losses: Tensor
    values: dict[str, Tensor]
    is_scalar: bool


class Sums(NamedTuple):
    """Sums over some rows.

    Attributes:
        loss: weighted loss, a scalar.
        correct: sum of the accuracy, a scalar.
        metric_totals: (metrics,) float32; None without metrics.
    """

    loss: Tensor
    correct: Tensor
    metric_totals: Tensor | None


@dataclass(frozen=True)
class TorchStep:
    """A step of the user.

    Attributes:
        own: the function.
        target: target of a sample.
        metrics: what the function returns beside the loss and the accuracy.
        returns_accuracy: whether it returns an accuracy.
    """

    own: OwnStep
    target: TargetSpec
    metrics: StepMetrics
    returns_accuracy: bool

    @classmethod
    def of(
        cls, train: Train, exported: Exported, sample: SampleSpec, device: torch.device, seed: int
    ) -> TorchStep:
        """Call the function on two made-up samples, and return it with what it returns.

        Args:
            train: settings that name the function.
            exported: the network, on the device.
            sample: shape and type of the samples.
            device: the device.
            seed: seed of random numbers.

        Raises:
            SettingError: the function does not exist, raises, or returns something else.
        """
        trial = cls(OwnStep(train), sample.target, StepMetrics([]), False)
        random = np.random.default_rng(0)
        inputs = sample.input.random_inputs(random, _ROWS)
        targets = sample.target.split(sample.target.random_targets(random, _ROWS))
        rows = (inputs, np.arange(_ROWS), *targets)
        names: dict[str, None] = {}
        is_scalar = False
        for training in (True, False):
            with (
                seeded(seed),
                unchanged(exported.module),
                precision_of(train, device),
                torch.set_grad_enabled(training),
            ):
                exported.module.train(training)
                batch = trial.batch_of(exported.prepare(to_device(inputs, device)), rows, device)
                returned = trial.own(exported.module, batch, training)
                trial.own.check_names(list(returned))
                read = trial.read(returned, _ROWS, device)
            if training and not read.losses.requires_grad:
                raise trial.own.error(
                    "returned a loss that has no gradient; compute it from outputs of the model, "
                    "without detach(), item() or torch.no_grad()"
                )
            is_scalar = is_scalar or read.is_scalar
            names.update(dict.fromkeys(returned))
        if is_scalar:
            trial.own.warn_of_scalar()
        trial.own.check_monitor(train, list(names))
        metrics = StepMetrics([name for name in names if name not in (LOSS, ACCURACY)])
        return cls(trial.own, sample.target, metrics, ACCURACY in names)

    def batch_of(self, inputs: Tensor, rows: Rows, device: torch.device) -> StepBatch:
        """Return the batch that the function is called with.

        Args:
            inputs: (n, ...) as modules take them.
            rows: inputs as they travel, rows in the data set, targets and, if samples are weighted,
                weights.
            device: the device of the inputs.
        """
        _, indices, targets, *weights = rows
        target = to_device(np.ascontiguousarray(targets), device)
        if self.target.kind in ("value", "multilabel"):
            target = target.float()
        else:
            target = target.long()
        weight = (
            to_device(np.array(weights[0], np.float32), device)
            if weights
            else torch.ones(len(targets), device=device)
        )
        return StepBatch(
            {
                INPUT: inputs,
                TARGET: target,
                WEIGHT: weight,
                INDEX: to_device(np.array(indices, np.int64), device),
            }
        )

    def read(self, returned: dict[str, Any], rows: int, device: torch.device) -> Returned:
        """Return the numbers of what the function returned.

        Args:
            returned: numbers by name.
            rows: number of rows of the batch.
            device: the device of the numbers.

        Raises:
            SettingError: a number has the wrong shape or type.
        """
        values = {}
        is_scalar = False
        for name, value in returned.items():
            if isinstance(value, bool | numbers.Real | np.number | np.ndarray):
                value = torch.as_tensor(value, device=device)
            if not isinstance(value, Tensor):
                raise self.own.shape_error(name, f"a {type(value).__name__}", rows)
            if value.dim() and value.shape != (rows,):
                raise self.own.shape_error(name, value.shape, rows)
            if name == LOSS:
                is_scalar = value.dim() == 0
            values[name] = value.float().expand(rows)
        return Returned(values.pop(LOSS), values, is_scalar)

    def sums(self, module: nn.Module, batch: StepBatch, training: bool) -> Sums:
        """Call the function, and sum what it returns over the rows of a batch.

        Raises:
            SettingError: it raised, or returned something else than in its first call.
        """
        weight = batch[WEIGHT]
        rows = len(weight)
        returned = self.own(module, batch, training)
        if LOSS not in returned:
            self.own.check_names(list(returned))
        read = self.read(returned, rows, weight.device)
        loss = (read.losses * weight).sum()
        zero = loss.new_zeros(())
        with torch.no_grad():
            correct = read.values[ACCURACY].sum() if ACCURACY in read.values else zero
            parts: list[Tensor] = []
            for name in self.metrics.names:
                value = read.values.get(name)
                if value is None:
                    parts += [zero, zero]
                else:
                    parts += [value.detach().sum(), zero + rows]
            metric_totals = torch.stack(parts) if parts else None
        return Sums(loss, correct, metric_totals)


def precision_of(train: Train, device: torch.device) -> Any:
    """Return the context in which a network computes."""
    if train.precision == "mixed_bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


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
