"""The search of another tool in the words of a spec, whatever its format (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fleet.errors import UserError, short_repr
from fleet.spec.search import MAX_TRIALS, Mode
from fleet.storage.trials_file import FileTrial

_DIGITS = 12  # significant digits of bounds that are computed, such as e**-9.2
_LARGEST = 2**53  # as in :class:`fleet.spec.space.Range`


class Note(NamedTuple):
    """A remark about a key of the other tool: what became of it, and why."""

    key: str
    text: str

    def __str__(self) -> str:
        return " ".join(f"{self.key}: {self.text}".split())


class Metric(NamedTuple):
    """A quantity that the other tool optimizes, by its name there."""

    name: str
    mode: Mode


@dataclass
class Sweep:
    """A search that another tool describes.

    Attributes:
        kind: the format, such as ``W&B sweep``.
        name, description: its own, if it has them.
        space: parameter -> list of choices, or the mapping of a range, as a spec writes them.
        fixed: parameter -> its only value.
        search: keys of ``search``; None if a single network is trained.
        prune: keys of ``prune``.
        stopping: keys of ``train.stopping``.
        entry: further keys of the entry.
        seed: the seed of all random choices, if it has one.
        metrics: what is optimized, the most important metric first.
        trials: the trials that have ended, by the parameters' names of the other tool.
        left_out: what a spec cannot say.
        changed: what a spec says in another way.
    """

    kind: str
    name: str = ""
    description: str = ""
    space: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] | None = None
    prune: dict[str, Any] = field(default_factory=dict)
    stopping: dict[str, Any] = field(default_factory=dict)
    entry: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    metrics: list[Metric] = field(default_factory=list)
    trials: list[FileTrial] = field(default_factory=list)
    left_out: list[Note] = field(default_factory=list)
    changed: list[Note] = field(default_factory=list)

    def leave_out(self, key: str, reason: str) -> None:
        """Note that a spec cannot say something."""
        self.left_out.append(Note(key, reason))

    def change(self, key: str, text: str) -> None:
        """Note that a spec says something in another way."""
        self.changed.append(Note(key, text))

    def add(self, name: str, dimension: Any) -> None:
        """Add a parameter; one with a single unconditional value is fixed.

        Args:
            name: its name.
            dimension: choices or a range, from :func:`choices` or :func:`number_range`.
        """
        if isinstance(dimension, list) and len(dimension) == 1:
            self.fixed[name] = dimension[0]
        else:
            self.space[name] = dimension

    def limit_trials(self, key: str, count: int) -> None:
        """Set the number of trials that the other tool does not limit."""
        self.search = {**(self.search or {}), "max_trials": count}
        self.change(key, f"no limit is given, and a search needs one: max_trials is {count}")


def choices(
    values: Sequence[Any],
    when: Mapping[str, Any] | None = None,
    weights: Sequence[float] | None = None,
) -> Any:
    """Return the choices of a space.

    Args:
        values: the choices.
        when: the conditions under which they are drawn.
        weights: how often each is drawn, relative to the others.

    >>> choices([1, 2]), choices([1, 2], {"layers": 3})
    ([1, 2], {'choices': [1, 2], 'when': {'layers': 3}})
    """
    content: dict[str, Any] = {"choices": list(values)}
    if weights and len(set(weights)) > 1:
        content["weights"] = list(weights)
    if when:
        content["when"] = dict(when)
    if len(content) == 1:
        return list(values)
    return content


def number_range(
    key: str,
    low: float,
    high: float,
    *,
    log: bool = False,
    integer: bool = False,
    step: float | None = None,
    prior: Mapping[str, Any] | None = None,
    when: Mapping[str, Any] | None = None,
) -> Any:
    """Return a range of a space, or its only value as a list of choices.

    Args:
        key: the parameter, for messages.
        low, high: the smallest and the largest value, both included.
        log: whether the logarithm is drawn uniformly.
        integer: whether values are integers.
        step: distance between two values.
        prior: the key ``prior`` of the range.
        when: the conditions under which it is drawn.

    Raises:
        UserError: the bounds are no bounds of a range.

    >>> number_range("width", 8, 64, integer=True), number_range("rate", 0.5, 0.5)
    ({'low': 8, 'high': 64, 'integer': True}, [0.5])
    """
    bounds = [check_number(key, bound) for bound in (low, high)]
    if integer:
        low, high = (int(bound) for bound in bounds)
    else:
        low, high = (float(bound) for bound in bounds)
    if low > high:
        raise UserError(f"{key}: the smallest value {low} is above the largest value {high}")
    if log and low <= 0:
        raise UserError(f"{key}: a logarithmic range should start above 0, not at {low}")
    if low == high or math.isclose(low, high):
        return choices([low], when)
    content: dict[str, Any] = {"low": low, "high": high}
    if log:
        content["log"] = True
    if integer:
        content["integer"] = True
    if step is not None:
        content["step"] = int(step) if integer else step
    if prior is not None:
        content["prior"] = dict(prior)
    if when:
        content["when"] = dict(when)
    return content


def within(dimension: Any, value: Any) -> Any:
    """Return a value of a trial, at a bound of its range if it is beyond it by rounding only.

    >>> within({"low": 0.1, "high": 0.3}, 0.30000000000000004), within({"low": 0, "high": 1}, 2)
    (0.3, 2)
    """
    if isinstance(dimension, Mapping) and "low" in dimension and type(value) in (int, float):
        for bound in (dimension["low"], dimension["high"]):
            if math.isclose(value, bound, rel_tol=1e-9):
                return bound
    return value


def rounded(value: float) -> float:
    """Round a computed number to twelve significant digits.

    >>> rounded(0.1 + 0.2)
    0.3
    """
    return float(f"{value:.{_DIGITS}g}")


def check_number(key: str, value: Any) -> float:
    """Return a finite number of a sweep that a spec can say.

    Raises:
        UserError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{key}: {short_repr(value)} should be a number")
    if not abs(value) <= _LARGEST:
        raise UserError(f"{key}: {value} should be a number of at most 2**53")
    return value


def check_count(key: str, value: Any, largest: int = MAX_TRIALS) -> int:
    """Return a whole number of at least 1; one above the largest is cut.

    Raises:
        UserError: it is something else.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{key}: {short_repr(value)} should be a whole number of at least 1")
    return min(value, largest)


def check_mapping(key: str, value: Any) -> dict[str, Any]:
    """Return a mapping with keys of text.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{key}: {short_repr(value)} should be a mapping")
    return dict(value)


def check_list(key: str, value: Any) -> list[Any]:
    """Return a list of at least one item.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"{key}: {short_repr(value)} should be a list of values")
    return list(value)


def check_word(key: str, value: Any, words: Sequence[str]) -> str:
    """Return one of some words.

    Raises:
        UserError: it is something else.
    """
    if value not in words:
        right = words[0] if len(words) == 1 else f"one of {', '.join(words)}"
        raise UserError(f"{key}: {short_repr(value)} should be {right}")
    return str(value)
