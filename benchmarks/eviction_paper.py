"""Reproduce CoSim's figures: update the measured blocks of docs/measured/eviction.md.

    python benchmarks/eviction_paper.py [--docs docs] [--draws 20]

Replaces the blocks of ``DOCS/measured/eviction.md`` between ``<!-- measured: NAME -->`` and
``<!-- end -->``, and the figures in ``DOCS/figures/``; the prose stays. Takes five minutes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import eviction as speed
import numpy as np
from document import fill, picture, table
from numpy.typing import NDArray

from scheduler.eviction.plan import RunningJob, plan_evictions
from scheduler.simulation.eviction import simulate
from scheduler.simulation.greedy import greedy
from scheduler.simulation.theta import STORAGE, BatchJob, theta_like
from tests.oracles.eviction import branch_and_bound

SCENARIOS = (12, 16, 24)  # jobs
NODES = (512, 1024, 2048)  # to free
DEADLINES = range(16)
MAX_VISITS = 3_000_000  # of branch and bound for one deadline
TIMED_DRAWS = 3
ON_DEMAND_MIN = 60

Curve = list[float]


def costs(jobs: Sequence[BatchJob]) -> list[RunningJob]:
    """Return the costs of jobs in whole minutes, as in the paper."""
    return [job.checkpointing.running_job(STORAGE, resolution=1) for job in jobs]


# --- Figs. 5 to 7 -------------------------------------------------------------------------------


def accumulated_ms(method: Callable[[int], object | None]) -> Curve:
    """Return the CPU time of one run per deadline, up to T; infinite once a run gave up."""
    total, curve = 0.0, []
    for deadline in DEADLINES:
        start = time.process_time()
        has_given_up = math.isinf(total) or method(deadline) is None
        total += 1000 * (time.process_time() - start)
        if has_given_up:
            total = math.inf
        curve.append(total)
    return curve


def response_times(jobs: list[RunningJob], nodes: int) -> dict[str, Curve]:
    """Return the time of each approach to answer all deadlines 0..T, by T."""
    largest_first = sorted(jobs, key=lambda job: -job.nodes)
    return {
        "greedy": [
            speed.cpu_ms(partial(speed.each_deadline, jobs, nodes, last), 5) for last in DEADLINES
        ],
        "dynamic program, one pass": [
            speed.cpu_ms(partial(plan_evictions, jobs, nodes, last), 5) for last in DEADLINES
        ],
        "branch and bound": accumulated_ms(
            lambda last: branch_and_bound(jobs, nodes, last, MAX_VISITS)
        ),
        "branch and bound, largest first": accumulated_ms(
            lambda last: branch_and_bound(largest_first, nodes, last, MAX_VISITS)
        ),
    }


def response_block(figure: Path) -> str:
    """Draw Figs. 5 to 7 and return their table: the median over a few draws."""
    curves = {
        (count, nodes): medians(
            [response_times(costs(theta_like(count, seed)), nodes) for seed in range(TIMED_DRAWS)]
        )
        for count in SCENARIOS
        for nodes in NODES
    }

    def draw(axes: NDArray[Any]) -> None:
        for panel, ((count, nodes), series) in zip(axes.flat, curves.items(), strict=True):
            for name, values in series.items():
                panel.plot(DEADLINES, values, marker=".", label=name)
            panel.set(yscale="log", ylim=(0.01, 1e5), title=f"{count} jobs, {nodes} nodes")
        for panel in axes[:, 0]:
            panel.set_ylabel("CPU ms")
        for panel in axes[-1]:
            panel.set_xlabel("T, min")
        axes[0, 0].legend(fontsize="x-small")

    picture(figure, (9, 7.5), 3, 3, draw)
    rows = [
        [
            count,
            nodes,
            *(
                speed.digits(values[-1]) if math.isfinite(values[-1]) else "gave up"
                for values in series.values()
            ),
        ]
        for (count, nodes), series in curves.items()
    ]
    return table(["jobs", "to free", *next(iter(curves.values()))], rows)


def medians(draws: Sequence[Mapping[str, Curve]]) -> dict[str, Curve]:
    """Return the median curve of each approach."""
    return {
        name: [
            statistics.median(values)
            for values in zip(*(draw[name] for draw in draws), strict=True)
        ]
        for name in draws[0]
    }


# --- Fig. 8 -------------------------------------------------------------------------------------


def loss_block(figure: Path, draws: int) -> str:
    """Draw Fig. 8 and return its table: the minimum loss and greedy's excess, in node-hours."""
    losses = {
        (count, nodes): np.array(
            [losses_of(costs(theta_like(count, seed)), nodes) for seed in range(draws)]
        )
        for count in SCENARIOS
        for nodes in NODES
    }

    def draw(axes: NDArray[Any]) -> None:
        for panel, nodes in zip(axes.flat, NODES, strict=True):
            for count in SCENARIOS:
                excess = losses[count, nodes][:, 1] - losses[count, nodes][:, 0]
                panel.plot(DEADLINES, excess.mean(axis=0), marker=".", label=f"{count} jobs")
                panel.fill_between(DEADLINES, *np.quantile(excess, (0.1, 0.9), axis=0), alpha=0.15)
            panel.set(title=f"{nodes} nodes", xlabel="T, min")
        axes.flat[0].set_ylabel("additional loss of greedy, node-hours")
        axes.flat[0].legend(fontsize="small")

    picture(figure, (9, 3), 1, 3, draw)
    rows = []
    for (count, nodes), series in losses.items():
        minimum, excess = series[:, 0], series[:, 1] - series[:, 0]
        rows.append(
            [
                count,
                nodes,
                *(
                    f"{minimum[:, moment].mean():.0f} + {excess[:, moment].mean():.0f}"
                    for moment in (0, 5, 10, 15)
                ),
                f"{(series[:, 0, -1] == 0).mean():.0%}",
                f"{(excess[:, -1] > excess[:, 0]).mean():.0%}",
            ]
        )
    return table(
        [
            "jobs",
            "to free",
            "T = 0",
            "T = 5",
            "T = 10",
            "T = 15",
            "nothing lost at 15",
            "greedy worse at 15 than at 0",
        ],
        rows,
    )


def losses_of(jobs: list[RunningJob], nodes: int) -> list[Curve]:
    """Return the minimum loss and greedy's loss for each deadline, in node-hours."""
    return [
        [plan.loss / 3600 for plan in plan_evictions(jobs, nodes, DEADLINES[-1])],
        [greedy(jobs, nodes, deadline).loss / 3600 for deadline in DEADLINES],
    ]


# --- The machine, minute by minute --------------------------------------------------------------


def machine_block(draws: int) -> str:
    """Return a table of a plan's effect on the machine, averaged over the draws."""
    rows = []
    for count in SCENARIOS:
        for nodes in NODES[1:]:
            for deadline in (0, 5, 15):
                rows.append(
                    [
                        count,
                        nodes,
                        deadline,
                        *np.mean(
                            [
                                simulate_plan(theta_like(count, seed), nodes, deadline)
                                for seed in range(draws)
                            ],
                            axis=0,
                        ).round(1),
                    ]
                )
    return table(
        [
            "jobs",
            "to free",
            "deadline",
            "planned, min",
            "started, min",
            "lost, node-h",
            "idle, node-h",
            "batch delay, min",
        ],
        rows,
    )


def simulate_plan(jobs: Sequence[BatchJob], nodes: int, deadline: int) -> list[float]:
    plan = plan_evictions(
        [job.checkpointing.running_job(STORAGE) for job in jobs], nodes, deadline
    )[-1]
    outcome = simulate(jobs, plan.actions, nodes, ON_DEMAND_MIN, STORAGE)
    return [
        plan.checkpoint_time,
        outcome.start_min,
        outcome.lost_node_s / 3600,
        outcome.idle_node_s / 3600,
        outcome.delay_min,
    ]


# --- The page -----------------------------------------------------------------------------------


def speed_block() -> str:
    """Return the tables of speeds and targets."""
    rows = [speed.cells(speed.measure(case, 5)) for case in speed.CASES]
    rivals = [[name, speed.digits(value)] for name, value in speed.measure_rivals(5).items()]
    return "\n\n".join(
        [
            table(speed.HEADERS, rows),
            table(["24 jobs, 4,352 nodes, 15 steps, 1,024 to free", "CPU ms"], rivals),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument(
        "--draws", type=int, default=20, help="machines drawn per number (default: 20)"
    )
    args = parser.parse_args()
    page, figures = args.docs / "measured/eviction.md", args.docs / "figures"
    page.write_text(
        fill(
            page.read_text(),
            {
                "speed": speed_block,
                "response": lambda: response_block(figures / "eviction-response.png"),
                "loss": lambda: loss_block(figures / "eviction-loss.png", args.draws),
                "machine": lambda: machine_block(args.draws),
            },
        )
    )


if __name__ == "__main__":
    main()
