"""What becomes of a search whose settings are others than those of the launch before (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleet.domain.events import SearcherBegan
from fleet.domain.json_record import as_json
from fleet.domain.run import RunSearch
from fleet.search.controller import Entry
from fleet.search.session import PARENT, fitting
from fleet.spec.space import Space
from fleet.spec.yaml_file import plain
from fleet.units import pluralize

_CHOICE = (
    "sampler",
    "space",
    "seed",
    "options",
    "objectives",
)  # where one is another, so is the searcher


def beginning(entry: Entry, search: RunSearch, knows: bool) -> SearcherBegan | None:
    """The line with which the search of an entry begins, or goes on with other settings; None where they are the same.

    Args:
        search: of earlier launches.
        knows: whether the searcher can be told of networks that it has not asked for.
    """
    now = _settings(entry)
    before = search.settings
    if before is None:
        return SearcherBegan(entry.name, now, knows=knows)
    changes = list(_changes(before, now))
    if not changes:
        return None
    is_another = any(before.get(key) != now[key] for key in _CHOICE)
    asked = [one.answer for one in search.asks if one.answer and not one.wrong]
    told = _told(entry.space, asked, knows) if is_another else ""
    return SearcherBegan(entry.name, now, "; ".join(changes) + told, is_another, knows)


def _settings(entry: Entry) -> dict[str, Any]:
    settings = entry.settings
    found: dict[str, Any] = as_json(
        {
            "sampler": settings.sampler,
            "space": plain(entry.space),
            "seed": settings.seed,
            "options": settings.options,
            "objectives": entry.objectives,
            "max_trials": settings.max_trials,
            "budget": plain(settings.budget),
        }
    )
    return found


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterable[str]:
    """What has changed, in words."""
    for key in dict.fromkeys([*before, *now]):
        old = before.get(key)
        new = now.get(key)
        if old == new:
            continue
        if (
            not path
            and key in ("space", "options")
            and isinstance(old, Mapping)
            and isinstance(new, Mapping)
        ):
            yield from _changes(old, new, f"{key}.")
        else:
            yield f"{path}{key} was {_said(old)} and is {_said(new)}"


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_said(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_said, value)) + "]"
    if value is None:
        return "not there"
    return str(value)


def _told(space: Space, asked: Sequence[Mapping[str, Any]], knows: bool) -> str:
    """Of how many networks the new searcher is told."""
    if not knows:
        return f"; the searcher has no method `known`, and is not told of {pluralize(len(asked), 'network')}"
    outside = sum(
        fitting(space, {key: value for key, value in values.items() if key != PARENT}) is None
        for values in asked
    )
    said = f"; the searcher is told of {pluralize(len(asked) - outside, 'network')}"
    return said + (f", and not of {outside} outside of the space" if outside else "")
