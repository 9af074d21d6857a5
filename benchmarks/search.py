"""Measure the GPU hours until a search finds a network within 1 % of the best of 200.

    python benchmarks/search.py [--seeds 20] [--without-ray]
    python benchmarks/search.py --curves FILE ... [--tasks N] [--networks 200] [--gpus 16] [--json]

With --curves, networks are trained along recorded curves (`search_files.py` says which files), and
a row for each rule says on how many tasks it came near the best network, and at what cost
(`search_tables.py`). The rest is about the other form.

Networks are emulated: their learning curves come from a seeded law (`search_curves.py`). Curves
cross, measurements are noisy, and large networks take longer. Sixteen GPUs train one network each,
for at most 27 epochs. All programs train the same 200 random networks; TPE proposes as many of its
own:

- FLEET: its own rules, by the object that decides in a run
  (`fleet.search.controller.SearchController`), with the sampler `tpe`
  for TPE;
- Optuna alone: its samplers and pruners, by ask, report, should_prune and tell;
- Ray Tune: its ASHA scheduler, in its own environment.

Finally: the CPU time of the coordinator per finished epoch, in a run of 10,000 networks of one
epoch.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from search_coordinator import measure_epoch
from search_curves import EPOCHS, GPUS, NETWORKS, Search, SearchCost, draw_networks, simulate
from search_files import WrongFile
from search_programs import RANGES, FleetSearch, ListSearcher, make_optuna_search
from search_tables import measure_files
from versus import install_ray

from fleet.commands.output import print_json
from fleet.search.searcher import Searcher, make_searcher
from fleet.spec.search import Prune
from fleet.terminal import print_table

ROOT, FOLDER = Path(__file__).parents[1], Path(__file__).parent
COORDINATED = 10_000


def make_tpe(seed: int) -> Searcher:
    return make_searcher("tpe", RANGES, seed, "maximize", {})


def make_fleet_search(
    seed: int,
    make: Callable[[int], Searcher] = lambda seed: ListSearcher(draw_networks(seed)),
    **prune: Any,
) -> Search:
    return FleetSearch(Prune(**prune), make(seed))


SEARCHES: dict[str, Callable[[int], Search]] = {
    "no pruning": partial(make_fleet_search, rule="none"),
    "FLEET, auto": partial(make_fleet_search, rule="auto"),
    "FLEET, median": partial(make_fleet_search, rule="median", min_epochs=3),
    "FLEET, asha (pause)": partial(make_fleet_search, rule="asha"),
    "FLEET, asha (stop)": partial(make_fleet_search, rule="asha", on_fail="stop"),
    "FLEET, asha (synchronous)": partial(make_fleet_search, rule="asha", synchronous=True),
    "FLEET, hyperband": partial(make_fleet_search, rule="hyperband"),
    "FLEET, TPE": partial(make_fleet_search, make=make_tpe, rule="none"),
    "FLEET, TPE + asha (pause)": partial(make_fleet_search, make=make_tpe, rule="asha"),
    "FLEET, TPE + asha (stop)": partial(
        make_fleet_search, make=make_tpe, rule="asha", on_fail="stop"
    ),
    "Optuna, median": partial(make_optuna_search, sampler="random", pruner="median"),
    "Optuna, asha": partial(make_optuna_search, sampler="random", pruner="asha"),
    "Optuna, hyperband": partial(make_optuna_search, sampler="random", pruner="hyperband"),
    "Optuna, TPE + asha": partial(make_optuna_search, sampler="tpe", pruner="asha"),
}


def run_ray_asha(seeds: int) -> list[SearchCost]:
    """Run Ray's ASHA in its environment."""
    python = install_ray(ROOT / "build/ray")
    process = subprocess.run(
        [python, FOLDER / "search_ray.py", str(seeds)], check=True, capture_output=True, text=True
    )
    return [SearchCost(**cost) for cost in json.loads(process.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--curves", type=Path, nargs="+", metavar="FILE", help="recorded curves, not the law"
    )
    parser.add_argument("--tasks", type=int, metavar="N", help="only the first N tasks of a file")
    parser.add_argument("--gpus", type=int, default=GPUS, help="for --curves")
    parser.add_argument("--seed", type=int, default=0, help="for --curves: which networks")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of the law")
    parser.add_argument(
        "--networks",
        type=int,
        help=f"for --curves: networks per task ({NETWORKS}); else networks of the run whose "
        f"coordinator is timed ({COORDINATED:,})",
    )
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument(
        "--hindsight",
        action="store_true",
        help="for --curves: look for the best min_epochs of all rules, not of asha only",
    )
    parser.add_argument(
        "--samplers",
        action="store_true",
        help="for --curves lcbench.npz: compare samplers, not rules (`search_samplers.py`)",
    )
    parser.add_argument("--json", action="store_true", help="print rows, or numbers of all seeds")
    arguments = parser.parse_args()
    logging.disable()
    if arguments.samplers:
        if not arguments.curves:
            parser.error("--samplers needs --curves lcbench.npz")
        from search_samplers import compare_samplers  # Optuna and scikit-learn

        rows = [row for file in arguments.curves for row in compare_samplers(file, arguments.tasks)]
        if arguments.json:
            print_json(rows)
        else:
            print_table(list(rows[0]), [list(row.values()) for row in rows])
    elif arguments.curves:
        compare_on_files(parser, arguments)
    else:
        compare_on_law(arguments)


def compare_on_files(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Compare rules on recorded curves."""
    numbers = {name: getattr(arguments, name) for name in ("tasks", "networks", "gpus")}
    for name, number in numbers.items():
        if number is not None and number < 1:
            parser.error(f"--{name} is {number}; it must be at least 1")
    try:
        rows = measure_files(
            arguments.curves,
            arguments.tasks,
            arguments.networks or NETWORKS,
            arguments.gpus,
            arguments.seed,
            with_ray=not arguments.without_ray,
            with_all_rules=arguments.hindsight,
        )
    except (WrongFile, OSError) as error:
        parser.error(str(error))
    if arguments.json:
        print_json(rows)
        return
    print_table(
        ["curves", "rule", "near", "times fewer GPU hours", "best, % (worst)", "until near, %"],
        [
            [
                row["curves"],
                row["rule"],
                f"{row['near']}/{row['tasks']}",
                f"{row['times_fewer']:.1f}",
                f"{100 * row['best_median']:.1f} ({100 * row['best_worst']:.1f})",
                "never" if row["until_near"] is None else f"{100 * row['until_near']:.1f}",
            ]
            for row in rows
        ],
        title=f"{arguments.networks or NETWORKS} networks per task on {arguments.gpus} GPUs",
    )


def compare_on_law(arguments: argparse.Namespace) -> None:
    """Compare searches on drawn curves, and time a coordinator."""
    networks = arguments.networks or COORDINATED
    results = {}
    for name, make in SEARCHES.items():
        results[name] = [simulate(make(seed), seed) for seed in range(arguments.seeds)]
        hours = statistics.median(cost.total for cost in results[name])
        print(
            f"  {name}: {hours:.1f} GPU hours",
            file=sys.stderr,
        )
    if not arguments.without_ray:
        results["Ray Tune, asha"] = run_ray_asha(arguments.seeds)
    cpu_ms = measure_epoch(networks).ms
    if arguments.json:
        print_json(
            {
                "searches": {
                    name: [asdict(cost) for cost in costs] for name, costs in results.items()
                },
                "coordinator_ms": cpu_ms,
            }
        )
        return
    full_gpu_hours = statistics.median(cost.total for cost in results["no pruning"])
    print_table(
        [
            "search",
            "GPU hours until within 1 %",
            "reached",
            "GPU hours in total",
            "reduction",
            "best, % of the best",
        ],
        [_line(name, costs, full_gpu_hours) for name, costs in results.items()],
        title=f"{NETWORKS} networks of {EPOCHS} epochs on {GPUS} GPUs, {arguments.seeds} seeds: "
        "median (quartiles)",
    )
    print(
        f"coordinator: {cpu_ms:.2f} ms of CPU per finished epoch, {networks} networks of one epoch"
    )


def _line(name: str, costs: list[SearchCost], full_gpu_hours: float) -> list[str]:
    reached = sum(cost.until_near < float("inf") for cost in costs)
    total = statistics.median(cost.total for cost in costs)
    return [
        name,
        _spread([cost.until_near for cost in costs]),
        f"{reached}/{len(costs)}",
        _spread([cost.total for cost in costs]),
        f"{full_gpu_hours / total:.1f}",
        _spread([100 * cost.best for cost in costs]),
    ]


def _spread(values: list[float]) -> str:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{median:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
