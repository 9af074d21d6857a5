"""Changes of a search's settings between launches (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleet.domain.events import SearcherStarted
from fleet.domain.plain_json import as_json
from fleet.domain.run import RunSearch
from fleet.search.entries import Entry
from fleet.search.session import PARENT, match_space
from fleet.spec.dimensions import Space
from fleet.spec.section import plain
from launch.errors import pluralize

_CHOICE = (
    "sampler",
    "space",
    "seed",
    "options",
    "objectives",
    "constraints",
)


def describe_start(entry: Entry, search: RunSearch, knows: bool) -> SearcherStarted | None:
    """Return the event of a search that starts or has new settings; None if nothing has changed.

    Args:
        entry: the entry of the search.
        search: its state after earlier launches.
        knows: whether the searcher accepts prior trials.
    """
    now = _settings(entry)
    before = search.settings
    if before is None:
        return SearcherStarted(entry.name, now, knows=knows)
    changes = list(_changes(before, now))
    if not changes:
        return None
    is_another = any(before.get(key) != now.get(key) for key in _CHOICE)
    proposals = [call.answer for call in search.asks if call.answer and not call.wrong]
    passed = _describe_passed(entry.space, proposals, knows) if is_another else ""
    return SearcherStarted(entry.name, now, "; ".join(changes) + passed, is_another, knows)


def _settings(entry: Entry) -> dict[str, Any]:
    settings = entry.settings
    content: dict[str, Any] = as_json(
        {
            "sampler": settings.sampler,
            "space": plain(entry.space),
            "seed": settings.seed,
            "options": settings.options,
            "objectives": entry.objectives,
            "max_trials": settings.max_trials,
            **({"repeats": settings.repeats} if settings.repeats > 1 else {}),
            "budget": plain(settings.budget),
        }
    )
    if settings.constraints:  # logs of searches without constraints lack the key
        content["constraints"] = list(settings.constraints)
    return content


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterable[str]:
    """Describe each change of the settings."""
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
            yield f"{path}{key} was {_format(old)} and is {_format(new)}"


def _format(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_format(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format, value)) + "]"
    if value is None:
        return "missing"
    return str(value)


def _describe_passed(space: Space, proposals: Sequence[Mapping[str, Any]], knows: bool) -> str:
    """Describe how many networks the new searcher receives."""
    if not knows:
        return (
            "; the searcher has no method `add_prior_trial`, and does not receive "
            f"{pluralize(len(proposals), 'network')}"
        )
    outside = sum(
        match_space(space, {key: value for key, value in values.items() if key != PARENT}) is None
        for values in proposals
    )
    text = f"; the searcher receives {pluralize(len(proposals) - outside, 'network')}"
    return text + (f", but not {outside} outside the space" if outside else "")
