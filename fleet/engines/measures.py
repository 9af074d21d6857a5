"""Describe losses and metrics of any library: arguments, order of parameters, checks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from fleet.engines.custom import ArgumentOrder
from fleet.engines.failure_reason import describe_failure
from fleet.engines.tensor_ops import Loss, TensorOps, mask_weights_error
from fleet.errors import NetworkWarning, SettingError
from fleet.spec import Train
from fleet.spec.measures import Measure, name_of, parameters_of
from fleet.vocabulary.measures import LOSSES, MeasureWord, canonical_name
from preprocess.target import TargetSpec

OF_MASKS = ("dice", "tversky")  # losses that return a number per mask, not per pixel
_ROUNDED = 1e-4  # tolerance by which a loss may be below its minimum


class LossFunctions(NamedTuple):
    """The loss functions of a network.

    Attributes:
        training: loss of each sample in training.
        evaluation: loss of each sample in evaluation.
        correct: 1 for each correct sample, or its share of correct labels or pixels.
        name: name of the loss.
        minimum: lower bound of the loss.
        order: order of the arguments of a user-defined loss.
        parts: the functions of each target by name, if there are several.
    """

    training: Loss
    evaluation: Loss
    correct: Loss
    name: str
    minimum: float
    order: ArgumentOrder = ArgumentOrder(True)
    parts: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(
        cls,
        train: Train,
        target: TargetSpec,
        loss: Loss,
        ops: TensorOps,
        as_tensor: Callable[[list[float]], Any],
        words: Mapping[str, MeasureWord] = LOSSES,
        order: ArgumentOrder = ArgumentOrder(True),  # noqa: B008 - immutable
    ) -> LossFunctions:
        """Return the loss functions of a network.

        Args:
            train: training settings.
            target: target of a sample.
            loss: loss of samples or pixels.
            ops: operations of the library.
            as_tensor: makes a tensor of the library, for class weights.
            words: the losses of the engine.
            order: order of the arguments of a user-defined loss.

        Raises:
            SettingError: the spec has class weights, and the loss covers whole masks.
        """
        name = (
            target.semantics.default_loss
            if train.single.loss is None
            else name_of(train.single.loss)
        )
        evaluation = training = ops.with_class_weights(loss, target)
        if isinstance(train.single.class_weights, Mapping):
            if (
                target.semantics.is_of_pixels
                and train.single.loss is not None
                and canonical_name(name) in OF_MASKS
            ):
                raise mask_weights_error(name)
            by_class = as_tensor(list(train.single.class_weights.values()))
            training = ops.with_class_weights(loss, target, by_class)
        return cls(
            training,
            evaluation,
            partial(ops.correct, target=target),
            name,
            -math.inf if ":" in name else words[canonical_name(name)].minimum,
            order,
        )

    def check(self, slope: Callable[[Loss], Any], losses_of: Callable[[], np.ndarray]) -> None:
        """Check on a few samples that the loss depends on the outputs and is not below its minimum.

        Args:
            slope: returns the derivative of a loss by arbitrary outputs; None or 0 if it does not
                depend on them.
            losses_of: returns the losses of the network's outputs, which are finite, (n,).

        Raises:
            SettingError: the function is not a usable loss.
        """
        self._warn_of_order()
        try:
            derivative = slope(self.training)
        except SettingError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise self._error(
                f"failed when called with {self.order}: {describe_failure(error)}"
            ) from error
        if derivative is None or not np.any(derivative):
            raise self._error(
                "does not depend on the outputs of the network, so all gradients are zero and the "
                "network cannot learn"
            )
        losses = losses_of()
        if not np.isfinite(losses).all():
            raise self._error(
                f"is {losses[~np.isfinite(losses)][0]} for outputs of the network; it should be "
                "finite"
            )
        if losses.min() < self.minimum - _ROUNDED:
            raise self._error(
                f"is {losses.min():.4g} for samples of the data, below its minimum of "
                f"{self.minimum:g}; it does not fit these targets, or these outputs"
            )

    def _warn_of_order(self) -> None:
        """Warn if the user may expect another order of a custom loss's arguments."""
        reason = self.order.reason
        if reason and (self.order.outputs_first or self.order.is_guessed):
            advice = "; name its parameters outputs and targets" if self.order.is_guessed else ""
            warnings.warn(
                f"the loss {self.name} is called with {self.order}, "
                f"{'as ' if self.order.is_guessed else ''}{reason}{advice}",
                NetworkWarning,
                stacklevel=2,
            )

    def _error(self, problem: str) -> SettingError:
        return SettingError(f"the loss {self.name} {problem}", "train", "loss")


class Metrics:
    """The metrics of a network, with additive states that are concatenated."""

    def __init__(self, metrics: Sequence[Any], target: TargetSpec) -> None:
        self._metrics = tuple(metrics)
        self._target = target
        self.width = sum(metric.width for metric in self._metrics)

    @classmethod
    def of(
        cls, train: Train, target: TargetSpec, make_metric: Callable[[Measure, TargetSpec], Any]
    ) -> Self:
        """Return the metrics that a spec names, except accuracy, which is always computed.

        Args:
            train: training settings.
            target: target of a sample.
            make_metric: makes one metric of the library.

        Raises:
            SettingError: a metric cannot be computed for such targets.
        """
        measures = [
            name for name in train.single.metrics if canonical_name(name_of(name)) != "accuracy"
        ]
        return cls([make_metric(measure, target) for measure in measures], target)

    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:
        """Return the value of each metric from summed states, (width,)."""
        values = {}
        first = 0
        for metric in self._metrics:
            with np.errstate(divide="ignore", invalid="ignore"):
                values[metric.name] = metric.result(
                    np.array(metric_totals[first : first + metric.width], np.float64)
                )
            first += metric.width
        return values


class Measures(NamedTuple):
    """The losses and metrics of a network; metrics take tensors of the library."""

    losses: LossFunctions
    metrics: Any


def loss_arguments(train: Train, target: TargetSpec, accepted: Collection[str]) -> dict[str, Any]:
    """Return the keyword arguments for a loss of the library.

    Args:
        train: settings that name the loss.
        target: target of a sample.
        accepted: parameters that the loss takes.

    Raises:
        SettingError: a parameter does not exist, or the loss is not for such targets.
    """
    assert train.single.loss is not None
    name = name_of(train.single.loss)
    arguments = parameters_of(train.single.loss)
    wrong = [key for key in arguments if key not in accepted]
    if wrong:
        raise SettingError(
            f"{name} has no parameter {', '.join(wrong)}; its parameters are "
            f"{', '.join(accepted) or 'none'}",
            "train",
            "loss",
        )
    if canonical_name(name).startswith("sparse_") and not target.semantics.has_classes:
        raise SettingError(
            f"{name} works with classes and masks only; the targets are of kind {target.kind}",
            "train",
            "loss",
        )
    if train.single.label_smoothing:
        if "label_smoothing" not in accepted:
            raise SettingError(
                f"the loss {name} does not support label_smoothing; remove it",
                "train",
                "label_smoothing",
            )
        arguments["label_smoothing"] = train.single.label_smoothing
    return arguments
