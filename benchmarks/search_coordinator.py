"""The CPU that rank 0 takes to coordinate an epoch's end, measured without other ranks.

A coordinator with its log, its results and its live view hears what sixteen trainers would say, each of which trains
networks of one epoch, and does all that follows. Their rates are given, or (--speeds) learned from training.

    python benchmarks/search_coordinator.py --networks 300 1000 10000
    python benchmarks/search_coordinator.py --networks 300 1000 10000 --policy adaptive --speeds 20
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

from fleet.comm.messages import EpochDone, Exit, GoOn, Joined, Message, Ready, Start, Stop, Stopped, Tag
from fleet.comm.roles import assign
from fleet.ensemble.ensemble import Setup
from fleet.ensemble.survey import Survey
from fleet.monitor.view import make_view
from fleet.runtime.coordinator import Coordinator
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import Profile
from fleet.spec import parse
from fleet.storage.event_log import EventLog
from fleet.storage.paths import RunPaths
from fleet.storage.results import Results
from fleet.storage.state import EpochRecord, StepRate
from scheduler.base import Network, RateTable
from scheduler.ensemble.online import OnlineRates, Traits
from scheduler.ensemble.policies import POLICIES

TRAINERS = 16


class Trainers:
    """Rank 0's view of ranks that answer at once: :class:`fleet.comm.base.World`, as far as a coordinator needs it."""

    outlives, lost = False, frozenset[int]()

    def __init__(self, traits: Mapping[str, Traits]) -> None:
        self._said: deque[Message] = deque(Ready(rank) for rank in range(1, TRAINERS + 1))
        self._trains: dict[int, str] = {}
        self._traits = traits
        self.epochs = 0

    def hear(self, tag: Tag) -> Message | None:
        return self._said.popleft() if self._said else None

    def tell(self, rank: int, tag: Tag, message: Message) -> None:
        match message:
            case Start(network=network):
                self._trains[rank] = network.name
                accuracy = 0.3 + self.epochs % 997 / 2000
                record = EpochRecord(1, self.epochs, 1.0, 0.5, 1.0, accuracy, 0.1, 60, 1, 1.0, 0.0)
                self.epochs += 1
                rate = 1e6 / (self._traits[network.name].operations or 1.0) * (1 + 0.1 * (self.epochs % 7 - 3) / 3)
                self._said += [Joined(network.name),
                               EpochDone(network.name, record, 0.0, "1 epoch", 0, StepRate(rate, 0.05, 10))]
            case Stop():
                self._said += [Stopped(self._trains[rank], 0.0), Ready(rank)]
            case GoOn() | Exit():
                pass


def cpu_of_an_epoch(networks: int, policy: str = "baseline", speeds: int = 0) -> float:
    """Seconds of CPU for each epoch's end in a run of so many networks of one epoch.

    Args:
        speeds: how many different ones there are, where they are to be learned; 0 where rates are given.
    """
    spec = parse({"models": [{"family": "softmax", "name": "net", "count": networks, "space": {
        "train.optimizer.learning_rate": {"low": 1e-5, "high": 0.1, "log": True}}}],
        "resources": {"engine": "numpy"}, "train": {"converge": {"max_epochs": 1}}, "schedule": {"policy": policy}})
    traits = {network.name: Traits(network.name, str(number % max(speeds, 1)), "softmax",
                                   1e4 * 10 ** (number % max(speeds, 1) / max(speeds, 1)), max_gpus=1)
              for number, network in enumerate(spec.networks)}
    rates = RateTable(60, TRAINERS, tuple(Network(network.name, (60.0,)) for network in spec.networks))
    online = OnlineRates(list(traits.values()), 60, TRAINERS, TRAINERS) if speeds else None
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        paths = RunPaths(Path(folder))
        log = EventLog(paths.events)
        roles = assign((0,) * (TRAINERS + 1), None, None, own_preprocessing=True)
        world = Trainers(traits)
        keys = {name: one.key for name, one in traits.items()}
        survey = Survey([], keys, spec.profile, TRAINERS, TRAINERS, {})
        coordinator = Coordinator(
            world, Setup(spec, roles, None, samples=60, outlives=False), survey, None if speeds else rates,
            Results(spec, paths, 60), log, Profile(paths.profile), [make_view(spec, True, {})], Interruption(None),
            online=online)
        coordinator.start()
        began = time.process_time()
        for _ in _until_over(coordinator):
            pass
        spent = time.process_time() - began
        coordinator.stop()
        log.close()
    assert world.epochs == networks
    return spent / networks


def _until_over(coordinator: Coordinator) -> Iterator[bool]:
    while coordinator.status is None:
        yield coordinator.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, nargs="+", default=[300, 1000, 10_000])
    parser.add_argument("--policy", nargs="+", default=["baseline"], choices=list(POLICIES))
    parser.add_argument("--speeds", type=int, default=0, help="learn rates, of so many different networks")
    arguments = parser.parse_args()
    known = f"{arguments.speeds} speeds that are learned" if arguments.speeds else "rates that are given"
    for policy in arguments.policy:
        for networks in arguments.networks:
            # In a process of its own, as in a run: what is remembered of equal rates would have to be told apart.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                spent_ms = 1000 * alone.submit(cpu_of_an_epoch, networks, policy, arguments.speeds).result()
            print(f"{networks} networks of one epoch, {policy}, {known}: {spent_ms:.2f} ms of CPU per epoch's end")


if __name__ == "__main__":
    main()
