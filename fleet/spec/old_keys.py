"""Read old, other and short names of keys: old ones for one release, with a notice for each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import yaml

from fleet.errors import SpecMistake
from fleet.spec.dimensions import is_bounds
from fleet.spec.origin import Origin, is_below
from fleet.spec.section import plain
from fleet.units import renaming_notice

# Old key -> new key, with the values if these differ as well.
RENAMED_KEYS = {
    "open_for": "keep_open",
    "track": "trackers",
    "data.window": "data.shared_memory",
    "data.stall": "data.data_timeout",
    "data.max_bad": "data.max_unreadable",
    "data.finish": "data.augment_on",
    "train.converge": "train.stopping",
    "train.converge.target": "train.stopping.stop_at",
    "schedule.delta": "schedule.pace_tolerance",
    "schedule.alpha": "schedule.round_end_share",
    "schedule.peak_limited: false": "schedule.literal: true",
    "schedule.peak_limited: true": "schedule.literal: false",
    "profile.when: before": "profile.when: offline",
    "resources.per_device": "resources.networks_per_gpu",
    "prune.least": "prune.min_epochs",
    "prune.others": "prune.min_trials",
    "prune.order: rungs": "prune.synchronous: true",
    "prune.order: arrival": "prune.synchronous: false",
    "prune.mode: promote": "prune.on_fail: pause",
    "prune.mode: stop": "prune.on_fail: stop",
    "search.ask": "search.sampler",
    "search.most": "search.max_trials",
    "search.at_once": "search.max_concurrent",
    "search.from": "search.warm_start",
    "search.answer_within": "search.timeout",
}

# Another name of a key -> the key. Both are right.
ALIASES = {
    "train.optimizer.lr": "train.optimizer.learning_rate",
    "train.optimizer.groups.lr": "train.optimizer.groups.learning_rate",
    "train.optimizer.learning_rate.lr": "train.optimizer.learning_rate.initial_learning_rate",
}

# Short key -> the key that it stands for, below the same section. Both are right.
SHORT_KEYS = {
    "train.epochs": "train.stopping.max_epochs",
    "train.batch_size": "train.batch.size",
}

# The short keys of `train`.
SHORT_NAMES = frozenset(key.rpartition(".")[2] for key in SHORT_KEYS)

# Sections that map dotted names to values or choices.
_DOTTED = ("models.space", "models.grid", "search.space")


@dataclass
class _OldKey:
    """One old key.

    Attributes:
        new: the new key, without its section; that of a short key has the sections between, like
            ``stopping.max_epochs``.
        text: old value -> the line of the table, as (old, new); None stands for any value.
        values: old value -> new value; empty if values stay.
        is_alias: whether the old name is right as well.
    """

    new: str
    text: dict[Any, tuple[str, str]] = field(default_factory=dict)
    values: dict[Any, Any] = field(default_factory=dict)
    is_alias: bool = False

    @property
    def is_short(self) -> bool:
        """Whether it stands for a key of a section below."""
        return "." in self.new


def _sections() -> dict[str, dict[str, _OldKey]]:
    """Return the table as new name of a section -> old key -> its description."""
    sections: dict[str, dict[str, _OldKey]] = {}
    for old, new in RENAMED_KEYS.items():
        old_path, _, old_value = old.partition(": ")
        new_path, _, new_value = new.partition(": ")
        section, _, new_key = new_path.rpartition(".")
        keys = sections.setdefault(section, {})
        entry = keys.setdefault(old_path.rpartition(".")[2], _OldKey(new_key))
        value = yaml.safe_load(old_value) if old_value else None
        entry.text[value] = (old, new.removeprefix(f"{section}."))
        if old_value:
            entry.values[value] = yaml.safe_load(new_value)
    for alias, key in (ALIASES | SHORT_KEYS).items():
        section, _, name = alias.rpartition(".")
        new_key = key.removeprefix(f"{section}.")
        sections.setdefault(section, {})[name] = _OldKey(new_key, is_alias=True)
    return sections


_SECTIONS = _sections()
_NO_OLD_KEY = _OldKey("")


def _old_key(section: str, key: Any) -> _OldKey:
    """Return the description of an old key; an empty one for any other key."""
    return _SECTIONS.get(section, {}).get(key, _NO_OLD_KEY)


_MADE_IN_CODE = Origin()


@dataclass
class Translation:
    """A spec, or a part of one, in new keys.

    Attributes:
        origin: the place where the spec was read; its lines are by new keys.
        content: the translated spec.
        notices: old key -> the notice about it.
        mistakes: keys that are given under both names, and values that an old key never had.
        renamed: key path, as the user wrote it -> the new name of its last key, as a key path.
    """

    origin: Origin
    content: Any = None
    notices: dict[str, str] = field(default_factory=dict)
    mistakes: list[SpecMistake] = field(default_factory=list)
    renamed: dict[tuple, tuple[str, ...]] = field(default_factory=dict)

    def translate(self, value: Any, path: tuple = (), section: str = "") -> Any:
        """Return a part of a spec in new keys.

        Args:
            value: the part.
            path: its key path, as the user wrote it.
            section: its dotted key path in new keys, without numbers.
        """
        if isinstance(value, list | tuple):
            items = (
                self.translate(item, (*path, number), section) for number, item in enumerate(value)
            )
            return type(value)(items)
        if not isinstance(value, Mapping):
            return value
        result: dict[Any, Any] = {}
        short_keys = []
        for key in value:
            if section not in _DOTTED and _old_key(section, key).is_short:
                short_keys.append(key)
                continue
            new, item = self._renew(value, key, (*path, key), section)
            if new is None:
                continue
            if section in _DOTTED:
                result[new] = self._translate_dimension(item, (*path, key), new)
                continue
            below = f"{section}.{new}".removeprefix(".")
            if below in ("models.train", "models.search"):
                below = new
            result[new] = self.translate(item, (*path, key), below)
        for key in short_keys:
            self._write_out(result, value[key], (*path, key), _old_key(section, key).new)
        return result

    def _write_out(self, settings: dict[Any, Any], value: Any, path: tuple, meant: str) -> None:
        """Put the value of a short key where the key that it stands for belongs.

        Args:
            settings: the other keys of its section, which change.
            value: the value.
            path: the key path of the short key, as the user wrote it.
            meant: the dotted key path that it stands for, within the section.
        """
        *sections, last = meant.split(".")
        for name in sections:
            below = settings.get(name)
            if is_dataclass(below):  # of a section that is made in code
                below = plain(below)
            if below is not None and not isinstance(below, Mapping):
                return  # which is reported
            settings[name] = settings = dict(below or {})
        if last in settings and settings[last] != value:
            line = self.origin.line((*path[:-1], *sections, last))
            location = "" if line is None else f" on line {line}"
            self.mistakes.append(
                self.origin.mistake(
                    path,
                    f"{value!r} is given, but {meant} is {settings[last]!r}{location}",
                    f"{path[-1]} is short for {meant}; leave one of them out",
                )
            )
            return
        settings[last] = value
        self.renamed[path] = (*sections, last)

    def _translate_dimension(self, dimension: Any, path: tuple, name: str) -> Any:
        """Return the values of a space or a condition in new keys, with their own conditions."""
        if is_bounds(dimension):
            return dimension
        if not isinstance(dimension, Mapping):
            return self.translate(dimension, path, name)
        # names are also in the conditions, and settings in the choices
        sections = {"when": "models.space", "choices": name}
        if sections.keys().isdisjoint(dimension):
            return self.translate(dimension, path, name)
        return {
            key: self.translate(part, (*path, key), sections.get(key, f"{name}.{key}"))
            for key, part in dimension.items()
        }

    def _renew(
        self, siblings: Mapping[Any, Any], key: Any, path: tuple, section: str
    ) -> tuple[Any, Any]:
        """Return the new key and its value; None if the key has to be left out."""
        value = siblings[key]
        if section in _DOTTED:
            new = self._renew_dotted(str(key), path)
        else:
            old_key = _SECTIONS.get(section, {}).get(key)
            if old_key is None:
                return key, value
            new = old_key.new
            if old_key.values:
                is_plain = isinstance(value, str | bool | int)
                if not is_plain or value not in old_key.values:
                    if new == key:  # the new schema reports the valid values
                        return key, value
                    choices = ", ".join(old.partition(": ")[2] for old, _ in old_key.text.values())
                    self.mistakes.append(
                        self.origin.mistake(path, repr(value), f"one of {choices} (now {new})")
                    )
                    return None, None
                self._notice(old_key.text[value], path)
                value = old_key.values[value]
            elif not old_key.is_alias:
                self._notice(old_key.text[None], path)
        if new == key:
            return key, value
        if new in siblings:
            line = self.origin.line((*path[:-1], new))
            location = "is given" if line is None else f"is on line {line}"
            is_right = _old_key(section, key).is_alias or key in ALIASES | SHORT_KEYS
            relation = "another name" if is_right else "the old name"
            self.mistakes.append(
                self.origin.mistake(
                    path, f"is {relation} of {new}, which {location} as well", f"only {new}"
                )
            )
            return None, None
        self.renamed[path] = (new,)
        return new, value

    def _renew_dotted(self, name: str, path: tuple) -> str:
        """Return the new name of a setting in a space, such as ``train.stopping.patience``."""
        if not name.startswith("train."):
            return name  # an argument of the network
        section = ""
        for key in name.split("."):
            old_key = _SECTIONS.get(section, {}).get(key)
            if old_key is not None:
                if not old_key.is_alias:
                    self._notice(old_key.text[None], path)
                key = old_key.new
            section = f"{section}.{key}".removeprefix(".")
        return section

    def _notice(self, text: tuple[str, str], path: tuple) -> None:
        old, new = text
        line = self.origin.line(path)
        location = "" if line is None else f"{self.origin.file}:{line}: "
        self.notices.setdefault(old, f"note: {location}{renaming_notice(old, new)}")


def with_new_keys(content: Any, origin: Origin = _MADE_IN_CODE, section: str = "") -> Translation:
    """Translate a spec, or a part of one, from old keys to new ones.

    Args:
        content: the content of a spec's file; it is not changed.
        origin: the place where it was read.
        section: the dotted key path of the part in new keys, such as ``models`` for an entry.
    """
    translation = Translation(origin)
    translation.content = translation.translate(content, section=section)
    renamed = translation.renamed
    lines: dict[tuple, int] = {}
    for path, line in origin.lines.items():
        steps = (renamed.get(path[: depth + 1], (step,)) for depth, step in enumerate(path))
        lines[tuple(itertools.chain.from_iterable(steps))] = line
    translation.origin = replace(origin, lines=lines)
    return translation


def values_with_new_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded values of a space, possibly of an older version, under their new names.

    >>> values_with_new_names({"width": 8, "train.converge.target": 0.9})
    {'width': 8, 'train.stopping.stop_at': 0.9}
    """
    translated: dict[str, Any] = with_new_keys(values, section="models.space").content
    return translated


def new_prune_key(key: str) -> str:
    """Return the new name of a key of ``prune`` that a rule may still know by its old one."""
    old_key = _SECTIONS["prune"].get(key)
    if old_key is None:
        return key
    return old_key.new


def oldest_name(name: str) -> str:
    """Return the oldest name of a setting of a space; random values are drawn in this order.

    >>> oldest_name("train.stopping.stop_at"), oldest_name("train.stopping.patience")
    ('train.converge.target', 'train.converge.patience')
    """
    for old, new in reversed(RENAMED_KEYS.items()):
        if name.startswith("train.") and is_below(name, new):
            return old + name.removeprefix(new)
    return name
