"""Make the networks of an entry of ``models``, each with all its settings."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet.errors import UserError
from fleet.plugins import find_policy
from fleet.spec.conditions import find_condition_problems
from fleet.spec.dimensions import Member, Range, Space, ends_of, size_of_dimension
from fleet.spec.drawing import draw
from fleet.spec.engine_keys import Problem, find_unknown_words, with_engine_defaults
from fleet.spec.engines import EngineInfo, find_engine
from fleet.spec.enumeration import ends, grid, member_with, size_of
from fleet.spec.mistakes import explain
from fleet.spec.model import (
    FAMILIES,
    Architecture,
    application_names,
    check_import,
    check_target,
)
from fleet.spec.naming import check_name, names_of, network_name
from fleet.spec.origin import key_path
from fleet.spec.schema import MAX_NETWORKS, Document, ModelEntry, NetworkSpec, Spec
from fleet.spec.space import override
from fleet.spec.train import Train, with_optimizer_name
from launch.errors import InputError, pluralize
from scheduler.ensemble.policies import POLICIES

T = TypeVar("T")

_TRAIN = TypeAdapter(Train)

# Keys of a space that affect the selection criterion of a network.
_CRITERION_KEYS = (
    "train.loss",
    "train.label_smoothing",
    "train.class_weights",
    "train.metrics",
    "train.stopping",
)

# In place of an unknown engine, which is reported once: it accepts all settings.
_ANY_ENGINE = EngineInfo("", "", learns=False, finishes=True)


class _SettingsError(Exception):
    """The settings of a network are invalid, or its engine does not support them.

    Attributes:
        problems: key path below the entry, what is wrong, what would be right.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(str(problems))
        self.problems = problems


def attempt(problems: list[Problem], function: Callable[..., T], *arguments: Any) -> T | None:
    """Call a function; on an expected error append it to ``problems`` and return None."""
    try:
        return function(*arguments)
    except (UserError, InputError) as error:
        problems.append(((), str(error), ""))
    except _SettingsError as error:
        problems.extend(error.problems)
    return None


def engine_of(document: Document) -> EngineInfo:
    """Return the engine of a document; for an unknown one, one that accepts all settings."""
    return attempt([], find_engine, document.resources.engine) or _ANY_ENGINE


def networks_of(
    spec: Spec, index: int, position: int | None = None, drawn: Mapping[str, Any] | None = None
) -> tuple[list[NetworkSpec], list[Problem]]:
    """Make the networks of an entry; a search proposes its networks later.

    Args:
        spec: the spec with the entry.
        index: index of the entry in ``models``.
        position: another index that determines the values that are drawn.
        drawn: values to use instead, of an entry that draws none.

    Returns:
        The networks, and the problems of the entry: key path below it, what is wrong, what would
        be right.
    """
    document, entry = spec.document, spec.document.models[index]
    engine = engine_of(document)
    networks: list[NetworkSpec] = []
    problems: list[Problem] = list(_space_problems(entry))
    if problems:
        return [], problems
    # Check choices that are not drawn, or that a sampler may propose later, too.
    for member in _members_by_choice(entry.space or {}):
        attempt(problems, _train, document, entry, member, engine)
    if problems:
        return [], problems
    # Each entry draws from its own stream: adding an entry does not change the networks of others.
    seed = document.seed + 7919 * (index if position is None else position)
    draws = attempt(problems, _draws, entry, seed) or []
    if drawn is not None:
        draws = [dict(drawn)]
    if len(draws) * entry.networks_per_trial > MAX_NETWORKS:
        count = pluralize(len(draws) * entry.networks_per_trial, "network")
        problems.append(
            (("repeats",), f"{count} of the entry", f"an entry may have at most {MAX_NETWORKS}")
        )
        return [], problems
    names = attempt(problems, _names, entry, draws, spec.existing) or []
    for name, member in zip(names, draws, strict=False):
        train = attempt(problems, _train, document, entry, member, engine)
        architecture = attempt(problems, _architecture, entry, member, engine)
        if train is None or architecture is None:
            break  # the other draws probably have the same problem
        for repeat in _repeats(entry):
            network = _network(spec, index, name, train, architecture, member, repeat=repeat)
            if document.data.folds is None:
                networks.append(network)
        for fold in range(document.data.folds or 0):
            fold_name = f"{name}-fold{fold}"
            seed = _seed_of(document, fold_name)
            networks.append(replace(network, name=fold_name, seed=seed, fold=fold))
    if entry.search is not None:
        return [], problems
    return networks, problems


def _space_problems(entry: ModelEntry) -> Iterator[Problem]:
    """Yield the mistakes of an entry's space or grid."""
    section = "space" if entry.grid is None else "grid"
    for path, wrong, right in find_condition_problems(entry.space or entry.grid or {}):
        yield (section, *path), wrong, right
    for name, dimension in (entry.grid or {}).items():
        if size_of_dimension(dimension) == math.inf:
            yield (
                ("grid", name),
                "is a range of real numbers, which are infinitely many",
                "it should be a list, or have a step",
            )


def with_extreme_networks(spec: Spec) -> Spec:
    """Return the spec with only the extreme networks of each search.

    They represent all trials when memory is planned and samples are probed. Each has the name of
    its entry.
    """
    return replace(spec, networks=_representatives(spec, ends))


def variants(spec: Spec) -> tuple[NetworkSpec, ...]:
    """Return one network for each loss, metric and monitor in the spaces of searches.

    Each varies one key, and has the name of its entry.
    """
    return _representatives(spec, _members_by_criterion)


def _representatives(
    spec: Spec, choose: Callable[[Space], Sequence[Member]]
) -> tuple[NetworkSpec, ...]:
    """Return the networks of some members of each search's space, named like the entry."""
    return tuple(
        replace(proposed_network(spec, index, 0, member), name=entry.stem)
        for index, entry in spec.searches.items()
        for member in choose(entry.space or {})
    )


def _members_by_criterion(space: Space) -> list[Member]:
    """List members of a space that differ in one key of the selection criterion."""
    members = [member_with(space, {})]
    for key, values in space.items():
        if key.startswith(_CRITERION_KEYS):
            choices = ends_of(values) if isinstance(values, Range) else values
            members += [member_with(space, {key: value}) for value in choices]
    return members


def _members_by_choice(space: Space) -> Iterator[Member]:
    """Yield one member for each choice of each training setting in a space."""
    lists = {key: values for key, values in space.items() if not isinstance(values, Range)}
    first = {key: values[0] for key, values in lists.items()}
    for key, values in lists.items():
        if key.startswith("train."):
            yield from (member_with(space, {key: value}, preferred=first) for value in values)


def _repeats(entry: ModelEntry) -> Sequence[int | None]:
    """Return the numbers of the repeats of each network of an entry; None without repeats."""
    if entry.networks_per_trial == 1:
        return [None]
    return range(entry.networks_per_trial)


def proposed_network(
    spec: Spec, index: int, number: int, member: Member, repeat: int | None = None
) -> NetworkSpec:
    """Return the network for the values that a searcher proposed.

    Args:
        spec: the spec with the search.
        index: index of the entry in ``models``.
        number: number of the trial within the entry; it is part of the network's name, without
            leading zeros.
        member: a member of the entry's space.
        repeat: which repeat of the trial it is; None without repeats.

    Raises:
        UserError: the network cannot be built or trained with these values; the message names them
            and what would be right.
    """
    document, entry = spec.document, spec.document.models[index]
    name = check_name(f"{entry.stem}-{number}")
    engine = engine_of(document)
    try:
        train = _train(document, entry, member, engine)
        architecture = _architecture(entry, member, engine)
    except _SettingsError as error:
        raise UserError(
            "; ".join(
                f"{key_path(path)}: {wrong}" + (f"; {right}" if right else "")
                for path, wrong, right in error.problems
            )
        ) from None
    return _network(spec, index, name, train, architecture, member, number, repeat)


def invalid_network(
    spec: Spec, index: int, number: int, values: Member, repeat: int | None = None
) -> NetworkSpec:
    """Return the placeholder of a proposal that cannot be trained."""
    document = spec.document
    name = f"{document.models[index].stem}-{number}"
    return _network(
        spec, index, name, document.train, Architecture("softmax"), values, number, repeat
    )


def placeholder_for(network: NetworkSpec, spec: Spec) -> NetworkSpec:
    """Return a network that keeps a name but has settings of any valid spec."""
    return replace(network, architecture=Architecture("softmax"), train=spec.document.train)


def _network(
    spec: Spec,
    index: int,
    name: str,
    train: Train,
    architecture: Architecture,
    drawn: Member,
    number: int | None = None,
    repeat: int | None = None,
) -> NetworkSpec:
    document, entry = spec.document, spec.document.models[index]
    min_gpus, max_gpus = entry.gpu_bounds
    name = network_name(name, repeat)
    return NetworkSpec(
        name=name,
        architecture=architecture,
        train=train,
        seed=_seed_of(document, name),
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        parameters=dict(drawn),
        entry=index,
        pipeline=document.pipeline_of(entry),
        number=number,
        repeat=repeat,
    )


def _seed_of(document: Document, name: str) -> int:
    return zlib.crc32(f"{document.seed}/{name}".encode())


def _draws(entry: ModelEntry, seed: int) -> list[dict[str, Any]]:
    """Return the drawn values of each network of an entry."""
    if entry.space is not None and entry.count is not None:
        return draw(entry.space, entry.count, seed)
    if entry.space is not None:
        return ends(entry.space)
    choices = entry.grid or {}
    size = size_of(choices)
    if size > MAX_NETWORKS:
        raise UserError(
            f"the grid has {pluralize(int(size), 'member')}; an entry may have at most "
            f"{MAX_NETWORKS} networks"
        )
    return grid(choices)


def _names(entry: ModelEntry, draws: Sequence[Member], existing: Mapping[str, Any]) -> list[str]:
    """Name the networks of an entry."""
    if entry.space is None and entry.grid is None:
        return [check_name(entry.stem)]
    return names_of(entry.stem, draws, existing, by_values=entry.grid is not None)


# ---- settings -----------------------------------------------------------------------------------


def _train(
    document: Document, entry: ModelEntry, drawn: Mapping[str, Any], engine: EngineInfo
) -> Train:
    """Return the training settings of a network, checked against the engine and the policy."""
    train = merged(document.train, entry.train_overrides, drawn)
    problems = [
        *(
            (("train", *key), wrong, right)
            for key, wrong, right in find_unknown_words(train, engine, is_complete=True)
        ),
        *_batch_problems(document, entry, train),
    ]
    if problems:
        raise _SettingsError(problems)
    return with_engine_defaults(train, engine, document.defaults)


def _batch_problems(document: Document, entry: ModelEntry, train: Train) -> Iterator[Problem]:
    """Yield why no batch size can be chosen from a range."""
    sizes = list(train.batch.bounds)
    if not train.batch.is_elastic:
        return
    policy = attempt([], find_policy, document.schedule.policy)
    if policy is None:  # reported elsewhere
        return
    if not policy.sets_batch:
        able = " or ".join(policy.name for policy in POLICIES.values() if policy.sets_batch)
        yield (
            ("train", "batch", "size"),
            f"the policy {policy.name} cannot choose a batch size from {sizes}",
            f"use one size, or `schedule: {{policy: {able}}}`",
        )
    elif document.profile.max_gpus == 1 and entry.gpu_bounds[1] != 1:
        yield (
            ("profile", "max_gpus"),
            "with 1 GPU no gradient exchange is measured, so no batch size can be chosen for "
            f"{entry.stem}, whose `train.batch.size` is {sizes}",
            "use 2 or more, or leave it out",
        )


def merged(base: Train, overrides: Mapping[str, Any], drawn: Mapping[str, Any]) -> Train:
    """Merge the top-level training settings with an entry's and with drawn values."""
    drawn_train = {
        key.removeprefix("train."): value
        for key, value in drawn.items()
        if key.startswith("train.")
    }
    drawn_settings = override({}, _with_optimizer_name(drawn_train))
    train = base
    for settings in (_with_optimizer_name(overrides), drawn_settings):
        if settings:
            plain = _TRAIN.dump_python(train)
            _merge(plain, settings)
            try:
                train = _TRAIN.validate_python(plain)
            except ValidationError as error:
                raise _invalid(error, plain, "train", Train) from None
    return train


def _with_optimizer_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of ``train`` with a mapping for an optimizer that is given by its name."""
    named = settings.get("optimizer")
    if isinstance(named, str):
        return {**settings, "optimizer": with_optimizer_name(named)}
    return dict(settings)


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


def _invalid(
    error: ValidationError, content: Mapping[str, Any], part: str, section: type
) -> _SettingsError:
    """Return the error for merged settings of an entry that do not validate."""
    return _SettingsError(explain(error, content, (part,), section))


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


def _architecture(entry: ModelEntry, drawn: Mapping[str, Any], engine: EngineInfo) -> Architecture:
    """Return the architecture: the entry's arguments with drawn values."""
    arguments = {key: value for key, value in drawn.items() if not key.startswith("train.")}
    args = override({**_defaults(entry, arguments), **entry.args}, arguments)
    if entry.build is not None:
        check_import(entry.build)
        return Architecture(entry.build, args, entry.output)
    target = str(entry.family)
    if engine.families is not None and target not in engine.families:
        if target not in application_names():
            check_target(target, applications="")
        raise UserError(
            f"the {engine.name} engine cannot train {target}; its families: "
            f"{', '.join(sorted(engine.families))}"
        )
    check_target(target, engine.applications)
    try:
        return Architecture(target, args)
    except ValidationError as error:
        raise _invalid(error, args, "args", FAMILIES[target]) from None
