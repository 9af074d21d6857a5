"""Simulate elastic jobs that arrive over time, share GPUs, grow, shrink and end.

  fleet simulate autoscale --jobs generate --gpus 400 --minutes 480 --interval 0 --policy elastic
  fleet simulate autoscale --jobs jobs.json --drop --json

Jobs come from a file, or are drawn at random. The batch of an elastic job depends on its number of
GPUs; the batch of a fixed job, the baseline, does not. A file contains the scaling of each job, so
the policy has no effect on it. The completion time of a job counts from its arrival; efficiency is
the work of completed jobs divided by the GPU-minutes that they held. docs/elastic.md lists the
assumptions.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from fleet.arguments import count, integer, number, positive
from fleet.commands.options import add_seed
from fleet.commands.output import add_plot, figure_file, show
from fleet.errors import UserError
from fleet.terminal import bar, print_table
from scheduler.elastic.autoscaler import Autoscaling
from scheduler.simulation.autoscale import ElasticJob, Outcome, simulate
from scheduler.simulation.elastic_jobs import (
    ELASTIC,
    PATTERNS,
    POLICIES,
    generate,
    job_record,
    read_jobs,
)

# The fields of an outcome that --json prints.
PRINTED = (
    "sjs_efficiency",
    "drop_ratio",
    "mean_completion_min",
    "completed",
    "rescales",
    "decisions",
    "end_min",
    "completion_min",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "--jobs",
        required=True,
        metavar="FILE|generate",
        help="JSON file of the jobs, or generate to draw them",
    )
    add(
        "--gpus",
        type=count,
        metavar="K",
        help="number of GPUs of the cluster (as in the file, or 400)",
    )
    add(
        "--minutes",
        type=positive,
        metavar="M",
        help="with a file: end of the simulation (the end of the last job); with generate: period "
        "in which jobs arrive (480)",
    )
    add(
        "--interval",
        type=number(0),
        default=10.0,
        metavar="M",
        help="minutes between decisions; 0 decides at every arrival and completion (10)",
    )
    add(
        "--policy",
        choices=POLICIES,
        default=ELASTIC,
        help="with generate: elastic batches, or fixed ones as a baseline: random, smallest, "
        "largest (elastic)",
    )
    add(
        "--category",
        type=integer(1, 4),
        metavar="N",
        help="with generate: only jobs of this category in Table I of the paper, from 1 to 4 (all)",
    )
    add(
        "--drop",
        action="store_true",
        help="reject a job that does not fit instead of letting it wait",
    )
    add(
        "--arrivals",
        choices=PATTERNS,
        default="bursty",
        help="with generate: pattern of arrivals (bursty)",
    )
    add(
        "--load",
        type=positive,
        default=1.0,
        metavar="X",
        help="with generate: work that arrives in busy periods, relative to the capacity (1)",
    )
    add_seed(parser, "the draws of generate")
    add(
        "--rescale-cost-min",
        type=number(0),
        default=0.0,
        metavar="M",
        help="minutes for which a resized job pauses (0)",
    )
    add(
        "--hold-min",
        type=number(0),
        metavar="M",
        help="minutes for which a job keeps its size after a start or a resize (9 times the cost)",
    )
    add(
        "--save-jobs",
        type=Path,
        metavar="FILE",
        help="write the jobs to a file that --jobs can read",
    )
    add_plot(parser, "jobs and GPUs over time")


def run(args: argparse.Namespace) -> None:
    """Simulate, and print the numbers."""
    gpus, jobs, minutes = _jobs(args)
    settings = Autoscaling(gpus, args.interval, args.drop, args.rescale_cost_min, args.hold_min)
    if args.save_jobs:
        _save(args.save_jobs, json.dumps(job_record(gpus, jobs)))
    outcome = simulate(jobs, settings, minutes)
    if args.plot:
        plot(args.plot, jobs, outcome, settings)
    show(
        args,
        lambda: {name: getattr(outcome, name) for name in PRINTED},
        lambda: _print(jobs, outcome),
    )


def _jobs(args: argparse.Namespace) -> tuple[int, Sequence[ElasticJob], float]:
    """Return the cluster's GPUs, the jobs, and when to end."""
    if args.jobs == "generate":
        gpus = 400 if args.gpus is None else args.gpus
        return (
            gpus,
            generate(
                gpus,
                args.minutes or 480.0,
                args.arrivals,
                args.policy,
                args.seed,
                args.load,
                args.category,
            ),
            math.inf,
        )
    if args.category is not None:
        raise UserError("--category needs --jobs generate: a file describes its own jobs")
    file = read_jobs(args.jobs)
    return file.gpus if args.gpus is None else args.gpus, file.jobs, args.minutes or math.inf


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--save-jobs: {path}: {error.strerror}") from None


def _print(jobs: Sequence[ElasticJob], outcome: Outcome) -> None:
    decisions = sum(outcome.decisions.values())
    methods = ", ".join(
        f"{count} by {method}" for method, count in sorted(outcome.decisions.items())
    )
    print_table(
        ["autoscaler", ""],
        [
            ["scheduled job scaling efficiency", outcome.sjs_efficiency],
            ["job drop ratio", outcome.drop_ratio],
            ["mean completion, min", outcome.mean_completion_min],
            [f"completed (of {len(jobs)})", outcome.completed],
            ["resizes of running jobs", outcome.rescales],
            ["minutes simulated", outcome.end_min],
            ["decisions", decisions],
        ],
    )
    if decisions:
        print(f"The optimizer decided {methods}; either method is exact.\n")
    else:
        print("No decision was made.\n")
    arrived, ended = moments(jobs, outcome)
    ends = [outcome.end_min * step / 12 for step in range(1, 13)]
    print_table(
        ["min", "arrived", "completed", ""],
        [
            [
                round(end, 1),
                bisect.bisect(arrived, end),
                bisect.bisect(ended, end),
                bar(bisect.bisect(ended, end), len(jobs)),
            ]
            for end in ends
        ],
        title="Jobs completed over time",
    )


def moments(jobs: Sequence[ElasticJob], outcome: Outcome) -> tuple[list[float], list[float]]:
    """Return when jobs arrived and when jobs completed, each in order."""
    arrived = sorted(job.arrival_min for job in jobs)
    ended = sorted(
        job.arrival_min + took
        for job, took in zip(jobs, outcome.completion_min, strict=True)
        if took is not None
    )
    return arrived, ended


def draw_counts(axes: Any, jobs: Sequence[ElasticJob], outcome: Outcome, name: str) -> None:
    """Draw jobs completed over time."""
    _, ended = moments(jobs, outcome)
    axes.step(
        [0.0, *ended, outcome.end_min],
        [*range(len(ended) + 1), len(ended)],
        where="post",
        label=name,
    )


def plot(path: Path, jobs: Sequence[ElasticJob], outcome: Outcome, settings: Autoscaling) -> None:
    """Draw a simulation: jobs that arrived and completed, and GPUs held, over time."""
    with figure_file(path, 9, 5) as figure:
        above, below = figure.subplots(2, sharex=True)
        arrived, _ = moments(jobs, outcome)
        above.step(arrived, range(1, len(arrived) + 1), where="post", color="0.6", label="arrived")
        draw_counts(above, jobs, outcome, "completed")
        above.set(ylabel="jobs", ylim=(0, None), xlim=(0, outcome.end_min or None))
        above.legend(loc="upper left")
        times, gpus = _gpus_in_use(outcome)
        below.fill_between(times, gpus, step="post", color="tab:blue", alpha=0.6)
        below.set(
            ylabel=f"GPUs held (of {settings.gpus})", xlabel="minutes", ylim=(0, settings.gpus)
        )
        figure.suptitle(
            f"SJS efficiency {outcome.sjs_efficiency:.1%}, dropped {outcome.drop_ratio:.1%}, "
            f"mean completion {outcome.mean_completion_min:.1f} min"
        )


def _gpus_in_use(outcome: Outcome) -> tuple[list[float], list[int]]:
    """Return the minutes at which the number of GPUs in use changes, and the new numbers."""
    changes: Counter[float] = Counter()
    for holding in outcome.holdings:
        changes[holding.start_min] += holding.gpus
        changes[holding.end_min] -= holding.gpus
    times = sorted(changes)
    return times, list(accumulate(changes[time] for time in times))
