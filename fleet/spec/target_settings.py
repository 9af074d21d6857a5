"""The training settings of each of several targets, and the columns that they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from fleet.spec.by_target import is_loss_by_target, is_weighing_by_target
from fleet.spec.measures import FIELDS, is_meant_for, label_of
from fleet.spec.train import Train
from fleet.vocabulary.measures import MeasureWord
from preprocess.target import TargetSpec
from preprocess.target_kinds import KINDS, AnyKind

# The name and the kind of each target. A single one has no name.
TargetKinds: TypeAlias = tuple[tuple[str, AnyKind], ...]

# Key below `train`, what is wrong, what would be right.
_Problem: TypeAlias = tuple[tuple[str, ...], str, str]


def kinds_of(target: TargetSpec) -> TargetKinds:
    """Return the name and the kind of each target; one target has no name.

    >>> kinds_of(TargetSpec("value", 1))
    (('', 'value'),)
    """
    if not target.parts:
        return (("", target.kind),)
    return tuple((name, part.kind) for name, part in target.parts.items())


def are_several(kinds: TargetKinds) -> bool:
    """Return True for targets by name."""
    return kinds[0][0] != ""


def has_several_targets(train: Train) -> bool:
    """Return True if settings are by target, so that there are several targets."""
    return bool(
        is_loss_by_target(train.loss)
        or train.loss_weights
        or isinstance(train.metrics, Mapping)
        or isinstance(train.label_smoothing, Mapping)
        or is_weighing_by_target(train.class_weights)
    )


def settings_by_target(
    train: Train, kinds: TargetKinds, metrics: Mapping[str, MeasureWord]
) -> dict[str, Train]:
    """Return the settings that apply to each target by name.

    Args:
        train: the settings. A loss, a list of metrics, a label smoothing or class weights that are
            not by target apply to all targets that they fit.
        kinds: the targets.
        metrics: the metrics of the engine.
    """
    if not are_several(kinds):
        return {"": train}
    return {name: _settings_of(train, name, kind, kinds, metrics) for name, kind in kinds}


def _settings_of(
    train: Train,
    name: str,
    kind: AnyKind,
    kinds: TargetKinds,
    metrics: Mapping[str, MeasureWord],
) -> Train:
    semantics = KINDS[kind]
    loss: Any = train.loss
    if is_loss_by_target(loss):
        loss = loss.get(name)
    if isinstance(train.metrics, Mapping):
        own_metrics = tuple(train.metrics.get(name, ()))
    else:
        own_metrics = tuple(
            metric for metric in train.metrics if is_meant_for(metric, kind, metrics)
        )
    smoothing = train.label_smoothing
    if isinstance(smoothing, Mapping):
        smoothing = smoothing.get(name, 0.0)
    elif semantics.is_numeric:
        smoothing = 0.0
    weights: Any = train.class_weights
    if is_weighing_by_target(weights):
        weights = weights.get(name)
    elif not semantics.has_classes:
        weights = None
    return replace(
        train,
        loss=loss,
        loss_weights=None,
        metrics=own_metrics,
        label_smoothing=smoothing,
        class_weights=weights,
        stopping=replace(train.stopping, monitor=None),
    )


def loss_weights(train: Train, kinds: TargetKinds) -> dict[str, float]:
    """Return the weight of each target in the loss, by name; 1 by default."""
    weights = train.loss_weights or {}
    return {name: weights.get(name, 1.0) for name, _ in kinds}


def column_of(name: str, measure: str) -> str:
    """Return the column of a loss or metric of one of several targets.

    >>> column_of("kind", "accuracy"), column_of("", "accuracy")
    ('kind_accuracy', 'accuracy')
    """
    return f"{name}_{measure}" if name else measure


def columns(train: Train, kinds: TargetKinds, metrics: Mapping[str, MeasureWord]) -> list[str]:
    """Return the columns of each epoch that can be monitored, without ``val_``.

    Args:
        train: the settings.
        kinds: the targets.
        metrics: the metrics of the engine.
    """
    if not are_several(kinds):
        return [*FIELDS, *map(label_of, train.metrics)]
    names = ["loss"]
    for (name, kind), settings in zip(
        kinds, settings_by_target(train, kinds, metrics).values(), strict=True
    ):
        names.append(column_of(name, "loss"))
        if not KINDS[kind].is_numeric:
            names.append(column_of(name, "accuracy"))
        names += [
            column_of(name, label_of(metric))
            for metric in settings.metrics
            if label_of(metric) != "accuracy"
        ]
    return list(dict.fromkeys(names))


def find_problems(train: Train, kinds: TargetKinds) -> Iterator[_Problem]:
    """Yield settings by target that name a target that does not exist, or lack one.

    Args:
        train: the settings.
        kinds: the targets.
    """
    by_target: dict[str, Mapping[str, Any]] = {}
    if is_loss_by_target(train.loss):
        by_target["loss"] = train.loss  # type: ignore[assignment]
    for key in ("loss_weights", "metrics", "label_smoothing"):
        if isinstance(value := getattr(train, key), Mapping):
            by_target[key] = value
    if is_weighing_by_target(train.class_weights):
        by_target["class_weights"] = train.class_weights  # type: ignore[assignment]
    names = [name for name, _ in kinds]
    if not are_several(kinds):
        for key, value in by_target.items():
            yield (
                (key,),
                f"{', '.join(value)}: there is one target, without a name",
                "a setting for this target, without names; or several targets by name in "
                "data.options: targets",
            )
        return
    listed = ", ".join(names)
    for key, value in by_target.items():
        for name in value:
            if name not in names:
                yield (
                    (key, name),
                    f"no target is named {name!r}",
                    f"one of the targets, {listed}",
                )
    losses = by_target.get("loss")
    if losses is not None and (missing := [name for name in names if name not in losses]):
        yield (
            ("loss",),
            f"there is no loss for {' and '.join(missing)}",
            f"a loss for each target ({listed}), or none at all for their default losses",
        )
    if train.loss_weights and not any(loss_weights(train, kinds).values()):
        yield ("loss_weights",), "all targets have the weight 0", "a positive one for at least one"
    of_classes = [name for name, kind in kinds if KINDS[kind].has_classes]
    weights = train.class_weights
    if isinstance(weights, Mapping) and "class_weights" not in by_target and len(of_classes) != 1:
        yield (
            ("class_weights",),
            "it is not clear to which target these classes belong",
            f"a mapping by target ({', '.join(of_classes) or 'but no target has classes'})",
        )
    if train.batch_transforms:
        yield (
            ("batch_transforms",),
            f"they change the only target of samples, and there are several ({listed})",
            "leave it out, and change batches in your own training step",
        )
