"""Simulate the autoscaler: elastic jobs that arrive, share GPUs, grow, shrink and end.

  fleet simulate autoscale --jobs generate --gpus 400 --minutes 480 --interval 0 --policy elastic
  fleet simulate autoscale --jobs jobs.json --drop --json

Jobs come from a file, or are drawn at random. Elastic ones change their batch with their
number of GPUs; fixed ones, the baseline, change the number of GPUs only. A file gives the
scaling of each job as it is, so there the policy changes nothing. Completion time is the
end of a job less its arrival; efficiency is the work of the jobs that completed over the
GPU-minutes held. docs/elastic.md says what is assumed.
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

from fleet.commands.options import add_json, print_json
from fleet.errors import ExitStatus, UserError
from fleet.terminal import bar, print_table
from scheduler.elastic.autoscaler import Autoscaling
from scheduler.elastic.jobs import PATTERNS, POLICIES, generate, job_record, read_jobs
from scheduler.elastic.simulation import ElasticJob, Outcome, simulate

# What --json prints of an outcome.
PRINTED = ("sjs_efficiency", "drop_ratio", "mean_completion_min", "completed", "completion_min")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("--jobs", required=True, metavar="FILE|generate", help="the jobs, as JSON, or draw them at random")
    add("--gpus", type=int, metavar="K", help="of the cluster (the file's, or 400)")
    add("--minutes", type=float, metavar="M",
        help="of a file: end the simulation then (with the last job); generate: jobs arrive for so long, "
             "and the simulation ends with the last (480)")
    add("--interval", type=float, default=10.0, metavar="M",
        help="minutes between decisions; 0: at every arrival and completion (10)")
    add("--policy", choices=POLICIES, default="elastic",
        help="generate: jobs with elastic batches, or the baseline of fixed random ones (elastic)")
    add("--drop", action="store_true", help="reject a job that does not fit, rather than let it wait")
    add("--arrivals", choices=PATTERNS, default="bursty", help="generate: the pattern of arrivals (bursty)")
    add("--load", type=float, default=1.0, metavar="X",
        help="generate: work that arrives in busy times, as a share of what the cluster can do (1)")
    add("--seed", type=int, default=0, help="generate: of the draws (0)")
    add("--rescale-cost-min", type=float, default=0.0, metavar="M",
        help="minutes for which a resized job stands still (0)")
    add("--hold-min", type=float, metavar="M",
        help="minutes for which a job keeps its size after a start or a resize (9 x the cost)")
    add("--save-jobs", type=Path, metavar="FILE", help="write the jobs to a file that --jobs reads")
    add("--plot", type=Path, metavar="FILE", help="draw jobs and GPUs over time (.png, .svg, .pdf)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, and print the numbers."""
    gpus, jobs, minutes = _jobs(args)
    settings = Autoscaling(gpus, args.interval, args.drop, args.rescale_cost_min, args.hold_min)
    if args.save_jobs:
        _save(args.save_jobs, json.dumps(job_record(gpus, jobs)))
    outcome = simulate(jobs, settings, minutes)
    if args.plot:
        plot(args.plot, jobs, outcome, settings)
    if args.json:
        print_json({name: getattr(outcome, name) for name in PRINTED})
    else:
        _print(jobs, outcome)
    return ExitStatus.OK


def _jobs(args: argparse.Namespace) -> tuple[int, Sequence[ElasticJob], float]:
    """The cluster's GPUs, the jobs, and when to end."""
    if args.minutes is not None and not (math.isfinite(args.minutes) and args.minutes > 0):
        raise UserError(f"--minutes {args.minutes}: a number above 0")
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: 0 or more")
    if args.jobs == "generate":
        gpus = 400 if args.gpus is None else args.gpus
        return gpus, generate(gpus, args.minutes or 480.0, args.arrivals, args.policy, args.seed, args.load), math.inf
    file = read_jobs(args.jobs)
    return file.gpus if args.gpus is None else args.gpus, file.jobs, args.minutes or math.inf


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--save-jobs {path}: {error.strerror}") from None


def _print(jobs: Sequence[ElasticJob], outcome: Outcome) -> None:
    decisions = sum(outcome.decisions.values())
    methods = ", ".join(f"{count} by {method}" for method, count in sorted(outcome.decisions.items()))
    print_table(["autoscaler", ""], [
        ["scheduled job scaling efficiency", outcome.sjs_efficiency],
        ["job drop ratio", outcome.drop_ratio],
        ["mean completion, min", outcome.mean_completion_min],
        [f"completed (of {len(jobs)})", outcome.completed],
        ["resizes of running jobs", outcome.rescales],
        ["minutes simulated", outcome.end_min],
        ["decisions", decisions],
    ])
    print(f"The optimizer decided {methods}; either method is exact.\n" if decisions else "No decision was made.\n")
    arrived, ended = moments(jobs, outcome)
    ends = [outcome.end_min * step / 12 for step in range(1, 13)]
    print_table(["min", "arrived", "completed", ""],
                [[round(end, 1), bisect.bisect(arrived, end), bisect.bisect(ended, end),
                  bar(bisect.bisect(ended, end), len(jobs))] for end in ends], title="Jobs completed over time")


def moments(jobs: Sequence[ElasticJob], outcome: Outcome) -> tuple[list[float], list[float]]:
    """When jobs arrived and when jobs completed, each in order."""
    arrived = sorted(job.arrival_min for job in jobs)
    ended = sorted(job.arrival_min + took for job, took in zip(jobs, outcome.completion_min, strict=True)
                   if took is not None)
    return arrived, ended


def draw_counts(axes: Any, jobs: Sequence[ElasticJob], outcome: Outcome, name: str) -> None:
    """Draw jobs completed over time."""
    _, ended = moments(jobs, outcome)
    axes.step([0.0, *ended, outcome.end_min], [*range(len(ended) + 1), len(ended)], where="post", label=name)


def plot(path: Path, jobs: Sequence[ElasticJob], outcome: Outcome, settings: Autoscaling) -> None:
    """Draw a simulation: jobs that arrived and completed, and GPUs held, over time.

    Raises:
        UserError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--plot wants matplotlib: pip install 'fleet-ensemble[plots]'") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    arrived, _ = moments(jobs, outcome)
    above.step(arrived, range(1, len(arrived) + 1), where="post", color="0.6", label="arrived")
    draw_counts(above, jobs, outcome, "completed")
    above.set(ylabel="jobs", ylim=(0, None), xlim=(0, outcome.end_min or None))
    above.legend(loc="upper left")
    changes: Counter[float] = Counter()
    for h in outcome.holdings:
        changes[h.start_min] += h.gpus
        changes[h.end_min] -= h.gpus
    held = list(accumulate(changes[moment] for moment in sorted(changes)))
    below.fill_between(sorted(changes), held, step="post", color="tab:blue", alpha=0.6)
    below.set(ylabel=f"GPUs held (of {settings.gpus})", xlabel="minutes", ylim=(0, settings.gpus))
    figure.suptitle(f"SJS efficiency {outcome.sjs_efficiency:.1%}, dropped {outcome.drop_ratio:.1%}, "
                    f"mean completion {outcome.mean_completion_min:.1f} min")
    try:
        figure.savefig(path, dpi=100)
    except (OSError, ValueError) as error:  # ValueError: a format that there is not
        raise UserError(f"--plot {path}: {error}") from None
