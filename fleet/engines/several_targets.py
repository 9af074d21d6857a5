"""Losses and metrics of several targets, for any tensor library.

The outputs of a network for all targets lie side by side in one tensor, (n, total), as
:meth:`preprocess.record_target.RecordTarget.split_outputs` takes them apart. Targets are tensors by
name. The loss is the sum of the losses of all targets, each with its weight; each target has a loss
and an accuracy of its own, and metrics, as columns such as ``kind_accuracy``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fleet.engines.measures import LossFunctions
from fleet.engines.tensor_ops import Loss, Tensor
from fleet.errors import SettingError
from fleet.spec import Train
from fleet.spec.target_settings import column_of, kinds_of, loss_weights, settings_by_target
from fleet.vocabulary.measures import MeasureWord
from preprocess.record_target import RecordTarget
from preprocess.target import TargetSpec

_Reshape = Callable[[Tensor, Sequence[int]], Tensor]


class LossOfTargets:
    """The weighted sum of the losses of several targets.

    Args:
        target: the targets.
        losses: the loss of each target.
        weights: the weight of each target in the sum.
        reshape: reshapes a tensor of the library.
    """

    def __init__(
        self,
        target: RecordTarget,
        losses: Mapping[str, Loss],
        weights: Mapping[str, float],
        reshape: _Reshape,
    ) -> None:
        self._target = target
        self._losses = losses
        self._weights = weights
        self._reshape = reshape

    def split(self, outputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs for each target by name."""
        return self._target.split_outputs(outputs, self._reshape)

    def by_target(self, outputs: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss of each sample, (n,), by target."""
        parts = self.split(outputs)
        return {name: loss(parts[name], targets[name]) for name, loss in self._losses.items()}

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of losses by target, of any equal shapes."""
        [total, *more] = [loss * self._weights[name] for name, loss in losses.items()]
        for loss in more:
            total = total + loss
        return total

    def __call__(self, outputs: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of each sample, (n,)."""
        return self.total(self.by_target(outputs, targets))


def losses_of_targets(
    train: Train,
    target: RecordTarget,
    words: Mapping[str, MeasureWord],
    make: Callable[[Train, TargetSpec], LossFunctions],
    reshape: _Reshape,
) -> LossFunctions:
    """Return the loss functions of a network with several targets.

    Args:
        train: training settings.
        target: the targets.
        words: the metrics of the engine.
        make: makes the loss functions of one target.
        reshape: reshapes a tensor of the library.
    """
    kinds = kinds_of(target)
    settings = settings_by_target(train, kinds, words)
    parts = {name: make(settings[name], part) for name, part in target.parts.items()}
    weights = loss_weights(train, kinds)
    training, evaluation = (
        LossOfTargets(
            target, {name: getattr(part, phase) for name, part in parts.items()}, weights, reshape
        )
        for phase in ("training", "evaluation")
    )
    return LossFunctions(training, evaluation, _no_accuracy, "", -math.inf, parts=parts)


def check_each(
    losses: LossFunctions,
    outputs: Tensor,
    targets: Any,
    check: Callable[[LossFunctions, Tensor, Tensor], None],
) -> None:
    """Check the losses of several targets.

    Args:
        losses: losses to check.
        outputs: (n, total) finite logits and values.
        targets: targets by name.
        check: checks the losses of one target.

    Raises:
        SettingError: a loss is not usable.
    """
    parts = losses.evaluation.split(outputs)  # type: ignore[attr-defined]
    for name, functions in losses.parts.items():
        try:
            check(functions, parts[name], targets[name])
        except SettingError as error:
            raise SettingError(f"target {name}: {error}", *error.setting) from error


def _no_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return zeros, (n,): an accuracy belongs to one target."""
    return outputs[:, 0] * 0


class MetricsOfTargets:
    """The metrics of several targets, with additive states that are concatenated.

    The state of a target is the sum of its losses and the number of rows; the sum of its accuracy
    and the number of rows, if it has one; and the states of its metrics.

    Args:
        target: the targets.
        metrics: the metrics of each target.
        losses: the loss functions of all targets.
        reshape: reshapes a tensor of the library.
        join: concatenates scalars and vectors of the library, given as a list.
    """

    def __init__(
        self,
        target: RecordTarget,
        metrics: Mapping[str, Any],
        losses: LossFunctions,
        reshape: _Reshape,
        join: Callable[[Sequence[Tensor]], Tensor],
    ) -> None:
        self._target = target
        self._metrics = metrics
        self._correct = {
            name: losses.parts[name].correct
            for name, part in target.parts.items()
            if not part.semantics.is_numeric
        }
        self._reshape = reshape
        self._join = join
        self.width = sum(
            2 + 2 * (name in self._correct) + part.width for name, part in metrics.items()
        )

    def sums(
        self,
        outputs: Tensor,
        targets: Mapping[str, Tensor],
        losses: Mapping[str, Tensor],
        sum_of: Callable[[Tensor], Tensor],
        rows: Tensor,
        *more: Tensor,
    ) -> Tensor:
        """Return what readable samples add to the states of all metrics: (width,) float32.

        Args:
            outputs: (n, total) logits and values.
            targets: targets by name.
            losses: summed and weighted loss of each target, scalars.
            sum_of: sums a tensor of the library.
            rows: number of rows, a scalar of the library.
            more: further arguments for the metrics of each target.
        """
        parts = self._target.split_outputs(outputs, self._reshape)
        states = []
        for name, metrics in self._metrics.items():
            states += [losses[name], rows]
            if name in self._correct:
                states += [sum_of(self._correct[name](parts[name], targets[name])), rows]
            if metrics.width:
                states.append(metrics.sums(parts[name], targets[name], *more))
        return self._join(states)

    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:
        """Return the value of each column from summed states, (width,)."""
        totals = np.asarray(metric_totals, np.float64)
        values = {}
        first = 0
        for name, metrics in self._metrics.items():
            for measure in ("loss", "accuracy")[: 1 + (name in self._correct)]:
                total, count = totals[first : first + 2]
                values[column_of(name, measure)] = float(total / count) if count else math.nan
                first += 2
            scores = metrics.scores(totals[first : first + metrics.width].tolist())
            values |= {column_of(name, measure): value for measure, value in scores.items()}
            first += metrics.width
        return values


def metrics_by_target(
    train: Train,
    target: RecordTarget,
    words: Mapping[str, MeasureWord],
    make: Callable[[Train, TargetSpec], Any],
) -> dict[str, Any]:
    """Return the metrics of each of several targets; see :func:`losses_of_targets`."""
    settings = settings_by_target(train, kinds_of(target), words)
    return {name: make(settings[name], part) for name, part in target.parts.items()}
