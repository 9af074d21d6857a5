"""Simulate a search with asha on 64 to 1,024 GPUs: `adaptive`, RASDA, and one GPU per network.

    python benchmarks/search_groups.py [--gpus 64 256 1024] [--seeds 3] [--loss 0.02] [--json]

RASDA (Aach et al., arXiv:2412.02729) doubles the GPUs of a trial at each rung of ASHA that it
passes. Here it does so once they are free, and starts no new trial while one waits for more. All
allocations have the same networks, twice as many as GPUs, the same rule (asha: one in three
continues after 1, 3, 9 epochs of 27) and the learning curves of `search_curves.py`, which cross and
are noisy. On g GPUs a network is g / (1 + LOSS (g - 1)) times as fast, independent of nodes, and
its curve is the same; a group that changes loses a second. Groups of `adaptive` also grow inside an
epoch.

Medians over seeds: hours until a network is within 1 % of the best, hours until the end, the GPU
hours trained until then, and hours until every network has trained one epoch.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from search_curves import EPOCHS, NEAR, Curve, draw_networks, make_curve
from search_programs import FleetSearch, ListSearcher

from fleet.commands.output import print_json
from fleet.spec.search import Prune
from fleet.terminal import print_table
from scheduler.base import Cluster, Member, Network, Progress, RateTable
from scheduler.ensemble.adaptive import group_sizes

PER_NODE, CHANGE_S, SAMPLES = 4, 1.0, 1000
RUNGS = (1, 3, 9)
Sizes = Callable[["Trials"], dict[int, int]]


def speedup(gpus: int, loss: float) -> float:
    """Return the speedup over one GPU."""
    return gpus / (1 + loss * (gpus - 1))


@dataclass
class Trial:
    """A network and its progress.

    Attributes:
        done: Finished epochs.
        remaining: Remaining share of its current epoch.
        gpus: Its number of GPUs.
        since_s: Time from which `remaining` counts.
        version: Version of its end, which changes with its group.
    """

    curve: Curve
    done: int = 0
    remaining: float = 1.0
    gpus: int = 0
    since_s: float = 0.0
    version: int = 0
    trained_with: int = 0


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        near_h, near_gpu_h: Hours and GPU hours until a network was near the best.
        hours, gpu_h: Hours and GPU hours until the end.
        first_epochs_h: Hours until every network had trained one epoch.
    """

    near_h: float
    near_gpu_h: float
    hours: float
    gpu_h: float
    first_epochs_h: float


@dataclass
class Trials:
    """The trials of a search on a cluster, and the clock."""

    search: FleetSearch
    seed: int
    gpus: int
    networks: int
    speedup: Callable[[int], float]
    now: float = 0.0
    gpu_s: float = 0.0
    all: dict[int, Trial] = field(default_factory=dict)
    # Trials that may train and have no GPU, in order.
    waiting: dict[int, None] = field(default_factory=dict)
    _ends: list[tuple[float, int, int]] = field(default_factory=list)
    rates: RateTable = field(init=False)

    def __post_init__(self) -> None:
        self.curves = [
            make_curve(values, self.seed) for values in draw_networks(self.seed, self.networks)
        ]
        self.rates = RateTable(
            SAMPLES,
            PER_NODE,
            tuple(
                Network(
                    str(number),
                    tuple(
                        SAMPLES / curve.epoch_s * self.speedup(gpus)
                        for gpus in measured_counts(self.gpus)
                    ),
                )
                for number, curve in enumerate(self.curves)
            ),
        )

    @property
    def free_gpus(self) -> int:
        """Return the number of free GPUs."""
        return self.gpus - sum(self.all[number].gpus for number in self.running)

    @property
    def running(self) -> list[int]:
        """Return the trials that have GPUs."""
        return [number for number, trial in self.all.items() if trial.gpus]

    def passed_rungs(self, number: int) -> int:
        """Return how many rungs a trial has passed."""
        return sum(self.all[number].done >= rung for rung in RUNGS)

    def assign(self, number: int, gpus: int) -> None:
        """Train a trial on ``gpus`` GPUs from now on."""
        trial = self.all[number]
        if trial.gpus == gpus:
            return
        self._advance(trial)
        trial.since_s = self.now
        if trial.trained_with not in (0, gpus):
            trial.since_s += CHANGE_S
        trial.gpus = gpus
        trial.version += 1
        self.waiting.pop(number, None)
        if gpus:
            trial.trained_with = gpus
            ends_s = trial.since_s + trial.remaining * trial.curve.epoch_s / self.speedup(gpus)
            heapq.heappush(self._ends, (ends_s, number, trial.version))

    def _advance(self, trial: Trial) -> None:
        if trial.gpus:
            passed_s = max(0.0, self.now - trial.since_s)
            trial.remaining -= passed_s * self.speedup(trial.gpus) / trial.curve.epoch_s
            self.gpu_s += trial.gpus * passed_s

    def fetch(self, limit: int) -> None:
        """Fetch proposals until ``limit`` trials wait for GPUs, if the search has as many."""
        while len(self.waiting) < limit:
            proposal = self.search.next_network()
            if proposal is None:
                break
            number, _ = proposal
            self.all.setdefault(number, Trial(self.curves[number]))
            self.waiting[number] = None

    def epochs(self) -> Iterator[float]:
        """Yield the accuracy of a network after each epoch; continuing trials then wait."""
        while self._ends:
            self.now, number, version = heapq.heappop(self._ends)
            trial = self.all[number]
            if version != trial.version:
                continue
            self._advance(trial)
            gpus = trial.gpus
            trial.done += 1
            trial.remaining = 1.0
            trial.gpus = 0
            trial.version += 1
            measured = trial.curve.measured[trial.done - 1]
            if trial.done == EPOCHS:
                self.search.finish_network(number, trial.done, measured)
            elif self.search.end_epoch(number, trial.done, measured):
                self.waiting = {number: None, **self.waiting}  # before all new trials
                trial.trained_with = gpus
            yield trial.curve.accuracies[trial.done - 1]


def measured_counts(gpus: int) -> range:
    """Return the GPU counts with measured rates; beyond them, rates are estimated."""
    return range(1, min(gpus, 64) + 1)


def allocate_one_each(trials: Trials) -> None:
    trials.fetch(trials.free_gpus)
    for number in list(trials.waiting)[: trials.free_gpus]:
        trials.assign(number, 1)


def allocate_rasda(trials: Trials) -> None:
    def target_gpus(number: int) -> int:
        return min(trials.gpus, 2 ** trials.passed_rungs(number))

    free = trials.free_gpus
    for number in [number for number in trials.waiting if trials.all[number].done]:
        previous = trials.all[number].trained_with
        gpus = min(target_gpus(number), max(previous, free))
        if gpus != target_gpus(number):
            gpus = min(previous, free)
        if gpus:
            trials.assign(number, gpus)
            free -= gpus
    free -= sum(max(0, target_gpus(number) - trials.all[number].gpus) for number in trials.running)
    trials.fetch(max(0, free))
    for number in [number for number in trials.waiting if not trials.all[number].done][
        : max(0, free)
    ]:
        trials.assign(number, 1)


def allocate_adaptive(trials: Trials, survivors_first: bool = True) -> None:
    trials.fetch(trials.gpus)
    running, waiting = trials.running, list(trials.waiting)
    active = {*running, *waiting}
    first = count()
    sizes = group_sizes(
        trials.rates,
        Progress(
            running=tuple(
                Member(str(number), tuple(next(first) for _ in range(trials.all[number].gpus)))
                for number in running
            ),
            finished=frozenset(
                str(number) for number in range(trials.networks) if number not in active
            ),
            ahead={
                str(number): trials.search.next_rung(number, trials.all[number].done)
                - trials.all[number].done
                for number in active
            },
            survivors=frozenset(
                str(number) for number in active if survivors_first and trials.passed_rungs(number)
            ),
        ),
        Cluster.of(trials.gpus, PER_NODE),
    )
    free = trials.free_gpus
    for number in [*waiting, *running]:
        gpus = trials.all[number].gpus
        added = min(sizes.get(str(number), 0) - gpus, free)
        if added > 0:
            trials.assign(number, gpus + added)
            free -= added


ALLOCATIONS: dict[str, Callable[[Trials], None]] = {
    "asha, one GPU each": allocate_one_each,
    "RASDA": allocate_rasda,
    "asha, adaptive": allocate_adaptive,
    "asha, adaptive, no priority": partial(allocate_adaptive, survivors_first=False),
}


def simulate(
    allocate: Callable[[Trials], None],
    gpus: int,
    seed: int,
    mode: Literal["stop", "pause"],
    loss: float = 0.02,
) -> SearchResult:
    """Simulate a search to its end."""
    networks = 2 * gpus
    values = draw_networks(seed, networks)
    search = FleetSearch(Prune(rule="asha", on_fail=mode), ListSearcher(values), networks, gpus)
    trials = Trials(search, seed, gpus, networks, partial(speedup, loss=loss))
    best = max(trial.accuracies[-1] for trial in trials.curves)
    near, first_epochs_h = (math.inf, math.inf), math.inf
    allocate(trials)
    for accuracy in trials.epochs():
        if accuracy >= NEAR * best and math.isinf(near[0]):
            near = trials.now / 3600, trials.gpu_s / 3600
        if (
            math.isinf(first_epochs_h)
            and len(trials.all) == networks
            and all(trial.done for trial in trials.all.values())
        ):
            first_epochs_h = trials.now / 3600
        allocate(trials)
    return SearchResult(*near, trials.now / 3600, trials.gpu_s / 3600, first_epochs_h)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--loss", type=float, default=0.02, help="efficiency loss per additional GPU; see above"
    )
    parser.add_argument(
        "--mode", default="stop", choices=("stop", "pause"), help="mode of asha; Ray's RASDA stops"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args()
    rows = []
    for gpus in args.gpus:
        for name, allocate in ALLOCATIONS.items():
            results = [
                asdict(simulate(allocate, gpus, seed, args.mode, args.loss))
                for seed in range(args.seeds)
            ]
            rows.append(
                {
                    "gpus": gpus,
                    "allocation": name,
                    **{
                        key: round(statistics.median(result[key] for result in results), 2)
                        for key in results[0]
                    },
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    if args.json:
        print_json(rows)
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
