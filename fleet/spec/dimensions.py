"""Dimensions of search spaces: the values that one parameter may take.

A dimension is a tuple of values, a :class:`Range` of numbers, or :class:`Choices`, which are values
with a condition or with weights. A condition (``when``) makes a parameter part of only some members
of the space; see :mod:`fleet.spec.conditions`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from statistics import NormalDist
from typing import Annotated, Any, Literal, overload

from pydantic import Discriminator, Field, FiniteFloat, Tag, WithJsonSchema, model_validator

from fleet.errors import UserError
from fleet.spec.fields import NO_FLAG, AboveZero, Share, Whole
from fleet.spec.section import section

Bound = Whole | Annotated[FiniteFloat, NO_FLAG]
Flag = Annotated[bool, Field(strict=True)]
Values = Annotated[tuple[Any, ...], Field(min_length=1)]

# The smallest and the largest number that meet a condition; a mapping with one of them, or both.
LEAST = "least"
MOST = "most"
Bounds = dict[Literal["least", "most"], Bound]


def is_bounds(condition: Any) -> bool:
    """Return True if a condition consists of bounds, not of values.

    >>> is_bounds({"least": 3}), is_bounds({"name": "sgd"}), is_bounds([3, 4])
    (True, False, False)
    """
    return isinstance(condition, Mapping) and (LEAST in condition or MOST in condition)


def _form_of_condition(condition: Any) -> str:
    if is_bounds(condition):
        return "as bounds"
    if isinstance(condition, list | tuple):
        return "as values"
    return "as a value"


_VALUE = {
    "title": "a value",
    "not": {
        "anyOf": [
            {"type": "array"},
            {"type": "object", "required": [LEAST]},
            {"type": "object", "required": [MOST]},
        ]
    },
}
# Tagged by form, so that a mistake is reported for the form that the user chose. No tag is a key.
Condition = Annotated[
    Annotated[Bounds, Tag("as bounds")]
    | Annotated[Values, Tag("as values")]
    | Annotated[Any, Tag("as a value"), WithJsonSchema(_VALUE)],
    Discriminator(_form_of_condition),
]
When = dict[str, Condition]

_WHEN = """Conditions under which the parameter is used: other keys of the same space, each with a
    value, a list of values (any of them), or the bounds {least: 2, most: 8} (one or both). All must
    hold; a condition on a key that is not used itself does not. Otherwise, the parameter is left
    out, and the setting keeps the value that the spec gives it elsewhere."""


@section
class Prior:
    """A guess at the best value of a range. Random draws concentrate around it."""

    around: Bound
    """The value that is drawn most often."""
    spread: Annotated[Share, Field(gt=0, le=1)] = Field(
        default=0.15, json_schema_extra={"default": "15%"}
    )
    """Standard deviation of the draws, as a share of the width of the range (of its logarithm if
    `log: true`).
    """


@section
class Range:
    """A range of numbers from which a parameter is drawn uniformly, or around a prior."""

    low: Bound
    """Smallest value that is drawn."""
    high: Bound
    """Largest value that is drawn."""
    log: Flag = False
    """Draw the logarithm uniformly, for parameters whose order of magnitude matters."""
    integer: Flag = False
    """Draw integers only, no real numbers."""
    step: Bound | None = None
    """Draw only low, low + step, low + 2 · step, ... up to high. Default: every value."""
    prior: Prior | None = None
    """A guess at the best value: draws follow a normal distribution around it, cut off at the
    bounds (of the logarithm if `log: true`). Default: they are uniform.
    """
    when: When = Field(default_factory=dict, description=" ".join(_WHEN.split()))

    @model_validator(mode="after")
    def _check(self) -> Range:
        if max(abs(self.low), abs(self.high)) > 2**53:
            raise ValueError(
                "low and high must be at most 2**53, since larger integers are not exact as "
                "floating-point numbers"
            )
        if not self.low < self.high or math.isclose(self.low, self.high):
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range must start above 0, not at {self.low}")
        if self.integer and not (isinstance(self.low, int) and isinstance(self.high, int)):
            raise ValueError(
                f"an integer range needs integers as bounds, not {self.low} and {self.high}"
            )
        if self.step is not None:
            self._check_step(self.step)
        if self.prior is not None and not self.low <= self.prior.around <= self.high:
            raise ValueError(
                f"prior: around ({self.prior.around}) must be between low ({self.low}) and high "
                f"({self.high})"
            )
        return self

    def _check_step(self, step: int | float) -> None:
        if step <= 0:
            raise ValueError(f"step ({step}) must be above 0")
        if self.log:
            raise ValueError(
                "a logarithmic range has no step; leave out log or step, or list the values"
            )
        if self.integer and not isinstance(step, int):
            raise ValueError(f"an integer range needs an integer as step, not {step}")
        if self.low + step > self.high:
            raise ValueError(
                f"step ({step}) must be at most high - low ({_exact(self.high) - _exact(self.low)})"
                ", since otherwise only low can be drawn"
            )

    @property
    def is_finite(self) -> bool:
        """Whether the range has finitely many values: integers, or steps."""
        return self.integer or self.step is not None

    @property
    def size(self) -> float:
        """The number of values; infinite for real numbers without a step.

        >>> Range(0, 0.3, step=0.1).size, Range(1, 8, integer=True, step=2).size, Range(0, 1).size
        (4, 4, inf)
        """
        if not self.is_finite:
            return math.inf
        return int((_exact(self.high) - _exact(self.low)) // _exact(self._step)) + 1

    @property
    def _step(self) -> int | float:
        """The distance of two neighboring values of a finite range."""
        if self.step is None:
            return 1
        return self.step

    @property
    def last(self) -> int | float:
        """The largest value: high, unless steps end below it.

        >>> Range(1, 8, integer=True, step=2).last
        7
        """
        if self.is_finite:
            return self.value_at(int(self.size) - 1)
        return float(self.high)

    def value_at(self, index: int) -> int | float:
        """Return a value of a finite range by its index, counted from 0.

        >>> [Range(0, 0.3, step=0.1).value_at(index) for index in range(4)]
        [0.0, 0.1, 0.2, 0.3]
        """
        value = _exact(self.low) + index * _exact(self._step)
        if self.integer:
            return int(value)
        return float(value)

    def ends_between(self, low: float, high: float) -> tuple[int | float, int | float] | None:
        """Return the smallest and the largest value within bounds; None if there are not two.

        A single value of a finite range is enough.

        >>> Range(1, 9, integer=True).ends_between(2.5, 4), Range(0.0, 1.0).ends_between(1, 2)
        ((3, 4), None)
        """
        low = max(low, self.low)
        high = min(high, self.high)
        if not self.is_finite:
            return (float(low), float(high)) if low < high else None
        first, last = self.index_from(low), self.index_to(high)
        if first > last:
            return None
        return self.value_at(first), self.value_at(last)

    def index_from(self, number: float) -> int:
        """Return the index of the first value of a finite range that is at least a number."""
        return math.ceil((_exact(number) - _exact(self.low)) / _exact(self._step))

    def index_to(self, number: float) -> int:
        """Return the index of the last value of a finite range that is at most a number."""
        return math.floor((_exact(number) - _exact(self.low)) / _exact(self._step))

    def at(self, share: float) -> int | float:
        """Return the value at a share in [0, 1) of the range, or of its prior: the quantile.

        >>> Range(1, 3, integer=True).at(0.5), round(Range(0.001, 0.1, log=True).at(0.5), 6)
        (2, 0.01)
        >>> Range(0.0, 8.0, step=4).at(0.4), round(Range(0, 9, prior=Prior(3)).at(0.49), 1)
        (4.0, 3.0)
        """
        if self.prior is not None:
            share = self._share_by_prior(share, self.prior)
        if self.step is not None:
            return self.value_at(int(share * self.size))
        low, high = self._interval
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        value = min(max(value, self.low), self.high)  # rounding may exceed the bounds
        if self.integer:
            return math.floor(value + 0.5)
        return float(value)

    @property
    def _interval(self) -> tuple[float, float]:
        """The real interval that is drawn from before the value is rounded.

        Each integer represents the unit interval around it, so that all are equally likely.
        """
        if self.integer and self.step is None:
            return self.low - 0.5, self.high + 0.5
        return self.low, self.high

    def _share_by_prior(self, share: float, prior: Prior) -> float:
        """Return the share of the range below which a share of the draws of its prior lies.

        The prior is a normal distribution over the shares of the range, truncated to [0, 1], whose
        quantiles are those of the whole distribution between its values at 0 and 1.
        """
        if self.step is not None:
            position = float((_exact(prior.around) - _exact(self.low)) / _exact(self.step))
            center = (math.floor(position + 0.5) + 0.5) / self.size
        else:
            low, high = self._interval
            around = float(prior.around)
            if self.log:
                low, high, around = math.log(low), math.log(high), math.log(around)
            center = (around - low) / (high - low)
        law = NormalDist(center, prior.spread)
        below, up_to = law.cdf(0), law.cdf(1)
        quantile = min(max(below + share * (up_to - below), _SMALLEST), _LARGEST)
        return min(max(law.inv_cdf(quantile), 0.0), _LARGEST)

    def normal_form(self, value: Any) -> int | float:
        """Return a value as the range writes it.

        Raises:
            UserError: the value lies outside the range, or between its values.
        """
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.low <= value <= self.high
        ):
            raise UserError(f"{value!r} is not between {self.low} and {self.high}")
        if self.integer and value != int(value):
            raise UserError(f"{value!r} is not an integer")
        if self.step is None:
            return int(value) if self.integer else float(value)
        index = math.floor((value - self.low) / self.step + 0.5)
        if index >= self.size or not math.isclose(
            value, self.value_at(index), rel_tol=1e-9, abs_tol=1e-9 * self.step
        ):
            raise UserError(f"{value!r} is not {self.low} plus a multiple of {self.step}")
        return self.value_at(index)


# Numbers in (0, 1), between which quantiles of a normal distribution are computed.
_SMALLEST = 5e-324
_LARGEST = 1 - 2**-53


def _exact(number: int | float) -> Decimal:
    """Return a number as it is written, so that 0.1 + 2 · 0.1 is 0.3."""
    return Decimal(repr(number))


@section
class Choices(Sequence[Any]):
    """A list of values with conditions or weights; a list without them is enough otherwise."""

    choices: Values
    """The values that the parameter can take."""
    weights: Annotated[tuple[AboveZero, ...], Field(min_length=1)] | None = None
    """How often each value is drawn at random, relative to the others. Default: equally often."""
    when: When = Field(default_factory=dict, description=" ".join(_WHEN.split()))

    @model_validator(mode="after")
    def _check(self) -> Choices:
        if self.weights is not None and len(self.weights) != len(self.choices):
            raise ValueError(
                f"weights: there are {len(self.weights)} for {len(self.choices)} choices; "
                "give one weight for each choice"
            )
        return self

    def __len__(self) -> int:
        return len(self.choices)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.choices[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.choices)

    def at(self, share: float) -> Any:
        """Return the value at a share in [0, 1) of the weights.

        >>> Choices(("sgd", "adam"), weights=(1, 3)).at(0.24), Choices(("sgd", "adam")).at(0.5)
        ('sgd', 'adam')
        """
        if self.weights is None:
            return self.choices[int(share * len(self.choices))]
        limit = share * math.fsum(self.weights)
        for choice, weight in zip(self.choices, self.weights, strict=True):
            limit -= weight
            if limit < 0:
                return choice
        return self.choices[-1]


def _form(dimension: Any) -> str:
    if isinstance(dimension, Choices) or (
        isinstance(dimension, Mapping) and ("choices" in dimension or "weights" in dimension)
    ):
        return "as choices"
    if isinstance(dimension, Range | Mapping):
        return "range"
    return "values"


# Tagged by form, so that a mistake is reported for the form that the user chose.
Dimension = Annotated[
    Annotated[Range, Tag("range")]
    | Annotated[Choices, Tag("as choices")]
    | Annotated[Values, Tag("values")],
    Discriminator(_form),
]
Space = dict[str, Dimension]
Member = dict[str, Any]


# --- of any form ---------------------------------------------------------------------------


def conditions_of(dimension: Range | Sequence[Any]) -> When:
    """Return the conditions of a dimension; none for a plain list."""
    if isinstance(dimension, Range | Choices):
        return dimension.when
    return {}


def value_at(dimension: Range | Sequence[Any], share: float) -> Any:
    """Return the value at a share in [0, 1) of a dimension."""
    # Only random.random() is the same in every version of Python, its other methods are not.
    if isinstance(dimension, Range | Choices):
        return dimension.at(share)
    return dimension[int(share * len(dimension))]


def size_of_dimension(dimension: Range | Sequence[Any]) -> float:
    """Count the different values of a dimension."""
    if isinstance(dimension, Range):
        return dimension.size
    return len(different(dimension))


def values_of(dimension: Range | Sequence[Any]) -> Iterator[Any]:
    """Yield the different values of a finite dimension, in order."""
    if isinstance(dimension, Range):
        return (dimension.value_at(index) for index in range(int(dimension.size)))
    return iter(different(dimension))


def ends_of(dimension: Range | Sequence[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest value; the first and the last one if not all are numbers.

    >>> ends_of(Range(1, 8, integer=True, step=3)), ends_of((32, 16)), ends_of(("b", "a", "c"))
    ((1, 7), (16, 32), ('b', 'c'))
    """
    if isinstance(dimension, Range):
        return (dimension.low if dimension.integer else float(dimension.low)), dimension.last
    if all(is_number(choice) for choice in dimension):
        return min(dimension), max(dimension)
    return dimension[0], dimension[-1]


def normal_form(name: str, dimension: Range | Sequence[Any], value: Any) -> Any:
    """Return a value as its dimension writes it.

    Raises:
        UserError: the value lies outside the dimension; the message begins with the name.
    """
    if isinstance(dimension, Range):
        try:
            return dimension.normal_form(value)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    for is_same in (_is_identical, is_equal):
        for choice in dimension:
            if is_same(choice, value):
                return choice
    raise UserError(f"{name}: {value!r} is not one of {', '.join(map(repr, dimension))}")


def is_number(value: Any) -> bool:
    """Return True for a number; True and False are none."""
    return type(value) in (int, float)


def is_equal(first: Any, second: Any) -> bool:
    """Return True if two values mean the same: 1 and 1.0 do, 1 and True do not."""
    if is_number(first) and is_number(second):
        return bool(first == second)
    return _is_identical(first, second)


def _is_identical(first: Any, second: Any) -> bool:
    return key_of_value(first) == key_of_value(second)


def different(values: Sequence[Any]) -> list[Any]:
    """Return values without repetitions."""
    return list({key_of_value(value): value for value in values}.values())


def key_of_value(value: Any) -> str:
    """Return a value as text that can be hashed."""
    try:
        return json.dumps(value, sort_keys=True)
    except TypeError as error:
        raise UserError(
            f"search space: {value!r}: {error}; use numbers, text, lists and mappings"
        ) from None
