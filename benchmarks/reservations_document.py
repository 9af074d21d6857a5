"""Write docs/measured/reservations.md: speeds, logs of real runs, Table 1 and Scenarios 1 to 4.

    python benchmarks/reservations_document.py --logs FOLDER [--seeds 20]
        [--out docs/measured/reservations.md]
    python benchmarks/reservations_document.py --speeds          # only that section

FOLDER holds logs of run times in seconds, ``*.log``, one number per line. Takes ten minutes of
processor time; run it on a quiet machine. Figures go to ``../figures/``, relative to the page.
docs/reservations.md defines the terms.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from document import table  # beside this file
from reservations import measure
from reservations_scenarios import (  # beside this file
    CRUISE,
    FSL,
    INTREPID_RATE,
    LAWS,
    ORGANS,
    STREAM_PROCESSORS,
    STREAMED,
    WORK_RATES,
    Mean,
    past_runs,
    scenario_1,
    scenario_2,
    scenario_3,
    scenario_4,
)

from scheduler.reservation.distributions import discretize, empirical_law, make_law
from scheduler.reservation.log import read_runs
from scheduler.reservation.requests import (
    RequestSequence,
    at_optimal,
    expected_makespan,
    makespan_by_count,
    optimal_requests,
    requests_from_runs,
    t_optimal,
)
from scheduler.simulation.batch_queue import Convention
from scheduler.simulation.workload import Rule, Sizes

TABLE_1 = make_law("truncnorm", mu=8, sigma=2, low=0, high=20)
PUBLISHED = {
    0.0: "10.8, 13.4, 15.4, 17.1, 18.7, 20.0",
    0.1: "10.86, 13.91, 18.69, 20.0",
    0.5: "13.04, 20.0",
    0.9: "17.39, 20.0",
}
PAST_RUNS = (1, 2, 3, 5, 10, 20, 50, 100)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
NAMES = {
    Rule.CLASSICAL: "classical",
    Rule.RECENT: "last ten runs",
    Rule.TOPTIMAL: "TOptimal",
    Rule.ATOPTIMAL: "ATOptimal",
}


@dataclass(frozen=True)
class Claim:
    """A finding of the paper, and whether it holds here under one convention."""

    text: str
    convention: Convention
    holds: bool
    measured: str

    @property
    def row(self) -> list[str]:
        return [
            self.text,
            self.convention,
            "holds" if self.holds else "**does not hold**",
            self.measured,
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--logs", type=Path, metavar="FOLDER")
    mode.add_argument("--speeds", action="store_true")
    parser.add_argument("--seeds", type=int, default=20, help="simulations per cell (default: 20)")
    parser.add_argument("--out", type=Path, default=Path("docs/measured/reservations.md"))
    args = parser.parse_args()
    if args.speeds:
        before, _, remainder = args.out.read_text(encoding="utf-8").partition("## Speed\n")
        args.out.write_text(
            before + speeds() + "\n\n## " + remainder.partition("\n## ")[2], encoding="utf-8"
        )
        return
    figures = args.out.parent.parent / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    logs = {path.stem: read_runs(path) for path in sorted(args.logs.glob("*.log"))}
    sections = [introduction(args.seeds)]
    for name, section in {
        "speeds": speeds,
        "cost by count": lambda: cost_by_count(logs, figures),
        "logs": lambda: real_logs(logs),
        "Table 1": table_1,
        "scenario 1": lambda: section_1(args.seeds, figures),
        "past runs": lambda: section_past_runs(args.seeds),
        "scenario 2": lambda: section_2(args.seeds),
        "scenario 3": lambda: section_3(max(args.seeds // 4, 1), figures),
        "scenario 4": lambda: section_4(args.seeds),
    }.items():
        print(name, file=sys.stderr, flush=True)
        sections.append(section())
    args.out.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def saving(cost: float, reference: float) -> str:
    return percent(max(1 - cost / reference, 0.0))  # never -0.0 by rounding


# ---------------------------------------------------------------- the sequences


def introduction(seeds: int) -> str:
    return f"""# Reservations, measured

How much do optimal walltime requests gain, and how fast are they computed?

`python benchmarks/reservations_document.py --logs FOLDER` reproduces this page; `--speeds`
reproduces only the first section, without logs. FOLDER holds run times of real applications, one
number per line in NAME.log; they are not part of this repository. [The method](../reservations.md)
defines the terms and conventions. The paper is Gainaru et al., ICPP 2019. Simulations are means
over {seeds} seeds (Scenario 3: {max(seeds // 4, 1)}). Utilization counts only runs that complete;
responses are hours from arrival to completion."""


def table_1() -> str:
    rows = []
    for rate, published in PUBLISHED.items():
        if rate == 0:
            name, digits = "TOptimal, n = 200", 1
            sequence = t_optimal(discretize(TABLE_1, 200))
        else:
            name, digits = f"ATOptimal, zeta = {rate}, n = 46", 2
            sequence = at_optimal(discretize(TABLE_1, 46), rate)
        requests = ", ".join(f"{_cut(request, digits):.{digits}f}" for request in sequence.requests)
        rows.append([name, published, requests, f"{sequence.expected_makespan:.4f}"])
    return (
        "## The paper's figures\n\n### Table 1\n\nTruncated normal, mean 8 h, deviation 2 h, from "
        "0 to 20 h. The paper's ATOptimal requests are ours for n = 46, truncated to two "
        "decimals.\n\n"
        + table(["algorithm", "paper", "here", "expected makespan, h"], rows)
        + "\n\nOne request for 20 h costs 20 h without backfill. The tests check these costs "
        "against the literal dynamic program of the paper's Theorem 2 and against brute force. The "
        "printed program starts at the first value and ignores its probability; ours starts before "
        "it."
    )


def _cut(value: float, digits: int) -> float:
    return math.floor(value * 10**digits + 1e-6) / 10**digits


def speeds() -> str:
    rows = [
        [
            speed.label,
            f"{speed.clock_ms:.1f}",
            f"{speed.processor_ms:.1f}",
            "" if speed.target_ms is None else f"{speed.target_ms:g}",
        ]
        for speed in measure()
    ]
    load = f"{os.cpu_count()} cores with a load of {os.getloadavg()[0]:.1f}"
    return (
        "## Speed\n\nMedians of nine calls, in milliseconds of wall-clock and CPU time (one "
        f"thread), on {load}. If the load exceeds the number of cores, wall-clock time includes "
        "waiting.\n\n" + table(["", "wall-clock", "CPU", "target"], rows)
    )


def cost_by_count(logs: dict[str, Any], figures: Path) -> str:
    curves = {
        f"Table 1, zeta = {rate}": makespan_by_count(discretize(TABLE_1, 200), rate, 6)
        for rate in (0.0, 0.1, 0.5)
    }
    curves |= {name: makespan_by_count(empirical_law(runs), 0.0, 6) for name, runs in logs.items()}

    def draw(axes: Any) -> None:
        for name, costs in curves.items():
            axes.plot(range(1, len(costs) + 1), np.array(costs) / costs[0], marker="o", label=name)
        axes.set(xlabel="number of requests", ylabel="expected makespan, one request = 1")
        axes.legend(fontsize=7)

    plot(figures / "reservations-count.png", [draw])
    rows = [[name, *(f"{cost / costs[0]:.4f}" for cost in costs)] for name, costs in curves.items()]
    return (
        "## What one more request saves\n\nMinimum expected makespan with exactly this many "
        "requests, relative to one.\n\n"
        "![cost by number of requests](../figures/reservations-count.png)\n\n"
        + table(["law", *map(str, range(1, 7))], rows)
    )


def plot(path: Path, panels: Sequence[Callable[[Any], None]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(max(4.2 * len(panels), 6), 3), squeeze=False
    )
    for panel, axis in zip(panels, axes[0], strict=True):
        panel(axis)
    figure.tight_layout()
    figure.savefig(path, dpi=75, metadata={"Software": None})
    pyplot.close(figure)


def real_logs(logs: dict[str, Any]) -> str:
    parts = []
    for name, runs in logs.items():
        law = empirical_law(runs)
        rows = []
        for rate in (0.0, 0.1, 0.5):
            sequence, single = (
                optimal_requests(law, rate),
                expected_makespan(law, [law.longest], rate),
            )
            rows.append(
                [
                    rate,
                    ", ".join(f"{request:g}" for request in sequence.requests),
                    f"{sequence.expected_makespan:.0f}",
                    f"{single:.0f}",
                    saving(sequence.expected_makespan, single),
                ]
            )
        parts.append(
            f"`{name}`: {len(runs)} runs, mean {runs.mean():.0f} s, longest {runs.max():.0f} s.\n\n"
            + table(
                ["zeta", "requests, s", "expected makespan, s", "one request, s", "saved"], rows
            )
        )
        parts.append(
            "Requests computed from k of these runs and tested on another one (1,000 draws): mean "
            "time until success divided by the mean run time; in parentheses the mean number of "
            "submissions.\n\n"
            + table(
                ["k", "optimal for the k runs", "longest of the k", "longest of the last ten"],
                [
                    [k, *(f"{time:.2f} ({tries:.2f})" for time, tries in _on_new_runs(runs, k))]
                    for k in (3, 5, 10, 20, 40, 80)
                    if k < len(runs)
                ],
            )
        )
    return (
        "## Logs of real runs\n\nTwo medical-imaging applications; the observed times are the "
        "support of the law.\n\n"
        + "\n\n".join(parts)
        + "\n\nSavings on the runs from which a sequence was computed are larger than on new runs. "
        "With few runs, requesting the longest of them is as good or better: an optimal sequence "
        "stops at accidental gaps of the log, and a job longer than all logged runs pays for a "
        "request twice as long. With a wide law the sequence pays off from about 40 runs on; with "
        "a narrow one hardly ever, because the longest run is close to all others. `fleet reserve` "
        "does not optimize with fewer than 5 runs."
    )


def _on_new_runs(runs: Any, k: int) -> list[tuple[float, float]]:
    rng = np.random.default_rng(k)
    outcomes: list[list[tuple[float, int]]] = [[], [], []]
    for _ in range(1000):
        chosen = rng.permutation(len(runs))[: k + 1]
        past, new = runs[chosen[:k]], float(runs[chosen[k]])
        sequences = (
            requests_from_runs(past),
            RequestSequence((float(past.max()),), 0.0),
            RequestSequence((float(past[-10:].max()),), 0.0),
        )
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            outcome.append(_until_success(list(sequence.requests), new))
    return [
        (
            float(np.mean([time for time, _ in outcome])) / float(runs.mean()),
            float(np.mean([tries for _, tries in outcome])),
        )
        for outcome in outcomes
    ]


def _until_success(requests: list[float], run: float) -> tuple[float, int]:
    spent, tries = 0.0, 0
    while True:
        request = requests[min(tries, len(requests) - 1)]
        request *= 2 ** max(0, tries - len(requests) + 1)
        spent += request
        tries += 1
        if run <= request:
            return spent, tries


# ---------------------------------------------------------------- the scenarios


def claims_table(claims: Iterable[Claim]) -> str:
    return table(
        ["the paper's finding", "convention", "here", "measured"], [claim.row for claim in claims]
    )


def section_1(seeds: int, figures: Path) -> str:
    results = {}
    for convention, sizes in product(Convention, Sizes):
        if convention is Convention.PLANNED or sizes in (Sizes.FULL, Sizes.BETA):
            for name, law in LAWS.items():
                results[convention, sizes, name] = scenario_1(convention, sizes, law, seeds)
    rows, claims = [], []
    for (convention, sizes, name), means in results.items():
        rows.append(
            [
                convention,
                sizes,
                name,
                *(percent(mean.utilization) for mean in means.values()),
                *(f"{mean.response:.4g}" for mean in means.values()),
            ]
        )
    for convention in Convention:
        gains = {key[1:]: gain_1(means) for key, means in results.items() if key[0] is convention}
        mild = [gain for (_, name), gain in gains.items() if name in ("truncated normal", "beta")]
        heavy = [
            gain for (_, name), gain in gains.items() if name not in ("truncated normal", "beta")
        ]
        claims += [
            Claim(
                "TOptimal beats both other rules on normal and beta laws, in utilization and "
                "response",
                convention,
                min(min(gain) for gain in mild) > 1,
                ranges(mild),
            ),
            Claim(
                "... by 10 to 11 % in utilization and 12 to 14 % in response",
                convention,
                all(gain[0] > 1.09 and gain[1] > 1.1 for gain in mild),
                ranges(mild),
            ),
            Claim(
                "... on exponential and Pareto laws by over 1.5 times in utilization",
                convention,
                min(gain[0] for gain in heavy) > 1.5,
                ranges(heavy),
            ),
            Claim(
                "... and over 2.5 times in response",
                convention,
                min(gain[1] for gain in heavy) > 2.5,
                ranges(heavy),
            ),
            Claim(
                "requesting the longest of the last ten runs beats the classical upper bound",
                convention,
                all(
                    means[Rule.RECENT].utilization > means[Rule.CLASSICAL].utilization
                    for key, means in results.items()
                    if key[0] is convention
                ),
                ranges(
                    [
                        (
                            means[Rule.RECENT].utilization / means[Rule.CLASSICAL].utilization,
                            means[Rule.CLASSICAL].response / means[Rule.RECENT].response,
                        )
                        for key, means in results.items()
                        if key[0] is convention
                    ]
                ),
            ),
        ]

    def panel(convention: Convention) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for index, rule in enumerate((Rule.CLASSICAL, Rule.RECENT, Rule.TOPTIMAL)):
                heights = [results[convention, Sizes.FULL, name][rule].utilization for name in LAWS]
                axes.bar(
                    np.arange(len(LAWS)) + 0.27 * (index - 1), heights, 0.27, label=NAMES[rule]
                )
            axes.set(title=convention, ylim=(0, 1.05), xticks=range(len(LAWS)))
            axes.set_xticklabels([name.replace(" ", "\n") for name in LAWS], fontsize=7)
            axes.set_ylabel("utilization")
            axes.legend(fontsize=6)

        return draw

    plot(figures / "reservations-scenario1.png", [panel(convention) for convention in Convention])
    names = ["classical", "last ten", "TOptimal"]
    return (
        "### Scenario 1: requests at submission\n\n100 jobs on 100 processors arrive together. "
        "Their sizes are `full` (the whole machine), `half`, or random (`truncnorm`, `beta`). "
        "Gains compare TOptimal with the better of the other two rules, as factors of utilization "
        "and response (above 1 is better).\n\n"
        "![utilization in Scenario 1](../figures/reservations-scenario1.png)\n\n"
        + claims_table(claims)
        + "\n\n"
        + table(
            [
                "convention",
                "sizes",
                "law",
                *(f"utilization, {name}" for name in names),
                *(f"response h, {name}" for name in names),
            ],
            rows,
        )
    )


def gain_1(means: dict[Rule, Mean]) -> tuple[float, float]:
    baselines = (means[Rule.CLASSICAL], means[Rule.RECENT])
    return (
        means[Rule.TOPTIMAL].utilization / max(mean.utilization for mean in baselines),
        min(mean.response for mean in baselines) / means[Rule.TOPTIMAL].response,
    )


def ranges(gains: Sequence[tuple[float, float]]) -> str:
    """Format the range of some gains in utilization and response."""
    spans = []
    for name, column in zip(("utilization", "response"), zip(*gains, strict=True), strict=True):
        low, high = f"{min(column):.2f}", f"{max(column):.2f}"
        spans.append(f"{name} x {low}" + (f" to {high}" if high != low else ""))
    return ", ".join(spans)


def section_past_runs(seeds: int) -> str:
    """Return Fig. 4: the number of past runs whose longest is requested."""
    rows, claims = [], []
    for convention in Convention:
        bests, nearer = [], []
        for name, law in LAWS.items():
            results = {past: past_runs(convention, law, past, seeds) for past in PAST_RUNS}
            baselines = scenario_1(convention, Sizes.FULL, law, seeds)
            used = [mean.utilization for mean in results.values()]
            bests.append(PAST_RUNS[int(np.argmax(used))])
            distances = [
                abs(results[past].utilization - baselines[Rule.CLASSICAL].utilization)
                for past in (10, PAST_RUNS[-1])
            ]
            nearer.append(distances[1] < distances[0])
            rows += [
                [
                    convention,
                    name,
                    quantity,
                    *(
                        text(mean)
                        for mean in (
                            *results.values(),
                            baselines[Rule.CLASSICAL],
                            baselines[Rule.TOPTIMAL],
                        )
                    ),
                ]
                for quantity, text in (
                    ("utilization", lambda mean: percent(mean.utilization)),
                    ("response, h", lambda mean: f"{mean.response:.4g}"),
                )
            ]
        claims += [
            Claim(
                "about 10 past runs are best (utilization)",
                convention,
                all(5 <= best <= 20 for best in bests),
                "best of "
                + ", ".join(f"{best} ({name})" for best, name in zip(bests, LAWS, strict=True)),
            ),
            Claim(
                "with more runs, results approach the classical ones",
                convention,
                all(nearer),
                f"nearer with {PAST_RUNS[-1]} than with 10 on {sum(nearer)} of {len(nearer)} laws",
            ),
        ]
    return (
        "### How many past runs to use (the paper's Fig. 4)\n\nJobs of Scenario 1 that take the "
        "whole machine request the longest of their last runs, and the upper bound if that was too "
        "short. Columns: number of past runs, classical requests, TOptimal. The paper says that "
        "about 10 are best, but not for which law.\n\n"
        + claims_table(claims)
        + "\n\n"
        + table(["convention", "law", "", *map(str, PAST_RUNS), "classical", "TOptimal"], rows)
    )


def section_2(seeds: int) -> str:
    keys = [
        (rule, speculative)
        for rule in (Rule.CLASSICAL, Rule.TOPTIMAL)
        for speculative in (False, True)
    ]
    rows, claims = [], []
    for convention in Convention:
        results = {share: scenario_2(convention, share, seeds) for share in SHARES}
        for share, means in results.items():
            rows.append(
                [
                    convention,
                    percent(share),
                    *(percent(means[key].utilization) for key in keys),
                    *(f"{means[key].response:.4g}" for key in keys),
                ]
            )
        raised = {
            rule: [
                means[rule, True].utilization / means[rule, False].utilization
                for means in results.values()
            ]
            for rule in (Rule.CLASSICAL, Rule.TOPTIMAL)
        }
        raised_text = {
            rule: f"utilization x {min(raised[rule]):.2f} to {max(raised[rule]):.2f}"
            for rule in raised
        }
        gained = [
            (means[Rule.TOPTIMAL, True].utilization / means[Rule.TOPTIMAL, False].utilization - 1)
            / (
                means[Rule.CLASSICAL, True].utilization / means[Rule.CLASSICAL, False].utilization
                - 1
                or 1e-9
            )
            for means in results.values()
        ]
        relative = [
            results[share][Rule.CLASSICAL, True].utilization
            / results[share][Rule.TOPTIMAL, False].utilization
            for share in SHARES
            if share >= 0.5
        ]
        if convention is Convention.PLANNED:
            continue  # nothing to speculate with
        claims += [
            Claim(
                "speculative backfilling helps classical requests drastically",
                convention,
                min(raised[Rule.CLASSICAL]) > 1.2,
                raised_text[Rule.CLASSICAL],
            ),
            Claim(
                "... and TOptimal much less (less than half as much at every share)",
                convention,
                min(raised[Rule.CLASSICAL]) > 1 and max(gained) < 0.5,
                raised_text[Rule.TOPTIMAL],
            ),
            Claim(
                "with half small jobs or more, it makes classical requests as good as TOptimal",
                convention,
                min(relative) >= 0.98,
                f"x {min(relative):.2f} to {max(relative):.2f} of TOptimal's utilization",
            ),
        ]
    names = [
        f"{NAMES[rule]}{' + speculation' if speculative else ''}" for rule, speculative in keys
    ]
    return (
        "### Scenario 2: speculative backfilling\n\n200 jobs on 100 processors (sizes `beta`). A "
        "share of them is small: 0 to 4 h instead of 1 to 8 h. Under `planned` a job with a "
        "reservation never starts before it, and classical requests never fail, so there is "
        "nothing to speculate with.\n\n"
        + claims_table(claims)
        + "\n\n"
        + table(
            [
                "convention",
                "small",
                *(f"utilization, {name}" for name in names),
                *(f"response h, {name}" for name in names),
            ],
            rows,
        )
    )


def section_3(seeds: int, figures: Path) -> str:
    rules = (Rule.CLASSICAL, Rule.TOPTIMAL, Rule.ATOPTIMAL)
    conventions = (Convention.PLANNED, Convention.WORK_CONSERVING)
    results = {
        (convention, rate): scenario_3(convention, rate, seeds)
        for convention in conventions
        for rate in WORK_RATES
    }
    rows = [
        [
            convention,
            rate,
            *(percent(means[rule].utilization) for rule in rules),
            *(f"{means[rule].response:.4g}" for rule in rules),
            *(f"{means[rule].all_response:.4g}" for rule in rules),
        ]
        for (convention, rate), means in results.items()
    ]
    claims = []
    for convention in conventions:
        means = [results[convention, rate] for rate in WORK_RATES]
        adaptive = [mean[Rule.ATOPTIMAL] for mean in means]
        best = [
            max(mean[Rule.CLASSICAL].utilization, mean[Rule.TOPTIMAL].utilization) for mean in means
        ]
        distances = [mean.utilization / top for mean, top in zip(adaptive, best, strict=True)]
        order = [
            mean[Rule.TOPTIMAL].response
            <= mean[Rule.ATOPTIMAL].response
            <= mean[Rule.CLASSICAL].response
            for mean in means
        ]
        between = [
            sorted((mean[Rule.TOPTIMAL].all_response, mean[Rule.CLASSICAL].all_response))
            for mean in means
        ]
        inside = [
            low <= mean.all_response <= high
            for (low, high), mean in zip(between, adaptive, strict=True)
        ]
        claims += [
            Claim(
                "utilization of ATOptimal rises with the work rate",
                convention,
                all(low.utilization <= high.utilization + 1e-3 for low, high in pairwise(adaptive)),
                f"{percent(adaptive[0].utilization)} to {percent(adaptive[-1].utilization)}",
            ),
            Claim(
                "... and is always the highest",
                convention,
                min(distances) >= 0.999,
                f"x {min(distances):.3f} to {max(distances):.3f} of the better of the other two",
            ),
            Claim(
                "response of the large jobs: classical longest, TOptimal shortest, ATOptimal "
                "between",
                convention,
                all(order),
                f"at {sum(order)} of {len(order)} work rates",
            ),
            Claim(
                "response of all jobs: ATOptimal between the other two",
                convention,
                all(inside),
                f"at {sum(inside)} of {len(inside)} work rates",
            ),
        ]

    def panel(convention: Convention) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for rule in rules:
                axes.plot(
                    WORK_RATES,
                    [results[convention, rate][rule].utilization for rate in WORK_RATES],
                    marker="o",
                    label=NAMES[rule],
                )
            axes.set(
                title=convention,
                xlabel="work rate of the small jobs",
                ylabel="utilization",
                ylim=(0.3, 1.02),
            )
            axes.legend(fontsize=7)

        return draw

    plot(figures / "reservations-scenario3.png", [panel(convention) for convention in conventions])
    sequences = ", ".join(
        f"{rate}: {_format_requests(at_optimal(discretize(STREAMED, 200), rate).requests)}"
        for rate in WORK_RATES
    )
    return (
        "### Scenario 3: a stream of small jobs\n\n30 jobs that take a machine of "
        f"{STREAM_PROCESSORS} processors, 8 h on average. Sequential jobs that are a hundred times "
        "shorter fill the gaps; the work rate is the share of the machine that they need. "
        f"ATOptimal requests (by work rate, h) {sequences}; TOptimal requests "
        f"{_format_requests(t_optimal(discretize(STREAMED, 200)).requests)}.\n\n"
        "![utilization in Scenario 3](../figures/reservations-scenario3.png)\n\n"
        + claims_table(claims)
        + "\n\n"
        + table(
            [
                "convention",
                "work rate",
                *(f"utilization, {NAMES[rule]}" for rule in rules),
                *(f"large response h, {NAMES[rule]}" for rule in rules),
                *(f"all h, {NAMES[rule]}" for rule in rules),
            ],
            rows,
        )
    )


def _format_requests(requests: Sequence[float]) -> str:
    return " / ".join(f"{request:.1f}" for request in requests)


def section_4(seeds: int) -> str:
    rows, claims = [], []
    for gaps_only in (True, False):
        short = "gaps" if gaps_only else "queue"
        for convention in Convention:
            results = scenario_4(convention, seeds, gaps_only=gaps_only)
            rows += [
                [
                    short,
                    convention,
                    NAMES[rule] + (" + speculation" if speculative else ""),
                    percent(mean.utilization),
                    f"{mean.response:.4g}",
                    f"{mean.all_response:.4g}",
                    f"{mean.makespan:.4g}",
                ]
                for (rule, speculative), mean in results.items()
            ]
            plain, speculative_gain = (
                _gain_4(results, speculative) for speculative in (False, True)
            )
            suffix = f" (short jobs: {short})"
            claims += [
                Claim(
                    "ATOptimal beats classical requests" + suffix,
                    convention,
                    min(plain) > 1,
                    ranges([plain]),
                ),
                Claim("... by about 20 %" + suffix, convention, min(plain) > 1.15, ranges([plain])),
                Claim(
                    "... with speculation by 25 to 30 %" + suffix,
                    convention,
                    min(speculative_gain) > 1.22,
                    ranges([speculative_gain]),
                ),
            ]
    savings = []
    for name, law in {"AbOrganSeg": ORGANS, "maCRUISE": CRUISE, "FSL": FSL}.items():
        law_200 = discretize(law, 200)
        for rate in (0.0, INTREPID_RATE):
            best, single = (
                optimal_requests(law_200, rate),
                expected_makespan(law_200, [law.high], rate),
            )
            savings.append(
                [
                    name,
                    rate,
                    " / ".join(f"{request:.2f}" for request in best.requests),
                    f"{best.expected_makespan:.3f}",
                    f"{single:.3f}",
                    saving(best.expected_makespan, single),
                ]
            )
    return (
        "### Scenario 4: two weeks of neuroscience applications\n\n10 jobs of 11 to 31 h and 90 of "
        "1.5 to 3 h arrive together on 40,960 nodes, with 300 of 10 to 35 min; sizes `beta`. The "
        "short jobs either fill gaps and arrive evenly, at a rate that needs "
        f"{INTREPID_RATE} of the machine (*gaps*), or they arrive together with the others and "
        "hold reservations (*queue*).\n\n"
        + claims_table(claims)
        + "\n\nBy the paper's own cost, these three laws cannot gain 20 %. The maximum savings of "
        "any sequence:\n\n"
        + table(
            [
                "application",
                "zeta",
                "requests, h",
                "expected makespan, h",
                "one request, h",
                "saved",
            ],
            savings,
        )
        + "\n\n"
        + table(
            [
                "short jobs",
                "convention",
                "requests",
                "utilization",
                "response h, without gap fillers",
                "response h, all",
                "makespan, h",
            ],
            rows,
        )
    )


def _gain_4(results: dict[tuple[Rule, bool], Mean], speculative: bool) -> tuple[float, float]:
    """Return the gain of ATOptimal over classical requests, in utilization and response."""
    mean, classical = results[Rule.ATOPTIMAL, speculative], results[Rule.CLASSICAL, False]
    return mean.utilization / classical.utilization, classical.response / mean.response


if __name__ == "__main__":
    main()
