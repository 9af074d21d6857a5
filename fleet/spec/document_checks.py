"""Find the mistakes of a document that types cannot catch."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any

from fleet.errors import UserError
from fleet.plugins import find_policy
from fleet.spec.by_target import list_metrics
from fleet.spec.constraints import find_impossible, parse_constraint
from fleet.spec.engine_keys import Problem, find_unknown_words
from fleet.spec.engines import ENGINES, find_engine
from fleet.spec.entries import attempt, engine_of, merged
from fleet.spec.measures import FIELDS, label_of, may_be_computed
from fleet.spec.naming import is_name, rule_of
from fleet.spec.schema import OPTION_OF, Document, ModelEntry, policy_of_keys
from fleet.spec.search import (
    NETWORK_OBJECTIVES,
    RULES,
    Prune,
    PruningRule,
    find_rule,
    find_wrong_options,
)
from fleet.spec.space import contradictions, holds
from fleet.vocabulary.foreign_names import did_you_mean_name
from launch.errors import InputError, did_you_mean
from preprocess.source import SOURCES
from preprocess.transforms import parse_transforms
from preprocess.transforms.on_device import defer_to_device, split_device
from scheduler.base import MAX_SLOTS

_PRUNE_KEYS = {field.name for field in dataclass_fields(Prune)} - {"rule"}
_MODES = {"max": "maximize", "min": "minimize"}


def find_document_problems(document: Document, content: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield mistakes: key path, what is wrong, what would be right.

    Args:
        document: the document.
        content: the keys that were given; values of the document may be missing if they are
            invalid.
    """
    if not is_name(document.name):
        yield ("name",), f"{document.name!r} cannot name a folder", rule_of(document.name)
    source = document.data.source
    if source not in SOURCES and ":" not in source:
        yield (
            ("data", "source"),
            f"unknown source {source!r}{did_you_mean_name(source, SOURCES)}",
            f"it should be one of {', '.join(SOURCES)}, or an import path module:function",
        )
    yield from _augmentation_problems(document)
    yield from _fusing_problems(document)
    lookups: tuple[tuple[tuple, Callable[[str], object], str], ...] = (
        (("schedule", "policy"), find_policy, document.schedule.policy),
        (("prune", "rule"), find_rule, document.prune.rule),
        (("resources", "engine"), find_engine, document.resources.engine),
    )
    for path, find, name in lookups:
        try:
            find(name)
        except UserError as error:
            wrong, _, right = str(error).partition("; ")
            yield path, wrong, right
    engine = engine_of(document)
    rates = document.schedule.rates
    if engine.needs_rates and rates is None:
        yield (
            ("resources", "engine"),
            f"the engine {document.resources.engine} needs known rates",
            "add `schedule: {rates: FILE}`",
        )
    if not document.models and document.keep_open is None:
        yield (
            ("models",),
            "[]",
            "add an entry, or `keep_open: 10min` to wait for more networks",
        )
    device = document.resources.device
    if device not in ("auto", "cpu") and engine.learns and not engine.uses_gpus:
        yield (
            ("resources", "device"),
            f"the engine {document.resources.engine} trains on the cores, not on {device}",
            "leave it out, or use another engine",
        )
    if document.data.collate is not None and not engine.collates:
        yield (
            ("data", "collate"),
            f"the engine {engine.name} takes samples with padding",
            "use the engine torch, or leave it out",
        )
    elif document.data.collate is not None and document.train.compile:
        yield (
            ("train", "compile"),
            "data.collate makes the inputs of modules, which cannot be compiled",
            "leave it out",
        )
    yield from _contradictions(document)
    yield from _search_problems(document, content)
    if rates is not None and not os.path.isfile(rates):  # Path.is_file raises for long names
        yield (
            ("schedule", "rates"),
            f"the file {rates} does not exist",
            "it should be a rates file, such as the profile.json of a run",
        )
    yield from _unread_keys(document, content)
    for key, wrong, right in find_unknown_words(document.train, engine):
        if holds(content, ("train", *key[:1])):
            yield ("train", *key), wrong, right


def _fusing_problems(document: Document) -> Iterator[Problem]:
    """Yield why networks cannot be trained as one."""
    resources = document.resources
    if resources.fuse == "off":
        return
    path = ("resources", "fuse")
    engine = engine_of(document)
    if not engine.knows.fuses:
        able = ", ".join(name for name, info in ENGINES.items() if info.knows.fuses)
        yield (
            path,
            f"the engine {engine.name} cannot train networks as one",
            f"use off, or resources.engine: {able}",
        )
    shared = resources.networks_per_gpu
    if isinstance(resources.fuse, int) and isinstance(shared, int):
        count = resources.fuse * shared
        if count > MAX_SLOTS:
            yield (
                path,
                f"with networks_per_gpu: {shared}, {count} networks would share a GPU",
                f"it should be at most {MAX_SLOTS // shared}",
            )


def _augmentation_problems(document: Document) -> Iterator[Problem]:
    """Yield the reasons why no transform can run on the device."""
    if document.data.augment_on == "host":
        return
    engine = engine_of(document)
    path = ("data", "augment_on")
    if document.train.batch_transforms:
        yield (
            path,
            "train.batch_transforms take batches that are augmented",
            "use host, or leave batch_transforms out",
        )
        return
    if not engine.finishes:
        able = ", ".join(name for name, info in ENGINES.items() if info.finishes)
        yield (
            path,
            f"the engine {engine.name} does not augment samples",
            f"use host, or one of the engines {able}",
        )
    for data in document.data_by_pipeline.values():
        if isinstance(data.transforms, Mapping):
            yield path, "samples of several inputs are transformed on the host", "use host"
            return
        try:
            transforms = defer_to_device(parse_transforms(data.transforms))
        except InputError:  # reported elsewhere
            return
        if split_device(transforms)[1] is not None:
            return
    names = [
        item if isinstance(item, str) else next(iter(item)) for item in document.data.transforms
    ]
    last = next(
        (name for name in reversed(names) if name not in ("scale", "standardize")), "nothing"
    )
    yield (
        path,
        (
            "only one random_crop or center_crop, and flips, can run on the device, and only as "
            f"the last transforms before a scale; the last one is {last}"
        ),
        "use host",
    )


def _contradictions(document: Document) -> Iterator[Problem]:
    """Yield keys of spaces and grids that would give one setting two values."""
    for index, entry in enumerate(document.models):
        key = "grid" if entry.space is None else "space"
        for name, above in contradictions(entry.space or entry.grid or {}):
            yield (
                ("models", index, key, name),
                f"a choice of {above} sets the same setting",
                "remove it from one of them",
            )


def _search_problems(document: Document, content: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield mistakes of searches that involve several keys."""
    stems: dict[str, int] = {}
    for index, entry in enumerate(document.models):
        if document.data.folds is not None and entry.networks_per_trial > 1:
            yield (
                ("models", index, "repeats"),
                "repeats and folds cannot be combined",
                "leave `repeats` or `data.folds` out",
            )
        if entry.search is None:
            continue
        path = ("models", index, "search")
        if document.data.folds is not None:
            yield (
                path,
                "a search does not support folds",
                "leave data.folds out",
            )
        if stems.setdefault(entry.stem, index) != index:
            yield (
                path,
                f"another search is also named {entry.stem!r}",
                "rename one with `name:`",
            )
        for key in entry.space or {}:
            if key.startswith(("train.stopping.monitor", "train.stopping.direction")):
                yield (
                    ("models", index, "space", key),
                    "all networks of a search must monitor the same metric",
                    "leave it out",
                )
        yield from find_objective_problems(document, index, entry)
        yield from _constraint_problems(document, content, index, entry)


def _constraint_problems(
    document: Document, content: Mapping[str, Any], index: int, entry: ModelEntry
) -> Iterator[Problem]:
    """Yield mistakes of a search's constraints."""
    if entry.search is None:
        return
    path: tuple = ("models", index, "search", "constraints")
    if not holds(content, path):
        path = ("models", index, "search", "options", "constraints")
    quantities = _quantities(document, entry)
    constraints = []
    for number, text in enumerate(entry.search.constraints):
        try:
            constraint = parse_constraint(text)
        except UserError as error:
            wrong, _, right = str(error).partition("; ")
            yield (*path, number), wrong, right
            return
        constraints.append(constraint)
        name = constraint.value
        if not may_be_computed(name, quantities) and name not in NETWORK_OBJECTIVES:
            yield (*path, number), *_uncomputed(name, quantities)
    impossible = find_impossible(constraints)
    if impossible is not None:
        number, wrong = impossible
        yield (*path, number), f"{constraints[number].text}: {wrong}", "leave one of them out"


def _quantities(document: Document, entry: ModelEntry) -> list[str]:
    """Return the losses, accuracies and metrics of an entry's epochs."""
    train = attempt([], merged, document.train, entry.train, {})
    labels = [] if train is None else map(label_of, list_metrics(train.metrics))
    return [name for label in dict.fromkeys([*FIELDS, *labels]) for name in (label, f"val_{label}")]


def _uncomputed(name: str, quantities: Sequence[str]) -> tuple[str, str]:
    """Describe an unknown quantity, and what would be right."""
    known_names = [*quantities, *NETWORK_OBJECTIVES]
    return (
        f"{name!r} is not computed",
        f"it should be one of {', '.join(known_names)}; add others to train.metrics"
        + did_you_mean(name, known_names),
    )


def find_objective_problems(document: Document, index: int, entry: ModelEntry) -> Iterator[Problem]:
    """Yield mistakes of a search's objectives."""
    objectives = () if entry.search is None else entry.search.objectives
    if not objectives:
        return
    quantities = _quantities(document, entry)
    measured = ", ".join(quantities)
    stopping = entry.train.get("stopping") or {}
    monitor = stopping.get("monitor")
    direction = stopping.get("direction")
    is_directed = bool(direction)
    top = document.train.stopping
    if direction is None and top.metric == objectives[0].value:
        direction = top.direction
    names = [objective.value for objective in objectives]
    for number, (name, objective) in enumerate(zip(names, objectives, strict=True)):
        objective_path = ("models", index, "search", "objectives", number)
        path = (*objective_path, "value")
        is_first = number == 0
        mode = objective.mode
        if name in names[:number]:
            yield path, f"{name} is listed twice", "leave it out"
        elif is_first and name in NETWORK_OBJECTIVES:
            yield (
                path,
                f"{name} does not change from epoch to epoch, but networks are pruned by the first "
                "objective",
                f"the first objective should be one of {measured}",
            )
        elif not may_be_computed(name, quantities) and name not in NETWORK_OBJECTIVES:
            yield path, *_uncomputed(name, quantities)
        elif objective.sense is None and not (name == monitor and is_directed):
            yield (
                path,
                f"it is unknown whether high or low values of {name} are better",
                "add `mode: maximize` or `mode: minimize`",
            )
        elif is_first and mode and _MODES.get(str(direction), mode) != mode:
            yield (
                (*objective_path, "mode"),
                f"{mode} and train.stopping.direction: {direction} contradict each other",
                "leave one of them out",
            )
        elif is_first and monitor not in (None, name):
            yield (
                ("models", index, "train", "stopping", "monitor"),
                f"{monitor} is not {name}, the first objective, which decides the best epoch",
                "leave it out",
            )


def _unread_keys(document: Document, content: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield keys that are given but would not be read."""
    path = ("data", "validation")
    if (
        document.data.folds is not None
        and holds(content, path)
        and content["data"]["validation"] is not None
    ):
        yield path, "folds hold out their own validation samples", "leave it out, or use data.test"
    name = document.prune.rule
    rule = attempt([], find_rule, name)
    if rule is not None:
        right = f"it reads {', '.join(rule.reads)}" if rule.reads else "leave it out"
        unread = _PRUNE_KEYS.difference(rule.reads)
        if rule.name not in RULES:
            unread.discard("options")
        elif holds(content, ("prune", "options")):
            right = f"{right}; options are for a rule of your own (module:rule)"
        yield from _given_keys("prune", content, unread, name, right)
        yield from _option_problems(rule, document.prune.options)
    schedule = content.get("schedule")
    policy = attempt([], find_policy, document.schedule.policy)
    if policy is None:  # reported elsewhere
        return
    if isinstance(schedule, Mapping) and "policy" not in schedule:
        # Keys with invalid values count, too; the document lacks them.
        policy = policy_of_keys(schedule)
    keys = {option: key for key, option in OPTION_OF.items()}
    unread = {key for option, key in keys.items() if option not in policy.reads}
    right = policy.describe_reads(keys)
    yield from _given_keys("schedule", content, unread, policy.name, right)


def _option_problems(rule: PruningRule, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield mistakes in the options of a rule of the user."""
    if rule.name in RULES:
        return
    problem = attempt([], find_wrong_options, rule, options)
    if problem is not None:
        wrong, right = problem
        yield ("prune", "options"), wrong, right


def _given_keys(
    section: str, content: Mapping[str, Any], unread: Collection[str], reader: str, right: str
) -> Iterator[Problem]:
    for key in unread:
        if holds(content, (section, key)):
            yield (section, key), f"{reader} does not read {key}", right
