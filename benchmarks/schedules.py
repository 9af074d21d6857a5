"""Simulate every policy, with the paper's figures and tables: writes docs/measured/schedules.md.

    python benchmarks/schedules.py ENSEMBLE.json --out docs/measured/schedules.md [--seeds 20]
        [--few 6] [--jobs 1]
    python benchmarks/schedules.py --placement [--json] [--few 6] [--jobs 1]

ENSEMBLE.json has the keys images_per_epoch, gpus_per_node and dnns ({id, r, epochs, params_mb}).
Main tables are over --seeds draws of the epochs, the others over --few. Takes 15 minutes of one
core; progress goes to standard error. With --placement it simulates what it costs to ignore how the
GPUs of a group lie on nodes, in a minute, and prints the table or its rows.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleet.commands.output import print_json
from scheduler.base import Cluster, Delta, Network, Options, RateTable
from scheduler.ensemble.costs import PAPER_COSTS, REGROUPING_COSTS, Costs
from scheduler.ensemble.pace import FREE, LOCKSTEP, Ring, Stream
from scheduler.ensemble.placement import place_greedily, place_groups, score
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates import curve, smooth_rates
from scheduler.files import read_json
from scheduler.simulation.draw import convert, redraw_epochs, with_errors
from scheduler.simulation.ensemble import Simulated, simulate
from scheduler.simulation.learning import Learning

GPUS = (20, 40, 60, 80, 100, 120, 140, 160)
FEW_GPUS = (20, 60, 100, 160)
PAPER = Options(delta=Delta(20.0, relative=False))
LITERAL = replace(PAPER, peak_limited=False)
FREE_OF_COST = Costs()

# [FLEET] Table 4: GPUs -> total s, scheduling s, checkpointing s (34 s per flotilla).
TABLE_4 = {
    20: (55200.1, 20.1, 1496.0),
    40: (30204.8, 15.8, 1156.0),
    60: (24495.0, 14.0, 986.0),
    80: (21891.0, 12.0, 816.0),
    100: (18359.1, 10.1, 782.0),
    120: (15323.9, 9.9, 680.0),
    140: (13366.3, 9.3, 680.0),
    160: (11825.2, 10.2, 748.0),
}
# [FLEET] Table 3: mean and standard deviation of the running length, s, on 80 GPUs.
TABLE_3 = {"baseline": (10372.2, 4178.9), "local": (6213.0, 3580.0)}
TABLE_3_FLOTILLAS = (
    (2067.9, 54.7),
    (335.6, 48.4),
    (2291.9, 26.0),
    (415.5, 51.9),
    (1072.2, 364.0),
    (2322.3, 216.0),
)
TARGETS = (1.03, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09)  # adaptive over the bound


@dataclass(frozen=True)
class Variant:
    """A way to train the ensemble: a policy and its assumptions."""

    policy: str
    options: Options = PAPER
    costs: Costs = FREE_OF_COST
    stream: Stream = FREE
    rate_error: float = 0.0  # of the rates that the policy receives
    heavy_tail: bool = False  # of the epochs
    max_gpus: int | None = None  # beyond which no network becomes faster
    prior_factor: float | None = None  # error of guesses if the run learns rates
    slots: int = 1  # per GPU
    sharing: tuple[float, ...] = (1.0,)  # total rate of networks that share a GPU
    redraws: bool = True  # whether the epochs of the table are drawn again
    spans: bool = False  # whether rates that the policy receives belong to how GPUs lie, too

    def run(self, table: RateTable, gpus: int, seed: int | None) -> Simulated:
        """Simulate one draw of the epochs, or (None) the epochs of the table."""
        if seed is not None and self.redraws:
            table = redraw_epochs(table, seed, self.heavy_tail)
        if self.max_gpus is not None:
            table = replace(
                table, models=tuple(replace(n, max_gpus=self.max_gpus) for n in table.models)
            )
        table = replace(table, sharing=self.sharing)
        seed_or_zero = seed or 0
        options = replace(self.options, seed=seed_or_zero)
        learning, policy_rates = None, table if self.spans else _without_spans(table)
        if self.prior_factor is not None:
            learning = Learning(
                math.log(self.prior_factor),
                self.rate_error,
                seed=1000 + seed_or_zero,
                spans=self.spans,
            )
        elif self.rate_error:
            policy_rates = smooth_rates(
                with_errors(policy_rates, self.rate_error, 1000 + seed_or_zero), gpus
            )
        return simulate(
            table,
            Cluster.of(gpus, table.gpus_per_node, self.slots),
            POLICIES[self.policy],
            options,
            self.costs,
            self.stream,
            policy_rates,
            learning,
        )


def _without_spans(table: RateTable) -> RateTable:
    if not table.has_spread:
        return table
    return replace(
        table, models=tuple(replace(network, spread_rates=()) for network in table.models)
    )


BASELINE = Variant("baseline")
MAIN = {
    "`baseline`": BASELINE,
    "`homogeneous`": Variant("homogeneous"),
    "`local`": Variant("local", costs=PAPER_COSTS),
    "`global`, literal": Variant("global", LITERAL, PAPER_COSTS, LOCKSTEP),
    "`global`": Variant("global", PAPER, PAPER_COSTS, LOCKSTEP),
    "`adaptive`": Variant("adaptive", costs=REGROUPING_COSTS, rate_error=0.05),
    "`adaptive`, exact rates, free moves": Variant("adaptive"),
}
HOMOGENEOUS = MAIN["`homogeneous`"]
REALISTIC = MAIN["`adaptive`"]


@dataclass(frozen=True)
class Outcome:
    """The numbers of one simulation that the tables need."""

    makespan_s: float
    bound_s: float
    waiting_s: float

    @property
    def ratio(self) -> float:
        """Return the makespan divided by the lower bound."""
        return self.makespan_s / self.bound_s


Results = dict[tuple[Variant, int], list[Outcome]]


class Simulator:
    """Runs each simulation once, on several cores if requested."""

    def __init__(self, table: RateTable, jobs: int) -> None:
        self.table = table
        self.jobs = jobs
        self._outcomes: dict[tuple[Variant, int, int], Outcome] = {}

    def run(self, variants: Iterable[Variant], gpus: Sequence[int], seeds: int) -> Results:
        """Run all variants on all clusters with all draws of the epochs."""
        variants = list(variants)
        targets = [
            key for key in product(variants, gpus, range(seeds)) if key not in self._outcomes
        ]
        with ProcessPoolExecutor(self.jobs) as pool:
            for key, outcome in zip(
                targets,
                pool.map(_outcome, [(self.table, *key) for key in targets], chunksize=4),
                strict=True,
            ):
                self._outcomes[key] = outcome
        print(f"{len(targets)} simulations", file=sys.stderr, flush=True)
        return {
            (variant, count): [self._outcomes[variant, count, seed] for seed in range(seeds)]
            for variant, count in product(variants, gpus)
        }


def _outcome(job: tuple[RateTable, Variant, int, int]) -> Outcome:
    table, variant, gpus, seed = job
    run = variant.run(table, gpus, seed)
    return Outcome(run.makespan_s, run.lower_bound_s, run.waiting_s_per_gpu)


# --- Tables -------------------------------------------------------------------------------------


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table."""
    lines = [
        "| " + " | ".join(row) + " |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)
    ]
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format the mean and the standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    mean = round(statistics.mean(values), digits) + 0.0  # no minus zero
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def by_gpus(first: str, gpus: Sequence[int], rows: dict[str, Callable[[int], str]]) -> str:
    """Format a table with a column per cluster size."""
    return markdown(
        [first, *map(str, gpus)],
        [[name, *(cell(count) for count in gpus)] for name, cell in rows.items()],
    )


def speed_ups(results: Results) -> str:
    """Return the table of the paper's Figure 5."""

    def cell(variant: Variant) -> Callable[[int], str]:
        return lambda gpus: spread(
            [
                base.makespan_s / run.makespan_s
                for base, run in zip(results[BASELINE, gpus], results[variant, gpus], strict=True)
            ]
        )

    return by_gpus(
        "GPUs", GPUS, {name: cell(variant) for name, variant in MAIN.items() if variant != BASELINE}
    )


def over_homogeneous(table: RateTable, results: Results) -> str:
    """Return the speed-ups over homogeneous training; the paper's abstract has 1.23 to 1.97."""
    variants = {name: MAIN[name] for name in ("`local`", "`global`, literal", "`global`")}

    def cell_of_draws(variant: Variant) -> Callable[[int], str]:
        return lambda gpus: spread(
            [
                rival.makespan_s / run.makespan_s
                for rival, run in zip(
                    results[HOMOGENEOUS, gpus], results[variant, gpus], strict=True
                )
            ]
        )

    def cell_of_ensemble(variant: Variant) -> Callable[[int], str]:
        return lambda gpus: f"{homogeneous_s[gpus] / variant.run(table, gpus, None).makespan_s:.2f}"

    homogeneous_s = {gpus: HOMOGENEOUS.run(table, gpus, None).makespan_s for gpus in GPUS}
    return by_gpus(
        "GPUs",
        GPUS,
        {
            **{name: cell_of_draws(variant) for name, variant in variants.items()},
            **{
                f"{name}, the ensemble's own epochs": cell_of_ensemble(variant)
                for name, variant in variants.items()
            },
        },
    )


def ratios(results: Results, variants: dict[str, Variant], gpus: Sequence[int]) -> str:
    """Return the makespans over the lower bound."""

    def cell(variant: Variant) -> Callable[[int], str]:
        return lambda count: spread([run.ratio for run in results[variant, count]], 3)

    return by_gpus("GPUs", gpus, {name: cell(variant) for name, variant in variants.items()})


def waiting(results: Results) -> str:
    """Return the table of the paper's Figure 6."""

    def cell(variant: Variant) -> Callable[[int], str]:
        return lambda gpus: spread([run.waiting_s for run in results[variant, gpus]], 0)

    return by_gpus("GPUs", GPUS, {name: cell(variant) for name, variant in MAIN.items()})


def targets(results: Results) -> str:
    """Return `adaptive` with its targets, and the other policies."""

    def mean(variant: Variant, gpus: int) -> float:
        return statistics.mean(run.ratio for run in results[variant, gpus])

    def worst(gpus: int) -> float:
        return max(run.ratio for run in results[REALISTIC, gpus])

    def faster(variant: Variant) -> Callable[[int], str]:
        return lambda gpus: f"{mean(variant, gpus) / mean(REALISTIC, gpus):.2f}"

    target = dict(zip(GPUS, TARGETS, strict=True))
    return by_gpus(
        "GPUs",
        GPUS,
        {
            "target, at most": lambda gpus: f"{target[gpus]:.2f}",
            "`adaptive`, mean": lambda gpus: f"{mean(REALISTIC, gpus):.3f}",
            "`adaptive`, worst draw": lambda gpus: f"{worst(gpus):.3f}",
            "`baseline`, times as long": faster(BASELINE),
            "`global`, times as long": faster(MAIN["`global`"]),
        },
    )


def price(results: Results, pairs: Mapping[str, tuple[Variant, ...]], gpus: Sequence[int]) -> str:
    """Return mean makespans, divided by those of the same policy with exact rates."""

    def mean(variant: Variant, count: int) -> float:
        return statistics.mean(run.makespan_s for run in results[variant, count])

    def cell(exact: Variant, learned: Variant) -> Callable[[int], str]:
        return lambda count: f"{mean(learned, count) / mean(exact, count):.3f}"

    return by_gpus("GPUs", gpus, {name: cell(*pair) for name, pair in pairs.items()})


def draw(results: Results, file: Path) -> None:
    """Draw speed-ups over baseline, and makespans over the bound, against GPUs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes_left, right = figure.subplots(1, 2)
    for name, variant in MAIN.items():
        ratio = [[run.ratio for run in results[variant, gpus]] for gpus in GPUS]
        gain = [
            [
                base.makespan_s / run.makespan_s
                for base, run in zip(results[BASELINE, gpus], results[variant, gpus], strict=True)
            ]
            for gpus in GPUS
        ]
        for axes, values in ((axes_left, gain), (right, ratio)):
            axes.errorbar(
                GPUS,
                [statistics.mean(curve) for curve in values],
                marker="o",
                markersize=3,
                capsize=2,
                yerr=[statistics.stdev(curve) if len(curve) > 1 else 0.0 for curve in values],
                label=name.replace("`", ""),
            )
    axes_left.set(xlabel="GPUs", ylabel="speed-up over baseline", ylim=(0, None))
    right.set(xlabel="GPUs", ylabel="makespan over the lower bound", yscale="log")
    right.set_yticks(
        [1, 1.1, 1.25, 1.5, 2, 3, 4], labels=["1", "1.1", "1.25", "1.5", "2", "3", "4"]
    )
    right.minorticks_off()
    axes_left.legend(fontsize=7)
    figure.savefig(file, metadata={"Date": None})


def running_lengths(table: RateTable) -> str:
    """Return the paper's Table 3: the variation of running lengths on 80 GPUs."""

    def lengths(
        run: Simulated, start: float = 0.0, end: float = float("inf")
    ) -> tuple[float, float]:
        seconds = [
            stint.end_s - stint.start_s for stint in run.stints if start <= stint.start_s < end
        ]
        return statistics.mean(seconds), statistics.stdev(seconds) if len(seconds) > 1 else 0.0

    def row(
        name: str, flotilla: str, paper: tuple[float, float], measured: tuple[float, float]
    ) -> list[str]:
        return [name, flotilla, *(f"{value:.0f}" for value in (*paper, *measured))]

    rows = [
        row(f"`{policy}`", "", paper, lengths(MAIN[f"`{policy}`"].run(table, 80, None)))
        for policy, paper in TABLE_3.items()
    ]
    run = MAIN["`global`, literal"].run(table, 80, None)
    rows += [
        row(
            "`global`, literal",
            str(number),
            paper,
            lengths(run, run_stint.start_s, run_stint.end_s),
        )
        for number, (paper, run_stint) in enumerate(
            zip(TABLE_3_FLOTILLAS, run.rounds, strict=False)
        )
    ]
    return markdown(
        ["policy", "flotilla", "paper: mean, s", "deviation, s", "here: mean, s", "deviation, s"],
        rows,
    )


def overheads(table: RateTable) -> str:
    """Return the paper's Table 4, and the effect of choices beyond the peak of Eq. 5."""
    literal = {gpus: MAIN["`global`, literal"].run(table, gpus, None) for gpus in GPUS}
    limited = {gpus: MAIN["`global`"].run(table, gpus, None) for gpus in GPUS}
    return by_gpus(
        "GPUs",
        GPUS,
        {
            "paper: total, s": lambda gpus: f"{TABLE_4[gpus][0]:.0f}",
            "here, literal": lambda gpus: f"{literal[gpus].makespan_s:.0f}",
            "here / paper": lambda gpus: f"{literal[gpus].makespan_s / TABLE_4[gpus][0]:.3f}",
            "peak-limited / paper": lambda gpus: (
                f"{limited[gpus].makespan_s / TABLE_4[gpus][0]:.3f}"
            ),
            "paper: flotillas": lambda gpus: f"{TABLE_4[gpus][2] / 34:.0f}",
            "here: rounds": lambda gpus: f"{len(literal[gpus].rounds)}",
            "paper: checkpointing, s": lambda gpus: f"{TABLE_4[gpus][2]:.0f}",
            "here (34 s per round)": lambda gpus: f"{literal[gpus].checkpoint_s:.0f}",
            "paper: scheduling, s": lambda gpus: f"{TABLE_4[gpus][1]:.1f}",
            "here (0.46 s per round)": lambda gpus: f"{literal[gpus].scheduling_s:.1f}",
            "rounds with a group beyond its peak": lambda gpus: str(
                _beyond_peak(table, literal[gpus], gpus)
            ),
        },
    )


def _beyond_peak(table: RateTable, run: Simulated, gpus: int) -> int:
    """Count the rounds in which a network has more GPUs than at its best rate."""
    peak = {network.name: 1 + int(curve(network, gpus).argmax()) for network in table.models}
    return sum(
        any(member.gpus > peak[member.name] for member in group.members) for group in run.rounds
    )


STREAMS = {
    "free pace": REALISTIC,
    "8 lockstep streams": replace(REALISTIC, stream=Stream(count=8)),
    "4 lockstep streams (target 1.15)": replace(REALISTIC, stream=Stream(count=4)),
    "4 lockstep streams, changing at any step": replace(
        REALISTIC, stream=Stream(count=4, change_at_any_step=True)
    ),
    "2 lockstep streams": replace(REALISTIC, stream=Stream(count=2)),
    "lockstep": replace(REALISTIC, stream=LOCKSTEP),
    "ring, window 10 %, turning 4 times as fast": replace(REALISTIC, stream=Stream(ring=Ring())),
    "ring, window 20 %, turning 4 times as fast": replace(
        REALISTIC, stream=Stream(ring=Ring(window=0.2))
    ),
    "ring, window 10 %, turning 8 times as fast": replace(
        REALISTIC, stream=Stream(ring=Ring(surplus=8.0))
    ),
}
SENSITIVITY = {
    "`adaptive`": REALISTIC,
    "`adaptive`, exact rates": replace(REALISTIC, rate_error=0.0),
    "`adaptive`, 34 s per move": replace(REALISTIC, costs=Costs(checkpoint_s=34.0, regroup_s=34.0)),
    "`global`, delta 15 %": replace(MAIN["`global`"], options=Options()),
    "`homogeneous` in lockstep": replace(HOMOGENEOUS, stream=LOCKSTEP),
}
EXACT = SENSITIVITY["`adaptive`, exact rates"]
# A policy with exact rates, and with rates that the run learns.
ONLINE = {
    name: (exact, replace(exact, rate_error=0.05, prior_factor=2.0))
    for name, exact in {
        "`adaptive`": EXACT,
        "`global`": MAIN["`global`"],
        "`local`": MAIN["`local`"],
    }.items()
}
# Exact rates, and shared GPUs: with networks that gain from sharing, and with some that do not.
GAIN, NO_GAIN = (1.0, 1.6, 2.1, 2.4), (1.0, 1.0, 1.0, 1.0)
SHARED = {
    "two slots": (EXACT, replace(EXACT, slots=2, sharing=GAIN)),
    "four slots": (EXACT, replace(EXACT, slots=4, sharing=GAIN)),
    "four slots, rates and s(k) learned": (
        EXACT,
        replace(ONLINE["`adaptive`"][1], slots=4, sharing=GAIN),
    ),
    "four slots without gain, learned": (
        EXACT,
        replace(ONLINE["`adaptive`"][1], slots=4, sharing=NO_GAIN),
    ),
}
# An input of 150 samples/s, which literal plans do not consider.
SLOW = {
    f"`{policy}`": tuple(
        replace(
            MAIN[f"`{policy}`"],
            stream=replace(stream, rate=150.0),
            rate_error=0.0,
            options=replace(PAPER, peak_limited=peak_limited),
        )
        for peak_limited in (False, True)
    )
    for policy, stream in (("adaptive", FREE), ("global", LOCKSTEP))
}
HEAVY = {
    name: replace(MAIN[name], heavy_tail=True) for name in ("`baseline`", "`global`", "`adaptive`")
}
SMALL = {name: replace(MAIN[name], max_gpus=8) for name in ("`baseline`", "`global`", "`adaptive`")}


def placement() -> str:
    """Return Algorithm 3 and the optimum, on groups that Algorithm 3 places badly."""
    rows = []
    for sizes in ((3, 3, 3, 3, 11, 11, 11, 11), (3, 3, 3, 3, 8), (1, 2, 3, 5, 6, 7)):
        groups = {str(i): size for i, size in enumerate(sizes)}
        devices = range(-(-sum(sizes) // 4) * 4)
        paper, best = (
            score(members, 4)
            for members in (place_greedily(groups, devices, 4), place_groups(groups, devices, 4))
        )
        rows.append(
            [", ".join(map(str, sizes)), f"{paper:.3f}", f"{best:.3f}", f"{paper / best - 1:.1%}"]
        )
    return markdown(
        ["group sizes, on nodes of 4", "Algorithm 3", "here", "Algorithm 3 is worse by"], rows
    )


# Rates on 1, 2, ... GPUs of nodes of four, as shares of as many times that of one: on as few nodes
# as possible, and on more. Means over the placements in the traces of Sia's simulator (Jayaram
# Subramanya et al., SOSP 2023): ImageNet on Azure with 600 samples per GPU, BERT on AWS with 12.
IMAGENET = (1, 0.71, 0.75, 0.53, 0.885, 0.97, 0.71, 0.72), (1, 1.02, 1.01, 0.825)
BERT = (
    (1, 1, 0.97, 0.96, 0.415, 0.395, 0.37, 0.36),
    (1, 0.62, 0.6, 0.542, 0.633, 0.59, 0.589, 0.557),
)
PLACED_GPUS = (20, 40, 80, 160)
PLACED_SHARE = 2  # GPUs per network: the curves end at eight
PLACED = {
    "`adaptive`, rates known": Variant("adaptive", costs=REGROUPING_COSTS),
    "`adaptive`, rates learned": Variant(
        "adaptive", costs=REGROUPING_COSTS, rate_error=0.05, prior_factor=2.0
    ),
    "`global`, rates known": MAIN["`global`"],
}


def placed_ensemble(gpus: int, seed: int) -> RateTable:
    """Return networks that scale like ImageNet and BERT in turns, with drawn rates and epochs."""
    rng = np.random.default_rng(seed)
    models = []
    for number in range(gpus // PLACED_SHARE):
        name, (few, spread) = (("imagenet", IMAGENET), ("bert", BERT))[number % 2]
        single = 100 * math.exp(0.5 * float(rng.standard_normal()))
        models.append(
            Network(
                f"{name}-{number}",
                tuple(single * gpus * share for gpus, share in enumerate(few, start=1)),
                epochs=int(rng.integers(8, 21)),
                spread_rates=tuple(
                    single * gpus * share for gpus, share in enumerate(spread, start=1)
                ),
            )
        )
    return RateTable(30_000, 4, tuple(models))


@dataclass(frozen=True)
class PlacementCost:
    """What it costs to ignore how GPUs lie; simulated, mean of the draws.

    Attributes:
        ignored_s, used_s: makespan of the policy without and with rates by how GPUs lie.
        cost: the mean of their ratios, minus 1.
        largest, smallest: the largest and the smallest of these.
        over_bound: the mean of ``used_s`` over the lower bound, where all groups lie best.
    """

    variant: str
    gpus: int
    draws: int
    ignored_s: float
    used_s: float
    cost: float
    largest: float
    smallest: float
    over_bound: float


def placement_costs(draws: int, jobs: int) -> list[PlacementCost]:
    """Simulate policies that ignore how GPUs lie, and policies that do not."""
    keys = [
        (placed_ensemble(gpus, seed), replace(variant, spans=spans), gpus, seed)
        for variant, gpus, seed, spans in product(
            PLACED.values(), PLACED_GPUS, range(draws), (False, True)
        )
    ]
    with ProcessPoolExecutor(jobs) as pool:
        outcomes = iter(list(pool.map(_placed_outcome, keys)))
    rows = []
    for name, gpus in product(PLACED, PLACED_GPUS):
        pairs = [(next(outcomes), next(outcomes)) for _ in range(draws)]
        costs = [ignored.makespan_s / used.makespan_s - 1 for ignored, used in pairs]
        rows.append(
            PlacementCost(
                name,
                gpus,
                draws,
                statistics.mean(ignored.makespan_s for ignored, _ in pairs),
                statistics.mean(used.makespan_s for _, used in pairs),
                statistics.mean(costs),
                max(costs),
                min(costs),
                statistics.mean(used.ratio for _, used in pairs),
            )
        )
    return rows


def _placed_outcome(job: tuple[RateTable, Variant, int, int]) -> Outcome:
    table, variant, gpus, seed = job
    options = replace(variant.options, delta=Delta(0.15, relative=True))
    return _outcome((table, replace(variant, options=options, redraws=False), gpus, seed))


def placement_table(rows: Sequence[PlacementCost]) -> str:
    """Return the costs as a table."""
    cells = {(row.variant, row.gpus): row for row in rows}

    def cell(name: str) -> Callable[[int], str]:
        def text(gpus: int) -> str:
            row = cells[name, gpus]
            return f"{row.cost:.1%} ({row.smallest:.1%} to {row.largest:.1%})"

        return text

    return by_gpus("GPUs", PLACED_GPUS, {name: cell(name) for name in PLACED})


def document(table: RateTable, seeds: int, few: int, jobs: int, figure: Path) -> str:
    """Return the text of docs/measured/schedules.md, and draw its figure."""
    simulator = Simulator(table, jobs)
    main = simulator.run(MAIN.values(), GPUS, seeds)
    draw(main, figure)
    sections = simulator.run(
        [*STREAMS.values(), *SENSITIVITY.values(), *HEAVY.values(), *SMALL.values()], FEW_GPUS, few
    )
    pairs = simulator.run(
        [
            variant
            for pair in [*ONLINE.values(), *SHARED.values(), *SLOW.values()]
            for variant in pair
        ],
        FEW_GPUS,
        few,
    )
    text = (Path(__file__).parent / "schedules_docs.md").read_text(encoding="utf-8")
    return text.format(
        seeds=seeds,
        few=few,
        networks=len(table.models),
        speed_ups=speed_ups(main),
        over_homogeneous=over_homogeneous(table, main),
        waiting=waiting(main),
        ratios=ratios(main, MAIN, GPUS),
        targets=targets(main),
        running_lengths=running_lengths(table),
        overheads=overheads(table),
        streams=ratios(sections, STREAMS, FEW_GPUS),
        sensitivity=ratios(sections, SENSITIVITY, FEW_GPUS),
        heavy=ratios(sections, HEAVY, FEW_GPUS),
        small=ratios(sections, SMALL, FEW_GPUS),
        placement=placement(),
        placed=placement_table(placement_costs(few, jobs)),
        online=price(pairs, ONLINE, FEW_GPUS),
        shared=price(pairs, SHARED, FEW_GPUS),
        slow=price(pairs, SLOW, FEW_GPUS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ensemble", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--placement", action="store_true", help="simulate how GPUs lie, alone")
    parser.add_argument("--json", action="store_true", help="print the rows of --placement")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--few", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    if args.placement:
        rows = placement_costs(args.few, args.jobs)
        if args.json:
            print_json(list(map(vars, rows)))
        else:
            print(placement_table(rows))
        return
    if args.ensemble is None or args.out is None:
        parser.error("give ENSEMBLE.json and --out, or --placement")
    table = convert(read_json(args.ensemble), str(args.ensemble))
    figure = args.out.parent.parent / "figures" / "schedules.svg"
    figure.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(document(table, args.seeds, args.few, args.jobs, figure), encoding="utf-8")


if __name__ == "__main__":
    main()
