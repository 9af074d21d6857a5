"""Simulate a batch queue of jobs with unknown run times, under a rule for their requests.

    fleet simulate batch-queue --distribution truncnorm --mu 8 --sigma 2 --low 6 --high 16
    fleet simulate batch-queue trace.swf --requests recent --convention work-conserving
    fleet simulate batch-queue trace.swf --fit

Jobs are drawn from a law (times in hours) or read from a trace in the Standard Workload Format.
Utilization counts completed runs; the response time of a job is the time from its arrival to its
completion. Which rule is best depends on when reservations start; see docs/reservations.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleet.arguments import count, integer, share
from fleet.commands.options import add_law_parameters, add_seed, law_of
from fleet.commands.output import show
from fleet.errors import UserError
from fleet.terminal import print_table
from launch.errors import pluralize
from scheduler.reservation.distributions import LAWS, Law
from scheduler.simulation.batch_queue import Convention, Schedule, simulate
from scheduler.simulation.fit import Fit, fit_laws
from scheduler.simulation.swf import Trace, read_swf, write_swf
from scheduler.simulation.workload import (
    Rule,
    Sizes,
    draw_jobs,
    jobs_from_trace,
    schedule_to_trace,
    small_stream,
)

HOUR_S = 3600.0
MAX_RUNS = 10_000
PROCESSORS = 100  # of the machine, without a trace


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "trace",
        nargs="?",
        type=Path,
        metavar="TRACE.swf[.gz]",
        help="trace of the jobs of a real machine",
    )
    add(
        "--distribution",
        choices=LAWS,
        help="instead of a trace: law of the run times, in hours",
    )
    add_law_parameters(parser)
    add(
        "--jobs",
        type=count,
        default=100,
        metavar="N",
        help="number of jobs to draw from the law (100)",
    )
    add(
        "--sizes",
        type=Sizes,
        choices=list(Sizes),
        default=Sizes.BETA,
        help="processors of the drawn jobs: all, half, or drawn from a law (beta)",
    )
    add(
        "--processors",
        type=count,
        metavar="P",
        help=f"number of processors of the machine (as in the trace, or {PROCESSORS})",
    )
    add(
        "--requests",
        type=Rule,
        choices=list(Rule),
        default=Rule.TOPTIMAL,
        help="walltimes that jobs request: the longest known time; the longest of the last ten "
        "runs; optimal without or with backfill; as in the trace (toptimal)",
    )
    add(
        "--backfill-rate",
        type=share,
        metavar="Z",
        help="rate of backfill that atoptimal assumes (--stream)",
    )
    add(
        "--convention",
        type=Convention,
        choices=list(Convention),
        default=Convention.PLANNED,
        help="when reservations start (planned)",
    )
    add(
        "--speculative",
        action="store_true",
        help="try jobs in gaps that are shorter than their requests",
    )
    add(
        "--stream",
        type=share,
        metavar="Z",
        help="add small jobs, a hundred times shorter, whose work is this share of the machine",
    )
    add(
        "--runs",
        type=integer(1, MAX_RUNS),
        default=20,
        metavar="N",
        help="number of simulations with different draws to average (20; a trace is simulated "
        "once)",
    )
    add_seed(parser, "the draws")
    add(
        "--write-trace",
        type=Path,
        metavar="FILE.swf[.gz]",
        help="write the schedule of the first simulation",
    )
    add(
        "--fit",
        action="store_true",
        help="fit the laws to the run times of the trace instead of simulating",
    )


def run(args: argparse.Namespace) -> None:
    """Simulate, or fit, and print."""
    law = law_of(args)
    if (law is None) == (args.trace is None):
        raise UserError("give either a trace or a --distribution")
    trace = None if args.trace is None else read_swf(args.trace)
    if args.fit:
        if trace is None:
            raise UserError("--fit needs a trace")
        _fit(args, trace)
        return
    if trace is not None and args.stream is not None:
        raise UserError("--stream needs --distribution, whose law it scales down")
    schedules = list(_schedules(args, law, trace))
    if args.write_trace is not None:
        write_swf(
            args.write_trace, schedule_to_trace(schedules[0], HOUR_S if trace is None else 1.0)
        )
    result = _result(args, schedules, 1.0 if trace is None else 1 / HOUR_S)
    show(args, lambda: result, lambda: _print(result))


def _schedules(
    args: argparse.Namespace, law: Law | None, trace: Trace | None
) -> Iterator[Schedule]:
    processors = _processors(args, trace)
    if args.stream is None or law is None:
        stream = None
    else:
        stream = small_stream(law, args.stream, processors)
    if args.backfill_rate is not None:
        rate = args.backfill_rate
    else:
        rate = args.stream or 0.0
    # A trace has no random draws.
    for seed in range(args.seed, args.seed + (1 if law is None else args.runs)):
        if law is not None:
            jobs = draw_jobs(
                law,
                args.jobs,
                processors,
                args.sizes,
                args.requests,
                np.random.default_rng(seed),
                backfill_rate=rate,
                points=args.points,
            )
        else:
            assert trace is not None
            jobs = jobs_from_trace(trace, args.requests, rate)
        yield simulate(
            jobs,
            processors,
            args.convention,
            speculative=args.speculative,
            stream=stream,
            seed=seed,
        )


def _processors(args: argparse.Namespace, trace: Trace | None) -> int:
    default = PROCESSORS if trace is None else trace.machine_size
    processors: int | None = args.processors or default
    if processors is None:
        raise UserError(f"{args.trace}: the header has no MaxProcs; set --processors")
    return processors


def _result(args: argparse.Namespace, schedules: list[Schedule], hours: float) -> dict[str, Any]:
    """Return means over the runs of a simulation; times are in hours."""

    def mean(value: Callable[[Schedule], float]) -> float:
        return statistics.fmean(map(value, schedules))

    large = [sum(not job.small for job in schedule.jobs) for schedule in schedules]
    tries = [
        sum(not run.speculative and not schedule.jobs[run.job].small for run in schedule.runs)
        for schedule in schedules
    ]
    return {
        "requests": args.requests.value,
        "convention": args.convention.value,
        "speculative": args.speculative,
        "processors": schedules[0].processors,
        "jobs": large[0],
        "runs": len(schedules),
        "utilisation": mean(lambda schedule: schedule.utilization),
        "lost": mean(lambda schedule: schedule.failed_share),
        "mean_response_h": mean(lambda schedule: schedule.response(small=False) * hours),
        "small_mean_response_h": mean(lambda schedule: schedule.response(small=True) * hours),
        "makespan_h": mean(lambda schedule: (schedule.end - schedule.start) * hours),
        "submissions_per_job": sum(tries) / sum(large),
    }


def _print(result: dict[str, Any]) -> None:
    speculation = ", speculative backfilling" if result["speculative"] else ""
    print(
        f"{pluralize(result['jobs'], 'job')} on {pluralize(result['processors'], 'processor')}, "
        f"{pluralize(result['runs'], 'run')}; requests: {result['requests']}; "
        f"reservations: {result['convention']}{speculation}"
    )
    small_response = []
    if not math.isnan(result["small_mean_response_h"]):  # NaN without small jobs
        hours = f"{result['small_mean_response_h']:.4g}"
        small_response = [["response of small jobs, hours", hours]]
    print_table(
        ["", "mean"],
        [
            ["utilization", f"{result['utilisation']:.1%}"],
            ["lost in failed runs", f"{result['lost']:.1%}"],
            ["response, hours", f"{result['mean_response_h']:.4g}"],
            *small_response,
            ["makespan, hours", f"{result['makespan_h']:.4g}"],
            ["submissions per job", f"{result['submissions_per_job']:.3g}"],
        ],
    )


def _fit(args: argparse.Namespace, trace: Trace) -> None:
    hours = [job.run_s / HOUR_S for job in trace.jobs if job.completed]
    fits = fit_laws(hours)
    show(
        args,
        lambda: {
            "jobs": len(hours),
            "laws": [
                {
                    "distribution": fit.law.name,
                    **fit.law.parameters(),
                    "aic": fit.aic,
                    "ks_distance": fit.distance,
                }
                for fit in fits
            ],
        },
        lambda: _print_fits(hours, fits),
    )


def _print_fits(hours: list[float], fits: Sequence[Fit]) -> None:
    print(f"{pluralize(len(hours), 'completed run')}, in hours; best law first")
    print_table(
        ["law", "parameters", "AIC", "KS distance"],
        [[fit.law.name, _listed(fit.law), f"{fit.aic:.1f}", f"{fit.distance:.3f}"] for fit in fits],
    )


def _listed(law: Law) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in law.parameters().items())
