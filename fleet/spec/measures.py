"""Losses and metrics as specs name them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fleet.errors import UserError
from fleet.vocabulary.measures import MeasureWord, canonical_name
from preprocess.base import normalize_name
from preprocess.target_kinds import KINDS

Measure: TypeAlias = str | dict[str, dict[str, Any]]  # a name, or one name with its parameters

# The columns of every epoch: of training, and with val_ of validation.
FIELDS = ("loss", "accuracy")

# Names of other columns in the tables of results and of epochs.
COLUMNS = frozenset(
    {
        "loss",
        "test_loss",
        "test_accuracy",
        "name",
        "status",
        "reason",
        "parameters",
        "epochs",
        "epoch",
        "best_epoch",
        "seconds",
        "energy_kj",
        "drawn",
        "stream_epoch",
        "learning_rate",
        "samples",
        "gpus",
        "waited_s",
        "path",
        "accepted",
        "parent",
        "parent_epoch",
        "batch",
        "start",
    }
)


def name_of(measure: Measure) -> str:
    """Return the name or import path of a loss or metric, without parameters."""
    if isinstance(measure, str):
        return measure
    return next(iter(measure))


def parameters_of(measure: Measure) -> dict[str, Any]:
    """Return the parameters of a loss or metric by name."""
    if isinstance(measure, str):
        return {}
    return copy.deepcopy(dict(next(iter(measure.values()))))


def label_of(measure: Measure) -> str:
    """Return the column name of a metric: its parameter ``name``, or its own name.

    A function called ``accuracy`` keeps its module, since every network has an accuracy.

    >>> label_of("mae"), label_of("my_metrics:quantile")
    ('mae', 'quantile')
    >>> label_of({"AUC": {"curve": "PR", "name": "auc_pr"}})
    'auc_pr'
    >>> label_of("my_metrics:accuracy")
    'my_metrics.accuracy'
    >>> label_of("torchmetrics.classification.MulticlassF1Score")
    'MulticlassF1Score'
    """
    named = parameters_of(measure).get("name")
    if isinstance(named, str):
        return named
    module, _, name = name_of(measure).rpartition(":")
    if module and name == "accuracy":
        return f"{module}.{name}"
    if name.startswith("torchmetrics."):
        return name.rpartition(".")[2]
    return name


def describe_unfit(measure: Measure, kind: str, words: Mapping[str, MeasureWord]) -> str:
    """Explain why a loss or metric does not fit a kind of target; empty if it may fit.

    >>> from fleet.vocabulary.measures import METRICS
    >>> describe_unfit("AUC", "value", METRICS), describe_unfit("my:metric", "value", METRICS)
    ('AUC is not defined for targets that are values', '')
    """
    name = name_of(measure)
    word = None if ":" in name else words.get(canonical_name(name))
    is_unfit = word is not None and kind in word.unfit
    if is_unfit:
        return f"{name} is not defined for targets that are {KINDS[kind].plural}"
    return ""


def is_meant_for(metric: Measure, kind: str, words: Mapping[str, MeasureWord]) -> bool:
    """Return True if a list of metrics for several targets means a metric for those of a kind.

    >>> from fleet.vocabulary.measures import METRICS
    >>> [is_meant_for("mae", kind, METRICS) for kind in ("value", "class")]
    [True, False]
    """
    if describe_unfit(metric, kind, words):
        return False
    word = words.get(canonical_name(name_of(metric)))
    return word is None or not word.is_distance or KINDS[kind].is_numeric


def canonical(measure: Measure, words: Mapping[str, MeasureWord]) -> Measure:
    """Return a loss or metric in its canonical form, without default parameters.

    >>> from fleet.vocabulary.measures import LOSSES
    >>> canonical("mse", LOSSES) == canonical("MeanSquaredError", LOSSES)
    True
    >>> canonical({"Huber": {"delta": 1}}, LOSSES)
    'huber'
    """
    name = name_of(measure)
    short = name if ":" in name else canonical_name(name)
    if short in words and words[short].same_as in words:
        equal = words[short].same_as
        if set(parameters_of(measure)) <= set(words[equal].defaults):
            short = equal
    defaults = words[short].defaults if short in words else {}
    parameters = {
        key: value
        for key, value in sorted(parameters_of(measure).items())
        if key != "name" and (key not in defaults or defaults[key] != value)
    }
    if parameters:
        return {short: parameters}
    return short


def canonical_loss(
    loss: Measure | None, smoothing: float, kind: str, words: Mapping[str, MeasureWord]
) -> Measure:
    """Return the canonical form of a loss; equal forms can be compared.

    >>> from fleet.vocabulary.measures import LOSSES
    >>> canonical_loss(None, 0.1, "class", LOSSES)
    {'categorical_crossentropy': {'label_smoothing': 0.1}}
    """
    measure = KINDS[kind].default_loss if loss is None else loss
    # The same loss, with classes as numbers.
    if canonical_name(name_of(measure)) == "sparse_categorical_crossentropy":
        measure = {"categorical_crossentropy": parameters_of(measure)}
    parameters = {**parameters_of(measure), **({"label_smoothing": smoothing} if smoothing else {})}
    return canonical({name_of(measure): parameters}, words)


def format_measure(measure: Measure) -> str:
    """Format a loss or metric as in YAML.

    >>> format_measure({"huber": {"delta": 2}}), format_measure("mae")
    ('{huber: {delta: 2}}', 'mae')
    """
    if isinstance(measure, str):
        return measure
    parameters = ", ".join(f"{key}: {value}" for key, value in parameters_of(measure).items())
    if parameters:
        return f"{{{name_of(measure)}: {{{parameters}}}}}"
    return name_of(measure)


def check_measures(
    losses: Sequence[Measure],
    metrics: Sequence[Measure] | Mapping[str, Sequence[Measure]],
    class_weights: Sequence[Any],
) -> list[str]:
    """Check the losses, metrics and class weights; return the columns of the metrics.

    Args:
        losses: the loss, or that of each target.
        metrics: the metrics, or those of each target.
        class_weights: the class weights, or those of each target.

    Raises:
        ValueError: one of them is invalid.
    """
    lists = list(metrics.values()) if isinstance(metrics, Mapping) else [metrics]
    for key, measures in (("loss", losses), *(("metrics", names) for names in lists)):
        check_single_names(key, measures, "{AUC: {curve: PR}}")
    for weights in class_weights:
        if isinstance(weights, Mapping) and not all(map(is_weight, weights.values())):
            raise ValueError(f"class_weights: {weights} should be numbers of at least 0")
    return list(dict.fromkeys(label for names in lists for label in _check_labels(names)))


def _check_labels(metrics: Sequence[Measure]) -> list[str]:
    """Return the columns of metrics of one target, after checking that they differ."""
    labels = [label_of(name) for name in metrics]
    duplicates = [
        name
        for name in labels
        if labels.count(name) > 1 or name.startswith(("val_", "test_")) or name in COLUMNS
    ]
    # Keras users often list accuracy, which every network has.
    duplicates += [
        label_of(metric) for metric in metrics if label_of(metric) == "accuracy" != metric
    ]
    if duplicates:
        raise ValueError(
            f"metrics: two columns of the results would be named {duplicates[0]!r}; rename one "
            "with the parameter `name`, as in {AUC: {curve: PR, name: auc_pr}}"
        )
    return labels


def check_single_names(key: str, measures: Sequence[Measure], example: str) -> None:
    """Check that each item of a setting is one name, perhaps with parameters.

    Args:
        key: the setting, for the message.
        measures: its items.
        example: a valid item.

    Raises:
        ValueError: an item has another number of names.
    """
    for measure in measures:
        if not isinstance(measure, str) and len(measure) != 1:
            raise ValueError(
                f"{key}: {measure} should be one name with its parameters, as in {example}"
            )


def check_monitor(monitor: str | None, computed: list[str]) -> None:
    """Check that the monitored quantity is computed, or may be one of several targets.

    Raises:
        ValueError: it is not computed.
    """
    if monitor is not None and not may_be_computed(monitor, computed):
        raise ValueError(
            f"stopping.monitor: {monitor!r} is not computed; it should be one of "
            f"{', '.join(computed)}, with or without val_ before it, of several targets with their "
            "names, like val_TARGET_loss; add others to train.metrics"
        )


def may_be_computed(column: str, computed: Sequence[str]) -> bool:
    """Return True if a column is computed, perhaps for a target whose name is not known yet.

    >>> [may_be_computed(name, FIELDS) for name in ("val_loss", "val_kind_accuracy", "val_mae")]
    [True, True, False]
    """
    name = column.removeprefix("val_")
    return name in computed or name.endswith(tuple(f"_{measure}" for measure in computed))


def class_weight_vector(
    class_weights: Mapping[Any, float], names: tuple[str, ...], classes: int
) -> tuple[float, ...]:
    """Return the weight of each class; 1 for classes without a weight.

    Args:
        class_weights: name or number of a class -> its weight.
        names: the names of the classes, by number; empty if they have none.
        classes: number of classes.

    Raises:
        UserError: a key is not a class.
    """
    weights = [1.0] * classes
    places = {normalize_name(name): index for index, name in enumerate(names)}
    for key, weight in class_weights.items():
        if normalize_name(str(key)) in places:
            weights[places[normalize_name(str(key))]] = float(weight)
        elif str(key).isdigit() and int(key) < classes:
            weights[int(key)] = float(weight)
        else:
            listed = ", ".join(names[:8]) if names else f"0 to {classes - 1}"
            raise UserError(
                f"train.class_weights: {key!r} is not a class; the classes are {listed}"
            )
    return tuple(weights)


def balanced_weights(counts: tuple[int, ...]) -> tuple[float, ...]:
    """Return class weights by which all classes count the same, with a mean of 1 over samples.

    Args:
        counts: number of samples in each class.

    >>> balanced_weights((1, 3))
    (2.0, 0.6666666666666666)
    """
    present = sum(count > 0 for count in counts)
    return tuple(sum(counts) / (present * count) if count else 0.0 for count in counts)


def is_weight(value: Any) -> bool:
    """Return True for a finite number of at least 0."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )
