"""Replay a trace of idle nodes, with trainers that grow and shrink as nodes join and leave.

  fleet simulate idle-nodes --events idle.csv.gz --trainers trainers.json --horizon 120

Efficiency is the work of the trainers divided by the work that they could do on as many dedicated
nodes as were idle on average. docs/idle-nodes.md explains how it is computed.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import time
from pathlib import Path

from fleet.arguments import count, number, positive
from fleet.commands.output import add_plot, figure_file, show
from fleet.errors import UserError
from fleet.terminal import ProgressLine, print_table
from scheduler.idle.allocate import name_order
from scheduler.simulation import idle_trace as files
from scheduler.simulation.idle_nodes import (
    PLACEMENTS,
    POLICIES,
    ReplayResult,
    Settings,
    Summary,
    replay,
    summarize,
)

# The default file of node names, in the folder of the events.
NAMES_BESIDE = "summit_node_names.txt.gz"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "--events",
        type=Path,
        required=True,
        metavar="CSV[.gz]",
        help="file with the times at which nodes join and leave: t_s,node,delta",
    )
    add(
        "--trainers",
        type=Path,
        required=True,
        metavar="JSON[.gz]",
        help="file with the trainers: curves and jobs",
    )
    add(
        "--policy",
        choices=POLICIES,
        default="exact",
        help="policy that assigns nodes to trainers (exact)",
    )
    add(
        "--horizon",
        type=number(0),
        default=120.0,
        metavar="S",
        help="seconds in which no node is expected to leave (120)",
    )
    add(
        "--max-parallel",
        type=count,
        default=10,
        metavar="N",
        help="maximum number of concurrent trainers (10)",
    )
    add(
        "--nodes",
        type=_node_range,
        default=(0, None),
        metavar="A:B",
        help="only the nodes from A to B - 1 (all)",
    )
    add("--hours", type=positive, metavar="H", help="hours to replay (until the last event)")
    add(
        "--completions-are-events",
        action="store_true",
        help="also decide when a trainer ends or arrives, not only when nodes join or leave",
    )
    add(
        "--placement",
        choices=PLACEMENTS,
        help="order in which nodes are assigned: by index, or by name (by name if names are known)",
    )
    add(
        "--node-names",
        type=Path,
        metavar="FILE[.gz]",
        help=f"file in which line i is the name of node i ({NAMES_BESIDE} next to the events, if "
        "it exists)",
    )
    add(
        "--objective",
        choices=files.OBJECTIVES,
        default="file",
        help="objective of a trainer: samples/s, the speed-up over one node, or the one in its "
        "file (file)",
    )
    add(
        "--weight",
        type=_weight,
        action="append",
        default=[],
        metavar="CURVE=W",
        help="multiply the objective of trainers with this curve by W; repeat it for several "
        "curves",
    )
    add(
        "--rescale-factor",
        type=number(0),
        default=1.0,
        metavar="F",
        help="multiply the seconds that rescaling takes; 0: rescaling is free (1)",
    )
    add_plot(parser, "idle and used nodes over time")


def run(args: argparse.Namespace) -> None:
    """Replay, and print the numbers."""
    start = time.perf_counter()
    placement, names_path = _placement(args)
    settings = Settings(
        POLICIES[args.policy],
        args.horizon,
        args.max_parallel,
        args.completions_are_events,
        PLACEMENTS[placement],
    )
    trace = _trace(args, names_path if placement == "order" else None)
    jobs = files.with_objective(
        files.read_trainers(args.trainers), args.objective, dict(args.weight), args.rescale_factor
    )
    pace = ProgressLine("fleet simulate idle-nodes", "replayed", "changes")
    replayed = replay(trace, jobs, settings, pace)
    pace.end()
    summary = dataclasses.replace(
        summarize(trace, jobs, settings, replayed), wall_s=time.perf_counter() - start
    )
    if args.plot:
        plot(args.plot, replayed, summary)
    show(args, lambda: summary, lambda: _print(summary, len(jobs)))


def _placement(args: argparse.Namespace) -> tuple[str, Path | None]:
    """Return how trainers are placed on nodes, and the file with the names of nodes, if any."""
    default: Path = args.events.parent / NAMES_BESIDE
    path = args.node_names or (default if default.is_file() else None)
    if args.placement == "order" and path is None:
        raise UserError(
            "--placement order needs --node-names FILE, in which line i is the name of node i"
        )
    return args.placement or ("index" if path is None else "order"), path


def _trace(args: argparse.Namespace, names_path: Path | None) -> files.Trace:
    """Read the requested part of the trace; sort its nodes by their names, if these are given."""
    first, last = args.nodes
    pace = ProgressLine("fleet simulate idle-nodes", f"{args.events}: read", "bytes")
    full_trace = files.read_events(args.events, pace)
    pace.end()
    trace = full_trace.select(first, last, None if args.hours is None else args.hours * 3600)
    if names_path is None:
        return trace
    names = files.read_node_names(names_path)
    if len(names) < full_trace.size:
        raise UserError(
            f"{names_path}: {len(names)} names, but node {full_trace.size - 1} is in "
            f"{args.events}; there must be one line for each node, from 0"
        )
    return trace.arranged(name_order(names[first : first + trace.size]))


def _node_range(text: str) -> tuple[int, int | None]:
    first, colon, last = text.partition(":")
    if not colon or any(not re.fullmatch("[0-9]{0,15}", word) for word in (first, last)):
        raise argparse.ArgumentTypeError(
            f"{text!r} should be A:B, the nodes from A to B - 1, such as 0:1024"
        )
    return int(first or 0), int(last) if last else None


def _weight(text: str) -> tuple[str, float]:
    name, _, weight = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} should be CURVE=NUMBER, such as shufflenet=2")
    return name, number(0)(weight)


def _print(summary: Summary, jobs: int) -> None:
    print_table(
        ["idle nodes", ""],
        [
            ["efficiency", summary.efficiency],
            ["idle node-hours", round(summary.node_hours)],
            ["equivalent dedicated nodes", summary.equivalent_nodes],
            ["events", summary.events],
            ["samples lost to nodes that left", summary.preemption_cost_samples],
            ["samples lost to rescaling", summary.rescale_cost_samples],
            [f"trainers done (of {jobs})", summary.completed],
            ["mean hours of these trainers", summary.mean_trainer_hours],
            ["duration of the replay, s", summary.wall_s],
        ],
    )


def plot(path: Path, replayed: ReplayResult, summary: Summary) -> None:
    """Draw idle and used nodes, and the progress of trainers, over time."""
    hours = replayed.times_s / 3600
    with figure_file(path, 9, 5) as figure:
        above, below = figure.subplots(2, sharex=True)
        above.fill_between(hours, replayed.idle, step="post", color="0.85", label="idle")
        above.fill_between(
            hours, replayed.used, step="post", color="tab:blue", label="used by trainers"
        )
        above.set(ylabel="nodes", ylim=(0, None), xlim=(0, replayed.end_s / 3600))
        above.legend(loc="upper right")
        below.plot(hours, replayed.outcome, color="tab:blue")
        below.set(ylabel="done (objective)", xlabel="hours", ylim=(0, None))
        figure.suptitle(
            f"efficiency {summary.efficiency:.3f} on {summary.equivalent_nodes:.1f} equivalent "
            "nodes"
        )
