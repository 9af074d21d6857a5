"""Losses and metrics as specs name them: with parameters, as columns of tables, and of targets of a kind."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from fleet.errors import UserError
from fleet.vocabulary.measures import MeasureWord, canonical_name
from preprocess.base import normalize_name

# The loss by the kind of the target, where a spec names none.
LOSS_OF = {
    "class": "categorical_crossentropy",
    "multilabel": "binary_crossentropy",
    "value": "mean_squared_error",
    "mask": "categorical_crossentropy",
}

TARGETS = {
    "class": "classes",
    "multilabel": "labels that hold or not",
    "value": "values",
    "mask": "masks",
}

Measure: TypeAlias = str | dict[str, dict[str, Any]]  # a name, or one name with its parameters

FIELDS = (
    "loss",
    "accuracy",
)  # what an epoch has in any case, of training, and with val_ of validation

# Names that tables of results and of epochs have for other things.
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
    """The name of a loss or a metric, or its import path, without parameters."""
    if isinstance(measure, str):
        return measure
    return next(iter(measure))


def parameters_of(measure: Measure) -> dict[str, Any]:
    """The parameters of a loss or a metric, by name."""
    if isinstance(measure, str):
        return {}
    return copy.deepcopy(dict(next(iter(measure.values()))))


def label_of(measure: Measure) -> str:
    """What a metric is called in tables: its parameter ``name``, or its name as it is written, without a module.

    A function called ``accuracy`` keeps its module, for there is an accuracy in any case.

    >>> label_of("mae"), label_of("my_metrics:quantile"), label_of({"AUC": {"curve": "PR", "name": "auc_pr"}})
    ('mae', 'quantile', 'auc_pr')
    >>> label_of("my_metrics:accuracy")
    'my_metrics.accuracy'
    """
    named = parameters_of(measure).get("name")
    if isinstance(named, str):
        return named
    module, _, name = name_of(measure).rpartition(":")
    if module and name == "accuracy":
        return f"{module}.{name}"
    return name


def describe_unfit(measure: Measure, kind: str, known: Mapping[str, MeasureWord]) -> str:
    """Why a loss or a metric of those that are known has no meaning for targets of a kind; nothing where it may have.

    >>> from fleet.vocabulary.measures import METRICS
    >>> unfit("AUC", "value", METRICS), unfit("my:metric", "value", METRICS)
    ('AUC means nothing for targets that are values', '')
    """
    name = name_of(measure)
    word = None if ":" in name else known.get(canonical_name(name))
    is_unfit = word is not None and kind in word.unfit
    if is_unfit:
        return f"{name} means nothing for targets that are {TARGETS[kind]}"
    return ""


def canonical(measure: Measure, known: Mapping[str, MeasureWord]) -> Measure:
    """A loss or a metric as it is written in one way, without parameters that are as they would be anyway.

    >>> from fleet.vocabulary.measures import LOSSES
    >>> canonical("mse", LOSSES) == canonical("MeanSquaredError", LOSSES), canonical({"Huber": {"delta": 1}}, LOSSES)
    (True, 'huber')
    """
    name = name_of(measure)
    short = name if ":" in name else canonical_name(name)
    defaults = known[short].defaults if short in known else {}
    given = {
        key: value
        for key, value in sorted(parameters_of(measure).items())
        if key != "name" and (key not in defaults or defaults[key] != value)
    }
    if given:
        return {short: given}
    return short


def canonical_loss(
    loss: Measure | None, smoothing: float, kind: str, known: Mapping[str, MeasureWord]
) -> Measure:
    """What a loss measures of targets of a kind, written in one way: losses that are written alike can be compared.

    >>> from fleet.vocabulary.measures import LOSSES
    >>> canonical_loss(None, 0.1, "class", LOSSES)
    {'categorical_crossentropy': {'label_smoothing': 0.1}}
    """
    said = LOSS_OF[kind] if loss is None else loss
    if (
        canonical_name(name_of(said)) == "sparse_categorical_crossentropy"
    ):  # the same, of classes by their numbers
        said = {"categorical_crossentropy": parameters_of(said)}
    given = {**parameters_of(said), **({"label_smoothing": smoothing} if smoothing else {})}
    return canonical({name_of(said): given}, known)


def format_measure(measure: Measure) -> str:
    """A loss or a metric as people write it.

    >>> written({"huber": {"delta": 2}}), written("mae")
    ('{huber: {delta: 2}}', 'mae')
    """
    if isinstance(measure, str):
        return measure
    given = ", ".join(f"{key}: {value}" for key, value in parameters_of(measure).items())
    if given:
        return f"{{{name_of(measure)}: {{{given}}}}}"
    return name_of(measure)


def check_measures(
    loss: Measure | None, metrics: tuple[Measure, ...], class_weights: Any
) -> list[str]:
    """See that a loss, metrics and weights of classes are written as such; returns the columns of the metrics.

    Raises:
        ValueError: they are not.
    """
    for key, said in (("loss", () if loss is None else (loss,)), ("metrics", metrics)):
        for measure in said:
            if not isinstance(measure, str) and len(measure) != 1:
                raise ValueError(
                    f"{key}: {measure} should be one name with its parameters, as in "
                    "{AUC: {curve: PR}}"
                )
    labels = [label_of(name) for name in metrics]
    taken = [
        name
        for name in labels
        if labels.count(name) > 1 or name.startswith(("val_", "test_")) or name in COLUMNS
    ]
    # Keras' own accuracy, as people write it for Keras, is the one that there is in any case.
    taken += [label_of(one) for one in metrics if label_of(one) == "accuracy" != one]
    if taken:
        raise ValueError(
            f"metrics: two columns of the results would be named {taken[0]!r}; a parameter `name` gives "
            "one another name, as in {AUC: {curve: PR, name: auc_pr}}"
        )
    if isinstance(class_weights, Mapping) and not all(map(is_weight, class_weights.values())):
        raise ValueError(f"class_weights: {class_weights} should be numbers from 0")
    return labels


def check_monitor(monitor: str | None, known: list[str]) -> None:
    """See that what is monitored is computed.

    Raises:
        ValueError: it is not.
    """
    if monitor is not None and monitor.removeprefix("val_") not in known:
        raise ValueError(
            f"stopping.monitor: {monitor!r} is not computed; it should be one of {', '.join(known)}, or "
            "one of these with val_ before it; others come from train.metrics"
        )


def class_weight_vector(
    wanted: Mapping[Any, float], names: tuple[str, ...], classes: int
) -> tuple[float, ...]:
    """The weight of each class, of a mapping from names or numbers of classes; 1 for those that it leaves out.

    Raises:
        UserError: it names no class.
    """
    weights = [1.0] * classes
    places = {normalize_name(name): place for place, name in enumerate(names)}
    for key, weight in wanted.items():
        if normalize_name(str(key)) in places:
            weights[places[normalize_name(str(key))]] = float(weight)
        elif str(key).isdigit() and int(key) < classes:
            weights[int(key)] = float(weight)
        else:
            listed = ", ".join(names[:8]) if names else f"0 to {classes - 1}"
            raise UserError(f"train.class_weights: {key!r} is no class; there are {listed}")
    return tuple(weights)


def balanced_weights(counts: tuple[int, ...]) -> tuple[float, ...]:
    """Weights by which all classes count the same, with the mean of 1 over samples; 0 for one without samples.

    >>> balanced((1, 3))
    (2.0, 0.6666666666666666)
    """
    present = sum(count > 0 for count in counts)
    return tuple(sum(counts) / (present * count) if count else 0.0 for count in counts)


def is_weight(value: Any) -> bool:
    """Whether it is a number from 0."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )
