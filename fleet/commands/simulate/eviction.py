"""Simulate how an on-demand job gets nodes of a full machine, for several deadlines.

    fleet simulate eviction --running 24 --nodes 1024 --deadline 15 --step 5

Batch jobs like those of Theta are drawn. For each deadline the plan is carried out, minute by
minute, until all jobs have ended. Numbers are means over the draws. docs/eviction.md lists the
assumptions.
"""

from __future__ import annotations

import argparse
import statistics

from fleet.arguments import count, integer, number
from fleet.commands.options import add_seed
from fleet.commands.output import show
from fleet.terminal import print_table
from launch.errors import pluralize
from scheduler.base import MAX_VALUE, MIN_VALUE
from scheduler.eviction.plan import Plan, RunningJob, plan_evictions
from scheduler.simulation.eviction import Outcome, simulate
from scheduler.simulation.greedy import greedy
from scheduler.simulation.theta import NODES, STORAGE, theta_like

MAX_DRAWS = 10_000
# Key that --json prints for each deadline -> the field of an outcome that it averages.
MEANS = {
    "start_min": "start_min",
    "lost_node_s": "lost_node_s",
    "idle_node_s": "idle_node_s",
    "batch_delay_min": "delay_min",
    "end_min": "end_min",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "--running",
        type=count,
        default=24,
        metavar="N",
        help="number of batch jobs that fill the machine (24)",
    )
    add(
        "--machine",
        type=count,
        default=NODES,
        metavar="NODES",
        help=f"number of nodes of the machine ({NODES})",
    )
    add(
        "--nodes",
        type=count,
        required=True,
        metavar="K",
        help="number of nodes that the on-demand job needs",
    )
    add(
        "--deadline",
        type=integer(),
        required=True,
        metavar="MIN",
        help="last deadline, in minutes",
    )
    add("--step", type=count, default=1, metavar="MIN", help="minutes between deadlines (1)")
    add(
        "--length",
        type=number(MIN_VALUE, MAX_VALUE),
        default=60.0,
        metavar="MIN",
        help="run time of the on-demand job, in minutes (60)",
    )
    add(
        "--policy",
        choices=("optimal", "greedy"),
        default="optimal",
        help="how evictions are planned (optimal)",
    )
    add(
        "--draws",
        type=integer(1, MAX_DRAWS),
        default=1,
        metavar="D",
        help="number of machines to draw and average over (1)",
    )
    add_seed(parser, "the first machine")


def run(args: argparse.Namespace) -> None:
    """Simulate and print."""
    machines = [_machine(args, seed) for seed in range(args.seed, args.seed + args.draws)]
    results = [_mean(same_deadline) for same_deadline in zip(*machines, strict=True)]
    show(args, lambda: {"policy": args.policy, "deadlines": results}, lambda: _print(args, results))


def _print(args: argparse.Namespace, results: list[dict[str, float]]) -> None:
    print(
        f"{pluralize(args.running, 'job')} on {pluralize(args.machine, 'node')}; an on-demand job "
        f"needs {args.nodes}"
    )
    print_table(
        [
            "deadline, min",
            "planned, min",
            "started, min",
            "lost, node-hours",
            "idle, node-hours",
            "batch delay, min",
            "all ended, min",
        ],
        [
            [
                result["deadline"],
                *(
                    round(result[name] / (3600 if name.endswith("_s") else 1), 1)
                    for name in ("planned_min", *MEANS)
                ),
            ]
            for result in results
        ],
    )


def _machine(args: argparse.Namespace, seed: int) -> list[tuple[Plan, Outcome]]:
    jobs = theta_like(args.running, seed, args.machine)
    plans = _plans(args, [job.checkpointing.running_job(STORAGE) for job in jobs])
    return [
        (plan, simulate(jobs, plan.actions, args.nodes, args.length, STORAGE)) for plan in plans
    ]


def _plans(args: argparse.Namespace, jobs: list[RunningJob]) -> list[Plan]:
    best = plan_evictions(jobs, args.nodes, args.deadline, args.step)
    if args.policy == "optimal":
        return best
    return [greedy(jobs, args.nodes, plan.deadline) for plan in best]


def _mean(outcomes: tuple[tuple[Plan, Outcome], ...]) -> dict[str, float]:
    """Return means over the draws for one deadline."""
    return {
        "deadline": outcomes[0][0].deadline,
        "planned_min": statistics.fmean(plan.checkpoint_time for plan, _ in outcomes),
        **{
            key: statistics.fmean(getattr(outcome, name) for _, outcome in outcomes)
            for key, name in MEANS.items()
        },
    }
