"""Find a small case that fails as a large one does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulate.cases import Case, smaller
from tests.simulate.run import simulate

_TRIES = 300


def kind_of(failure: str) -> str:
    """Return the kind of a failure: its first line without numbers."""
    line = failure.partition("\n")[0]
    return "".join(letter for letter in line if not letter.isdigit())[:60]


def shrink(case: Any, root: Path, failure: str, say: Callable[[str], object]) -> Case:
    """Drop faults, ranks, networks and epochs as long as the same failure remains."""
    kind = kind_of(failure)
    tries = 0
    while True:
        for dropped, make in smaller(case):
            tries += 1
            if tries > _TRIES:
                return case
            candidate = make()
            if kind_of(simulate(candidate, root).failure) == kind:
                say(f"  without {dropped}")
                case = candidate
                break
        else:
            return case
