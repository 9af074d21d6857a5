"""What losses and metrics are, whichever library computes them: what they are called with, and when one is none."""

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
    """The loss of each sample, in training and where it is judged, and what of it is right; what it is called, and the
    least that it can be."""

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
        """Those of a network.

        Args:
            of_samples: makes the loss of each sample, where classes have such weights.

        Raises:
            SettingError: classes have weights, and the loss is of whole masks.
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
        """See on some samples that this is a loss: it depends on what a network gives, and is not below its least.

        Args:
            slope: of a loss along any outputs; None or 0 where it does not depend on them.
            judged: the losses of what a network gives, (n,).
            is_finite: whether that is all numbers.

        Raises:
            SettingError: it is none.
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
                "does not depend on what the network gives, so that no weight is connected to it and "
                "nothing can be learned"
            )
        losses = judged()
        if not np.isfinite(losses).all() and is_finite:
            raise self._mistake(
                f"is no number for what the network gives: {losses[~np.isfinite(losses)][0]}"
            )
        if losses.min() < self.minimum - _ROUNDED:
            raise self._mistake(
                f"is {losses.min():.4g} for samples of the data, less than it can be ({self.minimum:g}): "
                "it is not of such targets"
            )

    def _say_order(self) -> str:
        """In which order a function of the user's own is called; warn where its user may expect the other one."""
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
                f"the loss {self.name} is called with {order}: the names of its parameters do not say "
                "which is which; outputs and targets would",
                NetworkWarning,
                stacklevel=2,
            )
        return order

    def _mistake(self, wrong: str) -> SettingError:
        return SettingError(f"the loss {self.name} {wrong}", "train", "loss")


class Metrics:
    """The metrics of a network: states side by side, each of a metric's width, which add up."""

    def __init__(self, metrics: Sequence[Any], target: TargetSpec) -> None:
        self._metrics = tuple(metrics)
        self._target = target
        self.width = sum(metric.width for metric in self._metrics)

    def scores(self, more: Sequence[float]) -> dict[str, float]:
        """What sums over samples come to."""
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
    """What judges a network's outputs: its metrics are :class:`Metrics` that take tensors of the library."""

    losses: LossFunctions
    metrics: Any


def loss_arguments(train: Train, target: TargetSpec, accepted: Collection[str]) -> dict[str, Any]:
    """With which parameters a loss of the library is called.

    Args:
        known: those that it has.

    Raises:
        SettingError: it has no such one, or is not of such targets.
    """
    assert train.loss is not None
    name = name_of(train.loss)
    arguments = parameters_of(train.loss)
    wrong = [key for key in arguments if key not in accepted]
    if wrong:
        raise SettingError(
            f"{name} takes no {', '.join(wrong)}; it takes {', '.join(accepted) or 'no parameters'}",
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
    """The mistake of a loss or metric that gives a single number."""
    return SettingError(
        f"{name} gives one number for a whole batch, which ranks cannot add up; it should give one for "
        f"each sample{more}",
        "train",
        key,
    )


def mask_weights_error(name: str) -> SettingError:
    """The mistake of weights of classes beside a loss of whole masks."""
    return SettingError(
        f"class_weights: {name} gives a number for each mask, and weights are of pixels",
        "train",
        "class_weights",
    )
