"""Measure how fast planning and simulation are: CPU seconds, medians of 5, with the targets.

    python benchmarks/planning.py [--json]

Plans 1,000 networks on 1,000 GPUs with empty caches, and simulates 100 networks on 160 GPUs from
start to end, under every policy, with drawn ensembles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleet.commands.output import print_json
from fleet.terminal import print_table
from scheduler.base import Cluster, Delta, Options, Progress
from scheduler.ensemble import rates, waterfill
from scheduler.ensemble.policies import POLICIES
from scheduler.simulation.draw import generate
from scheduler.simulation.ensemble import simulate

TARGET_S = 1.0
REPETITIONS = 5
LITERAL = Options(delta=Delta(20.0, relative=False), peak_limited=False)


@dataclass(frozen=True)
class Row:
    label: str
    policy: str
    median_s: float
    target_s: float = TARGET_S


def median_s(work: Callable[[], object]) -> float:
    """Return CPU seconds; the caches of rates are cleared before each repetition."""
    seconds = []
    for _ in range(REPETITIONS):
        for cache in (rates.curves, rates._curves, waterfill.hulls):
            cache.cache_clear()
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


def rows() -> list[Row]:
    """Return all measurements."""
    large, small = generate(1000, seed=1), generate(100, seed=1)
    settings = [(policy, Options()) for policy in POLICIES] + [("global", LITERAL)]
    measured = []
    for policy, options in settings:
        name = policy if options is not LITERAL else f"{policy}, literal"
        measured.append(
            Row(
                "plan 1,000 networks on 1,000 GPUs",
                name,
                median_s(
                    partial(
                        POLICIES[policy].decide, large, Progress(), Cluster.of(1000, 4), options
                    )
                ),
            )
        )
        measured.append(
            Row(
                "simulate 100 networks on 160 GPUs",
                name,
                median_s(partial(simulate, small, Cluster.of(160, 4), POLICIES[policy], options)),
            )
        )
    return sorted(measured, key=lambda row: row.label)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    measured = rows()
    if args.json:
        print_json([vars(row) for row in measured])
    else:
        print_table(
            ["task", "policy", "median, s", "target, s"],
            [[row.label, row.policy, row.median_s, row.target_s] for row in measured],
        )


if __name__ == "__main__":
    main()
