"""Measure the CPU time of rank 0 per finished epoch and per pace report, without other ranks.

    python benchmarks/search_coordinator.py --trainers 16 1024 --networks 8192 --policy adaptive
        --paces 20 --json
    python benchmarks/search_coordinator.py --networks 300 1000 10000 --search none asha --epochs 9

A coordinator with its log, its results and its live view receives the messages of emulated trainers
of networks with one epoch each, and acts on them. The trainers answer immediately, so rank 0 never
idles. Each combination is measured in its own process, with given rates and with rates that are
learned.

With --search a sampler proposes networks one by one and the rule prunes them. The coordinator is
then that of a run, including the searcher, the admission of networks, TensorBoard files and cached
rates.
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
from fleet.monitor.live_view import make_view
from fleet.runtime.admission import Admission
from fleet.runtime.coordinator import Coordinator
from fleet.runtime.external.tracking import Tracking
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import ProfileFile
from fleet.runtime.rank_zero import RankZero
from fleet.runtime.run_sharing import RunSharing
from fleet.runtime.searchers import Searchers
from fleet.runtime.startup.launch import Ranks
from fleet.runtime.startup.prepare import prepare
from fleet.runtime.startup.request import Request, StartupTimer
from fleet.search.controller import make_controller
from fleet.spec import parse
from fleet.spec.entries import with_extreme_networks
from fleet.storage.event_log import EventLog
from fleet.storage.lease import NO_FENCE
from fleet.storage.paths import RunPaths
from fleet.storage.results import Results
from scheduler.base import Network, RateTable
from scheduler.ensemble.online import OnlineRates, Traits
from scheduler.ensemble.policies import POLICIES

SAMPLES, SEARCH_RANKS, PER_NODE = 60, 17, 16
SPACE = {"train.optimizer.learning_rate": {"low": 1e-5, "high": 0.1, "log": True}}


@dataclass(frozen=True)
class CoordinatorCost:
    """The cost of a coordinator.

    Attributes:
        ms: Milliseconds of CPU per finished epoch.
        epochs: Number of finished epochs.
        memory_mb: Peak memory of rank 0.
        us: Microseconds of CPU per pace report.
    """

    ms: float
    epochs: int
    memory_mb: float
    us: float = 0.0


class EmulatedTrainers:
    """Ranks that answer immediately: the part of `fleet.comm.protocols.World` for a coordinator.

    Args:
        roles: Roles of the ranks.
        epochs: Epochs of each network.
        rate: Returns the rate of a network, in samples/s.
        paces: Number of pace reports per epoch of a group.
    """

    is_fault_tolerant, dead_ranks, hosts = False, frozenset[int](), ()

    def __init__(
        self, roles: Roles, epochs: int, rate: Callable[[str], float], paces: int = 0
    ) -> None:
        self._answers: deque[Message] = deque(Ready(rank) for rank in roles.trainers)
        self._answers += [Throughput(rank, 1e9) for rank in roles.preprocessors]
        self._trains: dict[int, str] = {}
        self._done: Counter[str] = Counter()  # epochs, by network
        self._max_epochs = epochs
        self._rate = rate
        self.epochs = 0
        self.paces = 0
        self._paces = paces
        self.paces_s = 0.0  # CPU time of all pace reports
        self._since_s = 0.0  # time of the first of several successive pace reports

    def receive(self, tag: Tag) -> Message | None:
        message = self._answers.popleft() if self._answers else None
        is_pace = isinstance(message, Pace)
        # Reading the clock takes as long as a report, so it is read once per series of reports.
        if is_pace != bool(self._since_s):
            now = time.thread_time()
            if is_pace:
                self._since_s = now
            else:
                self.paces_s += now - self._since_s
                self._since_s = 0.0
        return message

    def send(self, rank: int, tag: Tag, message: Message) -> None:
        match message:
            case Start(network=network, stream_epoch=epoch):
                self._trains[rank] = network.name
                self._answers.append(Joined(network.name))
                self._end_epoch(network.name, epoch)
            case Continue(stream_epoch=epoch):
                self._end_epoch(self._trains[rank], epoch)
            case Stop():
                self._answers += [Stopped(self._trains[rank], 0.0), Ready(rank)]
            case Exit():
                pass

    def _end_epoch(self, name: str, stream_epoch: int) -> None:
        self.epochs += 1
        self._done[name] += 1
        done = self._done[name]
        accuracy = 0.2 + 0.7 * random.Random(name).random() * (1 - 0.7**done)
        rate = self._rate(name) * (1 + 0.1 * (self.epochs % 7 - 3) / 3)
        self.paces += self._paces
        for number in range(1, self._paces + 1):  # the first has a rate to display
            displayed = StepRate(rate, 0.05, 10) if number == 1 else StepRate()
            self._answers.append(Pace(name, number * SAMPLES // (self._paces + 1), rate, displayed))
        record = EpochRecord(
            done, stream_epoch, 1.0, accuracy, 1.0, accuracy, 0.1, SAMPLES, 1, 1.0, 0.0
        )
        self._answers.append(
            EpochDone(
                name,
                record,
                0.0,
                f"{done} epochs" if done == self._max_epochs else "",
                0,
                StepRate(rate, 0.05, 10),
            )
        )


def measure_epoch(
    networks: int, policy: str = "baseline", speeds: int = 0, trainers: int = 16, paces: int = 0
) -> CoordinatorCost:
    """Measure finished epochs in a run of networks of one epoch.

    Args:
        networks: Number of networks.
        policy: Name of the policy.
        speeds: Number of different rates to be learned; 0 if rates are given.
        trainers: Number of trainers.
        paces: Number of pace reports per network.
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
    with tempfile.TemporaryDirectory() as folder, _silenced():
        paths = RunPaths(Path(folder))
        log = EventLog(paths.events)
        roles = assign(
            (0, *(number // per_node for number in range(trainers))),
            None,
            None,
            own_preprocessing=True,
        )
        world = EmulatedTrainers(
            roles, 1, lambda name: 1e6 / (traits[name].operations or 1.0), paces
        )
        keys = {name: measurement.key for name, measurement in traits.items()}
        measurement_plan = RateMeasurement([], keys, spec.profile, trainers, per_node, {})
        run = RunState(spec)
        view = make_view(run, True)
        search = make_controller(spec, with_extreme_networks(spec), run, {}, trainers)
        search.restore(())
        coordinator = Coordinator(
            cast(World, world),
            LaunchConfig(spec, roles, None, samples=SAMPLES, outlives=False),
            PriorRates(measurement_plan, None if speeds else rates, online),
            Results(spec, paths, run),
            log,
            ProfileFile(paths.profile),
            NO_FENCE,
            Tracking([], paths, ""),
            [view.on_event],
            view.on_pace,
            Interruption(None),
            search,
            Searchers({}),
            cast(Admission, SimpleNamespace(pop_ready=lambda training, now_s: ())),
            None,
            RunSharing(),
        )
        cost = _coordinate(coordinator, world)
        coordinator.stop()
        log.close()
    assert cost.epochs == networks
    return cost


def measure_search(networks: int, rule: str, epochs: int, policy: str) -> CoordinatorCost:
    """Measure finished epochs in a search that proposes random networks.

    Args:
        networks: Number of networks.
        rule: Name of the pruning rule.
        epochs: Maximum number of epochs per network.
        policy: Name of the policy.
    """
    with tempfile.TemporaryDirectory() as folder, _silenced():
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
        world = EmulatedTrainers(prepared.roles, epochs, lambda name: 100.0)
        rank_zero = RankZero(cast(World, world), prepared, Interruption(None), None, StartupTimer())
        cost = _coordinate(rank_zero.coordinator, world)
        rank_zero.close()
    return cost


def _coordinate(coordinator: Coordinator, world: EmulatedTrainers) -> CoordinatorCost:
    """Run a coordinator to its end."""
    coordinator.start()
    began = time.process_time()
    while coordinator.status is None:
        if not coordinator.step():
            time.sleep(0.001)  # like a rank that waits for others; a searcher may be busy
    cpu_s = time.process_time() - began
    return CoordinatorCost(
        1000 * (cpu_s - world.paces_s) / world.epochs,
        world.epochs,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        1e6 * world.paces_s / max(1, world.paces),
    )


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard the output inside this context."""
    with open(os.devnull, "w") as null, redirect_stdout(null):
        yield


def measure_in_process(measure: Callable[..., CoordinatorCost], *arguments: Any) -> CoordinatorCost:
    """Measure in a new process, because a cache of equal rates would distort later measurements."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each requested combination."""
    for trainers, networks, policy, rates in product(
        args.trainers, args.networks, args.policy, ("given", "learned")
    ):
        cost = measure_in_process(
            measure_epoch,
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
            "ms_per_epoch": round(cost.ms, 3),
            "us_per_pace": round(cost.us, 1),
            "memory_mb": round(cost.memory_mb, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainers", type=int, nargs="+", default=[16])
    parser.add_argument("--networks", type=int, nargs="+", default=[300, 1000, 10_000])
    parser.add_argument("--policy", nargs="+", default=["baseline"], choices=list(POLICIES))
    parser.add_argument("--paces", type=int, default=0, help="pace reports per epoch of a network")
    parser.add_argument(
        "--speeds",
        type=int,
        default=20,
        help="number of different networks whose rates are learned",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--search",
        nargs="+",
        default=[],
        metavar="RULE",
        help="propose networks, and prune them by RULE",
    )
    parser.add_argument(
        "--epochs", type=int, default=1, help="maximum epochs per network of a search"
    )
    args = parser.parse_args()
    for policy, networks, rule in product(args.policy, args.networks, args.search):
        cost = measure_in_process(measure_search, networks, rule, args.epochs, policy)
        print(
            f"search of {networks} networks of {args.epochs} epochs, {policy}, {rule}: "
            f"{cost.ms:.2f} ms of CPU per finished epoch ({cost.epochs}); {cost.memory_mb:.0f} MB",
            flush=True,
        )
    if args.search:
        return
    if args.json:
        print_json(list(rows(args)))
        return
    for row in rows(args):
        print(
            f"{row['trainers']} trainers, {row['networks']} networks, {row['policy']}, rates "
            f"{row['rates']}: {row['ms_per_epoch']:.2f} ms of CPU per finished epoch, "
            f"{row['us_per_pace']:.0f} us per pace report; {row['memory_mb']:.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
