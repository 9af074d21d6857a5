"""Resolve the selection criterion of each network, and check that networks can be compared.

Networks are ranked, selected, paused and pruned by the metric that they monitor. This makes sense
only if the metric measures the same thing for all of them: two losses may have different units.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from fleet.errors import SpecError, SpecMistake, UserError
from fleet.spec import measures as m
from fleet.spec.by_target import list_metrics
from fleet.spec.fit_checks import find_unfit_measures
from fleet.spec.schema import NetworkSpec, Spec
from fleet.spec.search import find_rule
from fleet.spec.target_settings import (
    TargetKinds,
    are_several,
    columns,
    has_several_targets,
    kinds_of,
    loss_weights,
    settings_by_target,
)
from fleet.spec.train import Train
from fleet.units import listed
from fleet.vocabulary.measures import MeasureWord, direction_by_target, direction_of
from preprocess.sample import SampleSpec
from preprocess.target import TargetSpec
from preprocess.target_kinds import KINDS, AnyKind, Kind

# ---- settings that depend on the data -----------------------------------------------------------


def with_data_defaults(
    spec: Spec, targets: Mapping[str, tuple[TargetSpec, Mapping[str, tuple[int, ...]]]]
) -> Spec:
    """Return the spec with every setting that depends on the data filled in.

    Args:
        targets: key of an input pipeline -> the target of its training data, and the number of
            training samples in each class, by target (empty unless a network needs it).

    Raises:
        UserError: a class weight names a class that does not exist.
    """
    return replace(
        spec,
        networks=tuple(
            _with_data_defaults(network, *targets[network.pipeline], spec.engine.words.metrics)
            for network in spec.networks
        ),
    )


def _with_data_defaults(
    network: NetworkSpec,
    target: TargetSpec,
    counts: Mapping[str, tuple[int, ...]],
    words: Mapping[str, MeasureWord],
) -> NetworkSpec:
    train = network.train
    monitor = _default_monitor(train, kinds_of(target))
    if train.stopping.monitor is None and monitor != train.stopping.metric:
        train = replace(train, stopping=replace(train.stopping, monitor=monitor))
    if train.class_weights is not None:
        try:
            train = replace(train, class_weights=_weights_of(train, target, counts, words))
        except UserError as error:
            raise UserError(f"{network.name}: {error}") from error
    if train == network.train:
        return network
    return replace(network, train=train)


def _weights_of(
    train: Train,
    target: TargetSpec,
    counts: Mapping[str, tuple[int, ...]],
    words: Mapping[str, MeasureWord],
) -> Any:
    """Return the weight of each class by its number; of several targets by their names."""
    if not target.parts:
        if not target.semantics.has_classes:
            return train.class_weights
        return _class_weights(train.class_weights, target, counts.get("", ()))
    weights = {}
    for name, settings in settings_by_target(train, kinds_of(target), words).items():
        part = target.parts[name]
        if settings.class_weights is not None and part.semantics.has_classes:
            weights[name] = _class_weights(settings.class_weights, part, counts.get(name, ()))
    return weights or train.class_weights


def _class_weights(weights: Any, target: TargetSpec, counts: tuple[int, ...]) -> Any:
    """Return the weight of each class by its number; as they are if samples are not counted."""
    if isinstance(weights, str):
        vector = m.balanced_weights(counts) if counts else ()
    else:
        vector = m.class_weight_vector(weights, target.names, target.outputs)
    return {str(index): weight for index, weight in enumerate(vector)} or weights


def _default_monitor(train: Train, kinds: TargetKinds) -> str:
    if train.step is not None or are_several(kinds):
        return "val_loss"
    return KINDS[kinds[0][1]].default_monitor


# ---- how networks are ranked --------------------------------------------------------------------


@dataclass(frozen=True)
class SelectionCriterion:
    """The criterion by which a network is judged.

    Attributes:
        monitor: the column that is monitored.
        sign: 1 if high values are better, else -1.
        loss: a key; networks with equal keys have comparable losses.
    """

    monitor: str
    sign: int
    loss: str

    @classmethod
    def of(cls, train: Train) -> SelectionCriterion:
        """Return the criterion of a network whose data is known."""
        return cls(
            train.stopping.metric,
            train.stopping.sign,
            train.step or repr(_loss_of(train)),
        )


def _loss_of(train: Train) -> tuple[Any, ...]:
    """Return all that decides what the loss means."""
    weights = () if train.loss_weights is None else (train.loss_weights,)
    return (train.loss, train.label_smoothing, *weights)


def ranking_of(criteria: Collection[SelectionCriterion]) -> tuple[tuple[str, int], ...]:
    """Return the columns that rank networks with these criteria.

    If they monitor different columns, the accuracy ranks them, or the loss if targets have no
    accuracy (a spec with different losses is then refused). Comparable losses break ties.

    Returns:
        Columns of the results, each with 1 if high values are better, else -1; each column breaks
        the ties of the ones before it.

    >>> huber, mse = (SelectionCriterion("val_mae", -1, loss) for loss in ("huber", "mse"))
    >>> ranking_of({huber, mse})
    (('val_mae', -1), ('val_accuracy', 1), ('accuracy', 1))
    """
    monitored = {(criterion.monitor, criterion.sign) for criterion in criteria}
    are_losses_alike = len({criterion.loss for criterion in criteria}) <= 1
    scores = [("val_accuracy", 1), ("val_loss", -1), ("accuracy", 1), ("loss", -1)]
    scores = [
        (name, sign) for name, sign in scores if are_losses_alike or not name.endswith("loss")
    ]
    return tuple(dict.fromkeys([*(monitored if len(monitored) == 1 else ()), *scores]))


# ---- which networks can be compared -------------------------------------------------------------


def check_comparable(
    spec: Spec,
    networks: Iterable[NetworkSpec],
    possible_kinds: Callable[[NetworkSpec], Collection[TargetKinds]],
) -> None:
    """Check that networks with the same target are judged by comparable quantities.

    Args:
        networks: the networks of the spec, with one or more samples of each search.
        possible_kinds: returns the kinds that a network's targets may have: more than one if its
            data is not known yet. The spec is refused only if the comparison fails for all of them.

    Raises:
        SpecError: a quantity differs between networks; with one mistake for each.
    """
    if not spec.engine.learns:  # its losses are not real
        return
    alike: dict[str, list[NetworkSpec]] = {}
    for network in networks:
        train = network.train
        alike.setdefault(
            repr(
                (
                    network.pipeline,
                    network.entry,
                    _loss_of(train),
                    train.class_weights,
                    train.metrics,
                    train.step,
                    train.stopping.monitor,
                    train.stopping.direction,
                )
            ),
            [],
        ).append(network)
    groups_by_target: dict[str, list[list[NetworkSpec]]] = {}
    for networks_alike in alike.values():
        data = spec.data_by_pipeline.get(networks_alike[0].pipeline, spec.data)
        groups_by_target.setdefault(repr(data.target), []).append(networks_alike)
    mistakes = []
    for groups in groups_by_target.values():
        kinds = possible_kinds(groups[0][0])
        possible = [
            kind
            for kind in kinds
            if not any(any(find_unfit_measures(group[0], spec, kind)) for group in groups)
        ]
        conflicts = [list(_Comparison(spec, groups, kind).mistakes()) for kind in possible or kinds]
        if conflicts and all(conflicts):
            mistakes += conflicts[0]
    if mistakes:
        raise SpecError(mistakes)


def target_kinds(sample: SampleSpec) -> Callable[[NetworkSpec], tuple[TargetKinds]]:
    """Return a function that returns the kinds of a network's targets."""
    return lambda network: (kinds_of(sample.for_pipeline(network.pipeline).target),)


def target_kinds_of_spec(
    spec: Spec,
) -> Callable[[NetworkSpec], Collection[TargetKinds]]:
    """Return a function that returns the target kinds a spec allows, before its data is read.

    It returns none for several targets, of which the spec may not name all.
    """

    def possible_kinds(network: NetworkSpec) -> Collection[TargetKinds]:
        data = spec.data_by_pipeline.get(network.pipeline, spec.data)
        target = data.target
        if isinstance(target, Mapping) or has_several_targets(network.train):
            return ()
        if target is None:
            kinds = sorted(
                (kind for kind in get_args(Kind) if KINDS[kind].exists),
                key=lambda kind: not KINDS[kind].is_numeric,
            )
            return tuple((("", kind),) for kind in kinds)
        return ((("", target if isinstance(target, str) else target.kind),),)

    return possible_kinds


def _weighing(weights: str | Mapping[str, float] | None) -> str | dict[str, float] | None:
    """Return the class weights that differ from 1."""
    if isinstance(weights, Mapping):
        return {key: weight for key, weight in weights.items() if weight != 1}
    return weights


def _by(
    groups: Iterable[Sequence[NetworkSpec]], key: Callable[[Train], str]
) -> dict[str, list[Sequence[NetworkSpec]]]:
    groups_by_key: dict[str, list[Sequence[NetworkSpec]]] = {}
    for group in groups:
        groups_by_key.setdefault(key(group[0].train), []).append(group)
    return groups_by_key


@dataclass(frozen=True)
class _Comparison:
    """Networks with the same target, in groups with equal criteria.

    Attributes:
        spec: the spec of the networks.
        groups: the groups of networks.
        kinds: the kinds of their targets.
    """

    spec: Spec
    groups: Sequence[Sequence[NetworkSpec]]
    kinds: TargetKinds

    def mistakes(self) -> Iterable[SpecMistake]:
        """Yield the quantities that cannot be compared."""
        monitors = _by(self.groups, self._monitor)
        for monitor, groups in monitors.items():
            if len(measures := _by(groups, partial(self._measure, monitor=monitor))) > 1:
                yield self._mistake(
                    groups,
                    "monitor",
                    (
                        f"{monitor} is not the same for all networks, so it cannot compare them: "
                        f"{self._describe(measures, monitor)}"
                    ),
                    self._proposal(monitor),
                )
            elif len(signs := _by(groups, partial(self._direction, monitor=monitor))) > 1:
                yield self._mistake(
                    groups,
                    "direction",
                    f"{monitor} has two directions: {self._describe(signs, 'direction')}",
                    "one direction for all networks",
                )
        if len(monitors) == 1:
            return
        rule = self.spec.document.prune.rule
        differences = self._describe(monitors, "monitor")
        losses = _by(self.groups, partial(self._measure, monitor="val_loss"))
        if find_rule(rule).compares:
            yield self.spec.origin.mistake(
                ("prune", "rule"),
                f"{rule} compares all networks, but they monitor different metrics: {differences}",
                "one train.stopping.monitor at the top",
            )
        elif not self._has_accuracy and len(losses) > 1:
            yield self._mistake(
                list(monitors.values())[-1],
                "monitor",
                (
                    f"networks monitor different metrics and have different losses, so they cannot "
                    f"be ranked: {differences}; the loss is {self._describe(losses, 'val_loss')}"
                ),
                self._proposal("val_loss"),
            )

    def _monitor(self, train: Train) -> str:
        return train.stopping.monitor or _default_monitor(train, self.kinds)

    @property
    def _has_accuracy(self) -> bool:
        """Whether networks have the column ``accuracy``."""
        return not are_several(self.kinds) and not KINDS[self.kinds[0][1]].is_numeric

    def _direction(self, train: Train, monitor: str) -> str:
        return str(train.stopping.direction or direction_of(monitor))

    def _measure(self, train: Train, monitor: str) -> str:
        """Return the loss or metric behind a monitored name, with its parameters."""
        name = monitor.removeprefix("val_")
        if train.step is not None:
            return f"{name} of {train.step}"
        if are_several(self.kinds):
            return self._measure_of_target(train, monitor)
        return self._measure_of(train, monitor, self.kinds[0][1])

    def _measure_of_target(self, train: Train, monitor: str) -> str:
        """Return what a monitored name of several targets means."""
        name = monitor.removeprefix("val_")
        settings = settings_by_target(train, self.kinds, self.spec.engine.words.metrics)
        prefix = monitor[: -len(name)]
        if name == "loss":
            weights = loss_weights(train, self.kinds)
            return " + ".join(
                f"{weights[target]:g} * {self._measure_of(settings[target], monitor, kind)}"
                for target, kind in self.kinds
            )
        for target, kind in self.kinds:
            if name.startswith(f"{target}_"):
                column = name.removeprefix(f"{target}_")
                measure = self._measure_of(settings[target], prefix + column, kind)
                if measure:
                    return f"{measure} of {target}"
        return ""

    def _measure_of(self, train: Train, monitor: str, kind: AnyKind) -> str:
        """Return the loss or metric of one target behind a monitored name."""
        name = monitor.removeprefix("val_")
        words = self.spec.engine.words
        if name == "accuracy":
            return name
        if name != "loss":
            return next(
                (
                    m.format_measure(m.canonical(metric, words.metrics))
                    for metric in list_metrics(train.metrics)
                    if m.label_of(metric) == name
                ),
                "",
            )
        single = train.single
        loss = m.format_measure(
            m.canonical_loss(single.loss, single.label_smoothing, kind, words.losses)
        )
        weights = _weighing(single.class_weights)
        if monitor != "loss" or not weights:  # class weights apply to the training loss only
            return loss
        return f"{loss} with class_weights {json.dumps(weights, sort_keys=True)}"

    def _describe(
        self, groups_by_value: Mapping[str, Sequence[Sequence[NetworkSpec]]], monitor: str
    ) -> str:
        """Describe the differences: values, networks, and lines of the spec."""
        # The key of the setting that makes the difference.
        key = {
            "loss": ("loss",),
            "direction": ("stopping", "direction"),
            "monitor": ("stopping", "monitor"),
        }.get(monitor.removeprefix("val_"), ("metrics",))
        parts = []
        for value, groups in list(groups_by_value.items())[:4]:
            lines = {
                self.spec.origin.line(self.spec.place_of(entry, ("train", *key)))
                for entry in {group[0].entry for group in groups}
            }
            numbers = sorted(line for line in lines if line is not None)[:3]
            location = f" (line {', '.join(map(str, numbers))})" if numbers else ""
            names = listed([network.name for group in groups for network in group])
            parts.append(f"{value} for {names}{location}")
        return ", ".join([*parts, *(["and others"] if len(groups_by_value) > 4 else [])])

    def _mistake(
        self, groups: Sequence[Sequence[NetworkSpec]], key: str, wrong: str, right: str
    ) -> SpecMistake:
        location = self.spec.place_of(groups[-1][0].entry, ("train", "stopping", key))
        return self.spec.origin.mistake(location, wrong, right)

    def _proposal(self, monitor: str) -> str:
        """Suggest a metric to monitor."""
        prefix = "val_" if monitor.startswith("val_") else ""
        trains = [group[0].train for group in self.groups]
        common = [
            name
            for name in columns(trains[0], self.kinds, self.spec.engine.words.metrics)
            if name not in m.FIELDS
            and len({self._measure(train, name) for train in trains}) == 1
            and direction_by_target(name)
        ]
        if not self._has_accuracy:
            proposed = "mean_absolute_error"
        else:
            proposed = "accuracy"
            common.append(proposed)
        if common:
            return "a metric that all networks have: monitor: " + " or ".join(
                prefix + name for name in common[:3]
            )
        return (
            f"a metric that all networks have: metrics: [{proposed}] and stopping: "
            f"{{monitor: {prefix}{proposed}}}, in `train` at the top"
        )
