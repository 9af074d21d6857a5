"""Resolve a spec file, or a mapping, into networks with all their settings.

:func:`load` reads a file, :func:`parse` a mapping (for specs that are made in code). Both report
all mistakes together.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet.errors import SpecError, SpecMistake, UserError
from fleet.plugins import find_policy
from fleet.spec.criteria import check_comparable, target_kinds_of_spec
from fleet.spec.engine_keys import (
    Problem,
    find_unknown_words,
    incomplete_schedule,
    with_direction,
    with_rate,
)
from fleet.spec.engines import ENGINES, EngineInfo, find_engine
from fleet.spec.fit_checks import find_unfit_measures, merge_misfits
from fleet.spec.measures import FIELDS, label_of
from fleet.spec.mistakes import explain
from fleet.spec.model import (
    APPLICATIONS,
    FAMILIES,
    Architecture,
    application_names,
    check_import,
    check_target,
)
from fleet.spec.naming import DrawnValues, check_name, is_name, names_in, names_of, rule_of
from fleet.spec.old_keys import entry_with_new_keys, with_new_keys
from fleet.spec.origin import Origin, is_below, key_path
from fleet.spec.schema import (
    MAX_NETWORKS,
    OPTION_OF,
    Document,
    ModelEntry,
    NetworkSpec,
    Spec,
    holds,
    policy_of_keys,
)
from fleet.spec.search import NETWORK_OBJECTIVES, Objective, Prune, find_rule
from fleet.spec.space import Member, Range, Space, contradictions, draw, ends, grid, override
from fleet.spec.train import Train
from fleet.spec.yaml_file import plain, read_yaml
from launch.errors import InputError, pluralize
from preprocess.source import SOURCES
from preprocess.transforms import parse_transforms
from preprocess.transforms.on_device import defer_to_device, split_device
from scheduler.ensemble.policies import POLICIES

T = TypeVar("T")

_PRUNE_KEYS = {field.name for field in dataclass_fields(Prune)}

# Keys of a space that affect the selection criterion of a network.
_CRITERION_KEYS = (
    "train.loss",
    "train.label_smoothing",
    "train.class_weights",
    "train.metrics",
    "train.stopping",
)


def load(path: str | Path, run: Path | None = None, **keys: Any) -> Spec:
    """Read and resolve a spec file.

    Args:
        path: the spec file.
        run: the folder of the run, whose networks keep their names; by default the ``output`` of
            the spec.
        keys: top-level keys that apply unless the file sets them.

    Raises:
        SpecError: all mistakes, each with file, line and key.
    """
    content, lines = read_yaml(Path(path))
    allow_imports_beside(path)
    return _resolve({**keys, **content}, Origin(str(path), lines), run)


def allow_imports_beside(path: str | Path) -> None:
    """Allow imports of modules in the folder of a spec."""
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)


def parse(content: Document | Mapping[str, Any]) -> Spec:
    """Resolve a spec that was made in code.

    Args:
        content: a document, or a mapping with the keys of a spec file.

    Raises:
        SpecError: all mistakes, each with its key.
    """
    return _resolve(plain(content), Origin())


def _mistake_at_cause(
    origin: Origin, entry: ModelEntry, path: tuple, wrong: str, right: str = ""
) -> SpecMistake:
    """Return a mistake of an entry, located at the key that caused it."""
    if entry.space is None:
        key = "grid"
    else:
        key = "space"
    setting = key_path(path[2:]).removeprefix("args.")
    drawn = list((entry.grid if entry.space is None else entry.space) or ())
    blamed = [name for name in drawn if is_below(setting, name)]
    if path not in origin.lines:
        # The cause may be a drawn setting of the section, which the message names.
        words = re.findall(r"\w+", wrong)
        blamed += [
            name for name in drawn if is_below(name, setting) and name.rpartition(".")[2] in words
        ]
    if blamed:
        return origin.mistake((*path[:2], key, blamed[0]), wrong, right)
    return origin.mistake(
        path[2:] if path not in origin.lines and path[2:] in origin.lines else path,
        wrong,
        right,
    )


def _resolve(content: Any, origin: Origin, run: Path | None = None) -> Spec:
    translation = with_new_keys(content, origin)
    content, origin = translation.content, translation.origin
    mistake = origin.mistake
    mistakes = translation.mistakes
    try:
        document = TypeAdapter(Document).validate_python(content)
        entries = list(enumerate(document.models))
    except ValidationError as error:
        mistakes += explain(error, content, mistake)
        document, entries = _salvage(content)
    mistakes += [
        mistake(*problem)
        for problem in (
            *_problems(document),
            *_unread_keys(document, content),
            *_unsupported_at_the_top(document, content),
        )
    ]
    networks: list[NetworkSpec] = []
    existing = names_in(run or Spec(document, ()).output)
    for index, entry in entries:
        problems: list[Exception] = []
        networks += _networks(document, index, entry, problems, existing)
        for problem in problems:
            mistakes += _mistakes_of(
                problem, partial(_mistake_at_cause, origin, entry), ("models", index)
            )
    notices = tuple(translation.notices.values())
    spec = Spec(document, tuple(networks), origin, existing, notices)
    mistakes += _incomplete_schedules(spec) + _batch_mistakes(spec)
    names = [network.name for network in networks]
    mistakes += [
        mistake(("models",), f"{count} networks are named {name!r}", "rename one with `name:`")
        for name, count in sorted(Counter(names).items())
        if count > 1
    ]
    for index, entry in spec.searches.items():
        collisions = [name for name in names if re.fullmatch(rf"{re.escape(entry.stem)}-\d+", name)]
        if collisions:
            mistakes.append(
                mistake(
                    ("models", index, "search"),
                    f"one of its trials could also be named {collisions[0]!r}",
                    "rename the entry with `name:`",
                )
            )
    if mistakes:
        raise SpecError(list(dict.fromkeys(mistakes)))
    kinds_of = target_kinds_of_spec(spec)
    all_networks = (*spec.networks, *variants(spec))
    unfit = merge_misfits(
        spec,
        [
            misfit
            for network in all_networks
            if len(kinds := kinds_of(network)) == 1
            for misfit in find_unfit_measures(network, spec, *kinds)
        ],
    )
    if unfit:
        raise SpecError(unfit)
    check_comparable(spec, all_networks, kinds_of)
    return spec


def _salvage(content: Mapping[str, Any]) -> tuple[Document, list[tuple[int, ModelEntry]]]:
    """Read the valid parts of an invalid document, so that all mistakes are reported together.

    Returns:
        A document with placeholders for invalid entries; and the valid entries, with their indices.
    """
    parts: dict[str, Any] = {}
    for field in dataclass_fields(Document):
        if field.name in content and field.name != "models":
            parts |= _valid_part(field.name, content[field.name])
    models = content.get("models")
    if not isinstance(models, list | tuple):
        models = ()
    entries = []
    filled = [ModelEntry(family="softmax")] * max(1, len(models))
    for index, item in enumerate(models):
        try:
            filled[index] = TypeAdapter(ModelEntry).validate_python(item)
        except ValidationError:
            continue
        entries.append((index, filled[index]))
    return Document(models=tuple(filled), **parts), entries


def _valid_part(name: str, value: Any) -> dict[str, Any]:
    """Return one key of a document with as much of its value as is valid."""

    def read(value: Any) -> dict[str, Any]:
        try:
            document = TypeAdapter(Document).validate_python(
                {"models": [{"family": "softmax"}], name: value}
            )
        except ValidationError:
            return {}
        return {name: getattr(document, name)}

    part = read(value)
    if part or not isinstance(value, Mapping):
        return part
    return read({key: item for key, item in value.items() if read({key: item})})


def _problems(document: Document) -> Iterator[tuple[tuple, str, str]]:
    """Yield mistakes that types cannot catch: key path, what is wrong, what would be right."""
    if not is_name(document.name):
        yield ("name",), f"{document.name!r} cannot name a folder", rule_of(document.name)
    source = document.data.source
    if source not in SOURCES and ":" not in source:
        yield (
            ("data", "source"),
            f"unknown source {source!r}",
            f"it should be one of {', '.join(SOURCES)}, or an import path module:function",
        )
    yield from _augmentation_problems(document)
    rates = document.schedule.rates
    yield from _lookup_problems(("schedule", "policy"), find_policy, document.schedule.policy)
    yield from _lookup_problems(("prune", "rule"), find_rule, document.prune.rule)
    yield from _lookup_problems(("resources", "engine"), find_engine, document.resources.engine)
    engine = _known_engine(document)
    if engine is not None and engine.needs_rates and rates is None:
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
    yield from _contradictions(document)
    yield from _search_problems(document)
    if rates is not None and not os.path.isfile(rates):  # Path.is_file raises for long names
        yield (
            ("schedule", "rates"),
            f"the file {rates} does not exist",
            "it should be a rates file, such as the profile.json of a run",
        )


def _augmentation_problems(document: Document) -> Iterator[tuple[tuple, str, str]]:
    """Yield the reasons why no transform can run on the device."""
    if document.data.augment_on == "host":
        return
    engine = _known_engine(document)
    path = ("data", "augment_on")
    if engine is not None and not engine.finishes:
        able = ", ".join(name for name, info in ENGINES.items() if info.finishes)
        yield (
            path,
            f"the engine {engine.name} does not augment samples",
            f"use host, or one of the engines {able}",
        )
    for data in document.data_by_pipeline.values():
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


def _lookup_problems(
    path: tuple, find: Callable[[str], object], name: str
) -> Iterator[tuple[tuple, str, str]]:
    """Yield what is wrong with a name or an import path."""
    try:
        find(name)
    except UserError as error:
        wrong, _, right = str(error).partition("; ")
        yield path, wrong, right


def _contradictions(document: Document) -> Iterator[tuple[tuple, str, str]]:
    """Yield keys of spaces and grids that would give one setting two values."""
    for index, entry in enumerate(document.models):
        key = "grid" if entry.space is None else "space"
        for name, above in contradictions(entry.space or entry.grid or {}):
            yield (
                ("models", index, key, name),
                f"a choice of {above} sets the same setting",
                "remove it from one of them",
            )


def _search_problems(document: Document) -> Iterator[tuple[tuple, str, str]]:
    """Yield mistakes of searches that involve several keys."""
    stems: dict[str, int] = {}
    for index, entry in enumerate(document.models):
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
        yield from _objective_problems(document, index, entry)


def _objective_problems(
    document: Document, index: int, entry: ModelEntry
) -> Iterator[tuple[tuple, str, str]]:
    """Yield mistakes of a search's objectives."""
    objectives = () if entry.search is None else entry.search.objectives
    if not objectives:
        return
    train = _attempt([], _merged, document.train, entry.train, {})
    labels = [] if train is None else map(label_of, train.metrics)
    quantities = [
        name for label in dict.fromkeys([*FIELDS, *labels]) for name in (label, f"val_{label}")
    ]
    monitor = (entry.train.get("stopping") or {}).get("monitor")
    direction = (entry.train.get("stopping") or {}).get("direction")
    top = document.train.stopping
    if direction is None and top.metric == objectives[0].value:
        direction = top.direction
    for index_of_objective, objective in enumerate(objectives):
        path = ("models", index, "search", "objectives", index_of_objective, "value")
        name = objective.value
        measured = ", ".join(quantities)
        if name in [earlier.value for earlier in objectives[:index_of_objective]]:
            yield path, f"{name} is listed twice", "leave it out"
        elif index_of_objective == 0 and name in NETWORK_OBJECTIVES:
            yield (
                path,
                f"{name} does not change from epoch to epoch, but networks are pruned by the first "
                "objective",
                f"the first objective should be one of {measured}",
            )
        elif name not in quantities and name not in NETWORK_OBJECTIVES:
            yield (
                path,
                f"{name!r} is not computed",
                f"it should be one of {measured}, {', '.join(NETWORK_OBJECTIVES)}; add others to "
                "train.metrics",
            )
        elif objective.sense is None and not (
            name == monitor and (entry.train.get("stopping") or {}).get("direction")
        ):
            yield (
                path,
                f"it is unknown whether high or low values of {name} are better",
                "add `mode: maximize` or `mode: minimize`",
            )
        elif index_of_objective == 0 and _contradicts(objective, direction):
            yield (
                ("models", index, "search", "objectives", index_of_objective, "mode"),
                f"{objective.mode} and train.stopping.direction: {direction} contradict each other",
                "leave one of them out",
            )
        elif index_of_objective == 0 and monitor not in (None, name):
            yield (
                ("models", index, "train", "stopping", "monitor"),
                f"{monitor} is not {name}, the first objective, which decides the best epoch",
                "leave it out",
            )


def _contradicts(objective: Objective, direction: Any) -> bool:
    """Return True if an entry's direction contradicts its first objective."""
    senses = {"max": "maximize", "min": "minimize"}
    return objective.mode is not None and senses.get(direction, objective.mode) != objective.mode


def _unread_keys(
    document: Document, content: Mapping[str, Any]
) -> Iterator[tuple[tuple, str, str]]:
    """Yield keys that are given but would not be read."""
    data = content.get("data")
    schedule = content.get("schedule")
    if (
        document.data.folds is not None
        and isinstance(data, Mapping)
        and data.get("validation") is not None
    ):
        yield (
            ("data", "validation"),
            "folds hold out their own validation samples",
            "leave it out, or use data.test",
        )
    yield from _unread_prune_keys(document.prune.rule, content.get("prune"))
    policy = _attempt([], find_policy, document.schedule.policy)
    if policy is None:  # reported elsewhere
        return
    if isinstance(schedule, Mapping) and "policy" not in schedule:
        # Keys with invalid values count, too; the document lacks them.
        policy = policy_of_keys(schedule)
    keys = {option: key for key, option in OPTION_OF.items()}
    for option, key in keys.items():
        if isinstance(schedule, Mapping) and key in schedule and option not in policy.reads:
            yield (
                ("schedule", key),
                f"{policy.name} does not read {key}",
                policy.describe_reads(keys),
            )


def _unread_prune_keys(name: str, prune: Any) -> Iterator[tuple[tuple, str, str]]:
    rule = _attempt([], find_rule, name)
    if rule is None:  # reported elsewhere
        return
    for key in prune if isinstance(prune, Mapping) else ():
        if key != "rule" and key in _PRUNE_KEYS and key not in rule.reads:
            right = f"it reads {', '.join(rule.reads)}" if rule.reads else "leave it out"
            yield ("prune", key), f"{name} does not read {key}", right


def _unsupported_at_the_top(
    document: Document, content: Mapping[str, Any]
) -> Iterator[tuple[tuple, str, str]]:
    """Yield top-level training settings that the engine does not support."""
    engine = _known_engine(document)
    for key, wrong, right in () if engine is None else find_unknown_words(document.train, engine):
        if holds(content, ("train", *key[:1])):
            yield ("train", *key), wrong, right


def _incomplete_schedules(spec: Spec) -> list[SpecMistake]:
    """List learning rate schedules with a missing argument, each once."""
    mistakes: dict[SpecMistake, None] = {}
    engine = _known_engine(spec.document)
    for network in spec.networks:
        if engine is not None and (wrong := incomplete_schedule(network.train, engine)):
            mistakes[
                spec.origin.mistake(
                    spec.place_of(network, "train", "optimizer", "learning_rate"), wrong
                )
            ] = None
    return list(mistakes)


def _batch_mistakes(spec: Spec) -> list[SpecMistake]:
    """List batch ranges that the policy cannot use, each once."""
    of_searches = _attempt([], with_extreme_networks, spec)
    networks = [
        network
        for network in (*spec.networks, *(of_searches.networks if of_searches is not None else ()))
        if network.train.batch.is_elastic
    ]
    try:
        if spec.policy.sets_batch:
            return _unmeasured_exchanges(spec, networks)
    except UserError:  # reported elsewhere
        return []
    able = " or ".join(policy.name for policy in POLICIES.values() if policy.sets_batch)
    return list(
        dict.fromkeys(
            spec.origin.mistake(
                spec.place_of(network, "train", "batch", "size"),
                f"the policy {spec.policy.name} cannot choose a batch size from "
                f"{list(network.train.batch.bounds)}",
                f"use one size, or `schedule: {{policy: {able}}}`",
            )
            for network in networks
        )
    )


def _unmeasured_exchanges(spec: Spec, elastic: list[NetworkSpec]) -> list[SpecMistake]:
    """Check that gradient exchanges are measured if a policy chooses batches."""
    wider = [network for network in elastic if network.max_gpus != 1]
    if spec.profile.max_gpus != 1 or not wider:
        return []
    return [
        spec.origin.mistake(
            ("profile", "max_gpus"),
            "with 1 GPU no gradient exchange is measured, so no batch size can be chosen for "
            f"{wider[0].name}, whose `train.batch.size` is {list(wider[0].train.batch.bounds)}",
            "use 2 or more, or leave it out",
        )
    ]


class _SettingsError(Exception):
    """The settings of a network are invalid, or its engine does not support them.

    Attributes:
        problems: pairs of a problem, and whether its key path belongs to the document instead of
            the network's entry.
    """

    def __init__(self, problems: Sequence[tuple[Problem, bool]]) -> None:
        super().__init__(str(problems))
        self.problems = problems

    @classmethod
    def of(
        cls, part: str, owner: type, content: Mapping[str, Any], error: ValidationError
    ) -> _SettingsError:
        """Return the error for merged settings of an entry that do not validate."""
        explained = explain(error, content, lambda *problem: problem, (part,), owner)
        return cls([(problem, False) for problem in explained])


def _mistakes_of(
    problem: Exception, mistake: Callable[..., SpecMistake], prefix: tuple = ()
) -> list[SpecMistake]:
    """Return the mistakes of an entry."""
    if isinstance(problem, _SettingsError):
        return [
            mistake((*(() if is_of_document else prefix), *path), wrong, right)
            for (path, wrong, right), is_of_document in problem.problems
        ]
    return [mistake(prefix, str(problem))]


def _networks(
    document: Document,
    index: int,
    entry: ModelEntry,
    problems: list[Exception],
    existing: DrawnValues,
) -> list[NetworkSpec]:
    """Return the networks of an entry; append its problems to ``problems``."""
    networks: list[NetworkSpec] = []
    if any(_objective_problems(document, index, entry)):
        return []  # reported elsewhere
    engine = _known_engine(document)
    # Check choices that are not drawn, or that a sampler may propose later, too.
    for member in _members_by_choice(entry.space or {}):
        _attempt(problems, _train, document, entry, member, engine)
    if problems:
        return []
    draws = _attempt(problems, _draws, document, index, entry) or []
    names = _attempt(problems, _names, entry, draws, existing) or []
    for name, drawn in zip(names, draws, strict=False):
        train = _attempt(problems, _train, document, entry, drawn, engine)
        architecture = _attempt(problems, _architecture, entry, drawn, engine)
        if train is None or architecture is None:
            break  # the other draws probably have the same problem
        folds: Iterable[int | None] = (
            (None,) if document.data.folds is None else range(document.data.folds)
        )
        for fold in folds:
            fold_name = name if fold is None else f"{name}-fold{fold}"
            networks.append(_network(document, index, fold_name, train, architecture, drawn, fold))
    if entry.search is not None:
        return []
    return networks


def with_extreme_networks(spec: Spec) -> Spec:
    """Return the spec with only the two extreme networks of each search.

    They represent all trials when memory is planned and samples are probed. Each has the name of
    its entry.
    """
    networks = []
    for index, entry in spec.searches.items():
        networks += [
            replace(proposed_network(spec, index, 0, member), name=entry.stem)
            for member in ends(entry.space or {})
        ]
    return replace(spec, networks=tuple(networks))


def variants(spec: Spec) -> tuple[NetworkSpec, ...]:
    """Return one network for each loss, metric and monitor in the spaces of searches.

    Each varies one key, and has the name of its entry.
    """
    return tuple(
        replace(proposed_network(spec, index, 0, member), name=entry.stem)
        for index, entry in spec.searches.items()
        for member in _members_by_criterion(entry.space or {})
    )


def _members_by_criterion(space: Space) -> list[Member]:
    """List members of a space that differ in one key of the selection criterion."""
    first = ends(space)[0]
    members = [first]
    for key, values in space.items():
        if key.startswith(_CRITERION_KEYS):
            if isinstance(values, Range):
                choices: Sequence[Any] = [end[key] for end in ends({key: values})]
            else:
                choices = values
            members += [{**first, key: value} for value in choices]
    return members


def _members_by_choice(space: Space) -> Iterator[Member]:
    """Yield one member for each choice of each training setting in a space."""
    first = {
        key: values.low if isinstance(values, Range) else values[0] for key, values in space.items()
    }
    for key, values in space.items():
        if key.startswith("train.") and not isinstance(values, Range):
            yield from ({**first, key: value} for value in values)


def proposed_network(spec: Spec, index: int, number: int, member: Member) -> NetworkSpec:
    """Return the network for the values that a searcher proposed.

    Args:
        spec: the spec with the search.
        index: index of the entry in ``models``.
        number: number of the trial within the entry; it is part of the network's name, without
            leading zeros.
        member: a member of the entry's space.

    Raises:
        UserError: the network cannot be built or trained with these values; the message names them
            and what would be right.
    """
    document, entry = spec.document, spec.document.models[index]
    name = check_name(f"{entry.stem}-{number}")
    engine = _known_engine(document)
    try:
        return _network(
            document,
            index,
            name,
            _train(document, entry, member, engine),
            _architecture(entry, member, engine),
            member,
            number=number,
        )
    except _SettingsError as problem:
        raise UserError(
            "; ".join(
                f"{mistake.key}: {mistake.wrong}" + (f"; {mistake.right}" if mistake.right else "")
                for mistake in _mistakes_of(problem, Origin().mistake)
            )
        ) from None


def invalid_network(spec: Spec, index: int, number: int, values: Member) -> NetworkSpec:
    """Return the placeholder of a proposal that cannot be trained."""
    stem = spec.document.models[index].stem
    return _network(
        spec.document,
        index,
        f"{stem}-{number}",
        spec.document.train,
        Architecture("softmax"),
        values,
        number=number,
    )


def _network(
    document: Document,
    index: int,
    name: str,
    train: Train,
    architecture: Architecture,
    drawn: Member,
    fold: int | None = None,
    number: int | None = None,
) -> NetworkSpec:
    entry = document.models[index]
    min_gpus, max_gpus = _gpu_bounds(entry)
    return NetworkSpec(
        name=name,
        architecture=architecture,
        train=train,
        seed=zlib.crc32(f"{document.seed}/{name}".encode()),
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        parameters=dict(drawn),
        entry=index,
        fold=fold,
        data=document.data_overrides(entry),
        number=number,
    )


def _known_engine(document: Document) -> EngineInfo | None:
    """Return the engine; None for an unknown one, which is reported elsewhere."""
    return _attempt([], find_engine, document.resources.engine)


def _attempt(problems: list[Exception], function: Callable[..., T], *arguments: Any) -> T | None:
    """Call a function; on an expected error append it to ``problems`` and return None."""
    try:
        return function(*arguments)
    except (UserError, InputError, _SettingsError) as problem:
        problems.append(problem)
        return None


def _draws(document: Document, index: int, entry: ModelEntry) -> list[dict[str, Any]]:
    """Return the drawn values of each network of an entry."""
    if entry.space is not None and entry.count is not None:
        # Each entry draws from its own stream: adding an entry does not change the networks of
        # others.
        return draw(entry.space, entry.count, document.seed + 7919 * index)
    if entry.space is not None:
        return ends(entry.space)
    if entry.grid is not None:
        size = math.prod(map(len, entry.grid.values()))
        if size > MAX_NETWORKS:
            raise UserError(
                f"the grid has {pluralize(size, 'member')}; an entry may have at most "
                f"{MAX_NETWORKS} networks"
            )
        return grid(entry.grid)
    return [{}]


def _names(entry: ModelEntry, draws: Sequence[Member], existing: DrawnValues) -> list[str]:
    """Name the networks of an entry."""
    if entry.space is None and entry.grid is None:
        return [check_name(entry.stem)]
    return names_of(entry.stem, draws, existing, by_values=entry.grid is not None)


def _gpu_bounds(entry: ModelEntry) -> tuple[int, int | None]:
    if entry.gpus is None:
        return 1, None
    if isinstance(entry.gpus, int):
        return (entry.gpus, entry.gpus)
    return entry.gpus


def _train(
    document: Document, entry: ModelEntry, drawn: Mapping[str, Any], engine: EngineInfo | None
) -> Train:
    """Return the training settings of a network, checked against the engine."""
    train = _merged(document.train, entry.train_overrides, drawn)
    if engine is None:
        return train
    problems = []
    for key, wrong, right in find_unknown_words(train, engine):
        setting = key_path(("train", *key))
        is_drawn = any(is_below(name, setting) or is_below(setting, name) for name in drawn)
        problems.append(
            (
                (("train", *key), wrong, right),
                not is_drawn and not holds(entry.train_overrides, key),
            )
        )
    if problems:
        raise _SettingsError(problems)
    return with_rate(with_direction(train, engine), engine, document.defaults)


_TRAIN = TypeAdapter(Train)


def _merged(base: Train, overrides: Mapping[str, Any], drawn: Mapping[str, Any]) -> Train:
    """Merge the top-level training settings with an entry's and with drawn values."""
    drawn_settings = override(
        {},
        {
            key.removeprefix("train."): value
            for key, value in drawn.items()
            if key.startswith("train.")
        },
    )
    train = base
    for settings in (overrides, drawn_settings):
        if settings:
            plain = _TRAIN.dump_python(train)
            _merge(plain, settings)
            try:
                train = _TRAIN.validate_python(plain)
            except ValidationError as error:
                raise _SettingsError.of("train", Train, plain, error) from None
    return train


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        old = into.get(key)
        # Another optimizer or schedule does not inherit the parameters of the first one.
        if (
            isinstance(value, Mapping)
            and isinstance(old, dict)
            and value.get("name") in (None, old.get("name"))
        ):
            _merge(old, value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _defaults(entry: ModelEntry, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return default lists of a family whose items are drawn, such as ``blocks.0``."""
    family = FAMILIES.get(str(entry.family))
    parts = {key.partition(".")[0] for key in drawn if "." in key}
    if family is None or not parts:
        return {}
    return {
        name: list(value)
        for name, value in asdict(family()).items()
        if name in parts and isinstance(value, tuple)
    }


def _architecture(
    entry: ModelEntry, drawn: Mapping[str, Any], engine: EngineInfo | None
) -> Architecture:
    """Return the architecture: the entry's arguments with drawn values."""
    arguments = {key: value for key, value in drawn.items() if not key.startswith("train.")}
    args = override({**_defaults(entry, arguments), **entry.args}, arguments)
    if entry.build is not None:
        check_import(entry.build)
        return Architecture(entry.build, args)
    target = str(entry.family)
    if (
        engine is not None
        and engine.families is not None
        and target not in engine.families
        and target in (*FAMILIES, *application_names())
    ):
        raise UserError(
            f"the {engine.name} engine cannot train {target}; its families: "
            f"{', '.join(sorted(engine.families))}"
        )
    check_target(target, APPLICATIONS if engine is None else engine.applications)
    try:
        return Architecture(target, args)
    except ValidationError as error:
        raise _SettingsError.of("args", FAMILIES[target], args, error) from None


# ---- entries that are added to a run ------------------------------------------------------------


def with_entry(
    spec: Spec, content: Any, taken_names: Collection[str], position: int | None = None
) -> tuple[Spec, tuple[NetworkSpec, ...]]:
    """Return a spec with one more entry, and the networks of that entry.

    Args:
        spec: the spec of the run.
        content: a mapping with the keys of an entry of ``models``. An entry without a name gets the
            name of its family or function, with a number if another has it: ``cnn``, ``cnn.2``,
            ``cnn.3``.
        taken_names: the names of existing networks.
        position: the number of entries when the entry was first added; it determines the values
            that are drawn for its networks.

    Returns:
        The spec with the entry as the last of its models, and the networks of the entry.

    Raises:
        SpecError: all mistakes of the entry.
    """
    mistake = Origin("entry").mistake
    if isinstance(content, Mapping):
        translation = entry_with_new_keys(plain(content), Origin("entry"))
        if translation.mistakes:
            raise SpecError(translation.mistakes)
        content = translation.content
    try:
        entry = TypeAdapter(ModelEntry).validate_python(content)
    except ValidationError as error:
        raise SpecError(explain(error, content, mistake, (), ModelEntry)) from None
    if entry.search is not None or entry.data is not None:
        key = "search" if entry.search is not None else "data"
        raise SpecError(
            [mistake((key,), "cannot be added to a running run", "put it into the spec")]
        )
    document = spec.document
    if entry.name is None and _is_taken(entry.stem, taken_names):
        number = next(
            number
            for number in itertools.count(2)
            if not _is_taken(f"{entry.stem}.{number}", taken_names)
        )
        entry = replace(entry, name=f"{entry.stem}.{number}")
    drawn_at = len(document.models) if position is None else position
    filled = (*document.models, *[ModelEntry(family="softmax")] * drawn_at)[:drawn_at]
    problems: list[Exception] = []
    networks = _networks(
        replace(document, models=(*filled, entry)), drawn_at, entry, problems, spec.existing
    )
    mistakes = [
        entry_mistake for problem in problems for entry_mistake in _mistakes_of(problem, mistake)
    ]
    extended = Spec(
        replace(document, models=(*document.models, entry)),
        tuple(replace(network, entry=len(document.models)) for network in networks),
        Origin("entry"),
    )
    mistakes += _incomplete_schedules(extended) + _batch_mistakes(extended)
    mistakes += [
        mistake(("name",), f"a network of the run is named {name!r}", "use another name")
        for name in sorted({network.name for network in networks} & set(taken_names))
    ]
    mistakes += [
        mistake(("name",), f"{network.name!r} is a name for trials of a search", "use another name")
        for network in networks
        for searched in spec.searches.values()
        if re.fullmatch(rf"{re.escape(searched.stem)}-\d+", network.name)
    ]
    if mistakes:
        raise SpecError(mistakes)
    return replace(spec, document=extended.document), extended.networks


def placeholder_for(network: NetworkSpec, spec: Spec) -> NetworkSpec:
    """Return a network that keeps a name but has settings of any valid spec."""
    return replace(network, architecture=Architecture("softmax"), train=spec.document.train)


def _is_taken(stem: str, names: Collection[str]) -> bool:
    """Return True if a network has this name, with or without a number."""
    return any(
        name == stem or re.fullmatch(rf"{re.escape(stem)}-\d+(-fold\d+)?", name) for name in names
    )
