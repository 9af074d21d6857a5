"""Describe losses and metrics of any library: arguments, order of parameters, checks."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fleet.engines.custom import load_custom, takes_outputs_first
from fleet.engines.failure_reason import describe_failure
from fleet.errors import NetworkWarning, SettingError
from fleet.spec import Train
from fleet.spec.measures import LOSS_OF, name_of, parameters_of
from fleet.vocabulary.measures import LOSSES, canonical_name
from preprocess.target import TargetSpec

Loss = Callable[[Any, Any], Any]  # of outputs and targets: a number for each sample, (n,)

OF_MASKS = ("dice", "tversky")  # losses that give a number for each mask, not for each pixel
_ROUNDED = 1e-4  # what a loss may be below its least


class LossFunctions(NamedTuple):
    """The loss functions of a network.

    Attributes:
        training: loss of each sample in training.
        evaluation: loss of each sample in evaluation.
        correct: 1 for each correct sample, or its share of correct labels or pixels.
        name: of the loss.
        minimum: lower bound of the loss.
    """

    training: Loss
    evaluation: Loss
    correct: Loss
    name: str
    minimum: float

    @classmethod
    def of(
        cls,
        train: Train,
        target: TargetSpec,
        of_samples: Callable[[list[float] | None], Loss],
        correct: Loss,
    ) -> LossFunctions:
        """Return the loss functions of a network.

        Args:
            train: training settings.
            target: of a sample.
            of_samples: returns the loss of each sample for given class weights.
            correct: computes what is correct of each sample.

        Raises:
            SettingError: the spec has class weights, and the loss covers whole masks.
        """
        name = LOSS_OF[target.kind] if train.loss is None else name_of(train.loss)
        judging = training = of_samples(None)
        if isinstance(train.class_weights, Mapping):
            if (
                target.kind == "mask"
                and train.loss is not None
                and canonical_name(name) in OF_MASKS
            ):
                raise mask_weights_error(name)
            training = of_samples(list(train.class_weights.values()))
        return cls(
            training,
            judging,
            correct,
            name,
            -math.inf if ":" in name else LOSSES[canonical_name(name)].minimum,
        )

    def check(
        self, slope: Callable[[Loss], Any], judged: Callable[[], np.ndarray], is_finite: bool
    ) -> None:
        """Check on a few samples that the loss depends on the outputs and is not below its minimum.

        Args:
            slope: returns the derivative of a loss by arbitrary outputs; None or 0 if it does not
                depend on them.
            judged: returns the losses of the network's outputs, (n,).
            is_finite: True if these outputs are finite.

        Raises:
            SettingError: the function is not a usable loss.
        """
        order = self._say_order() if ":" in self.name else ""
        try:
            derivative = slope(self.training)
        except SettingError:
            raise
        except Exception as error:  # of the user's own function
            raise self._mistake(
                f"cannot be computed of {order}: {describe_failure(error)}"
            ) from error
        if derivative is None or not np.any(derivative):
            raise self._mistake(
                "does not depend on what the network gives, so that no weight is connected to it "
                "and nothing can be learned"
            )
        losses = judged()
        if not np.isfinite(losses).all() and is_finite:
            raise self._mistake(
                f"is no number for what the network gives: {losses[~np.isfinite(losses)][0]}"
            )
        if losses.min() < self.minimum - _ROUNDED:
            raise self._mistake(
                f"is {losses.min():.4g} for samples of the data, less than it can be "
                f"({self.minimum:g}): it is not of such targets"
            )

    def _say_order(self) -> str:
        """Return the order of a custom loss's arguments; warn if the user may expect another."""
        function = load_custom(self.name, "loss", "loss")
        is_class = isinstance(function, type)  # of the library, whose order is known
        is_reversed = takes_outputs_first(function)
        order = "(outputs, targets)" if is_reversed else "(targets, outputs)"
        if is_reversed and not is_class:
            warnings.warn(
                f"the loss {self.name} is called with {order}, as its parameters are named",
                NetworkWarning,
                stacklevel=2,
            )
        if is_reversed is None and inspect.isfunction(function):
            warnings.warn(
                f"the loss {self.name} is called with {order}: the names of its parameters do not "
                "say which is which; outputs and targets would",
                NetworkWarning,
                stacklevel=2,
            )
        return order

    def _mistake(self, wrong: str) -> SettingError:
        return SettingError(f"the loss {self.name} {wrong}", "train", "loss")


class Metrics:
    """The metrics of a network: concatenated states, one per metric, that add up."""

    def __init__(self, metrics: Sequence[Any], target: TargetSpec) -> None:
        self._metrics = tuple(metrics)
        self._target = target
        self.width = sum(metric.width for metric in self._metrics)

    def scores(self, more: Sequence[float]) -> dict[str, float]:
        """Return the value of each metric from summed states."""
        values = {}
        first = 0
        for metric in self._metrics:
            with np.errstate(divide="ignore", invalid="ignore"):
                values[metric.name] = metric.result(
                    np.array(more[first : first + metric.width], np.float64)
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
        target: of a sample.
        accepted: parameters that the loss takes.

    Raises:
        SettingError: a parameter does not exist, or the loss is not for such targets.
    """
    assert train.loss is not None
    name = name_of(train.loss)
    arguments = parameters_of(train.loss)
    wrong = [key for key in arguments if key not in accepted]
    if wrong:
        raise SettingError(
            f"{name} takes no {', '.join(wrong)}; it takes "
            f"{', '.join(accepted) or 'no parameters'}",
            "train",
            "loss",
        )
    if canonical_name(name).startswith("sparse_") and target.kind not in ("class", "mask"):
        raise SettingError(f"{name} is of classes, not of {target.kind} targets", "train", "loss")
    if train.label_smoothing:
        if "label_smoothing" not in accepted:
            raise SettingError(f"label_smoothing: {name} has none", "train", "label_smoothing")
        arguments["label_smoothing"] = train.label_smoothing
    return arguments


def scalar_result_error(name: str, key: str, more: str = "") -> SettingError:
    """Return the error for a loss or metric that returns a single number.

    Args:
        name: of the loss or metric.
        key: of the setting.
        more: text to append.
    """
    return SettingError(
        f"{name} gives one number for a whole batch, which ranks cannot add up; it should give one "
        f"for each sample{more}",
        "train",
        key,
    )


def mask_weights_error(name: str) -> SettingError:
    """Return the error for class weights combined with a loss of whole masks."""
    return SettingError(
        f"class_weights: {name} gives a number for each mask, and weights are of pixels",
        "train",
        "class_weights",
    )
