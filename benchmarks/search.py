"""Measure the GPU hours until a search finds a network within 1 % of the best of 200.

    python benchmarks/search.py [--seeds 20] [--without-ray]

Networks are emulated: their learning curves come from a seeded law (`search_curves.py`). Curves
cross, measurements are noisy, and large networks take longer. Sixteen GPUs train one network each,
for at most 27 epochs. All programs train the same 200 random networks; TPE proposes as many of its
own:

- FLEET: its own rules, by the object that decides in a run
  (`fleet.search.controller.SearchController`), with the searcher of `examples/optuna_searcher.py`
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
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from search_coordinator import measure_epoch
from search_curves import EPOCHS, GPUS, NETWORKS, SPACE, Search, SearchCost, draw_networks, simulate
from versus import install_ray

from fleet.commands.output import print_json
from fleet.domain.events import NetworkVerdict
from fleet.domain.network import EpochRecord
from fleet.domain.run import RunState
from fleet.search.calls import make_call
from fleet.search.controller import SearchController
from fleet.search.decisions import AddNetwork, CallSearcher
from fleet.search.entries import Entry
from fleet.search.pruning import make_pruner
from fleet.search.searcher import Searcher, TrialOutcome, Verdict, make_searcher
from fleet.spec.search import Prune, find_rule
from fleet.spec.search import Search as Settings
from fleet.spec.space import Member, Range, Space
from fleet.terminal import print_table

ROOT, FOLDER = Path(__file__).parents[1], Path(__file__).parent
RANGES: Space = {
    name: Range(low, high, log=name != "depth", integer=name != "learning_rate")
    for name, (low, high) in SPACE.items()
}
ENTRY = "net"


class ListSearcher:
    """A searcher that proposes the networks of a list."""

    def __init__(self, networks: list[dict[str, float]]) -> None:
        self._networks = networks

    def ask(self, number: int) -> Member | None:
        return self._networks[number] if number < len(self._networks) else None

    def report(self, number: int, epoch: int, value: float) -> str:
        return Verdict.GO_ON

    def tell(self, number: int, outcome: str, value: float | None) -> None:
        """Ignore the outcome."""


class FleetSearch:
    """A search with FLEET's search controller, whose searcher is called as in a run."""

    def __init__(
        self, prune: Prune, searcher: Searcher, networks: int = NETWORKS, gpus: int = GPUS
    ) -> None:
        settings = Settings(sampler="random", max_trials=networks)
        self._searcher = searcher
        entry = Entry(ENTRY, settings, RANGES)
        self._controller = SearchController(
            RunState(),
            [entry],
            [],
            make_pruner(prune, EPOCHS, seed=0),
            prune.rule,
            gpus,
            obeys=find_rule(prune.rule).obeys,
        )
        self._values: dict[str, Mapping[str, float]] = {}
        self._ready: list[str] = []  # waiting for a GPU
        self._paused: set[str] = set()  # paused or pruned
        self._decide()

    def _decide(self) -> None:
        """Carry out decisions until there are none left."""
        decisions = self._controller.decide()
        while decisions:
            for decision in decisions:
                match decision:
                    case AddNetwork(network=name, values=values):
                        self._values[name] = values
                        self._ready.append(name)
                    case CallSearcher(entry=entry, call=call):
                        self._controller.handle_answer(entry, call, make_call(self._searcher, call))
                    case NetworkVerdict(network=name, verdict="go_on"):
                        self._ready.append(name)
                    case NetworkVerdict(network=name):
                        self._paused.add(name)
            decisions = self._controller.decide()

    def next_network(self) -> tuple[int, Mapping[str, float]] | None:
        if not self._ready:
            return None
        name = self._ready.pop(0)
        return int(name.rpartition("-")[2]), self._values[name]

    def _report_epoch(self, number: int, epoch: int, accuracy: float) -> str:
        record = EpochRecord(epoch, epoch - 1, 1.0, accuracy, 1.0, accuracy, 0.1, 1, 1, 1.0, 0.0)
        name = f"{ENTRY}-{number}"
        self._controller.end_epoch(name, record, epoch == EPOCHS)
        if epoch == EPOCHS:
            self._controller.end_network(name, TrialOutcome.FINISHED)
        return name

    def end_epoch(self, number: int, epoch: int, accuracy: float) -> bool:
        name = self._report_epoch(number, epoch, accuracy)
        self._paused.discard(name)
        self._decide()
        if name in self._ready:  # it was paused and is among the best again
            self._ready.remove(name)
            return True
        return name not in self._paused

    def finish_network(self, number: int, accuracy: float) -> None:
        self._report_epoch(number, EPOCHS, accuracy)
        self._decide()

    def next_rung(self, number: int, epochs: int) -> int:
        """Return the number of epochs after which a network is compared next."""
        return self._controller.pruner.next_rung(f"{ENTRY}-{number}", epochs) or EPOCHS


class OptunaSearch:
    """A search with Optuna's interface: ask, report, should_prune, tell."""

    def __init__(self, seed: int, sampler: str, pruner: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        pruners: dict[str, Callable[..., Any]] = {
            "median": optuna.pruners.MedianPruner,
            "asha": optuna.pruners.SuccessiveHalvingPruner,
            "hyperband": partial(optuna.pruners.HyperbandPruner, 1, EPOCHS, 3),
        }
        options = {"min_resource": 1, "reduction_factor": 3} if pruner == "asha" else {}
        self._study = optuna.create_study(
            study_name=f"seed {seed}",  # brackets depend on the name
            direction="maximize",
            sampler=samplers[sampler](seed=seed),
            pruner=pruners[pruner](**options),
        )
        if sampler == "random":
            for values in draw_networks(seed):
                self._study.enqueue_trial(values)
        self._trials: dict[int, optuna.Trial] = {}
        self._pruned = optuna.trial.TrialState.PRUNED

    def next_network(self) -> tuple[int, Mapping[str, float]] | None:
        if len(self._trials) == NETWORKS:
            return None
        trial = self._study.ask()
        low, high = SPACE["learning_rate"]
        values = {
            "learning_rate": trial.suggest_float("learning_rate", low, high, log=True),
            "width": trial.suggest_int("width", *map(int, SPACE["width"]), log=True),
            "depth": trial.suggest_int("depth", *map(int, SPACE["depth"])),
        }
        self._trials[trial.number] = trial
        return trial.number, values

    def end_epoch(self, number: int, epoch: int, accuracy: float) -> bool:
        trial = self._trials[number]
        trial.report(accuracy, epoch)
        if not trial.should_prune():
            return True
        self._study.tell(trial, state=self._pruned)
        return False

    def finish_network(self, number: int, accuracy: float) -> None:
        self._study.tell(self._trials[number], accuracy)


def make_tpe(seed: int) -> Searcher:
    sys.path.insert(0, str(ROOT / "examples"))
    return make_searcher("optuna_searcher:Searcher", RANGES, seed, "maximize", {"sampler": "tpe"})


def make_fleet_search(
    seed: int,
    make: Callable[[int], Searcher] = lambda seed: ListSearcher(draw_networks(seed)),
    **prune: Any,
) -> Search:
    return FleetSearch(Prune(**prune), make(seed))


SEARCHES: dict[str, Callable[[int], Search]] = {
    "no pruning": partial(make_fleet_search, rule="none"),
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
    "Optuna, median": partial(OptunaSearch, sampler="random", pruner="median"),
    "Optuna, asha": partial(OptunaSearch, sampler="random", pruner="asha"),
    "Optuna, hyperband": partial(OptunaSearch, sampler="random", pruner="hyperband"),
    "Optuna, TPE + asha": partial(OptunaSearch, sampler="tpe", pruner="asha"),
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
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--networks",
        type=int,
        default=10_000,
        help="networks of the run whose coordinator is timed",
    )
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the numbers of all seeds")
    arguments = parser.parse_args()
    logging.disable()
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
    cpu_ms = measure_epoch(arguments.networks).ms
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
        f"coordinator: {cpu_ms:.2f} ms of CPU per finished epoch, {arguments.networks} networks of "
        "one epoch"
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
