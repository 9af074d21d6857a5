"""The forms of settings that may differ between several targets: mappings by target.

The keys of a setting may also be names of losses or classes, so the values tell the form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Discriminator, Tag

from fleet.spec.fields import BelowOne
from fleet.spec.measures import Measure


class TargetSettings(NamedTuple):
    """The settings of the only target, or of one of several.

    Attributes:
        loss: its loss; None for the default of its kind.
        metrics: its metrics.
        label_smoothing: its label smoothing.
        class_weights: the weights of its classes; None for equal ones.
    """

    loss: Measure | None
    metrics: tuple[Measure, ...]
    label_smoothing: float
    class_weights: Literal["balanced"] | Mapping[str, float] | None


def is_loss_by_target(loss: Any) -> bool:
    """Return True if a loss is a mapping of targets to losses, not one loss with parameters.

    >>> is_loss_by_target({"price": "huber"}), is_loss_by_target({"huber": {"delta": 2}})
    (True, False)
    >>> is_loss_by_target({"price": {"huber": {"delta": 2}}})
    True
    """
    if not isinstance(loss, Mapping) or not loss:
        return False
    if len(loss) > 1:
        return True
    [(name, value)] = loss.items()
    if not isinstance(value, Mapping):
        return isinstance(value, str)
    # Losses by name have no parameters that are mappings.
    are_parameters = ":" in str(name) or not value
    return not are_parameters and all(isinstance(inner, Mapping) for inner in value.values())


def list_losses(loss: Any) -> list[Measure]:
    """Return the loss, or those of all targets; empty for the default."""
    if loss is None:
        return []
    if is_loss_by_target(loss):
        return list(loss.values())
    return [loss]


def list_class_weights(weights: Any) -> list[Any]:
    """Return the class weights, or those of all targets."""
    if is_weighing_by_target(weights):
        return list(weights.values())
    return [weights]


def list_metrics(metrics: Sequence[Measure] | Mapping[str, Sequence[Measure]]) -> list[Measure]:
    """Return all metrics, whatever their target."""
    if isinstance(metrics, Mapping):
        return [metric for measures in metrics.values() for metric in measures]
    return list(metrics)


def is_weighing_by_target(weights: Any) -> bool:
    """Return True if class weights are a mapping of targets to class weights.

    >>> is_weighing_by_target({"cat": 2.0}), is_weighing_by_target({"kind": {"cat": 2.0}})
    (False, True)
    """
    return isinstance(weights, Mapping) and any(
        isinstance(value, Mapping) or value == "balanced" for value in weights.values()
    )


def _with_text_keys(weights: Any) -> Any:
    if isinstance(weights, Mapping):
        return {str(key): value for key, value in weights.items()}
    return weights


def _as_list(measures: Any) -> Any:
    """Return one metric as a list."""
    if isinstance(measures, list | tuple):
        return measures
    return (measures,)


_ByClass = Annotated[dict[str, float], BeforeValidator(_with_text_keys)]
_Weights = Annotated[
    Annotated[Literal["balanced"], Tag("balanced")] | Annotated[_ByClass, Tag("by class")],
    Discriminator(lambda value: "by class" if isinstance(value, Mapping) else "balanced"),
]


def _form_of_weights(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "balanced"
    return "by target" if is_weighing_by_target(value) else "by class"


# Tagged by form, so that a mistake is reported for the form that the user chose.
Loss = Annotated[
    Annotated[Measure, Tag("one loss")] | Annotated[dict[str, Measure], Tag("by target")],
    Discriminator(lambda value: "by target" if is_loss_by_target(value) else "one loss"),
]
_Metrics = tuple[Measure, ...]
MetricsSetting = Annotated[
    Annotated[_Metrics, Tag("list")]
    | Annotated[dict[str, Annotated[_Metrics, BeforeValidator(_as_list)]], Tag("by target")],
    Discriminator(lambda value: "by target" if isinstance(value, Mapping) else "list"),
]
Smoothing = Annotated[
    Annotated[BelowOne, Tag("one share")] | Annotated[dict[str, BelowOne], Tag("by target")],
    Discriminator(lambda value: "by target" if isinstance(value, Mapping) else "one share"),
]
ClassWeights = Annotated[
    Annotated[Literal["balanced"], Tag("balanced")]
    | Annotated[_ByClass, Tag("by class")]
    | Annotated[dict[str, _Weights], Tag("by target")],
    Discriminator(_form_of_weights),
]
