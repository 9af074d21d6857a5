"""The searches that `search.py` compares: FLEET's search controller, and Optuna's interface.

Each decides which network a GPU trains next, and when a network stops
(`search_curves.Search`). FLEET's decisions come from the object that decides in a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from search_curves import EPOCHS, GPUS, NETWORKS, SPACE, draw_networks

from fleet.domain.events import NetworkVerdict
from fleet.domain.network import EpochRecord
from fleet.domain.run import RunState
from fleet.search.calls import make_call
from fleet.search.controller import SearchController
from fleet.search.decisions import AddNetwork, CallSearcher
from fleet.search.entries import Entry
from fleet.search.pruning import make_pruner
from fleet.search.searcher import Searcher, TrialOutcome, Verdict
from fleet.spec import Stopping
from fleet.spec.dimensions import Member, Range, Space
from fleet.spec.search import Prune, find_rule
from fleet.spec.search import Search as Settings

RANGES: Space = {
    name: Range(low, high, log=name != "depth", integer=name != "learning_rate")
    for name, (low, high) in SPACE.items()
}
ENTRY = "net"


class ListSearcher:
    """A searcher that proposes the networks of a list."""

    def __init__(self, networks: Sequence[Mapping[str, Any]]) -> None:
        self._networks = networks

    def ask(self, number: int) -> Member | None:
        return self._networks[number] if number < len(self._networks) else None

    def report(self, number: int, epoch: int, value: float) -> str:
        return Verdict.GO_ON

    def tell(self, number: int, outcome: str, value: float | None) -> None:
        """Ignore the outcome."""


class FleetSearch:
    """A search with FLEET's search controller, whose searcher is called as in a run.

    Args:
        prune: the rule.
        searcher: what proposes networks.
        networks: number of networks.
        gpus: number of GPUs.
        lengths: number of epochs of each network; one number if all have as many.
        space: the space of the searcher.
        mode: whether more is better: `max` or `min`. Measured values are negated in the latter
            case, and the searcher receives the values themselves.
    """

    def __init__(
        self,
        prune: Prune,
        searcher: Searcher,
        networks: int = NETWORKS,
        gpus: int = GPUS,
        lengths: int | Sequence[int] = EPOCHS,
        space: Space | None = None,
        mode: str = "max",
    ) -> None:
        settings = Settings(sampler="random", max_trials=networks)
        self._searcher = searcher
        self._lengths = [lengths] * networks if isinstance(lengths, int) else lengths
        self._sign = 1 if mode == "max" else -1
        metric = "accuracy" if mode == "max" else "loss"
        stopping = {
            f"{ENTRY}-{number}": Stopping(monitor=metric, max_epochs=epochs)
            for number, epochs in enumerate(self._lengths)
        }
        entry = Entry(ENTRY, settings, RANGES if space is None else space)
        self._controller = SearchController(
            RunState(),
            [entry],
            [],
            make_pruner(prune, max(self._lengths), seed=0),
            prune.rule,
            gpus,
            obeys=find_rule(prune.rule).obeys,
            stopping=stopping,
        )
        self._values: dict[str, Mapping[str, Any]] = {}
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

    def next_network(self) -> tuple[int, Mapping[str, Any]] | None:
        if not self._ready:
            return None
        name = self._ready.pop(0)
        return int(name.rpartition("-")[2]), self._values[name]

    def _report_epoch(self, number: int, epoch: int, accuracy: float) -> str:
        value = self._sign * accuracy
        record = EpochRecord(epoch, epoch - 1, value, value, value, value, 0.1, 1, 1, 1.0, 0.0)
        name = f"{ENTRY}-{number}"
        is_done = epoch == self._lengths[number]
        self._controller.end_epoch(name, record, is_done)
        if is_done:
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

    def finish_network(self, number: int, epoch: int, accuracy: float) -> None:
        self._report_epoch(number, epoch, accuracy)
        self._decide()

    def next_rung(self, number: int, epochs: int) -> int:
        """Return the number of epochs after which a network is compared next."""
        last = self._lengths[number]
        return self._controller.pruner.next_rung(f"{ENTRY}-{number}", epochs) or last


class OptunaSearch:
    """A search with Optuna's interface: ask, report, should_prune, tell.

    Args:
        name: name of the study, on which brackets of Hyperband depend.
        sampler, pruner: of Optuna.
        networks: number of networks.
        suggest: returns the values of a trial.
    """

    def __init__(
        self,
        name: str,
        sampler: Any,
        pruner: Any,
        networks: int = NETWORKS,
        suggest: Callable[[Any], Mapping[str, Any]] = lambda trial: {},
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            study_name=name, direction="maximize", sampler=sampler, pruner=pruner
        )
        self._networks = networks
        self._suggest = suggest
        self._trials: dict[int, optuna.Trial] = {}
        self._states = optuna.trial.TrialState

    def enqueue(self, networks: Iterable[Mapping[str, Any]]) -> None:
        """Let the study try these values first."""
        for values in networks:
            self._study.enqueue_trial(dict(values))

    def next_network(self) -> tuple[int, Mapping[str, Any]] | None:
        if len(self._trials) == self._networks:
            return None
        trial = self._study.ask()
        self._trials[trial.number] = trial
        return trial.number, self._suggest(trial)

    def end_epoch(self, number: int, epoch: int, accuracy: float) -> bool:
        trial = self._trials[number]
        trial.report(accuracy, epoch)
        if not trial.should_prune():
            return True
        self._study.tell(trial, state=self._states.PRUNED)
        return False

    def finish_network(self, number: int, epoch: int, accuracy: float) -> None:
        trial = self._trials[number]
        if math.isnan(accuracy):  # Optuna takes no NaN
            self._study.tell(trial, state=self._states.FAIL)
        else:
            self._study.tell(trial, accuracy)


def suggest_law_values(trial: Any) -> Mapping[str, float]:
    """Return the values of a trial of Optuna in the space of the law."""
    low, high = SPACE["learning_rate"]
    return {
        "learning_rate": trial.suggest_float("learning_rate", low, high, log=True),
        "width": trial.suggest_int("width", *map(int, SPACE["width"]), log=True),
        "depth": trial.suggest_int("depth", *map(int, SPACE["depth"])),
    }


def make_optuna_search(seed: int, sampler: str, pruner: str) -> OptunaSearch:
    """Return a search of Optuna by the law of a seed."""
    import optuna

    samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
    pruners: dict[str, Callable[..., Any]] = {
        "median": optuna.pruners.MedianPruner,
        "asha": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": partial(optuna.pruners.HyperbandPruner, 1, EPOCHS, 3),
    }
    options = {"min_resource": 1, "reduction_factor": 3} if pruner == "asha" else {}
    search = OptunaSearch(
        f"seed {seed}",
        samplers[sampler](seed=seed),
        pruners[pruner](**options),
        suggest=suggest_law_values,
    )
    if sampler == "random":
        search.enqueue(draw_networks(seed))
    return search
