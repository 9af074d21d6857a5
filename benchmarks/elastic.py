"""Elastic jobs: how fast the optimizer decides, and what the autoscaler makes of the paper's jobs.

    python benchmarks/elastic.py [--seeds 3] [--solver-limit 60] [--docs docs] [--json]

Prints the time of one decision for 2,000 jobs on 10,000 GPUs beside the target and beside HiGHS, and the paper's
Tables III and IV and its comparisons with jobs of one category beside our simulation of them. With --docs it also runs
what else docs/measured/elastic.md shows, and writes that file and its figures. Times are CPU seconds of one process,
medians of 5; the solver runs in a process of its own and is ended after the limit.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from apart import within

from fleet.commands.output import print_json
from fleet.terminal import print_table
from scheduler.elastic.allocate import ScalingCurve, allocate
from scheduler.elastic.autoscaler import Autoscaling
from scheduler.simulation.autoscale import Outcome, simulate
from scheduler.simulation.elastic_jobs import generate
from tests.oracles.elastic import dynamic_programme, integer_programme

# --- How fast -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """Milliseconds of one decision with new and with known curves, seconds by the dynamic programme and by HiGHS."""

    curves: str
    jobs: int
    gpus: int
    method: str
    new_ms: float
    known_ms: float
    programme_s: float
    solver_s: str
    same: bool


NEW_MS, KNOWN_MS = 20, 2  # targets of a decision at the large size
LARGE, PAPER = (2000, 10_000), (200, 400)


def category_curves(rng: np.random.Generator, jobs: int, policy: str) -> list[ScalingCurve]:
    """The curves of the simulated jobs, each its own."""
    drawn = generate(jobs, 2000, "high", policy, seed=int(rng.integers(1000)))
    return [ScalingCurve(job.curve.factors) for job in drawn[:jobs]]


def rising_curves(
    rng: np.random.Generator, jobs: int, max_gpus: int, concave: bool
) -> list[ScalingCurve]:
    """Curves with random gains from one count to the next."""
    curves = []
    for _ in range(jobs):
        gains = rng.random(max_gpus)
        curves.append(
            ScalingCurve(tuple(np.cumsum(np.sort(gains)[::-1] if concave else gains).tolist()))
        )
    return curves


CURVES: dict[str, Callable[[np.random.Generator, int], list[ScalingCurve]]] = {
    "the four categories, elastic": lambda rng, jobs: category_curves(rng, jobs, "elastic"),
    "the four categories, fixed batches": lambda rng, jobs: category_curves(rng, jobs, "fixed"),
    "concave, up to 10 GPUs": lambda rng, jobs: rising_curves(rng, jobs, 10, concave=True),
    "concave, up to 64 GPUs": lambda rng, jobs: rising_curves(rng, jobs, 64, concave=True),
    "any rising, up to 10 GPUs": lambda rng, jobs: rising_curves(rng, jobs, 10, concave=False),
    "any rising, up to 64 GPUs": lambda rng, jobs: rising_curves(rng, jobs, 64, concave=False),
}
# Kinds of curves, jobs and GPUs, and whether the solver is tried: at the large size it takes longer than the limit.
ROWS = (
    *((name, *LARGE, name == "the four categories, elastic") for name in CURVES),
    ("the four categories, elastic", *PAPER, True),
    ("any rising, up to 10 GPUs", *PAPER, True),
)


def instance(name: str, jobs: int, seed: int) -> list[ScalingCurve]:
    """Curves of which nothing has been worked out yet."""
    return CURVES[name](np.random.default_rng(seed), jobs)


def speeds(limit_s: float) -> list[Speed]:
    """One decision by each method on each kind of curves."""
    rows = []
    for name, jobs, gpus, solve in ROWS:
        chosen = allocate(instance(name, jobs, 0), gpus)
        programme = dynamic_programme(instance(name, jobs, 0), gpus)
        assert chosen is not None
        assert programme is not None
        solver = timed_solver(name, jobs, gpus, limit_s) if solve else None
        results = [programme.throughput, *([solver[1]] if solver else [])]
        solver_s = (
            f"> {limit_s:g} (wall)"
            if solve and solver is None
            else f"{solver[0]:.2f}"
            if solver
            else ""
        )
        rows.append(
            Speed(
                name,
                jobs,
                gpus,
                chosen.method,
                *decisions_ms(name, jobs, gpus),
                cpu(dynamic_programme, name, jobs, gpus),
                solver_s,
                all(math.isclose(value, chosen.throughput, rel_tol=1e-9) for value in results),
            )
        )
    return rows


def decisions_ms(name: str, jobs: int, gpus: int) -> tuple[float, float]:
    """Median CPU milliseconds over five instances: making all curves and deciding; and deciding as a live caller does.

    That one has decided before: each time one job has gone and another, with a curve of its own, has come.
    """
    new, known_curves = [], []
    for seed in range(5):
        factors = [curve.factors for curve in instance(name, jobs + 5, seed)]
        start = time.process_time()
        curves = [ScalingCurve(job_curves) for job_curves in factors[5:]]
        allocate(curves, gpus)
        new.append(time.process_time() - start)
        for job_curves in factors[:5]:
            start = time.process_time()
            curves = [*curves[1:], ScalingCurve(job_curves)]
            allocate(curves, gpus)
            known_curves.append(time.process_time() - start)
    return 1000 * statistics.median(new), 1000 * statistics.median(known_curves)


def cpu(
    method: Callable[[Sequence[ScalingCurve], int], object], name: str, jobs: int, gpus: int
) -> float:
    """Median CPU seconds over five instances."""
    times = []
    for seed in range(5):
        curves = instance(name, jobs, seed)
        start = time.process_time()
        method(curves, gpus)
        times.append(time.process_time() - start)
    return statistics.median(times)


def timed_solver(name: str, jobs: int, gpus: int, limit_s: float) -> tuple[float, float] | None:
    """CPU seconds and objective of HiGHS on instance 0; None where it took longer than the limit."""
    results: tuple[float, float] | None = within(limit_s, _solve, name, jobs, gpus)
    return results


def _solve(name: str, jobs: int, gpus: int, answer: Connection) -> None:
    from scipy.optimize import milp  # noqa: F401 - loaded before the clock starts

    curves = instance(name, jobs, 0)
    start = time.process_time()
    results = integer_programme(curves, gpus)
    assert results is not None
    answer.send((time.process_time() - start, results.throughput))


# --- The paper's tables -------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of Table III or IV: SJS efficiency and drop ratio in %, mean completion in minutes."""

    policy: str
    drop: bool
    paper: tuple[str, str, str]

    @property
    def name(self) -> str:
        return f"{self.policy}, {'drop' if self.drop else 'queue'}"


@dataclass(frozen=True)
class Table:
    """One of the paper's tables and how its jobs arrive."""

    title: str
    gpus: int
    minutes: float
    load: float
    rows: tuple[Row, ...]


# Table III gives a simulated and a measured number; where they differ both are shown, lowest first.
TABLES = (
    Table(
        "Table III",
        40,
        720.0,
        1.2,
        (
            Row("elastic", True, ("80.5-82.0", "10.1-13.6", "23.0-25.0")),
            Row("fixed", True, ("50.5-51.3", "39.6-42.4", "28.1-34.1")),
            Row("elastic", False, ("86.0-89.5", "", "27.8-33.8")),
            Row("fixed", False, ("41.9-42.9", "", "320-351")),
        ),
    ),
    Table(
        "Table IV",
        400,
        480.0,
        1.0,
        (
            Row("elastic", True, ("81.0", "1.23", "22.8")),
            Row("fixed", True, ("46.6", "38.3", "27.8")),
            Row("elastic", False, ("81.5", "", "23.0")),
            Row("fixed", False, ("43.1", "", "166.8")),
        ),
    ),
)


@dataclass(frozen=True)
class Reached:
    """What the simulation reached, for each seed."""

    table: Table
    row: Row
    outcomes: tuple[Outcome, ...]

    def text(self, name: str, scale: float, digits: int) -> str:
        """The mean of a number over the seeds, and its range."""
        values = [scale * getattr(outcome, name) for outcome in self.outcomes]
        ends = f"{min(values):.{digits}f}-{max(values):.{digits}f}"
        return f"{statistics.fmean(values):.{digits}f} ({ends})"

    @property
    def cells(self) -> list[str]:
        return [
            self.row.name,
            self.text("sjs_efficiency", 100, 1),
            self.row.paper[0],
            self.text("drop_ratio", 100, 1) if self.row.drop else "",
            self.row.paper[1],
            self.text("mean_completion_min", 1, 1),
            self.row.paper[2],
        ]


TABLE_HEADERS = (
    "policy",
    "SJS efficiency, %",
    "paper",
    "dropped, %",
    "paper",
    "completion, min",
    "paper",
)


def reach(table: Table, seeds: int) -> list[Reached]:
    """Simulate the rows of a table with decisions at every arrival and completion."""
    results = []
    for row in table.rows:
        settings = Autoscaling(table.gpus, interval_min=0, drop=row.drop)
        results.append(
            Reached(
                table,
                row,
                tuple(
                    simulate(
                        generate(table.gpus, table.minutes, "bursty", row.policy, seed, table.load),
                        settings,
                    )
                    for seed in range(seeds)
                ),
            )
        )
    return results


@dataclass(frozen=True)
class Case:
    """A comparison of the paper's with jobs of one category (Figs. 5 and 8), on 40 GPUs, with drops."""

    name: str
    category: int
    baseline: str
    arrivals: str
    minutes: float
    faster: bool  # whether jobs complete sooner by so much, or more of them complete
    paper: float  # in %

    def run(self, seeds: int) -> Compared:
        """Simulate elastic jobs and the baseline."""
        elastic, baseline = (
            [
                simulate(
                    generate(40, self.minutes, self.arrivals, policy, seed, 1.0, self.category),
                    Autoscaling(40, interval_min=0, drop=True),
                )
                for seed in range(seeds)
            ]
            for policy in ("elastic", self.baseline)
        )
        if self.faster:
            measured, published = (
                statistics.fmean(outcome.mean_completion_min for outcome in outcomes)
                for outcomes in (elastic, baseline)
            )
            return Compared(self, measured, published, 100 * (1 - measured / published))
        done, fewer = (
            sum(outcome.completed for outcome in outcomes) for outcomes in (elastic, baseline)
        )
        return Compared(self, done, fewer, 100 * (done / fewer - 1) if fewer else math.inf)


@dataclass(frozen=True)
class Compared:
    """What came out: jobs completed, or minutes to completion, and by how many % elastic jobs are better."""

    case: Case
    elastic: float
    baseline: float
    better: float

    @property
    def cells(self) -> list[str]:
        case = self.case
        apart = self.better - case.paper
        verdict = "reproduced" if abs(apart) <= 10 else f"not reproduced: {apart:+.0f} points"
        return [
            case.name,
            f"{self.elastic:.4g}",
            f"{self.baseline:.4g}",
            f"{self.better:.0f}",
            f"{case.paper:g}",
            verdict,
        ]


COMPARED_HEADERS = (
    "category, baseline and arrivals",
    "elastic",
    "baseline",
    "better, %",
    "paper, %",
    "",
)
CASES = (
    *(
        Case(
            f"Fig. 5: {number}, random batches, high: jobs completed",
            number,
            "fixed",
            "high",
            240,
            False,
            paper,
        )
        for number, paper in ((1, 82), (2, 64.4), (3, 90), (4, 0))
    ),
    Case("Fig. 8a: 1, largest batch, high: jobs completed", 1, "largest", "high", 240, False, 900),
    Case("Fig. 8b: 1, smallest batch, high: jobs completed", 1, "smallest", "high", 240, False, 0),
    Case(
        "Fig. 8c: 1, smallest batch, low: minutes to completion",
        1,
        "smallest",
        "low",
        720,
        True,
        16,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="simulations of each row of the tables (3)"
    )
    parser.add_argument(
        "--solver-limit", type=float, default=60.0, metavar="S", help="wall seconds (60)"
    )
    parser.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="write measured/elastic.md and figures/ there"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    speed = speeds(args.solver_limit)
    load = os.getloadavg()[0]
    reached = [reach(table, args.seeds) for table in TABLES]
    compared = [case.run(args.seeds) for case in CASES]
    if args.docs:
        from elastic_docs import write  # beside this file

        write(args.docs, speed, load, reached, compared)
    if args.json:
        print_json(
            {
                "decisions": list(map(asdict, speed)),
                "tables": {
                    rows[0].table.title: [
                        dict(zip(TABLE_HEADERS[::2], own_targets.cells[::2], strict=False))
                        for own_targets in rows
                    ]
                    for rows in reached
                },
                "one_category": [
                    dict(zip(COMPARED_HEADERS[:-1], own_targets.cells, strict=False))
                    for own_targets in compared
                ],
            }
        )
        return
    print_table(SPEED_HEADERS, [speed_cells(row) for row in speed])
    for rows in reached:
        table = rows[0].table
        print_table(
            TABLE_HEADERS,
            [own_targets.cells for own_targets in rows],
            title=f"{table.title}: {table.gpus} GPUs, load {table.load}, mean (range) of {args.seeds} seeds",
        )
    print_table(
        COMPARED_HEADERS,
        [own_targets.cells for own_targets in compared],
        title="One category at a time, 40 GPUs",
    )


SPEED_HEADERS = (
    "curves",
    "jobs",
    "GPUs",
    "chosen",
    "new curves, ms",
    f"target {NEW_MS}",
    "known curves, ms",
    f"target {KNOWN_MS}",
    "dynamic programme, s",
    "HiGHS, s",
    "same optimum",
)


def speed_cells(row: Speed) -> list[str | int]:
    """A row as text."""
    large = (row.jobs, row.gpus) == LARGE
    return [
        row.curves,
        row.jobs,
        row.gpus,
        row.method,
        f"{row.new_ms:.1f}",
        _met(row.new_ms, NEW_MS) if large else "",
        f"{row.known_ms:.2f}",
        _met(row.known_ms, KNOWN_MS) if large else "",
        f"{row.programme_s:.3f}",
        row.solver_s,
        "yes" if row.same else "NO",
    ]


def _met(ms: float, target_ms: float) -> str:
    return "met" if ms <= target_ms else "missed"


if __name__ == "__main__":
    main()
