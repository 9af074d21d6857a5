"""The CPU that rank 0 takes to coordinate an epoch's end and a report of pace, measured without other ranks.

A coordinator with its log, its results and its live view hears what trainers would say, each of which trains networks
of one epoch, and does all that follows. They answer at once, so rank 0 never rests. Each combination is measured in a
process of its own, with rates given and with rates that are learned from training.

With --search, networks are asked for one by one, and the rule prunes them: the coordinator is that of a run, with all
that rank 0 has beside it (the searcher, the admission of networks, TensorBoard's files, the cache of rates).

    python benchmarks/search_coordinator.py --trainers 16 1024 --networks 8192 --policy adaptive --paces 20 --json
    python benchmarks/search_coordinator.py --networks 300 1000 10000 --search none asha --epochs 9
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fleet.api import write_spec
from fleet.comm.messages import (
    Continue,
    EpochDone,
    Exit,
    Joined,
    Message,
    Pace,
    Ready,
    Start,
    Stop,
    Stopped,
    Tag,
    Throughput,
)
from fleet.comm.protocols import World
from fleet.comm.roles import Roles, assign
from fleet.commands.output import print_json
from fleet.control.launch_state import LaunchConfig, PriorRates
from fleet.control.measurement import RateMeasurement
from fleet.domain.network import EpochRecord, StepRate
from fleet.domain.run import RunState
from fleet.monitor.view import make_view
from fleet.runtime.admission import Admission
from fleet.runtime.coordinator import Coordinator, Files, SearchParts, StartupEvents
from fleet.runtime.external.tracking import Tracking
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import ProfileFile
from fleet.runtime.launch import Ranks
from fleet.runtime.prepare import prepare
from fleet.runtime.rank_zero import RankZero
from fleet.runtime.searchers import Searchers
from fleet.runtime.startup import Request, StartupTimer
from fleet.search.controller import make_controller
from fleet.spec import parse
from fleet.spec.resolve import with_extreme_networks
from fleet.storage.event_log import EventLog
from fleet.storage.paths import RunPaths
from fleet.storage.results import Results
from scheduler.base import Network, RateTable
from scheduler.ensemble.online import OnlineRates, Traits
from scheduler.ensemble.policies import POLICIES

SAMPLES, SEARCH_RANKS, PER_NODE = 60, 17, 16
SPACE = {"train.optimizer.learning_rate": {"low": 1e-5, "high": 0.1, "log": True}}


@dataclass(frozen=True)
class Spent:
    """What it took.

    Attributes:
        ms: of CPU, for each epoch's end.
        epochs: how many ended.
        memory_mb: of rank 0, at most.
        us: of CPU, for each report of pace.
    """

    ms: float
    epochs: int
    memory_mb: float
    us: float = 0.0


class Trainers:
    """Rank 0's view of ranks that answer at once: of :class:`fleet.comm.protocols.World` what a coordinator needs.

    Args:
        roles: of the ranks.
        epochs: of each network.
        rate: of a network, in samples/s.
        paces: how often a group says in each epoch how far it is.
    """

    outlives, lost, hosts = False, frozenset[int](), ()

    def __init__(
        self, roles: Roles, epochs: int, rate: Callable[[str], float], paces: int = 0
    ) -> None:
        self._said: deque[Message] = deque(Ready(rank) for rank in roles.trainers)
        self._said += [Throughput(rank, 1e9) for rank in roles.preprocessors]
        self._trains: dict[int, str] = {}
        self._done: Counter[str] = Counter()  # epochs, by network
        self._most, self._rate = epochs, rate
        self.epochs, self.paces, self._paces = 0, 0, paces
        self.paces_s, self._since_s = (
            0.0,
            0.0,
        )  # CPU for all reports, and when the first of several was heard

    def hear(self, tag: Tag) -> Message | None:
        message = self._said.popleft() if self._said else None
        is_pace = isinstance(message, Pace)
        # The clock is not read for each: that takes as long as a report, and that of the whole process far longer.
        if is_pace != bool(self._since_s):
            now = time.thread_time()
            self.paces_s, self._since_s = (
                (self.paces_s, now) if is_pace else (self.paces_s + now - self._since_s, 0.0)
            )
        return message

    def tell(self, rank: int, tag: Tag, message: Message) -> None:
        match message:
            case Start(network=network, stream_epoch=epoch):
                self._trains[rank] = network.name
                self._said.append(Joined(network.name))
                self._end_epoch(network.name, epoch)
            case Continue(stream_epoch=epoch):
                self._end_epoch(self._trains[rank], epoch)
            case Stop():
                self._said += [Stopped(self._trains[rank], 0.0), Ready(rank)]
            case Exit():
                pass

    def _end_epoch(self, name: str, stream_epoch: int) -> None:
        self.epochs += 1
        self._done[name] += 1
        done = self._done[name]
        accuracy = 0.2 + 0.7 * random.Random(name).random() * (1 - 0.7**done)
        rate = self._rate(name) * (1 + 0.1 * (self.epochs % 7 - 3) / 3)
        self.paces += self._paces
        for number in range(1, self._paces + 1):  # the first is the first sure rate, which is news
            displayed = StepRate(rate, 0.05, 10) if number == 1 else StepRate()
            self._said.append(Pace(name, number * SAMPLES // (self._paces + 1), rate, displayed))
        record = EpochRecord(
            done, stream_epoch, 1.0, accuracy, 1.0, accuracy, 0.1, SAMPLES, 1, 1.0, 0.0
        )
        self._said.append(
            EpochDone(
                name,
                record,
                0.0,
                f"{done} epochs" if done == self._most else "",
                0,
                StepRate(rate, 0.05, 10),
            )
        )


def cpu_of_an_epoch(
    networks: int, policy: str = "baseline", speeds: int = 0, trainers: int = 16, paces: int = 0
) -> Spent:
    """An epoch's end in a run of so many networks of one epoch.

    Args:
        speeds: how many different ones there are, where they are to be learned; 0 where rates are given.
        paces: how often a network says how far it is.
    """
    spec = parse(
        {
            "models": [{"family": "softmax", "name": "net", "count": networks, "space": SPACE}],
            "resources": {"engine": "numpy"},
            "train": {"stopping": {"max_epochs": 1}},
            "schedule": {"policy": policy},
        }
    )
    traits = {
        network.name: Traits(
            network.name,
            str(number % max(speeds, 1)),
            "softmax",
            1e4 * 10 ** (number % max(speeds, 1) / max(speeds, 1)),
            max_gpus=1,
        )
        for number, network in enumerate(spec.networks)
    }
    per_node = min(trainers, PER_NODE)
    rates = RateTable(
        SAMPLES, per_node, tuple(Network(network.name, (60.0,)) for network in spec.networks)
    )
    online = OnlineRates(list(traits.values()), SAMPLES, per_node, trainers) if speeds else None
    with tempfile.TemporaryDirectory() as folder, _unseen():
        paths = RunPaths(Path(folder))
        log = EventLog(paths.events)
        roles = assign(
            (0, *(number // per_node for number in range(trainers))),
            None,
            None,
            own_preprocessing=True,
        )
        world = Trainers(roles, 1, lambda name: 1e6 / (traits[name].operations or 1.0), paces)
        keys = {name: measurement.key for name, measurement in traits.items()}
        survey = RateMeasurement([], keys, spec.profile, trainers, per_node, {})
        run = RunState(spec)
        view = make_view(run, True)
        search = SearchParts(
            make_controller(spec, with_extreme_networks(spec), {}, trainers),
            Searchers({}),
            cast(Admission, SimpleNamespace(asked=lambda training, now_s: ())),
            (),
            None,
        )
        coordinator = Coordinator(
            cast(World, world),
            LaunchConfig(spec, roles, None, samples=SAMPLES, outlives=False),
            PriorRates(survey, None if speeds else rates, online),
            Files(
                Results(spec, paths, run),
                log,
                ProfileFile(paths.profile),
                None,
                Tracking([], paths, ""),
            ),
            [view.on_event],
            view.on_pace,
            Interruption(None),
            StartupEvents((), None, {}, (), StartupTimer()),
            search,
        )
        spent = _coordinate(coordinator, world)
        coordinator.stop()
        log.close()
    assert spent.epochs == networks
    return spent


def cpu_of_a_search(networks: int, rule: str, epochs: int, policy: str) -> Spent:
    """An epoch's end in a search that asks for so many networks at random.

    Args:
        rule: that prunes them.
        epochs: of each network, at most.
    """
    with tempfile.TemporaryDirectory() as folder, _unseen():
        os.environ["FLEET_CACHE"] = folder
        spec: dict[str, Any] = {
            "output": f"{folder}/run",
            "prune": {"rule": rule},
            "schedule": {"policy": policy},
            "data": {
                "source": "builtin:noise",
                "options": {"samples": SAMPLES},
                "validation": None,
                "transforms": [],
            },
            "models": [
                {"family": "softmax", "gpus": 1, "space": SPACE, "search": {"max_trials": networks}}
            ],
            "train": {
                "batch": {"size": SAMPLES},
                "stopping": {"max_epochs": epochs, "monitor": "accuracy"},
            },
            "resources": {"engine": "numpy", "preprocessors": "auto"},
        }
        if not POLICIES[policy].own_samples:
            spec["data"]["cache"] = "memory"
        path = Path(folder) / "spec.yaml"
        write_spec(spec, path)
        prepared = prepare(Request(str(path), plain=True), Ranks([0] * SEARCH_RANKS))
        world = Trainers(prepared.roles, epochs, lambda name: 100.0)
        side = RankZero(cast(World, world), prepared, Interruption(None), None, StartupTimer())
        spent = _coordinate(side.coordinator, world)
        side.close()
    return spent


def _coordinate(coordinator: Coordinator, world: Trainers) -> Spent:
    """Let a coordinator do all that it has to."""
    coordinator.start()
    began = time.process_time()
    for has_heard in _until_over(coordinator):
        if not has_heard:
            time.sleep(0.001)  # as a rank that waits for others: a searcher may be thinking
    spent_s = time.process_time() - began
    return Spent(
        1000 * (spent_s - world.paces_s) / world.epochs,
        world.epochs,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        1e6 * world.paces_s / max(1, world.paces),
    )


def _until_over(coordinator: Coordinator) -> Iterator[bool]:
    while coordinator.status is None:
        yield coordinator.step()


@contextmanager
def _unseen() -> Iterator[None]:
    """A context whose output nobody sees."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


def alone(measure: Callable[..., Spent], *arguments: Any) -> Spent:
    """Measure in a process of its own, as in a run: what is remembered of equal rates would have to be told apart."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each combination of what was asked for."""
    for trainers, networks, policy, rates in product(
        args.trainers, args.networks, args.policy, ("given", "learned")
    ):
        spent = alone(
            cpu_of_an_epoch,
            networks,
            policy,
            args.speeds * (rates == "learned"),
            trainers,
            args.paces,
        )
        yield {
            "trainers": trainers,
            "networks": networks,
            "policy": policy,
            "rates": rates,
            "ms_per_epoch": round(spent.ms, 3),
            "us_per_pace": round(spent.us, 1),
            "memory_mb": round(spent.memory_mb, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainers", type=int, nargs="+", default=[16])
    parser.add_argument("--networks", type=int, nargs="+", default=[300, 1000, 10_000])
    parser.add_argument("--policy", nargs="+", default=["baseline"], choices=list(POLICIES))
    parser.add_argument(
        "--paces", type=int, default=0, help="reports of pace of a network in each epoch"
    )
    parser.add_argument(
        "--speeds",
        type=int,
        default=20,
        help="where rates are learned, of so many different networks",
    )
    parser.add_argument("--json", action="store_true", help="print a list of rows")
    parser.add_argument(
        "--search", nargs="+", default=[], metavar="RULE", help="ask for networks, and prune them"
    )
    parser.add_argument(
        "--epochs", type=int, default=1, help="of each network of a search, at most"
    )
    args = parser.parse_args()
    for policy, networks, rule in product(args.policy, args.networks, args.search):
        spent = alone(cpu_of_a_search, networks, rule, args.epochs, policy)
        print(
            f"search of {networks} networks of {args.epochs} epochs, {policy}, {rule}: {spent.ms:.2f} ms of "
            f"CPU per epoch's end, of {spent.epochs}; {spent.memory_mb:.0f} MB",
            flush=True,
        )
    if args.search:
        return
    if args.json:
        print_json(list(rows(args)))
        return
    for row in rows(args):
        print(
            f"{row['trainers']} trainers, {row['networks']} networks, {row['policy']}, rates {row['rates']}: "
            f"{row['ms_per_epoch']:.2f} ms of CPU per epoch's end, {row['us_per_pace']:.0f} us per pace; "
            f"{row['memory_mb']:.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
