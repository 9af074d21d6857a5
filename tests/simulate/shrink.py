"""Find a small case that fails as a large one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.simulate.cases import Case, smaller
from tests.simulate.run import simulate

_TRIES = 300
_SEEDS = 3


def kind_of(failure: str) -> str:
    """Return the kind of a failure: its first line without numbers."""
    line = failure.partition("\n")[0]
    return "".join(letter for letter in line if not letter.isdigit())[:60]


def shrink(case: Case, root: Path, failure: str, say: Callable[[str], object]) -> Case:
    """Drop faults, ranks, networks and epochs as long as the same failure remains.

    A smaller case draws other random numbers, so it is tried with a few seeds.
    """
    kind = kind_of(failure)
    tries = 0
    while True:
        for dropped, make in smaller(case):
            candidates = [replace(make(), seed=case.seed + more) for more in range(_SEEDS)]
            for candidate in candidates:
                tries += 1
                if kind_of(simulate(candidate, root).failure) == kind:
                    break
            else:
                if tries > _TRIES:
                    return case
                continue
            say(f"  without {dropped}, seed {candidate.seed}")
            case = candidate
            break
        else:
            return case
