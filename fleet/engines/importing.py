"""Importing packages without some that they can do without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_if_missing(*packages: str) -> Iterator[None]:
    """A context in which packages cannot be imported, unless they have been already.

    For what is imported in it and can do without them.
    """
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None says that there is no such module
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
