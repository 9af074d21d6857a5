"""Write docs/measured/elastic.md and its figures; called by benchmarks/elastic.py --docs.

The prose is in elastic_docs.md in this folder; measured blocks replace the words in braces.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from document import table
from elastic import (
    CASE_HEADERS,
    SPEED_HEADERS,
    TABLE_HEADERS,
    CaseResult,
    RowResult,
    Speed,
    speed_cells,
)

from fleet.commands.simulate.autoscale import draw_counts, moments
from scheduler.elastic.allocate import scaling_curve
from scheduler.elastic.autoscaler import Autoscaling
from scheduler.files import read_json
from scheduler.simulation.autoscale import Outcome, simulate
from scheduler.simulation.elastic_jobs import CATEGORIES, PATTERNS, Workload, generate, workload

# A quarter of Table IV's cluster, so that the page takes minutes.
GPUS, MINUTES = 100, 480.0
POLICIES = ("elastic", "fixed")


def write(
    folder: Path,
    speed: list[Speed],
    load: float,
    tables: list[list[RowResult]],
    cases: list[CaseResult],
) -> None:
    """Run everything else on the page, and write it with its figures."""
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    draw_scaling(figures / "elastic_scaling.png", workload())
    draw_completed(figures / "elastic_completed.png", tables)
    text = (
        (Path(__file__).parent / "elastic_docs.md")
        .read_text(encoding="utf-8")
        .format(
            load=f"{load:.1f}",
            cores=os.cpu_count(),
            speed=table(SPEED_HEADERS, map(speed_cells, speed)),
            tables="\n\n".join(paper_table(rows) for rows in tables),
            more=", ".join(
                f"{gain_percent(rows):.0f} % more on {rows[0].table.gpus} GPUs" for rows in tables
            ),
            cases=table(CASE_HEADERS, [case.cells for case in cases]),
            intervals=table(INTERVAL_HEADERS, intervals()),
            rescales=table(RESCALE_HEADERS, rescales()),
            patterns=table(PATTERN_HEADERS, patterns()),
            assumptions="\n".join(assumptions()),
        )
    )
    (folder / "measured").mkdir(exist_ok=True)
    (folder / "measured/elastic.md").write_text(text, encoding="utf-8")


# --- tables -------------------------------------------------------------------------------------


def paper_table(rows: list[RowResult]) -> str:
    paper = rows[0].table
    seeds = len(rows[0].outcomes)
    command = (
        f"fleet simulate autoscale --jobs generate --gpus {paper.gpus} --minutes {paper.minutes:g} "
        f"--load {paper.load:g} --interval 0 --policy elastic|fixed [--drop] --seed 0..{seeds - 1}"
    )
    title = f"### {paper.title}: {paper.gpus} GPUs, jobs arrive for {paper.minutes:g} min"
    return f"{title}\n\n    {command}\n\n" + table(TABLE_HEADERS, [row.cells for row in rows])


def gain_percent(rows: list[RowResult]) -> float:
    """Return by how many % more jobs complete with elastic than with fixed batches, with drops."""
    done = {
        row.row.policy: sum(outcome.completed for outcome in row.outcomes)
        for row in rows
        if row.row.drop
    }
    return 100 * (done["elastic"] / done["fixed"] - 1)


INTERVAL_HEADERS = (
    "minutes between decisions",
    "policy",
    "dropped, % (drop)",
    "completion, min (drop)",
    "SJS efficiency, % (drop)",
    "completion, min (queue)",
    "SJS efficiency, % (queue)",
    "resizes (queue)",
)


def intervals() -> Iterable[list[object]]:
    """Yield rows of jobs like Table IV's, with fewer decisions."""
    for interval in (0.0, 1.0, 5.0, 10.0, 15.0):
        for policy in POLICIES:
            jobs = generate(GPUS, MINUTES, "bursty", policy, seed=0)
            dropped, queued = (
                simulate(jobs, Autoscaling(GPUS, interval, drop)) for drop in (True, False)
            )
            yield [
                f"{interval:g}",
                policy,
                percent(dropped.drop_ratio),
                minutes(dropped),
                percent(dropped.sjs_efficiency),
                minutes(queued),
                percent(queued.sjs_efficiency),
                queued.rescales,
            ]


RESCALE_HEADERS = (
    "cost, min",
    "hold of a size, min",
    "minutes between decisions",
    "resizes",
    "GPU time lost to resizes, %",
    "completion, min",
    "SJS efficiency, %",
    "dropped, % (drop)",
)


def rescales() -> Iterable[list[object]]:
    """Yield rows of elastic jobs like Table IV's whose resizes cost time, with and without hold."""
    jobs = generate(GPUS, MINUTES, "bursty", "elastic", seed=0)
    for interval in (0.0, 10.0):
        for cost, hold in (
            (0.0, 0.0),
            (0.5, 0.0),
            (0.5, None),
            (2.0, 0.0),
            (2.0, None),
            (5.0, 0.0),
            (5.0, None),
        ):
            queued, dropped = (
                simulate(jobs, Autoscaling(GPUS, interval, drop, cost, hold))
                for drop in (False, True)
            )
            yield [
                f"{cost:g}",
                f"{9 * cost if hold is None else hold:g}",
                f"{interval:g}",
                queued.rescales,
                percent(lost_share(queued)),
                minutes(queued),
                percent(queued.sjs_efficiency),
                percent(dropped.drop_ratio),
            ]


PATTERN_HEADERS = (
    "arrivals",
    "jobs",
    "completed, elastic",
    "completed, fixed",
    "more, %",
    "SJS, elastic, %",
    "SJS, fixed, %",
    "dropped, elastic, %",
    "dropped, fixed, %",
)


def patterns() -> Iterable[list[object]]:
    """Yield rows of 40 GPUs for 240 minutes, with drops; sums and means over five seeds."""
    for pattern in PATTERNS:
        results = {}
        for policy in POLICIES:
            runs = [generate(40, 240, pattern, policy, seed) for seed in range(5)]
            results[policy] = [
                simulate(jobs, Autoscaling(40, 0.0, drop=True), minutes=240) for jobs in runs
            ]
        done = {
            policy: sum(outcome.completed for outcome in measured)
            for policy, measured in results.items()
        }
        yield [
            pattern,
            sum(len(outcome.completion_min) for outcome in results["elastic"]),
            done["elastic"],
            done["fixed"],
            f"{100 * (done['elastic'] / done['fixed'] - 1):.0f}",
            *(
                percent(sum(outcome.sjs_efficiency for outcome in results[policy]) / 5)
                for policy in POLICIES
            ),
            *(
                percent(sum(outcome.drop_ratio for outcome in results[policy]) / 5)
                for policy in POLICIES
            ),
        ]


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def minutes(outcome: Outcome) -> str:
    return f"{outcome.mean_completion_min:.1f}"


def lost_share(outcome: Outcome) -> float:
    """Return the share of held GPU-minutes in which jobs paused after a resize."""
    held_gpu_s = math.fsum(h.gpus * (h.end_min - h.start_min) for h in outcome.holdings)
    paused_gpu_s = math.fsum(
        h.gpus * (min(h.steady_min, h.end_min) - h.start_min) for h in outcome.holdings
    )
    return paused_gpu_s / held_gpu_s


def assumptions() -> Iterable[str]:
    """Yield the explanations in the data file."""
    data = read_json(CATEGORIES)
    for number, category in enumerate(data["categories"], start=1):
        yield (
            f"- **Category {number}**, {category['name']}, {category['characteristics']}: weights "
            f"{category['params_mb']} MB, batch {category['batch'][0]} to {category['batch'][1]}, "
            f"{category['length_min']} min. {category['why']}"
        )
    yield f"- **Gradient exchange.** {data['comm_s']['why']}"
    for key, name in (
        ("most_gpus", "GPUs of one job"),
        ("low", "Quiet times"),
        ("burst_min", "Bursts"),
    ):
        yield f"- **{name}.** {data[key]['why']}"


# --- figures ------------------------------------------------------------------------------------


def draw_scaling(path: Path, workload_spec: Workload) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    counts = range(1, workload_spec.most_gpus + 1)
    for kind, mark in zip(workload_spec.categories, "os^v", strict=True):
        curve = scaling_curve(
            kind.network, workload_spec.comm_s, kind.batches, workload_spec.most_gpus
        )
        axes.plot(
            counts, curve.factors, marker=mark, markersize=4, linewidth=1, label=kind.network.name
        )
    axes.set(xlabel="GPUs", ylabel="throughput scaling factor", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=80)


def draw_completed(path: Path, tables: list[list[RowResult]]) -> None:
    """Draw completed jobs over time for seed 0, like the paper's Figs. 7 and 9."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots(len(tables), 2, squeeze=False)
    for row_axes, rows in zip(axes, tables, strict=True):
        for panel, drop in zip(row_axes, (True, False), strict=True):
            for row in (row for row in rows if row.row.drop == drop):
                jobs = generate(
                    row.table.gpus, row.table.minutes, "bursty", row.row.policy, 0, row.table.load
                )
                draw_counts(panel, jobs, row.outcomes[0], row.row.policy)
            arrived, _ = moments(jobs, row.outcomes[0])
            panel.step(
                arrived, range(1, len(arrived) + 1), where="post", color="0.6", label="arrived"
            )
            panel.set(
                title=f"{row.table.gpus} GPUs, {'drop' if drop else 'queue'}",
                xlabel="minutes",
                ylabel="jobs completed",
                xlim=(0, None),
                ylim=(0, None),
            )
            panel.legend()
    figure.savefig(path, dpi=70)
