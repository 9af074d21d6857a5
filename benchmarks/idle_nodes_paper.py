"""Reproduce BFTrainer's figures and tables: update the blocks of docs/measured/idle-nodes.md.

    python benchmarks/idle_nodes_paper.py --data FOLDER [--docs docs] [--solver-limit 120]
        [--only NAME ...]

FOLDER holds the Summit trace, its node names, and the ShuffleNet and ImageNet trainers, in the
formats of ``fleet simulate idle-nodes``. Replaces the blocks of ``DOCS/measured/idle-nodes.md``
between ``<!-- measured: NAME -->`` and ``<!-- end -->``, and the figures in ``DOCS/figures/``; the
prose stays. Takes 15 minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import document
import numpy as np
from document import fill, table
from idle_nodes import Data, decisions, efficiencies, two_weeks
from idle_nodes_claims import IMAGENET, block

from scheduler.idle.allocate import allocate_equally_as_published, place_in_order
from scheduler.simulation.idle_nodes import Settings, Summary, efficiency, replay, static_outcome
from scheduler.simulation.idle_trace import Trace, TrainerJob

# Decisions at changes of the trace only, nodes by index, T = 120 s, ten at a time.
PUBLISHED = Settings()
SHARED = Settings(policy=allocate_equally_as_published)
BEST = Settings(completions_are_events=True, placement=place_in_order)
HORIZONS_S = (5, 10, 20, 40, 60, 80, 120, 160, 200, 240, 300)
PARALLEL = (5, 10, 15, 20, 25, 30, 35)
FACTORS = tuple(range(1, 11))

# Average trainer hours in the paper, for each of PARALLEL.
TABLE_3 = {  # objective: samples per second
    "AlexNet": (0.5, 0.6, 0.5, 0.6, 0.5, 0.5, 0.6),
    "resnet18": (0.4, 0.4, 0.4, 0.4, 0.5, 0.5, 0.5),
    "mnasnet1": (0.7, 0.7, 0.8, 0.8, 0.9, 0.9, 1.1),
    "mobilenet": (0.8, 0.9, 0.8, 0.9, 1.0, 1.2, 1.4),
    "shufflenet": (0.9, 1.0, 0.9, 1.2, 1.4, 1.6, 1.8),
    "vgg16": (2.3, 3.4, 4.1, 5.4, 6.1, 6.3, 7.4),
    "DenseNet": (4.1, 9.5, 16.1, 22.4, 29.2, 36.3, 42.3),
}
TABLE_4 = {  # objective: scaling efficiency
    "vgg16": (1.98, 2.8, 3.3, 3.8, 4.5, 5.0, 5.2),
    "DenseNet": (2.58, 3.4, 4.6, 5.2, 6.4, 6.5, 7.8),
    "resnet18": (0.77, 1.1, 1.5, 1.9, 2.1, 2.4, 2.6),
    "mobilenet": (0.89, 1.8, 2.7, 3.8, 4.7, 5.9, 7.4),
    "shufflenet": (1.15, 2.1, 2.9, 4.2, 5.4, 7.2, 8.5),
    "mnasnet1": (1.15, 2.3, 3.8, 5.5, 7.0, 9.4, 10.7),
    "AlexNet": (0.94, 2.4, 3.9, 5.3, 6.8, 7.6, 8.8),
}
OBJECTIVES = {"samples": "samples/s", "efficiency": "scaling efficiency"}


# --- The experiments ----------------------------------------------------------------------------


def share(trace: Trace, jobs: Sequence[TrainerJob], settings: Settings) -> float:
    """Return the efficiency of one replay."""
    return efficiency(trace, jobs, replay(trace, jobs, settings), settings.max_parallel)


def trace_for(data: Data, settings: Settings) -> Trace:
    return data.by_name if settings.placement is place_in_order else data.by_index


def horizons(data: Data, jobs: Sequence[TrainerJob], settings: Settings) -> list[float]:
    """Return the efficiencies for all forward-looking times (Figs. 9 and 13)."""
    return [
        share(trace_for(data, settings), jobs, replace(settings, horizon_s=horizon))
        for horizon in HORIZONS_S
    ]


def speed_up_efficiencies(data: Data) -> list[float]:
    """Return the efficiencies of objective samples/s, in speed-up of each network (Fig. 13)."""
    jobs, normal = data.jobs(IMAGENET, "samples"), data.jobs(IMAGENET, "efficiency")
    seconds = data.by_index.end_s
    best = static_outcome(
        normal, data.by_index.node_seconds() / seconds, seconds, PUBLISHED.max_parallel
    )
    results = []
    for horizon in HORIZONS_S:
        done = replay(data.by_index, jobs, replace(PUBLISHED, horizon_s=horizon))
        results.append(
            sum(record.samples / jobs[record.job].samples.table(1)[1] for record in done.trainers)
            / best
        )
    return results


def six_hours(data: Data, jobs: Sequence[TrainerJob], settings: Settings) -> list[float]:
    """Return the efficiency of each six hours, relative to as many dedicated nodes (Fig. 10)."""
    trace = trace_for(data, settings)
    ends = np.arange(0, trace.end_s + 1, 6 * 3600)
    outcomes = np.diff(replay(trace, jobs, settings).outcome_until(ends))
    nodes = np.diff([trace.node_seconds(end) for end in ends]) / (6 * 3600)
    initial_jobs = tuple(replace(job, submit_s=0.0) for job in jobs)
    return [
        float(done) / static_outcome(initial_jobs, idle, 6 * 3600, settings.max_parallel)
        for done, idle in zip(outcomes, nodes.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class FullReplay:
    """A replay until all trainers are done: a column of Table 3 or 4, and a point of Fig. 14."""

    node_hours: float
    mean_hours: float
    efficiency: float
    hours: dict[str, float]
    unfinished: int

    @staticmethod
    def of(trace: Trace, jobs: Sequence[TrainerJob], settings: Settings) -> FullReplay:
        done = replay(trace, jobs, settings)
        hours: dict[str, list[float]] = {}
        for record in done.trainers:
            if record.ended_s is not None:
                hours.setdefault(jobs[record.job].curve, []).append(
                    (record.ended_s - record.started_s) / 3600
                )
        end_s = max(record.ended_s or 0.0 for record in done.trainers)
        return FullReplay(
            trace.node_seconds(end_s) / 3600,
            done.mean_trainer_hours,
            efficiency(trace, jobs, done, settings.max_parallel),
            {curve: float(np.mean(values)) for curve, values in hours.items()},
            len(jobs) - done.completed,
        )


def trials_of(
    jobs: Sequence[TrainerJob], like: Sequence[TrainerJob]
) -> dict[str, tuple[TrainerJob, ...]]:
    """Return as many trials of each network of ``jobs`` as ``like`` has of ShuffleNet (Fig. 15)."""
    models = {job.curve: job for job in jobs}
    return {
        curve: tuple(
            replace(
                trial,
                curve=curve,
                samples=model.samples,
                trainer=replace(trial.trainer, objective=model.samples),
            )
            for trial in like
        )
        for curve, model in models.items()
    }


# --- The blocks ---------------------------------------------------------------------------------


def picture(path: Path, size: tuple[float, float], columns: int, draw: Callable[..., None]) -> None:
    document.picture(path, size, 1, columns, lambda axes: draw(*axes[0]))


def targets_block(data: Data) -> str:
    rows: list[tuple[Any, Summary]] = efficiencies(data)
    return table(
        [
            "replay",
            "efficiency",
            "target",
            "paper",
            "trainers done",
            "samples lost to departures, 1e9",
            "to rescaling, 1e9",
        ],
        [
            [
                target.name,
                summary.efficiency,
                target.target,
                None if target.paper is None else f"{target.paper:.2f}",
                summary.completed,
                f"{summary.preemption_cost_samples / 1e9:.2f}",
                f"{summary.rescale_cost_samples / 1e9:.2f}",
            ]
            for target, summary in rows
        ],
    )


def speed_block(folder: Path, limit_s: float) -> str:
    weeks = table(
        ["trials", "events", "node-hours", "reading, s", "replay, s", "A_s, s", "total, s"],
        [
            [
                row.trials,
                row.summary.events,
                round(row.summary.node_hours),
                f"{row.read_s:.1f}",
                f"{row.replay_s:.1f}",
                f"{row.efficiency_s:.1f}",
                f"{row.read_s + row.replay_s + row.efficiency_s:.1f}",
            ]
            for row in two_weeks(folder)
        ],
    )
    sizes = table(
        [
            "trainers",
            "nodes",
            "n_max",
            "program, ms",
            "HiGHS over counts, ms",
            "HiGHS over nodes, ms",
            "same optimum",
        ],
        [
            [
                row.trainers,
                row.nodes,
                row.n_max,
                f"{1e3 * row.program_s:.2f}",
                _ms(row.counts_s, limit_s),
                _ms(row.nodes_s, limit_s),
                "yes" if row.is_same else "no",
            ]
            for row in decisions(limit_s)
        ],
    )
    return f"{weeks}\n\n{sizes}"


def _ms(seconds: float | None, limit_s: float) -> str:
    return f"> {limit_s * 1e3:.0f}" if seconds is None else f"{seconds * 1e3:.0f}"


def departures_block(folder: Path) -> str:
    """Return how often the node after a departing one leaves too, and where departures are."""
    rows, data = [], Data.read(folder, None, None)
    for name, trace in (("by index", data.by_index), ("by name", data.by_name)):
        pairs, first_tenth = _departures(trace)
        rows.append([name, f"{pairs:.0%}", f"{first_tenth:.0%}"])
    return table(
        ["order of idle nodes", "next node leaves too", "departures from the first tenth"], rows
    )


def _departures(trace: Trace) -> tuple[float, float]:
    idle, pairs, positions = np.zeros(trace.size, dtype=bool), [], []
    for first, last in zip(trace.starts, trace.starts[1:], strict=False):
        nodes, joined = trace.nodes[first:last], trace.joined[first:last]
        leaving, idle_nodes = np.sort(nodes[~joined]), np.flatnonzero(idle)
        if 2 <= len(leaving) < len(idle_nodes):  # departures of one or of all say nothing
            rank = np.searchsorted(idle_nodes, leaving)
            pairs.append(np.mean(np.diff(rank) == 1))
            positions.extend((rank / len(idle_nodes)).tolist())
        idle[leaving], idle[nodes[joined]] = False, True
    return float(np.mean(pairs)), float(np.mean(np.array(positions) < 0.1))


def horizon_block(data: Data, figure: Path) -> str:
    trials = data.jobs()
    lines = {
        "ShuffleNet, published convention": horizons(data, trials, PUBLISHED),
        "ShuffleNet, also at completions, in order": horizons(data, trials, BEST),
        "ShuffleNet, equal": [share(data.by_index, trials, SHARED)] * len(HORIZONS_S),
        **{
            f"ImageNet, {text}": horizons(data, data.jobs(IMAGENET, objective), PUBLISHED)
            for objective, text in OBJECTIVES.items()
        },
        "ImageNet, samples/s, measured in speed-up": speed_up_efficiencies(data),
    }

    def draw(axes_left: Any, right: Any) -> None:
        for index, (name, values) in enumerate(lines.items()):
            (axes_left if index < 3 else right).plot(
                HORIZONS_S, 100 * np.array(values), marker=".", label=name
            )
        axes_left.set(title="Fig. 9: one network", ylabel="efficiency, %")
        right.set(title="Fig. 13: seven networks")
        for axes in (axes_left, right):
            axes.set(xlabel="forward-looking time, s", ylim=(70, 92))
            axes.legend(fontsize="small", loc="lower right")

    picture(figure, (10, 3.6), 2, draw)
    return table(["T, s", *lines], zip(HORIZONS_S, *lines.values(), strict=True))


def week_block(data: Data, figure: Path) -> str:
    trials = data.jobs()
    lines = {
        "equal": six_hours(data, trials, SHARED),
        "exact": six_hours(data, trials, PUBLISHED),
        "exact, also at completions, in order": six_hours(data, trials, BEST),
    }
    hours = 6 * np.arange(1, len(lines["equal"]) + 1)

    def draw(axes: Any) -> None:
        for name, values in lines.items():
            axes.plot(hours, 100 * np.array(values), marker=".", label=name)
        axes.set(
            title="Fig. 10: each six hours",
            ylabel="efficiency, %",
            xlabel="hours",
            xticks=hours[3::4],
        )
        axes.legend(fontsize="small")

    picture(figure, (10, 3.2), 1, draw)
    ratio = np.array(lines["exact"]) / np.array(lines["equal"])
    return table(
        ["", "mean", "min", "max", "six hours of 90 % or more"],
        [
            [
                name,
                float(np.mean(values)),
                min(values),
                max(values),
                sum(value >= 0.9 for value in values),
            ]
            for name, values in lines.items()
        ]
        + [
            [
                "exact over equal",
                float(np.mean(ratio)),
                float(ratio.min()),
                float(ratio.max()),
                None,
            ]
        ],
    )


def parallel_block(folder: Path, figure: Path) -> str:
    data = Data.read(folder, end_s=None)
    runs = {
        objective: [
            FullReplay.of(
                data.by_index,
                data.jobs(IMAGENET, objective),
                replace(PUBLISHED, max_parallel=parallel),
            )
            for parallel in PARALLEL
        ]
        for objective in OBJECTIVES
    }

    def draw(*axes: Any) -> None:
        for objective, columns in runs.items():
            for part, name in zip(axes, ("node_hours", "mean_hours", "efficiency"), strict=True):
                part.plot(
                    PARALLEL,
                    [getattr(run, name) for run in columns],
                    marker=".",
                    label=OBJECTIVES[objective],
                )
        for part, name in zip(
            axes, ("node-hours until all are done", "mean trainer hours", "efficiency"), strict=True
        ):
            part.set(title=name, xlabel="concurrent trainers")
        axes[0].legend(fontsize="small")

    picture(figure, (10, 3.2), 3, draw)
    all_hours = table(
        ["objective", "", *PARALLEL],
        [
            [OBJECTIVES[objective], name, *(text(run) for run in columns)]
            for objective, columns in runs.items()
            for name, text in ENDS.items()
        ],
    )
    tables = [
        f"Mean trainer hours, objective {OBJECTIVES[objective]} (Table {number}); the paper's in "
        "parentheses.\n\n"
        + table(
            ["network", *PARALLEL],
            [
                [
                    curve,
                    *(
                        f"{run.hours[curve]:.1f} ({value})"
                        for run, value in zip(runs[objective], paper, strict=True)
                    ),
                ]
                for curve, paper in printed.items()
            ],
        )
        for number, objective, printed in ((3, "samples", TABLE_3), (4, "efficiency", TABLE_4))
    ]
    return "\n\n".join([all_hours, *tables])


ENDS: dict[str, Callable[[FullReplay], str]] = {
    "node-hours": lambda run: f"{run.node_hours:.0f}",
    "mean trainer hours": lambda run: f"{run.mean_hours:.2f}",
    "efficiency": lambda run: f"{run.efficiency:.3f}",
    "unfinished at the end of the trace": lambda run: str(run.unfinished),
}


def costs_block(data: Data, folder: Path, figure: Path) -> str:
    sixty = Data.read(folder, end_s=60 * 3600)
    trials = trials_of(data.jobs(IMAGENET, "samples"), data.jobs())
    order = sorted(trials, key=lambda curve: trials[curve][0].samples.normalized().values[-1])
    networks = {
        name: [share(trace_for(sixty, settings), trials[curve], settings) for curve in order]
        for name, settings in (
            ("published convention", PUBLISHED),
            ("also at completions, in order", BEST),
        )
    }
    factors = {
        name: [
            share(trace_for(data, settings), data.jobs(rescale_factor=factor), settings)
            for factor in FACTORS
        ]
        for name, settings in (
            ("published convention", PUBLISHED),
            ("also at completions, in order", BEST),
        )
    }

    def draw(axes_left: Any, right: Any) -> None:
        positions = np.arange(len(order))
        for shift, (name, values) in zip((-0.2, 0.2), networks.items(), strict=True):
            axes_left.bar(positions + shift, 100 * np.array(values), 0.4, label=name)
        axes_left.set(
            title="Fig. 15: which network", ylabel="efficiency, %", xticks=positions, ylim=(50, 100)
        )
        axes_left.set_xticklabels(order, rotation=20, fontsize="small")
        for name, values in factors.items():
            right.plot(FACTORS, 100 * np.array(values), marker=".", label=name)
        right.set(title="Fig. 16: more expensive rescaling", xlabel="cost factor", ylim=(50, 100))
        right.legend(fontsize="small")

    picture(figure, (10, 3.6), 2, draw)
    return "\n\n".join(
        [
            table(
                ["first 60 hours", *order], [[name, *values] for name, values in networks.items()]
            ),
            table(
                ["cost of rescaling", *(f"{factor}x" for factor in FACTORS)],
                [[name, *values] for name, values in factors.items()],
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument(
        "--solver-limit", type=float, default=120.0, metavar="S", help="wall seconds (default: 120)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="measure only these blocks (default: all)",
    )
    args = parser.parse_args()
    data, figures = Data.read(args.data), args.docs / "figures"
    page = args.docs / "measured/idle-nodes.md"
    page.write_text(
        fill(
            page.read_text(),
            {
                "targets": lambda: targets_block(data),
                "departures": lambda: departures_block(args.data),
                "horizon": lambda: horizon_block(data, figures / "idle-nodes-horizon.png"),
                "week": lambda: week_block(data, figures / "idle-nodes-week.png"),
                "parallel": lambda: parallel_block(args.data, figures / "idle-nodes-parallel.png"),
                "costs": lambda: costs_block(data, args.data, figures / "idle-nodes-costs.png"),
                "claims": lambda: block(args.data, max(six_hours(data, data.jobs(), PUBLISHED))),
                "speed": lambda: speed_block(args.data, args.solver_limit),
            },
            args.only,
        )
    )


if __name__ == "__main__":
    main()
