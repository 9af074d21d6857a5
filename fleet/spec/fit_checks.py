"""Check that networks fit their data and a GPU, without building them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from fleet.errors import SpecMistake, UserError
from fleet.spec.constraints import parse_constraint
from fleet.spec.engine_keys import optimizer_slots
from fleet.spec.layers import count_for
from fleet.spec.measures import describe_unfit, format_measure, is_meant_for, name_of
from fleet.spec.model import Softmax, check_input
from fleet.spec.schema import NetworkSpec, Spec
from fleet.spec.search import NETWORK_OBJECTIVES
from fleet.spec.target_settings import (
    TargetKinds,
    are_several,
    columns,
    find_problems,
    kinds_of,
    settings_by_target,
)
from fleet.spec.train import Train
from fleet.units import format_size, listed
from fleet.vocabulary.measures import MeasureWord
from preprocess.sample import SampleSpec
from preprocess.target_kinds import KINDS, AnyKind

# More bytes than any GPU has (2026: 432 GB). Each GPU holds the whole network, so a larger one
# cannot be trained anywhere.
LARGEST_GPU = 500 * 10**9

# Network, key path, what is wrong, what would be right.
Misfit: TypeAlias = tuple[NetworkSpec, tuple, str, str]


def find_misfits(
    spec: Spec,
    sample: SampleSpec,
    samples: int,
    is_validated: bool,
    trainers: float = math.inf,
) -> list[Misfit]:
    """Find networks that cannot be trained on this data or with these trainers.

    Args:
        spec: the spec of the networks.
        sample: the shape and target of the samples.
        samples: number of training samples.
        is_validated: whether there is validation data.
        trainers: number of trainers, if it is known.
    """
    misfits = [
        misfit
        for network in spec.networks
        for misfit in _misfits(network, spec, sample, samples, is_validated)
    ]
    misfits += [
        (
            network,
            ("models", network.entry, "gpus"),
            f"gpus: needs at least {network.min_gpus} trainers, but there are {trainers}",
            "start more ranks",
        )
        for network in spec.networks
        if network.min_gpus > trainers
    ]
    return misfits


def _misfits(
    network: NetworkSpec, spec: Spec, sample: SampleSpec, samples: int, is_validated: bool
) -> Iterator[Misfit]:
    misfit = partial(_misfit, network, spec)
    # If the batch grows with the GPUs, it is smallest on the smallest number of GPUs.
    train = network.train
    batch = network.largest_batch(network.min_gpus)
    sample = sample.for_pipeline(network.pipeline)
    if batch > samples:
        yield misfit(
            "batch.size",
            f"{batch} is more than the {samples} training samples",
            f"at most {samples}",
        )
    yield from _find_short_schedule(network, spec, samples)
    monitor = train.stopping.metric
    if not is_validated and monitor.startswith("val_"):
        yield misfit(
            "stopping.monitor",
            f"{monitor} needs validation data",
            "set data.validation, or monitor accuracy or loss",
        )
    kinds = kinds_of(sample.target)
    yield from find_unfit_measures(network, spec, kinds)
    is_softmax = network.architecture.kind == "family" and isinstance(
        network.architecture.settings, Softmax
    )
    is_built_in = network.architecture.kind != "import"
    if not sample.target.semantics.exists and is_built_in and spec.engine.learns:
        yield (
            network,
            ("models", network.entry),
            f"{network.architecture.target} predicts targets, and there are none "
            "(data.target: none)",
            "your own function (build:)",
        )
        return
    if sample.target.parts and not spec.engine.takes_several_targets and spec.engine.learns:
        yield (
            network,
            ("resources", "engine"),
            f"{spec.engine.name} takes one target, and samples have several "
            f"({', '.join(sample.target.parts)})",
            "an engine that takes several, such as torch",
        )
        return
    if sample.target.parts and network.architecture.output is not None:
        yield (
            network,
            ("models", network.entry, "output"),
            f"it chooses one output, and samples have several targets "
            f"({', '.join(sample.target.parts)})",
            "leave it out, and return an output for each of them",
        )
        return
    if sample.target.parts and is_built_in and spec.engine.learns:
        yield (
            network,
            ("models", network.entry),
            f"{network.architecture.target} has one output, and samples have several targets "
            f"({', '.join(sample.target.parts)})",
            "your own function (build:), which returns an output for each",
        )
        return
    if sample.target.semantics.is_of_pixels and is_built_in and not is_softmax:
        yield (
            network,
            ("models", network.entry),
            f"{network.architecture.target} predicts one class per image, but "
            "masks need one per pixel",
            "the family softmax, or your own function (build:)",
        )
        return
    if sample.parts and not spec.engine.takes_records:
        yield (
            network,
            ("resources", "engine"),
            f"{spec.engine.name} takes samples of one input, and samples have several "
            f"({', '.join(sample.parts)})",
            "an engine that takes several, such as torch",
        )
        return
    if sample.parts and network.architecture.kind != "import" and not spec.engine.joins_inputs:
        yield (
            network,
            ("models", network.entry),
            f"{network.architecture.target} takes one input, and samples have several "
            f"({', '.join(sample.parts)})",
            "your own function (build:), which takes them by name",
        )
        return
    if network.architecture.kind == "application" and len(sample.input.shape) != 3:
        yield (
            network,
            ("models", network.entry),
            f"{network.architecture.target} takes images (height, width, "
            f"channels), not samples of {sample.input}",
            "the family mlp, or your own function (build:)",
        )
        return
    if network.architecture.kind == "family" and spec.engine.learns:
        settings = network.architecture.settings
        try:
            check_input(settings, sample.input.shape)
        except UserError as error:
            yield network, ("models", network.entry), str(error), ""
            return
        wrong = too_large(count_for(settings, sample), network, spec)
        if wrong:
            yield network, ("models", network.entry), wrong, "a smaller network"


def _find_short_schedule(network: NetworkSpec, spec: Spec, samples: int) -> Iterator[Misfit]:
    """Find a ``OneCycleLR`` of PyTorch that ends before the training, where PyTorch raises."""
    rate = network.train.optimizer.learning_rate
    if not isinstance(rate, Mapping) or rate["name"] != "OneCycleLR":
        return
    epochs = network.train.stopping.max_epochs
    needed = epochs
    unit = "epochs"
    if rate.get("every") != "epoch":
        needed *= -(-samples // network.largest_batch(network.min_gpus))
        unit = "steps"
    key = "total_steps"
    total = rate.get(key)
    if total is None and rate.get("epochs") and rate.get("steps_per_epoch"):
        key = "epochs"
        total = rate["epochs"] * rate["steps_per_epoch"]
    if total is not None and total < needed:
        yield _misfit(
            network,
            spec,
            f"optimizer.learning_rate.{key}",
            f"the schedule ends after {total} of {needed} {unit}",
            f"at least {needed} {unit} in all, or epochs: {epochs} alone",
        )


def _misfit(
    network: NetworkSpec, spec: Spec, key: str, wrong: str, right: str, *index: int
) -> Misfit:
    """Return what is wrong with a setting below ``train``, or with an item of it."""
    location = (*spec.place_of(network.entry, ("train", *key.split("."))), *index)
    return network, location, f"train.{key}: {wrong}", right


def find_unfit_measures(network: NetworkSpec, spec: Spec, kinds: TargetKinds) -> Iterator[Misfit]:
    """Yield settings, losses and metrics that do not fit the kinds of targets."""
    misfit = partial(_misfit, network, spec)
    train = network.train
    if not KINDS[kinds[0][1]].exists and train.step is None and spec.engine.learns:
        yield misfit(
            "step",
            "without targets (data.target: none) no named loss can be computed",
            "the import path of your own training step",
        )
        return
    if train.step is None and spec.engine.learns:
        problems = list(find_problems(train, kinds))
        for key, wrong, right in problems:
            yield misfit(".".join(key), wrong, right)
        if problems:
            return
        yield from _find_useless_metrics(network, spec, kinds)
        yield from _find_unmeasured(network, spec, kinds)
    settings = settings_by_target(train, kinds, spec.engine.words.metrics)
    for name, kind in kinds:
        yield from _find_unfit(network, spec, name, kind, settings[name])


def _find_useless_metrics(network: NetworkSpec, spec: Spec, kinds: TargetKinds) -> Iterator[Misfit]:
    """Yield metrics of a list that are meant for none of several targets."""
    metrics = network.train.metrics
    if isinstance(metrics, Mapping) or not are_several(kinds):
        return
    words = spec.engine.words.metrics
    listed = " and ".join(f"{name} ({kind})" for name, kind in kinds)
    for index, metric in enumerate(metrics):
        if any(is_meant_for(metric, kind, words) for _, kind in kinds):
            continue
        allowed = [name for name, kind in kinds if not describe_unfit(metric, kind, words)]
        if allowed:
            right = f"a mapping by target: {{{allowed[0]}: [{format_measure(metric)}]}}"
        else:
            right = _fitting(words, kinds[0][1])
        yield _misfit(
            network,
            spec,
            "metrics",
            f"{name_of(metric)} fits none of the targets {listed}",
            right,
            index,
        )


def _find_unmeasured(network: NetworkSpec, spec: Spec, kinds: TargetKinds) -> Iterator[Misfit]:
    """Yield monitored columns and objectives that are not computed for these targets."""
    monitor = network.train.stopping.monitor
    computed = columns(network.train, kinds, spec.engine.words.metrics)
    entry = spec.searches.get(network.entry)
    objectives = () if entry is None or entry.search is None else entry.search.objectives
    values = [objective.value for objective in objectives]
    for number, value in enumerate(values):
        if value not in NETWORK_OBJECTIVES and value.removeprefix("val_") not in computed:
            yield (
                network,
                ("models", network.entry, "search", "objectives", number, "value"),
                f"{value} is not computed",
                f"one of {', '.join((*computed, *NETWORK_OBJECTIVES))}",
            )
    constraints = () if entry is None or entry.search is None else entry.search.constraints
    for number, text in enumerate(constraints):
        value = parse_constraint(text).value
        if value not in NETWORK_OBJECTIVES and value.removeprefix("val_") not in computed:
            yield (
                network,
                ("models", network.entry, "search", "constraints", number),
                f"{value} is not computed",
                f"one of {', '.join((*computed, *NETWORK_OBJECTIVES))}",
            )
    is_measured = monitor is None or monitor.removeprefix("val_") in computed
    if not (is_measured or monitor in values):
        yield _misfit(
            network,
            spec,
            "stopping.monitor",
            f"{monitor} is not computed",
            f"one of {', '.join(computed)}, with or without val_ before it; add others to "
            "train.metrics",
        )


def _find_unfit(
    network: NetworkSpec, spec: Spec, name: str, kind: AnyKind, train: Train
) -> Iterator[Misfit]:
    """Yield losses and metrics that do not fit the kind of a target.

    Args:
        name: the name of the target, if there are several.
        kind: its kind.
        train: the settings that apply to it.
    """
    misfit = partial(_misfit, network, spec)
    losses = spec.engine.words.losses
    metrics = spec.engine.words.metrics
    written = network.train
    if KINDS[kind].is_numeric and train.step is None:
        for key, value in (
            ("label_smoothing", train.label_smoothing),
            ("class_weights", train.class_weights),
        ):
            if value:
                yield misfit(
                    _key_of(key, name, getattr(written, key)),
                    f"{_subject(name)} are values, not classes",
                    "leave it out",
                )
        if (train.stopping.monitor or "").removeprefix("val_") == "accuracy":
            yield misfit(
                "stopping.monitor",
                describe_unfit("accuracy", kind, metrics),
                "val_loss, or a metric such as val_mean_absolute_error from train.metrics",
            )
    loss = train.single.loss
    if loss is not None and (wrong := describe_unfit(loss, kind, losses)):
        yield misfit(_key_of("loss", name, written.loss), wrong, _fitting(losses, kind))
    for index, metric in enumerate(train.metrics):
        wrong = describe_unfit(metric, kind, metrics)
        if wrong:
            key = _key_of("metrics", name, written.metrics)
            yield misfit(key, wrong, _fitting(metrics, kind), index)
    if train.class_weights is not None and KINDS[kind].has_label_sets:
        yield misfit(
            _key_of("class_weights", name, written.class_weights),
            "a sample with multilabel targets has no single class",
            "sample weights from the source",
        )


def _subject(name: str) -> str:
    """Return the subject of a sentence about a target."""
    return f"the targets {name}" if name else "targets"


def _key_of(key: str, name: str, value: object) -> str:
    """Return the key of a setting, or of one target in it."""
    if name and isinstance(value, Mapping) and name in value:
        return f"{key}.{name}"
    return key


def _fitting(words: Mapping[str, MeasureWord], kind: str) -> str:
    """List the losses or metrics that fit a kind of target."""
    return "should be one of " + ", ".join(
        word.written or name
        for name, word in words.items()
        if not (word.refused or word.package or describe_unfit(name, kind, words))
    )


def too_large(parameters: int, network: NetworkSpec, spec: Spec) -> str:
    """Explain why no GPU can hold a network; empty if one can."""
    needed = training_bytes(parameters, network, spec)
    if needed <= LARGEST_GPU:
        return ""
    return (
        f"it has {parameters:,} parameters, so training takes at least {format_size(needed)} on "
        f"each GPU; no GPU has more than {format_size(LARGEST_GPU)}"
    )


def training_bytes(parameters: int, network: NetworkSpec, spec: Spec) -> int:
    """Count the bytes of weights, gradients and optimizer state on each GPU."""
    slots = optimizer_slots(network.train.optimizer, spec.engine)
    return spec.engine.checkpoint_bytes(parameters, slots + 1)  # plus the gradient


def merge_misfits(spec: Spec, misfits: Iterable[Misfit]) -> list[SpecMistake]:
    """Merge equal misfits into one mistake that names all their networks."""
    networks: dict[tuple[tuple, str, str], list[str]] = {}
    for network, key_path, wrong, right in misfits:
        networks.setdefault((key_path, wrong, right), []).append(network.name)
    return [
        spec.origin.mistake(key_path, wrong, right, name=listed(named))
        for (key_path, wrong, right), named in networks.items()
    ]
