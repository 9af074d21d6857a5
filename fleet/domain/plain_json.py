"""Any value as JSON (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python


def as_json(value: Any) -> Any:
    """Convert a value to the types of JSON; NaN and infinity become None.

    >>> as_json({1: (float("nan"), 2.0)})
    {'1': [None, 2.0]}
    """
    return to_jsonable_python(value, inf_nan_mode="null", fallback=plain_items)


def plain_items(value: Any) -> Any:
    """Return the items of a mapping that is no dict, or of an array."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist()
