"""Losses and metrics by the names that Keras has for them, and in which direction each gets better.

Keras is not imported for them; a test compares them with what it has.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

from fleet.errors import UserError

UP, DOWN = "max", "min"
ACROSS_VALUES = ("concordance_correlation", "pearson_correlation")

# What keras.losses has, by its snake-case name; each gives a number for every sample, or every pixel.
LOSSES: tuple[str, ...] = (
    "binary_crossentropy", "binary_focal_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy", "categorical_hinge", "cosine_similarity", "dice", "hinge", "huber",
    "kl_divergence", "log_cosh", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_error",
    "mean_squared_logarithmic_error", "poisson", "sparse_categorical_crossentropy", "squared_hinge", "tversky")

# What keras.metrics has: whether more of it is better, the kinds of targets of which it means nothing, and the names.
# Cross-entropies and overlaps are of shares from 0 to 1: of values they fall without end, or are the same whatever a
# network gives. Of several labels of a sample there is no likeliest one. Correlations are of quantities.
_METRICS: tuple[tuple[str, frozenset[str], tuple[str, ...]], ...] = (
    (UP, frozenset({"value"}), (
        "accuracy", "auc", "binary_accuracy", "binary_io_u", "f1_score", "f_beta_score", "precision",
        "precision_at_recall", "recall", "recall_at_precision", "sensitivity_at_specificity",
        "specificity_at_sensitivity", "true_negatives", "true_positives")),
    (UP, frozenset({"value", "multilabel"}), (
        "categorical_accuracy", "io_u", "mean_io_u", "one_hot_io_u", "one_hot_mean_io_u", "sparse_categorical_accuracy",
        "sparse_top_k_categorical_accuracy", "top_k_categorical_accuracy")),
    (UP, frozenset({"class", "multilabel", "mask"}), (*ACROSS_VALUES, "r2_score")),
    (UP, frozenset(), ("cosine_similarity",)),
    (DOWN, frozenset({"value"}), ("binary_crossentropy", "categorical_crossentropy", "categorical_hinge",
                                  "false_negatives", "false_positives", "kl_divergence")),
    (DOWN, frozenset({"value", "multilabel"}), ("sparse_categorical_crossentropy",)),
    (DOWN, frozenset(), (
        "hinge", "log_cosh_error", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_error",
        "mean_squared_logarithmic_error", "poisson", "root_mean_squared_error", "squared_hinge")))
METRICS: dict[str, str] = {name: direction for direction, _, names in _METRICS for name in names}
# The same of losses that are no metrics as well, and of all others.
_UNFIT = {**dict.fromkeys(("binary_focal_crossentropy", "categorical_focal_crossentropy",
                           "categorical_generalized_cross_entropy", "dice", "tversky"), frozenset({"value"})),
          **{name: kinds for _, kinds, names in _METRICS for name in names}}

# Those are nothing without some parameters.
WITH_PARAMETERS = {"categorical_generalized_cross_entropy": "q", "io_u": "target_class_ids",
                   "one_hot_io_u": "target_class_ids", "precision_at_recall": "recall",
                   "recall_at_precision": "precision", "sensitivity_at_specificity": "specificity",
                   "specificity_at_sensitivity": "sensitivity"}

# What Keras takes for the parameters of losses that nobody gives.
LOSS_DEFAULTS: dict[str, dict[str, Any]] = {
    "binary_crossentropy": {"label_smoothing": 0.0},
    "binary_focal_crossentropy": {"apply_class_balancing": False, "alpha": 0.25, "gamma": 2.0, "label_smoothing": 0.0},
    "categorical_crossentropy": {"label_smoothing": 0.0},
    "categorical_focal_crossentropy": {"alpha": 0.25, "gamma": 2.0, "label_smoothing": 0.0},
    "huber": {"delta": 1.0},
    "tversky": {"alpha": 0.5, "beta": 0.5}}

# The loss by the kind of the target, where a spec names none.
LOSS_OF = {"class": "categorical_crossentropy", "multilabel": "binary_crossentropy", "value": "mean_squared_error",
           "mask": "categorical_crossentropy"}

TARGETS = {"class": "classes", "multilabel": "labels that hold or not", "value": "values", "mask": "masks"}

# The least that losses can be, where it is not 0; poisson has no least.
LEAST_LOSS = {"cosine_similarity": -1.0, "poisson": -math.inf}

Measure: TypeAlias = str | dict[str, dict[str, Any]]  # a name, or one name with its parameters

_SHORT = {"mse": "mean_squared_error", "mae": "mean_absolute_error", "mape": "mean_absolute_percentage_error",
          "msle": "mean_squared_logarithmic_error", "bce": "binary_crossentropy", "acc": "accuracy",
          "rmse": "root_mean_squared_error", "kld": "kl_divergence", "mean_iou": "mean_io_u",
          "binary_iou": "binary_io_u", "one_hot_mean_iou": "one_hot_mean_io_u", "logcosh": "log_cosh"}

FIELDS = ("loss", "accuracy")  # what an epoch has in any case, of training, and with val_ of validation

# Names that tables of results and of epochs have for other things.
COLUMNS = frozenset({"loss", "test_loss", "test_accuracy", "name", "status", "reason", "parameters", "epochs", "epoch",
                     "best_epoch", "seconds", "drawn", "stream_epoch", "learning_rate", "samples", "gpus", "waited_s",
                     "path", "accepted", "parent", "parent_epoch", "batch", "start"})


def snake(name: str) -> str:
    """A name of Keras in the form of the tables: classes and short names too.

    >>> snake("MeanIoU"), snake("AUC"), snake("mae"), snake("F1Score")
    ('mean_io_u', 'auc', 'mean_absolute_error', 'f1_score')
    """
    parts = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    lower = re.sub(r"([a-z])([A-Z])", r"\1_\2", parts).lower()
    return _SHORT.get(name.lower(), _SHORT.get(lower, lower))


def name_of(measure: Measure) -> str:
    """The name of a loss or a metric, or its import path, without parameters."""
    return measure if isinstance(measure, str) else next(iter(measure))


def parameters_of(measure: Measure) -> dict[str, Any]:
    """The parameters of a loss or a metric, by name."""
    return {} if isinstance(measure, str) else dict(next(iter(measure.values())))


def label_of(measure: Measure) -> str:
    """What a metric is called in tables: its parameter ``name``, or its name as it is written, without a module.

    >>> label_of("mae"), label_of("my_metrics:quantile"), label_of({"AUC": {"curve": "PR", "name": "auc_pr"}})
    ('mae', 'quantile', 'auc_pr')
    """
    named = parameters_of(measure).get("name")
    return named if isinstance(named, str) else name_of(measure).rpartition(":")[2]


def unfit(measure: Measure, kind: str) -> str:
    """Why a loss or a metric of Keras has no meaning for targets of a kind; nothing where it may have one.

    >>> unfit("AUC", "value"), unfit("my:loss", "value")
    ('AUC means nothing for targets that are values', '')
    """
    name = name_of(measure)
    is_unfit = ":" not in name and kind in _UNFIT.get(snake(name), ())
    return f"{name} means nothing for targets that are {TARGETS[kind]}" if is_unfit else ""


def canonical(measure: Measure, defaults: Mapping[str, Mapping[str, Any]] | None = None) -> Measure:
    """A loss or a metric as it is written in one way, without parameters that are as Keras has them.

    Args:
        defaults: name -> parameter -> what it is where nobody gives it.

    >>> canonical("mse") == canonical("MeanSquaredError"), canonical({"Huber": {"delta": 1}}, LOSS_DEFAULTS)
    (True, 'huber')
    """
    name = name_of(measure)
    short = name if ":" in name else snake(name)
    known = (defaults or {}).get(short, {})
    given = {key: value for key, value in sorted(parameters_of(measure).items())
             if key != "name" and (key not in known or known[key] != value)}
    return {short: given} if given else short


def canonical_loss(loss: Measure | None, smoothing: float, kind: str) -> Measure:
    """What a loss measures of targets of a kind, written in one way: losses that are written alike can be compared.

    >>> canonical_loss(None, 0.1, "class") == canonical_loss({"CategoricalCrossentropy": {"label_smoothing": 0.1}}, 0,
    ...                                                      "class")
    True
    """
    said = LOSS_OF[kind] if loss is None else loss
    if snake(name_of(said)) == "sparse_categorical_crossentropy":  # the same, of classes by their numbers
        said = {"categorical_crossentropy": parameters_of(said)}
    given = {**parameters_of(said), **({"label_smoothing": smoothing} if smoothing else {})}
    return canonical({name_of(said): given}, LOSS_DEFAULTS)


def written(measure: Measure) -> str:
    """A loss or a metric as people write it.

    >>> written({"huber": {"delta": 2}}), written("mae")
    ('{huber: {delta: 2}}', 'mae')
    """
    if isinstance(measure, str):
        return measure
    given = ", ".join(f"{key}: {value}" for key, value in parameters_of(measure).items())
    return f"{{{name_of(measure)}: {{{given}}}}}" if given else name_of(measure)


def check_name(measure: Measure, known: Mapping[str, Any] | tuple[str, ...], what: str) -> None:
    """See that a loss or a metric is one of Keras, with the parameters that it needs, or an import path.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(measure, str) and len(measure) != 1:
        raise ValueError(f"{what}: {measure} should be one name with its parameters, as in {{AUC: {{curve: PR}}}}")
    name = name_of(measure)
    if ":" in name or snake(name) in known:
        needed = WITH_PARAMETERS.get(snake(name))
        if needed is not None and needed not in parameters_of(measure):
            raise ValueError(f"the {what} {name} needs {needed}: write {{{name}: {{{needed}: ...}}}}")
        return
    short = [one for one in _SHORT if snake(one) in known]
    close = difflib.get_close_matches(snake(name), [*known, *short], n=3)
    hint = f" (did you mean {', '.join(close)}?)" if close else ""
    right = "a name of Keras" if close else ", ".join(sorted(known))
    raise ValueError(f"no {what} of Keras is named {name!r}{hint}; it should be {right}, or an import path "
                     "module:function")


@cache  # of what every network monitors it is asked whenever networks are ranked
def direction_of(monitor: str) -> str | None:
    """``max`` or ``min``; None where nobody can tell, of a metric of one's own.

    >>> direction_of("val_AUC"), direction_of("val_loss"), direction_of("quantile")
    ('max', 'min', None)
    """
    name = monitor.removeprefix("val_")
    return DOWN if name == "loss" else METRICS.get(snake(name))


def check_measures(loss: Measure | None, metrics: tuple[Measure, ...], class_weights: Any) -> list[str]:
    """See that a loss, metrics and weights of classes are such; returns the columns of the metrics.

    Raises:
        ValueError: they are not.
    """
    for key, what, names, known in (("loss", "loss", () if loss is None else (loss,), LOSSES),
                                    ("metrics", "metric", metrics, METRICS)):
        for name in names:
            try:
                check_name(name, known, what)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
    labels = [label_of(name) for name in metrics]
    taken = [name for name in labels
             if labels.count(name) > 1 or name.startswith(("val_", "test_")) or name in COLUMNS]
    if taken:
        raise ValueError(f"metrics: two columns of the results would be named {taken[0]!r}; a parameter `name` gives "
                         "one another name, as in {AUC: {curve: PR, name: auc_pr}}")
    if isinstance(class_weights, Mapping) and not all(map(is_weight, class_weights.values())):
        raise ValueError(f"class_weights: {class_weights} should be numbers from 0")
    return labels


def check_monitor(monitor: str | None, direction: str | None, known: list[str]) -> None:
    """See that what is monitored is computed, and that its direction is known.

    Raises:
        ValueError: it is not.
    """
    if monitor is None:
        return
    if monitor.removeprefix("val_") not in known:
        raise ValueError(f"converge.monitor: {monitor!r} is not computed; it should be one of {', '.join(known)}, or "
                         "one of these with val_ before it; others come from train.metrics")
    if direction is None and direction_of(monitor) is None:
        raise ValueError(f"converge.monitor: nobody can tell whether more of {monitor} is better: say "
                         "converge.direction: max, or min")


def class_weight_vector(wanted: Mapping[Any, float], names: tuple[str, ...], classes: int) -> tuple[float, ...]:
    """The weight of each class, of a mapping from names or numbers of classes; 1 for those that it leaves out.

    Raises:
        UserError: it names no class.
    """
    weights = [1.0] * classes
    for key, weight in wanted.items():
        if str(key) in names:
            weights[names.index(str(key))] = float(weight)
        elif str(key).isdigit() and int(key) < classes:
            weights[int(key)] = float(weight)
        else:
            listed = ", ".join(names[:8]) if names else f"0 to {classes - 1}"
            raise UserError(f"train.class_weights: {key!r} is no class; there are {listed}")
    return tuple(weights)


def balanced(counts: tuple[int, ...]) -> tuple[float, ...]:
    """Weights by which all classes count the same, with the mean of 1 over samples; 0 for one without samples.

    >>> balanced((1, 3))
    (2.0, 0.6666666666666666)
    """
    present = sum(count > 0 for count in counts)
    return tuple(sum(counts) / (present * count) if count else 0.0 for count in counts)


def is_weight(value: Any) -> bool:
    """Whether it is a number from 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
