"""Take all edges of the phase table: ``python -m tests.simulate.edges`` runs :data:`CASES`.

A change of FLEET may change what a seed meets; then other seeds of these scenarios follow until all
edges are taken.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator

from tests.simulate.cases import Case
from tests.simulate.command import SHARED_MEMORY, install, say
from tests.simulate.coverage import all_edges, count_edges
from tests.simulate.scenarios import named

# Scenarios and seeds that together take all edges.
CASES = {
    "known death": (1, 3, 4, 11, 15),
    "late report": (1, 2, 3, 4, 16, 19, 20, 27, 28, 32, 47, 99, 135),
    "growing group": (4,),
    "pauses to grow": (4, 17),
    "late failure": (1, 2),
}
_MOST = 100  # seeds


def _cases() -> Iterator[tuple[str, int]]:
    """Yield scenarios and seeds: those of the list first."""
    for name, seeds in CASES.items():
        for seed in seeds:
            yield name, seed
    for seed in itertools.count(200):
        for name in CASES:
            yield name, seed


def main() -> int:
    """Run cases until all edges are taken; returns 1 if a case fails or an edge is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.edges", description=__doc__)
    parser.add_argument("--job", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    install()
    from tests.simulate.run import simulate

    edges = Counter[str]()
    count_edges(edges)
    root = SHARED_MEMORY / f"simulated-fleet-{arguments.job:03d}"
    missing = all_edges()
    count = len(missing)
    failed = False
    for name, seed in itertools.islice(_cases(), _MOST):
        if not missing:
            break
        outcome = simulate(named(name, seed, Case(seed, 1, 1, False, {}, ())), root)
        failed |= bool(outcome.failure)
        steps = [step for step in missing if edges[step]]
        missing = [step for step in missing if not edges[step]]
        say(f"{name}, seed {seed}: {outcome.failure or ', '.join(steps)}")
    say(f"{count - len(missing)} of {count} edges of the phase table")
    for step in missing:
        say(f"  not taken: {step}")
    return int(failed or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
