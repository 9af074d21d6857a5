"""Describe the losses and metrics of Keras: direction, valid targets, required parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias

Direction: TypeAlias = Literal["max", "min"]
UP: Direction = "max"
DOWN: Direction = "min"
ACROSS_VALUES = ("concordance_correlation", "pearson_correlation")


@dataclass(frozen=True)
class MeasureWord:
    """A loss or metric that a spec may name; a loss is computed per sample, or per pixel.

    Attributes:
        better: direction of improvement, :data:`UP` or :data:`DOWN`.
        unfit: kinds of targets (:mod:`preprocess.target`) for which the measure is meaningless.
        is_distance: whether it is a distance between numbers. A list of metrics for several targets
            means it for the targets that are values.
        needs: required parameter; empty if no parameter is required.
        defaults: default parameters, to recognize equal measures.
        minimum: lower bound of the measure.
        written: the name as its library writes it; empty for names of Keras.
        package: the package that has the measure, besides the engine's library; empty for none.
        same_as: the equal measure of Keras, with the same parameters; empty for none.
        refused: why no spec can use the measure; empty if one can.
    """

    better: Direction = DOWN
    unfit: frozenset[str] = frozenset()
    is_distance: bool = False
    needs: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    minimum: float = 0.0
    written: str = ""
    package: str = ""
    same_as: str = ""
    refused: str = ""


_NEEDS = {
    "categorical_generalized_cross_entropy": "q",
    "io_u": "target_class_ids",
    "one_hot_io_u": "target_class_ids",
    "precision_at_recall": "recall",
    "recall_at_precision": "precision",
    "sensitivity_at_specificity": "specificity",
    "specificity_at_sensitivity": "sensitivity",
}

_DISTANCES = (
    "log_cosh_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "root_mean_squared_error",
)

# Direction of improvement, kinds of targets for which the measures are meaningless, and names.
# Cross-entropies and overlaps need probabilities: for values they have no lower bound, or do not
# depend on the predictions. Samples with several labels have no single most likely class.
# Correlations need values.
METRICS: dict[str, MeasureWord] = {
    name: MeasureWord(
        better,
        frozenset(unfit.split()),
        is_distance=name in (*_DISTANCES, "cosine_similarity"),
        needs=_NEEDS.get(name, ""),
    )
    for better, unfit, names in (
        (
            UP,
            "value",
            (
                "accuracy",
                "auc",
                "binary_accuracy",
                "binary_io_u",
                "f1_score",
                "f_beta_score",
                "precision",
                "precision_at_recall",
                "recall",
                "recall_at_precision",
                "sensitivity_at_specificity",
                "specificity_at_sensitivity",
                "true_negatives",
                "true_positives",
            ),
        ),
        (
            UP,
            "value multilabel",
            (
                "categorical_accuracy",
                "io_u",
                "mean_io_u",
                "one_hot_io_u",
                "one_hot_mean_io_u",
                "sparse_categorical_accuracy",
                "sparse_top_k_categorical_accuracy",
                "top_k_categorical_accuracy",
            ),
        ),
        (UP, "class multilabel mask", (*ACROSS_VALUES, "r2_score")),
        (UP, "", ("cosine_similarity",)),
        (
            DOWN,
            "value",
            (
                "binary_crossentropy",
                "categorical_crossentropy",
                "categorical_hinge",
                "false_negatives",
                "false_positives",
                "kl_divergence",
            ),
        ),
        (DOWN, "value multilabel", ("sparse_categorical_crossentropy",)),
        (
            DOWN,
            "",
            (
                "hinge",
                *_DISTANCES,
                "squared_hinge",
            ),
        ),
    )
    for name in names
}

# Default parameters of the losses in Keras.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "binary_crossentropy": {"label_smoothing": 0.0},
    "binary_focal_crossentropy": {
        "apply_class_balancing": False,
        "alpha": 0.25,
        "gamma": 2.0,
        "label_smoothing": 0.0,
    },
    "categorical_crossentropy": {"label_smoothing": 0.0},
    "categorical_focal_crossentropy": {"alpha": 0.25, "gamma": 2.0, "label_smoothing": 0.0},
    "huber": {"delta": 1.0},
    "tversky": {"alpha": 0.5, "beta": 0.5},
}
_MINIMUM = {"cosine_similarity": -1.0, "poisson": -math.inf}  # lower bounds other than 0

# Losses of probabilities that are no metrics; they are meaningless for values.
_OF_PROBABILITIES = (
    "binary_focal_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy",
    "dice",
    "tversky",
)


def _unfit_for(loss: str) -> frozenset[str]:
    if loss in METRICS:
        return METRICS[loss].unfit
    return frozenset({"value"}) if loss in _OF_PROBABILITIES else frozenset()


LOSSES: dict[str, MeasureWord] = {
    name: MeasureWord(
        DOWN,
        _unfit_for(name),
        needs=_NEEDS.get(name, ""),
        defaults=_DEFAULTS.get(name, {}),
        minimum=_MINIMUM.get(name, 0.0),
    )
    for name in (
        "binary_crossentropy",
        "binary_focal_crossentropy",
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "categorical_generalized_cross_entropy",
        "categorical_hinge",
        "cosine_similarity",
        "dice",
        "hinge",
        "huber",
        "kl_divergence",
        "log_cosh",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "poisson",
        "sparse_categorical_crossentropy",
        "squared_hinge",
        "tversky",
    )
}

SHORT = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "bce": "binary_crossentropy",
    "acc": "accuracy",
    "rmse": "root_mean_squared_error",
    "kld": "kl_divergence",
    "mean_iou": "mean_io_u",
    "binary_iou": "binary_io_u",
    "one_hot_mean_iou": "one_hot_mean_io_u",
    "logcosh": "log_cosh",
}


def canonical_name(name: str) -> str:
    """Return a name as in the tables; the name may be that of a class, or a short name.

    >>> [canonical_name(name) for name in ("MeanIoU", "AUC", "mae", "F1Score")]
    ['mean_io_u', 'auc', 'mean_absolute_error', 'f1_score']
    >>> [canonical_name(name) for name in ("L1Loss", "nn.L1Loss", "torch.nn.L1Loss")]
    ['l1_loss', 'l1_loss', 'l1_loss']
    """
    name = re.sub(r"^(torch\.)?nn\.(modules\.loss\.)?(?=\w+Loss$)", "", name)
    name = re.sub(r"^torchmetrics\.\w+\.", "torchmetrics.", name)
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    lower = re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
    return SHORT.get(name.lower(), SHORT.get(lower, lower))


def direction_by_target(monitor: str) -> Direction | None:
    """Return ``max`` or ``min`` of a column that may be of one of several targets; None if unknown.

    >>> direction_by_target("val_kind_accuracy"), direction_by_target("val_accuracy")
    ('max', 'max')
    """
    words = monitor.removeprefix("val_").split("_")
    names = ("_".join(words[first:]) for first in range(len(words)))
    return next((direction for name in names if (direction := direction_of(name))), None)


@cache  # each ranking of networks calls it for every network
def direction_of(monitor: str) -> Direction | None:
    """Return ``max`` or ``min``; None if unknown, for a metric that Keras does not have.

    >>> direction_of("val_AUC"), direction_of("val_loss"), direction_of("quantile")
    ('max', 'min', None)
    """
    name = monitor.removeprefix("val_")
    word = METRICS.get(canonical_name(name))
    if name == "loss":
        return DOWN
    if word is None:
        return None
    return word.better
