"""Measure the efficiency and the speed of trainers on idle nodes.

    python benchmarks/idle_nodes.py --data FOLDER [--solver-limit 120] [--json]

FOLDER holds the Summit trace, its node names and the ShuffleNet trials, in the formats of ``fleet
simulate idle-nodes``. Prints three tables of measurements and targets: efficiency in the paper's
week; the whole two weeks; the time of one decision, with HiGHS on the published program over nodes
and on the program over counts. Times are median CPU seconds of one process; the solver runs in its
own process and is stopped after the limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from apart import run_within

from fleet.commands.output import print_json
from fleet.terminal import print_table
from scheduler.idle.allocate import (
    RateCurve,
    Trainer,
    allocate,
    allocate_equally_as_published,
    name_order,
    objective_value,
    place_in_order,
)
from scheduler.simulation.idle_nodes import Settings, Summary, replay, summarize
from scheduler.simulation.idle_trace import (
    Trace,
    TrainerJob,
    read_events,
    read_node_names,
    read_trainers,
    with_objective,
)
from tests.oracles.idle_nodes import allocate_counts, allocate_nodes

WEEK_S, NODES = 168 * 3600.0, 1024


@dataclass(frozen=True)
class Data:
    """The trace, and the same trace arranged by node names."""

    by_index: Trace
    by_name: Trace
    folder: Path

    @staticmethod
    def read(folder: Path, nodes: int | None = NODES, end_s: float | None = WEEK_S) -> Data:
        trace = read_events(folder / "summit_idle_events.csv.gz").select(0, nodes, end_s)
        names = read_node_names(folder / "summit_node_names.txt.gz")[: trace.size]
        return Data(trace, trace.arranged(name_order(names)), folder)

    def jobs(
        self,
        name: str = "trainers_hps_shufflenet_1000.json",
        objective: str = "file",
        rescale_factor: float = 1.0,
    ) -> tuple[TrainerJob, ...]:
        return with_objective(
            read_trainers(self.folder / name), objective, rescale_factor=rescale_factor
        )


# --- Efficiency ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A replay of the week, with its target efficiency."""

    name: str
    settings: Settings
    target: float
    paper: float | None = None
    rescale_factor: float = 1.0


at_completions = Settings(completions_are_events=True)
TARGETS = (
    Target(
        "equal as published, by index", Settings(policy=allocate_equally_as_published), 0.757, 0.75
    ),
    Target("exact, T = 10 s", Settings(horizon_s=10), 0.815),
    Target("exact, T = 60 s", Settings(horizon_s=60), 0.830),
    Target("exact, T = 120 s", Settings(horizon_s=120), 0.833, 0.80),
    Target("exact, T = 300 s", Settings(horizon_s=300), 0.832),
    Target("exact, also at completions", at_completions, 0.891),
    Target(
        "exact, also at completions, in order of names",
        replace(at_completions, placement=place_in_order),
        0.895,
    ),
    Target("no cost of rescaling or preemption", at_completions, 0.924, rescale_factor=0),
)


def efficiencies(data: Data) -> list[tuple[Target, Summary]]:
    """Replay the week with 1000 ShuffleNet trials, ten at a time."""
    rows = []
    for target in TARGETS:
        jobs = data.jobs(rescale_factor=target.rescale_factor)
        trace = data.by_name if target.settings.placement is place_in_order else data.by_index
        replayed = replay(trace, jobs, target.settings)
        rows.append((target, summarize(trace, jobs, target.settings, replayed)))
    return rows


# --- Speed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoWeeks:
    """The whole trace: 22,883 events of 4,734 nodes."""

    trials: str
    read_s: float
    replay_s: float
    efficiency_s: float
    summary: Summary


def cpu(action: Callable[[], object], repeat: int) -> float:
    """Return the median CPU seconds of an action."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def two_weeks(folder: Path, repeat: int = 3) -> list[TwoWeeks]:
    """Replay the whole trace with the trials, which end early, and with trials 20 times as long."""
    data = Data.read(folder, None, None)
    read_s = cpu(lambda: Data.read(folder, None, None), repeat)
    longer_jobs = tuple(replace(job, total_samples=20 * job.total_samples) for job in data.jobs())
    rows = []
    for trials, jobs in (("as published", data.jobs()), ("20 times as long", longer_jobs)):
        settings = Settings(placement=place_in_order)
        replay_s = cpu(partial(replay, data.by_name, jobs, settings), repeat)
        replayed = replay(data.by_name, jobs, settings)
        start = time.process_time()
        summary = summarize(data.by_name, jobs, settings, replayed)
        rows.append(TwoWeeks(trials, read_s, replay_s, time.process_time() - start, summary))
    return rows


@dataclass(frozen=True)
class Decision:
    """The seconds of one decision; None if the solver reached its limit."""

    trainers: int
    nodes: int
    n_max: int
    program_s: float
    counts_s: float | None
    nodes_s: float | None
    is_same: bool


SIZES = ((5, 50, 64), (10, 100, 64), (10, 400, 64), (30, 800, 64), (30, 800, 256), (30, 800, 800))


def instance(trainers: int, nodes: int, n_max: int, seed: int) -> tuple[list[Trainer], list[int]]:
    """Draw trainers like those of the paper's Table 2, each on some nodes."""
    rng = np.random.default_rng(seed)
    counts = [bend for bend in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 800) if bend <= n_max]
    trainer_list: list[Trainer] = []
    current: list[int] = []
    for _ in range(trainers):
        speeds = rng.uniform(1000, 7000) * np.array(counts) ** rng.uniform(0.85, 1.0)
        trainer_list.append(
            Trainer(RateCurve(tuple(counts), tuple(speeds.tolist())), 1, n_max, 18.0, 12.0)
        )
        current.append(
            int(rng.integers(0, min(n_max, nodes - sum(current), 2 * nodes // trainers) + 1))
        )
    return trainer_list, current


def decisions(limit_s: float, repeat: int = 9) -> list[Decision]:
    """Time one decision, by the dynamic program and by the solver on both programs."""
    rows = []
    for size in SIZES:
        # Gains are computed each time, as if all trainers had changed nodes.
        times = [cpu(partial(allocate, *problem(size, seed)), 1) for seed in range(repeat)]
        best = objective_value(*problem(size, 0)[:2], allocate(*problem(size, 0)), 120.0)
        counts, nodes = (timed_solver(solver, size, limit_s) for solver in ("counts", "nodes"))
        is_same = all(abs(answer[1] - best) <= 1e-9 * best for answer in (counts, nodes) if answer)
        rows.append(
            Decision(
                *size, statistics.median(times), counts and counts[0], nodes and nodes[0], is_same
            )
        )
    return rows


def problem(size: tuple[int, int, int], seed: int) -> tuple[list[Trainer], list[int], int, float]:
    trainer_list, current = instance(*size, seed)
    for trainer in trainer_list:
        _ = trainer.rates  # tabulated once per trainer, not at each decision
    return trainer_list, current, size[1], 120.0


def timed_solver(
    solver: str, size: tuple[int, int, int], limit_s: float
) -> tuple[float, float] | None:
    """Return the CPU seconds and the objective of HiGHS on instance 0, or None after the limit."""
    answer: tuple[float, float] | None = run_within(limit_s, _solve, solver, size)
    return answer


def _solve(solver: str, size: tuple[int, int, int], answer: Connection) -> None:
    from scipy.optimize import milp  # noqa: F401 - loaded before the clock starts

    trainer_list, current, nodes, horizon_s = problem(size, 0)
    start = time.process_time()
    if solver == "counts":
        solution = allocate_counts(trainer_list, current, nodes, horizon_s)
    else:
        ends = np.cumsum([0, *current]).tolist()
        held_nodes = [
            frozenset(range(end - count, end)) for end, count in zip(ends[1:], current, strict=True)
        ]
        solution_or_none = allocate_nodes(trainer_list, held_nodes, nodes, horizon_s)
        assert solution_or_none is not None
        solution = solution_or_none
    answer.send(
        (
            time.process_time() - start,
            objective_value(trainer_list, current, solution.counts, horizon_s),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--solver-limit", type=float, default=120.0, metavar="S", help="wall seconds (default: 120)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    quality = efficiencies(Data.read(args.data))
    weeks = two_weeks(args.data)
    speed = decisions(args.solver_limit)
    if args.json:
        print_json(
            {
                "efficiency": {target.name: summary.efficiency for target, summary in quality},
                "two_weeks": list(map(asdict, weeks)),
                "decisions": list(map(asdict, speed)),
            }
        )
        return
    print_table(
        ["a week of 1024 nodes", "efficiency", "target", "paper"],
        [
            [target.name, summary.efficiency, target.target, target.paper]
            for target, summary in quality
        ],
    )
    print_table(
        [
            "two weeks of 4734 nodes, trials",
            "events (22883)",
            "node-hours (137639)",
            "read s",
            "replay s",
            "efficiency s",
            "sum s",
            "target s",
        ],
        [
            [
                row.trials,
                row.summary.events,
                round(row.summary.node_hours),
                row.read_s,
                row.replay_s,
                row.efficiency_s,
                row.read_s + row.replay_s + row.efficiency_s,
                15,
            ]
            for row in weeks
        ],
    )
    print_table(
        [
            "trainers",
            "nodes",
            "n_max",
            "program ms",
            "target ms",
            "HiGHS, counts s",
            "HiGHS, nodes s",
            "same optimum",
        ],
        [
            [
                row.trainers,
                row.nodes,
                row.n_max,
                1000 * row.program_s,
                8 if (row.trainers, row.nodes) == (30, 800) else None,
                row.counts_s,
                row.nodes_s if row.nodes_s is not None else f"> {args.solver_limit:g}",
                "yes" if row.is_same else "NO",
            ]
            for row in speed
        ],
    )


if __name__ == "__main__":
    main()
