"""Constraints on the networks of a search, such as ``parameters <= 1e6`` (pure)."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.errors import UserError

_FORM = re.compile(r"(?P<value>.*?[^\s<>=!])\s*(?P<relation><=|>=|<|>)\s*(?P<bound>[^\s<>=!].*)")
_RIGHT = "it should be NAME <= NUMBER, or with >=, < or >, such as parameters <= 1e6"


@dataclass(frozen=True)
class Constraint:
    """A bound on a quantity of a network.

    Attributes:
        text: the constraint as the spec writes it.
        value: name of the quantity, one that an objective may name.
        limit: the largest or smallest value that meets it.
        is_upper: whether the limit is the largest value.
    """

    text: str
    value: str
    limit: float
    is_upper: bool

    def violation(self, value: float) -> float:
        """Return by how much a value exceeds the limit; at most 0 if it meets it, NaN for NaN.

        A number that no log can hold becomes the largest one.

        >>> parse_constraint("parameters <= 1e6").violation(1_200_000)
        200000.0
        >>> parse_constraint("val_accuracy > 0.5").violation(0.5) > 0
        True
        """
        excess = value - self.limit if self.is_upper else self.limit - value
        if math.isinf(excess):
            return math.copysign(sys.float_info.max, excess)
        return excess


def parse_constraint(text: str) -> Constraint:
    """Read a constraint ``NAME <= NUMBER``, or with ``>=``, ``<`` or ``>``.

    Raises:
        UserError: the text has another form.

    >>> parse_constraint("parameters <= 1e6").limit
    1000000.0
    """
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise UserError(f"{text!r} is no constraint; {_RIGHT}")
    try:
        limit = float(form["bound"])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise UserError(f"{text!r}: {form['bound']!r} is no finite number; {_RIGHT}")
    is_upper = form["relation"].startswith("<")
    if "=" not in form["relation"]:
        limit = math.nextafter(limit, -math.inf if is_upper else math.inf)
    return Constraint(text.strip(), form["value"], limit, is_upper)


def find_impossible(constraints: Sequence[Constraint]) -> tuple[int, str] | None:
    """Return a constraint that repeats or contradicts an earlier one: its index, and what is wrong.

    >>> find_impossible([parse_constraint("epochs <= 3"), parse_constraint("epochs > 3")])
    (1, 'no value of epochs can also meet epochs <= 3')
    """
    for index, constraint in enumerate(constraints):
        for earlier in constraints[:index]:
            if earlier.value != constraint.value:
                continue
            if earlier.is_upper == constraint.is_upper:
                return index, f"{constraint.value} is already bounded by {earlier.text}"
            # The limit of one must meet the other.
            if constraint.violation(earlier.limit) > 0:
                return index, f"no value of {constraint.value} can also meet {earlier.text}"
    return None


def violated(constraints: Iterable[str], violations: Iterable[float]) -> tuple[str, ...]:
    """Return the constraints that a network is known to violate.

    Args:
        constraints: the constraints as the spec writes them.
        violations: the violation of each, NaN if unknown; empty if none is known.

    >>> violated(["parameters <= 1e6", "rate >= 10"], [3.0, float("nan")])
    ('parameters <= 1e6',)
    """
    return tuple(
        text for text, violation in zip(constraints, violations, strict=False) if violation > 0
    )
