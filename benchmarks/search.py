"""GPU hours until a search has a network within 1 % of the best of 200, and what searching costs rank 0.

    python benchmarks/search.py [--seeds 20] [--without-ray]

Networks are emulated: their learning curves are drawn from a seeded law (`search_curves.py`) in which curves cross,
what is measured is noisy, and large networks take longer. Sixteen GPUs train one network each, for 27 epochs at most.
All sides have the same 200 random networks, those with TPE as many that it asks for:

- FLEET: its own rules, by the object that decides in a run (`fleet.search.controller.SearchController`), with the searcher of
  `examples/optuna_searcher.py` for TPE;
- Optuna alone: its samplers and pruners, by ask, report, should_prune and tell;
- Ray Tune: its ASHA scheduler, in an environment of its own.

Then: the CPU that the coordinator takes for an epoch's end in a run of 10,000 networks of one epoch.
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

from search_coordinator import cpu_of_an_epoch
from search_curves import EPOCHS, GPUS, NETWORKS, SPACE, Search, Spent, drawn, simulate
from versus import install_ray

from fleet.commands.output import print_json
from fleet.domain.events import NetworkVerdict
from fleet.domain.network import EpochRecord
from fleet.search.calls import make_call
from fleet.search.controller import AddNetwork, CallSearcher, Entry, LogEvent, SearchController
from fleet.search.pruning import make_pruner
from fleet.search.searcher import Searcher, TrialOutcome, Verdict, make_searcher
from fleet.spec.search import Prune, find_rule
from fleet.spec.search import Search as Settings
from fleet.spec.space import Member, Range, Space
from fleet.terminal import print_table

ROOT, HERE = Path(__file__).parents[1], Path(__file__).parent
RANGES: Space = {
    name: Range(low, high, log=name != "depth", integer=name != "learning_rate")
    for name, (low, high) in SPACE.items()
}
ENTRY = "net"


class Listed:
    """A searcher that asks for networks that are given."""

    def __init__(self, networks: list[dict[str, float]]) -> None:
        self._networks = networks

    def ask(self, number: int) -> Member | None:
        return self._networks[number] if number < len(self._networks) else None

    def report(self, number: int, epoch: int, value: float) -> str:
        return Verdict.GO_ON

    def tell(self, number: int, outcome: str, value: float | None) -> None:
        """Nothing is learned."""


class InFleet:
    """What FLEET decides: its mind hears of epochs, and its searcher is called, as in a run."""

    def __init__(
        self, prune: Prune, searcher: Searcher, networks: int = NETWORKS, gpus: int = GPUS
    ) -> None:
        settings = Settings(sampler="random", max_trials=networks)
        self._searcher = searcher
        entry = Entry(ENTRY, settings, RANGES, "maximize", "val_accuracy")
        self._controller = SearchController(
            [entry],
            [],
            make_pruner(prune, EPOCHS, seed=0),
            prune.rule,
            "maximize",
            "val_accuracy",
            gpus,
            obeys=find_rule(prune.rule).obeys,
        )
        self._values: dict[str, Mapping[str, float]] = {}
        self._ready: list[str] = []  # that wait for a GPU
        self._paused: set[str] = set()  # paused or pruned
        self._decide()

    def _decide(self) -> None:
        """Carry out what follows, until nothing more does."""
        while decisions := self._controller.decide():
            for decision in decisions:
                match decision:
                    case AddNetwork(network=name, values=values):
                        self._values[name] = values
                        self._ready.append(name)
                    case CallSearcher(entry=entry, call=call):
                        self._controller.handle_answer(entry, call, make_call(self._searcher, call))
                    case LogEvent(NetworkVerdict(network=name, verdict="go_on")):
                        self._ready.append(name)
                    case LogEvent(NetworkVerdict(network=name)):
                        self._paused.add(name)

    def next(self) -> tuple[int, Mapping[str, float]] | None:
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

    def ended(self, number: int, epoch: int, accuracy: float) -> bool:
        name = self._report_epoch(number, epoch, accuracy)
        self._paused.discard(name)
        self._decide()
        if name in self._ready:  # it was paused, and is among the best at once
            self._ready.remove(name)
            return True
        return name not in self._paused

    def finished(self, number: int, accuracy: float) -> None:
        self._report_epoch(number, EPOCHS, accuracy)
        self._decide()

    def next_rung(self, number: int, epochs: int) -> int:
        """After how many epochs a network is judged next."""
        return self._controller.next_rung(f"{ENTRY}-{number}", epochs) or EPOCHS


class InOptuna:
    """Optuna as its users drive it: ask, report, should_prune, tell."""

    def __init__(self, seed: int, sampler: str, pruner: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        pruners: dict[str, Callable[..., Any]] = {
            "median": optuna.pruners.MedianPruner,
            "asha": optuna.pruners.SuccessiveHalvingPruner,
            "hyperband": partial(optuna.pruners.HyperbandPruner, 1, EPOCHS, 3),
        }
        study = (
            pruners[pruner](min_resource=1, reduction_factor=3)
            if pruner == "asha"
            else pruners[pruner]()
        )
        self._study = optuna.create_study(
            study_name=f"seed {seed}",
            direction="maximize",  # it decides on brackets
            sampler=samplers[sampler](seed=seed),
            pruner=study,
        )
        if sampler == "random":
            for values in drawn(seed):
                self._study.enqueue_trial(values)
        self._trials: dict[int, optuna.Trial] = {}
        self._pruned = optuna.trial.TrialState.PRUNED

    def next(self) -> tuple[int, Mapping[str, float]] | None:
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

    def ended(self, number: int, epoch: int, accuracy: float) -> bool:
        trial = self._trials[number]
        trial.report(accuracy, epoch)
        if not trial.should_prune():
            return True
        self._study.tell(trial, state=self._pruned)
        return False

    def finished(self, number: int, accuracy: float) -> None:
        self._study.tell(self._trials[number], accuracy)


def tpe(seed: int) -> Searcher:
    sys.path.insert(0, str(ROOT / "examples"))
    return make_searcher("optuna_searcher:Searcher", RANGES, seed, "maximize", {"sampler": "tpe"})


def fleet(
    seed: int, ask: Callable[[int], Searcher] = lambda seed: Listed(drawn(seed)), **prune: Any
) -> Search:
    return InFleet(Prune(**prune), ask(seed))


SIDES: dict[str, Callable[[int], Search]] = {
    "all to the end": partial(fleet, rule="none"),
    "FLEET, median": partial(fleet, rule="median", min_epochs=3),
    "FLEET, asha (pause)": partial(fleet, rule="asha"),
    "FLEET, asha (stop)": partial(fleet, rule="asha", on_fail="stop"),
    "FLEET, asha by rungs": partial(fleet, rule="asha", synchronous=True),
    "FLEET, hyperband": partial(fleet, rule="hyperband"),
    "FLEET, TPE": partial(fleet, ask=tpe, rule="none"),
    "FLEET, TPE + asha (pause)": partial(fleet, ask=tpe, rule="asha"),
    "FLEET, TPE + asha (stop)": partial(fleet, ask=tpe, rule="asha", on_fail="stop"),
    "Optuna, median": partial(InOptuna, sampler="random", pruner="median"),
    "Optuna, asha": partial(InOptuna, sampler="random", pruner="asha"),
    "Optuna, hyperband": partial(InOptuna, sampler="random", pruner="hyperband"),
    "Optuna, TPE + asha": partial(InOptuna, sampler="tpe", pruner="asha"),
}


def ray_asha(seeds: int) -> list[Spent]:
    """Ray's ASHA, in its environment."""
    python = install_ray(ROOT / "build/ray")
    done = subprocess.run(
        [python, HERE / "search_ray.py", str(seeds)], check=True, capture_output=True, text=True
    )
    return [Spent(**seed_result) for seed_result in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--networks", type=int, default=10_000, help="of the run whose coordinator is timed"
    )
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the numbers of all seeds")
    arguments = parser.parse_args()
    logging.disable()
    results = {}
    for name, side in SIDES.items():
        results[name] = [simulate(side(seed), seed) for seed in range(arguments.seeds)]
        print(
            f"  {name}: {statistics.median(seed_result.total for seed_result in results[name]):.1f} GPU hours",
            file=sys.stderr,
        )
    if not arguments.without_ray:
        results["Ray Tune, asha"] = ray_asha(arguments.seeds)
    cpu_ms = cpu_of_an_epoch(arguments.networks).ms
    if arguments.json:
        print_json(
            {
                "searches": {
                    name: [asdict(seed_result) for seed_result in spent]
                    for name, spent in results.items()
                },
                "coordinator_ms": cpu_ms,
            }
        )
        return
    full_gpu_hours = statistics.median(
        seed_result.total for seed_result in results["all to the end"]
    )
    print_table(
        [
            "search",
            "GPU hours until within 1 %",
            "reached",
            "GPU hours in all",
            "times fewer",
            "best, % of the best",
        ],
        [_line(name, spent, full_gpu_hours) for name, spent in results.items()],
        title=f"{NETWORKS} networks of {EPOCHS} epochs on {GPUS} GPUs, {arguments.seeds} seeds: median "
        "(quartiles)",
    )
    print(
        f"coordinator: {cpu_ms:.2f} ms of CPU per epoch's end, {arguments.networks} networks of one epoch"
    )


def _line(name: str, spent: list[Spent], full_gpu_hours: float) -> list[str]:
    reached = sum(outcome.until_near < float("inf") for outcome in spent)
    total = statistics.median(outcome.total for outcome in spent)
    return [
        name,
        _spread([outcome.until_near for outcome in spent]),
        f"{reached}/{len(spent)}",
        _spread([outcome.total for outcome in spent]),
        f"{full_gpu_hours / total:.1f}",
        _spread([100 * outcome.best for outcome in spent]),
    ]


def _spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
