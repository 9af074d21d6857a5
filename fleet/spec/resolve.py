"""Resolve a spec file, or a mapping, into networks with all their settings.

:func:`load` reads a file, :func:`parse` a mapping (for specs that are made in code). Both report
all mistakes together.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleet.errors import SpecError
from fleet.plugins import append_import_path
from fleet.spec.criteria import check_comparable, target_kinds_of_spec
from fleet.spec.document_checks import find_document_problems, find_objective_problems
from fleet.spec.engine_keys import Problem
from fleet.spec.entries import networks_of, variants
from fleet.spec.fit_checks import find_unfit_measures, merge_misfits
from fleet.spec.mistakes import explain
from fleet.spec.naming import names_in, number_in
from fleet.spec.old_keys import with_new_keys
from fleet.spec.origin import Origin
from fleet.spec.schema import Document, ModelEntry, NetworkSpec, Spec
from fleet.spec.section import plain
from fleet.spec.yaml_file import read_yaml

# In place of an invalid entry.
_PLACEHOLDER = {"family": "softmax"}


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
    append_import_path(str(Path(path).absolute().parent))


def parse(content: Document | Mapping[str, Any]) -> Spec:
    """Resolve a spec that was made in code.

    Args:
        content: a document, or a mapping with the keys of a spec file.

    Raises:
        SpecError: all mistakes, each with its key.
    """
    return _resolve(plain(content), Origin())


def _resolve(content: Any, origin: Origin, run: Path | None = None) -> Spec:
    translation = with_new_keys(content, origin)
    content, origin = translation.content, translation.origin
    document, problems, invalid_entries = _validate(content)
    mistakes = translation.mistakes
    for problem in (*problems, *find_document_problems(document, content)):
        mistakes.append(origin.mistake(*problem))
    spec = Spec(document, (), origin, notices=tuple(translation.notices.values()))
    spec = replace(spec, existing=names_in(run or spec.output))
    networks: list[NetworkSpec] = []
    for index, entry in enumerate(document.models):
        if index in invalid_entries or any(find_objective_problems(document, index, entry)):
            continue  # reported already
        networks_of_entry, problems = networks_of(spec, index)
        networks += networks_of_entry
        for path, wrong, right in problems:
            mistakes.append(origin.mistake(spec.place_of(index, path, wrong), wrong, right))
    spec = replace(spec, networks=tuple(networks))
    names = [network.name for network in networks]
    mistakes += [
        origin.mistake(
            ("models",), f"{count} networks are named {name!r}", "rename one with `name:`"
        )
        for name, count in sorted(Counter(names).items())
        if count > 1
    ]
    for index, entry in spec.searches.items():
        collisions = [name for name in names if number_in(name, entry.stem)]
        if collisions:
            mistakes.append(
                origin.mistake(
                    ("models", index, "search"),
                    f"one of its trials could also be named {collisions[0]!r}",
                    "rename the entry with `name:`",
                )
            )
    if mistakes:
        raise SpecError(list(dict.fromkeys(mistakes)))
    kinds_of = target_kinds_of_spec(spec)
    all_networks = (*spec.networks, *variants(spec))
    unfit = [
        misfit
        for network in all_networks
        if len(kinds := kinds_of(network)) == 1
        for misfit in find_unfit_measures(network, spec, *kinds)
    ]
    if unfit:
        raise SpecError(merge_misfits(spec, unfit))
    check_comparable(spec, all_networks, kinds_of)
    if "prune" not in content:
        spec = replace(spec, notices=(*spec.notices, *_advise_pruning(spec, all_networks)))
    return spec


def _advise_pruning(spec: Spec, networks: Iterable[NetworkSpec]) -> list[str]:
    """Return a line of advice for a spec without `prune` whose searches prune nothing."""
    if all(network.train.stopping.max_epochs == 1 for network in networks):
        return []
    for index, entry in spec.searches.items():
        if entry.search is not None and not entry.search.prunes:
            line = spec.origin.line(("models", index, "search"))
            location = "" if line is None else f"{spec.origin.file}:{line}: "
            return [
                f"note: {location}{entry.stem}: every network trains to its end; add `prune: auto` "
                "to pause networks that are unlikely to be among the best"
            ]
    return []


def _validate(content: Mapping[str, Any]) -> tuple[Document, list[Problem], set[int]]:
    """Validate a document; without its invalid parts, so that all mistakes are reported together.

    Returns:
        A document with placeholders for invalid entries; its mistakes, each with the key path; and
        the indices of the invalid entries.
    """
    mistakes: list[Problem] = []
    invalid_entries: set[int] = set()
    while True:
        try:
            document = TypeAdapter(Document).validate_python(content)
        except ValidationError as error:
            problems = explain(error, content)
        else:
            return document, mistakes, invalid_entries
        mistakes = mistakes or problems
        invalid_entries.update(
            path[1] if len(path) > 1 else 0 for path, *_ in problems if path[0] == "models"
        )
        content = _without(content, [path for path, *_ in problems])


def _without(content: Mapping[str, Any], paths: Iterable[tuple]) -> dict[str, Any]:
    """Return a document without some of its keys, or of its sections' keys."""
    remaining = dict(content)
    for key, *below in paths:
        part: Any = remaining.get(key)
        if key == "models" and below:
            remaining[key] = [*part[: below[0]], _PLACEHOLDER, *part[below[0] + 1 :]]
        elif key == "models":
            remaining[key] = [_PLACEHOLDER]
        elif isinstance(part, Mapping) and below and below[0] in part:
            remaining[key] = {name: part[name] for name in part if name != below[0]}
        else:
            remaining.pop(key, None)
    return remaining


# ---- entries that are added to a run ------------------------------------------------------------


def with_entry(
    spec: Spec,
    content: Any,
    taken_names: Collection[str],
    position: int | None = None,
    drawn: Mapping[str, Any] | None = None,
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
        drawn: the values of a clone by the keys of a space; None for another entry.

    Returns:
        The spec with the entry as the last of its models, and the networks of the entry.

    Raises:
        SpecError: all mistakes of the entry.
    """
    mistake = Origin("entry").mistake
    if isinstance(content, Mapping):
        translation = with_new_keys(plain(content), Origin("entry"), "models")
        if translation.mistakes:
            raise SpecError(translation.mistakes)
        content = translation.content
    try:
        entry = TypeAdapter(ModelEntry).validate_python(content)
    except ValidationError as error:
        problems = explain(error, content, owner=ModelEntry)
        raise SpecError([mistake(*problem) for problem in problems]) from None
    if entry.search is not None or (entry.data is not None and drawn is None):
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
    extended = replace(spec, document=replace(document, models=(*document.models, entry)))
    networks, problems = networks_of(extended, len(document.models), position, drawn)
    mistakes = [mistake(*problem) for problem in problems]
    mistakes += [
        mistake(("name",), f"a network of the run is named {name!r}", "use another name")
        for name in sorted({network.name for network in networks} & set(taken_names))
    ]
    mistakes += [
        mistake(("name",), f"{network.name!r} is a name for trials of a search", "use another name")
        for network in networks
        for searched in spec.searches.values()
        if number_in(network.name, searched.stem)
    ]
    if mistakes:
        raise SpecError(mistakes)
    return extended, tuple(networks)


def _is_taken(stem: str, names: Collection[str]) -> bool:
    """Return True if a network has this name, with or without a number."""
    return any(
        name == stem or re.fullmatch(rf"{re.escape(stem)}-\d+(-fold\d+)?", name) for name in names
    )
