"""A search with asha on 64 to 1,024 GPUs: groups of FLEET's `adaptive`, beside RASDA, beside one GPU for each network.

    python benchmarks/search_groups.py [--gpus 64 256 1024] [--seeds 3] [--loss 0.02] [--json]

RASDA (Aach et al., arXiv:2412.02729) doubles the GPUs of a trial at each rung of ASHA that it passes. Here it does so
as soon as they are free, and no new trial is begun while one waits for more. All ways have the same networks, twice as
many as GPUs, the same rule (asha: one in three goes on after 1, 3, 9 epochs of 27) and the learning curves of
`search_curves.py`, which cross and are noisy. On g GPUs a network is g / (1 + LOSS (g - 1)) times as fast, whatever the
nodes, and its curve is the same; a group that changes loses a second. Groups of `adaptive` also grow inside an epoch.

Simulated, medians over seeds: hours until a network is within 1 % of the best of all that are drawn, hours until the
end, and the GPU hours in which a GPU trained until then; and hours until all networks have ended their first epoch.
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

from search import InFleet, Listed
from search_curves import EPOCHS, NEAR, Curve, curve, drawn

from fleet.commands.output import print_json
from fleet.spec.search import Prune
from fleet.terminal import print_table
from scheduler.base import Cluster, Member, Network, Progress, RateTable
from scheduler.ensemble.adaptive import group_sizes

PER_NODE, CHANGE_S, SAMPLES = 4, 1.0, 1000
RUNGS = (1, 3, 9)
Sizes = Callable[["Trials"], dict[int, int]]


def speedup(gpus: int, loss: float) -> float:
    """Times as fast as on one."""
    return gpus / (1 + loss * (gpus - 1))


@dataclass
class Trial:
    """A network, and where it is.

    Attributes:
        done: epochs.
        left: of its present epoch, a share.
        gpus: that it has.
        since_s: from when on `left` has been what it is.
        version: of its end, which changes with its group.
    """

    curve: Curve
    done: int = 0
    left: float = 1.0
    gpus: int = 0
    since_s: float = 0.0
    version: int = 0
    trained_with: int = 0


@dataclass(frozen=True)
class Came:
    """What a search came to.

    Attributes:
        near_h, near_gpu_h: hours, and GPU hours, until a network was near the best.
        hours, gpu_h: until the end.
        signal_h: hours until every network had ended its first epoch.
    """

    near_h: float
    near_gpu_h: float
    hours: float
    gpu_h: float
    signal_h: float


@dataclass
class Trials:
    """The trials of a search on a cluster, and the clock."""

    search: InFleet
    seed: int
    gpus: int
    networks: int
    speedup: Callable[[int], float]
    now: float = 0.0
    gpu_s: float = 0.0
    all: dict[int, Trial] = field(default_factory=dict)
    waiting: dict[int, None] = field(
        default_factory=dict
    )  # those that may train and have no GPU, in their order
    _ends: list[tuple[float, int, int]] = field(default_factory=list)
    rates: RateTable = field(init=False)

    def __post_init__(self) -> None:
        self.curves = [curve(values, self.seed) for values in drawn(self.seed, self.networks)]
        self.rates = RateTable(
            SAMPLES,
            PER_NODE,
            tuple(
                Network(
                    str(number),
                    tuple(
                        SAMPLES / trial.epoch_s * self.speedup(gpus) for gpus in powers(self.gpus)
                    ),
                )
                for number, trial in enumerate(self.curves)
            ),
        )

    @property
    def free(self) -> int:
        """GPUs that nobody has."""
        return self.gpus - sum(self.all[number].gpus for number in self.running)

    @property
    def running(self) -> list[int]:
        """Those that have GPUs."""
        return [number for number, trial in self.all.items() if trial.gpus]

    def rungs(self, number: int) -> int:
        """How many rungs a trial has passed."""
        return sum(self.all[number].done >= rung for rung in RUNGS)

    def give(self, number: int, gpus: int) -> None:
        """Let a trial train with so many GPUs from now on."""
        trial = self.all[number]
        if trial.gpus == gpus:
            return
        self._pass(trial)
        trial.since_s = self.now + (CHANGE_S if trial.trained_with not in (0, gpus) else 0.0)
        trial.gpus, trial.version = gpus, trial.version + 1
        self.waiting.pop(number, None)
        if gpus:
            trial.trained_with = gpus
            ends_s = trial.since_s + trial.left * trial.curve.epoch_s / self.speedup(gpus)
            heapq.heappush(self._ends, (ends_s, number, trial.version))

    def _pass(self, trial: Trial) -> None:
        if trial.gpus:
            passed_s = max(0.0, self.now - trial.since_s)
            trial.left -= passed_s * self.speedup(trial.gpus) / trial.curve.epoch_s
            self.gpu_s += trial.gpus * passed_s

    def fetch(self, limit: int) -> None:
        """Have so many wait for GPUs, if the search has as many."""
        while len(self.waiting) < limit and (proposed := self.search.next()) is not None:
            number, _ = proposed
            self.all.setdefault(number, Trial(self.curves[number]))
            self.waiting[number] = None

    def epochs(self) -> Iterator[float]:
        """The accuracy of a network after each epoch that ends, until none trains; those that go on wait then."""
        while self._ends:
            self.now, number, version = heapq.heappop(self._ends)
            trial = self.all[number]
            if version != trial.version:
                continue
            self._pass(trial)
            trial.done, trial.left, had, trial.gpus = trial.done + 1, 1.0, trial.gpus, 0
            trial.version += 1
            measured = trial.curve.measured[trial.done - 1]
            if trial.done == EPOCHS:
                self.search.finished(number, measured)
            elif self.search.ended(number, trial.done, measured):
                self.waiting = {number: None, **self.waiting}  # before all that have not begun
                trial.trained_with = had
            yield trial.curve.accuracies[trial.done - 1]


def powers(gpus: int) -> range:
    """So many GPUs are measured; beyond them, rates are estimated."""
    return range(1, min(gpus, 64) + 1)


def one_each(trials: Trials) -> None:
    trials.fetch(trials.free)
    for number in list(trials.waiting)[: trials.free]:
        trials.give(number, 1)


def rasda(trials: Trials) -> None:
    def wanted(number: int) -> int:
        return min(trials.gpus, 2 ** trials.rungs(number))

    free = trials.free
    for number in [number for number in trials.waiting if trials.all[number].done]:
        had = trials.all[number].trained_with
        gpus = min(wanted(number), max(had, free))
        gpus = gpus if gpus == wanted(number) else min(had, free)
        if gpus:
            trials.give(number, gpus)
            free -= gpus
    free -= sum(max(0, wanted(number) - trials.all[number].gpus) for number in trials.running)
    trials.fetch(max(0, free))
    for number in [number for number in trials.waiting if not trials.all[number].done][
        : max(0, free)
    ]:
        trials.give(number, 1)


def adaptive(trials: Trials, survivors_first: bool = True) -> None:
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
                str(number) for number in active if survivors_first and trials.rungs(number)
            ),
        ),
        Cluster.of(trials.gpus, PER_NODE),
    )
    free = trials.free
    for number in [*waiting, *running]:
        has, gets = trials.all[number].gpus, sizes.get(str(number), 0)
        if has < gets and (more := min(gets - has, free)):
            trials.give(number, has + more)
            free -= more


WAYS: dict[str, Callable[[Trials], None]] = {
    "asha, a GPU each": one_each,
    "RASDA": rasda,
    "asha, adaptive": adaptive,
    "the same, new ones at once": partial(adaptive, survivors_first=False),
}


def simulate(
    way: Callable[[Trials], None],
    gpus: int,
    seed: int,
    mode: Literal["stop", "pause"],
    loss: float = 0.02,
) -> Came:
    """A search to its end."""
    networks = 2 * gpus
    values = drawn(seed, networks)
    search = InFleet(Prune(rule="asha", on_fail=mode), Listed(values), networks, gpus)
    trials = Trials(search, seed, gpus, networks, partial(speedup, loss=loss))
    best = max(trial.accuracies[-1] for trial in trials.curves)
    near, signal_h = (math.inf, math.inf), math.inf
    way(trials)
    for accuracy in trials.epochs():
        if accuracy >= NEAR * best and math.isinf(near[0]):
            near = trials.now / 3600, trials.gpu_s / 3600
        if (
            math.isinf(signal_h)
            and len(trials.all) == networks
            and all(trial.done for trial in trials.all.values())
        ):
            signal_h = trials.now / 3600
        way(trials)
    return Came(*near, trials.now / 3600, trials.gpu_s / 3600, signal_h)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--loss", type=float, default=0.02, help="of each further GPU; see above")
    parser.add_argument(
        "--mode", default="stop", choices=("stop", "pause"), help="of asha; RASDA has Ray's, stop"
    )
    parser.add_argument("--json", action="store_true", help="print a list of rows")
    args = parser.parse_args()
    rows = []
    for gpus in args.gpus:
        for name, way in WAYS.items():
            came = [
                asdict(simulate(way, gpus, seed, args.mode, args.loss))
                for seed in range(args.seeds)
            ]
            rows.append(
                {
                    "gpus": gpus,
                    "way": name,
                    **{
                        key: round(statistics.median(outcome[key] for outcome in came), 2)
                        for key in came[0]
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
