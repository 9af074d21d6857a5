"""Find the sequence of walltime requests with the lowest expected cost.

    fleet reserve --distribution truncnorm --mu 8 --sigma 2 --low 0 --high 20
    fleet reserve --log runs.txt --backfill-rate 0.2

A job that exceeds its request is stopped and submitted again with the next one. Its run time is
given as a distribution, a table, or a log of past runs. Results are in the unit of these times.
With fewer than 5 past runs, or for a job that has exceeded all known times, the result is twice the
longest known time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fleet.arguments import positive, share
from fleet.commands.options import add_law_parameters, law_of
from fleet.commands.output import show
from fleet.terminal import bar, print_table
from scheduler.reservation import requests as asking
from scheduler.reservation.distributions import LAWS, Discrete, discretize, empirical_law
from scheduler.reservation.log import read_runs, read_table

# Maximum number of values of a law: the costs by number of requests take quadratic time.
PLOT_UP_TO = 2000


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--distribution", choices=LAWS, help="law of the run times, with the parameters below"
    )
    source.add_argument(
        "--log", type=Path, metavar="FILE", help="file with past run times, one number per line"
    )
    source.add_argument(
        "--table", type=Path, metavar="FILE", help="file with a law, as rows time,probability"
    )
    add_law_parameters(parser)
    parser.add_argument(
        "--backfill-rate",
        type=share,
        default=0.0,
        metavar="Z",
        help="work for backfilling that arrives per unit of machine time; below 1 (0)",
    )
    parser.add_argument(
        "--failed",
        type=positive,
        action="append",
        default=[],
        metavar="TIME",
        help="request of this job that was too short; repeat it for several requests",
    )


def run(args: argparse.Namespace) -> None:
    """Compute and print the requests."""
    run_times, best, is_short = _best(args)
    remaining = run_times.longer_than(max(args.failed, default=0.0))
    if is_short or remaining is None:
        _print_reason(remaining)
    if remaining is None:
        single = best.expected_makespan
    else:
        single = asking.expected_makespan(
            remaining, [remaining.longest], args.backfill_rate, sum(args.failed)
        )
    # How far the expected makespan may exceed the minimum, as a share of it; nearly always 0.
    bound = {"error_bound": best.excess} if best.excess else {}
    needed = _needed(best, remaining)
    costs: tuple[float, ...] = ()
    if not (is_short or args.failed or remaining is None) and len(remaining.values) <= PLOT_UP_TO:
        costs = asking.makespan_by_count(remaining, args.backfill_rate, len(best.requests) + 2)
    show(
        args,
        lambda: {
            "requests": best.requests,
            "needed": needed,
            "expected_makespan": best.expected_makespan,
            "single_request_makespan": single,
            **({"expected_makespan_by_count": costs} if costs else {}),
            **bound,
        },
        lambda: _print(best, needed, single, costs),
    )


def _best(args: argparse.Namespace) -> tuple[Discrete, asking.RequestSequence, bool]:
    """Return the known run times, the best requests, and whether too few runs are known."""
    law = law_of(args)
    if args.log is not None:
        runs = read_runs(args.log)
        best = asking.requests_from_runs(runs, args.failed, args.backfill_rate)
        return empirical_law(runs), best, asking.has_too_few_runs(runs)
    if law is None:
        run_times = read_table(args.table)
    else:
        run_times = discretize(law, args.points)
    return run_times, asking.requests_after(run_times, args.failed, args.backfill_rate), False


def _print_reason(remaining: Discrete | None) -> None:
    if remaining is None:
        reason = "the job has exceeded every known run time"
    else:
        reason = f"fewer than {asking.MIN_RUNS} past runs are too few to learn from"
    print(f"fleet reserve: {reason}: requesting twice the longest known time", file=sys.stderr)


def _needed(best: asking.RequestSequence, remaining: Discrete | None) -> list[float]:
    """Return the probability that each request is needed, in order."""
    if remaining is None:
        return [1.0 for _ in best.requests]
    return [
        float(remaining.probabilities[remaining.values > request].sum())
        for request in (0.0, *best.requests[:-1])
    ]


def _print(
    best: asking.RequestSequence, needed: list[float], single: float, costs: tuple[float, ...]
) -> None:
    print_table(
        ["request", "walltime", "needed in"],
        [
            [number, f"{request:.7g}", f"{probability:.2%}"]
            for number, (request, probability) in enumerate(
                zip(best.requests, needed, strict=True), start=1
            )
        ],
    )
    saved = 1 - best.expected_makespan / single
    print(
        f"expected makespan {best.expected_makespan:.6g}; one request for the longest known run "
        "time: "
        f"{single:.6g}" + (f" ({saved:.1%} saved)" if saved > 0 else "")
    )
    if best.excess:
        print(
            f"The run times were rounded up to {asking.MAX_EXACT} values: no sequence has an "
            f"expected makespan more than {best.excess:.2%} lower."
        )
    if costs:
        print_table(
            ["requests", "expected makespan", ""],
            [
                [number, f"{cost:.6g}", bar(cost, max(costs), width=40)]
                for number, cost in enumerate(costs, 1)
            ],
        )
