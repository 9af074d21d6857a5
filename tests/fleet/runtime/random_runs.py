"""Random launches: a real coordinator, with a model of the ranks.

A seed determines the launch (policy, networks, searches, rule, rates, stream, slots, leases) and
all that happens in it.
"""

import math
from dataclasses import replace
from random import Random
from unittest import mock

from fleet.comm import messages as m
from fleet.comm.roles import assign
from fleet.control import effects as do
from fleet.control.launch_state import LaunchConfig
from fleet.domain.events import NetworkAdded
from fleet.domain.network import NetworkStatus
from fleet.monitor.eta import EstimateSchedule
from fleet.runtime.coordinator import Coordinator
from fleet.runtime.external.command_handler import CommandHandler
from fleet.runtime.external.command_queue import Command
from fleet.runtime.external.tracking import Tracking
from fleet.runtime.known_rates import ProfileFile
from fleet.runtime.run_sharing import RunSharing
from fleet.runtime.searchers import start_searches
from fleet.search.calls import make_call as call_searcher
from fleet.search.controller import make_controller
from fleet.spec.entries import invalid_network, proposed_network, with_extreme_networks
from fleet.spec.resolve import with_entry
from fleet.storage.event_log import EventLog
from fleet.storage.lease import NO_FENCE
from fleet.storage.paths import RunPaths
from scheduler.base import Network, RateTable
from scheduler.ensemble.policies import POLICIES, Policy
from tests import fakes
from tests.fleet.control.driver import make_prior_rates, traits
from tests.fleet.control.test_random_launches import SAMPLES, layout, restless
from tests.fleet.control.trainers import Behavior, Ranks, Stuck, check_every_event
from tests.fleet.histories import record, results_of, spec
from tests.fleet.search.launches import LEARNING_RATE, curve

RESTLESS = Policy("restless", restless)
SEARCHERS = "tests.fleet.search.searchers"
RULES = [
    {"rule": "none"},
    {"rule": "asha"},
    {"rule": "asha", "on_fail": "stop"},
    {"rule": "hyperband"},
    {"rule": "asha", "synchronous": True},
    {"rule": "hyperband", "synchronous": True},
    {"rule": "median", "min_trials": 2},
    {"rule": "median", "synchronous": True, "min_trials": 2},
    {"rule": "auto"},
    {"rule": "auto", "on_fail": "stop"},
]


class RandomOptions:
    """The random options of a launch."""

    def __init__(self, seed):
        self.random = Random(f"launch {seed}")
        pick, chance = self.random.choice, self.random.random
        self.policy = [*POLICIES, "restless"][seed % (len(POLICIES) + 1)]
        self.searches = pick([0, 0, 1, 1, 2])
        self.prune = pick(RULES) if self.searches or chance() < 0.5 else None
        self.harvests = not self.searches and chance() < 0.15
        self.deaths = 0 if self.harvests else pick([0, 0, 0, 1, 2, 3])
        self.outlives = self.deaths > 0 or chance() < 0.3
        self.end_at = pick([None, None, None, None, None, self.random.randint(1, 200)])
        self.ends_s = pick([math.inf] * 7 + [self.random.uniform(1, 8)])
        self.rates = pick(["given", "measured", "learned", "learned"])
        if self.policy == "baseline":
            self.rates = "given"
        self.is_elastic = self.policy == "elastic"
        if self.is_elastic and self.rates == "learned":
            self.rates = "measured"
        self.slots = 1 if self.rates == "measured" or self.is_elastic else pick([1, 1, 2])
        self.nodes = pick([1, 1, 2, 3])
        self.keep_open = pick([None, None, 50.0])
        self.commands = sorted(
            self.random.randint(1, 200) for _ in range(0 if self.harvests else pick([0, 0, 2, 6]))
        )

    def __str__(self):
        return " ".join(
            f"{name}={value}"
            for name, value in vars(self).items()
            if name != "random" and value and value != math.inf
        )


class World(fakes.World):
    """Sends the messages of the coordinator to the model of the ranks."""

    def __init__(self, run, outlives):
        super().__init__(outlives)
        self.run = run

    def send(self, rank, tag, message):
        self.run.actions += 1
        self.run.receive(rank, tag, message)


class Interruption:
    pending_reason = None
    patience_s = 30.0
    is_watched = False

    def reason(self):
        return self.pending_reason


class Searchers:
    """Searchers that answer after a random number of polls."""

    def __init__(self, searchers, random):
        self._searchers, self._random, self._call = searchers, random, None

    @property
    def is_busy(self):
        return self._call is not None

    def consult(self, entry, call):
        assert self._call is None
        self._call = entry, call

    def poll_answer(self):
        if self._call is None or self._random.random() < 0.3:
            return None
        (entry, call), self._call = self._call, None
        try:
            return do.SearcherAnswered(entry, call, call_searcher(self._searchers[entry], call))
        except BaseException as error:
            return do.SearcherCallFailed(entry, str(error))

    def close(self):
        pass


class Admission:
    """Admits all requested or added networks that the spec can resolve."""

    def __init__(self, run):
        self._run, self._spec, self._waiting = run, run.spec, []

    def request(self, add):
        self._waiting.append(add)

    def pop_ready(self, training, now_s):
        ready = [
            add
            for add in self._waiting
            if add.parent is None
            or add.parent not in training
            or self._run.chance.random.random() < 0.3
        ]
        self._waiting = [add for add in self._waiting if add not in ready]
        return [self._build_trial(add) for add in ready]

    def _build_trial(self, add):
        index = next(
            index for index, entry in self._spec.searches.items() if entry.stem == add.entry
        )
        wrong = add.wrong
        network = invalid_network(self._spec, index, add.number, add.values)
        if not wrong:
            network = proposed_network(self._spec, index, add.number, add.values)
        return self._run.admitted(
            network,
            NetworkAdded(
                network.name,
                add.entry,
                add.number,
                add.values,
                (network.min_gpus, network.max_gpus),
                network.train.stopping.max_epochs,
                add.parent or "",
                0,
                wrong,
            ),
        )

    def parse_entry(self, entry):
        before = self._spec
        self._spec, networks = with_entry(before, entry, self._run.results.networks)
        return entry, len(before.document.models), networks

    def admit(self, network):
        return self._run.admitted(
            network,
            NetworkAdded(
                network.name,
                "",
                -1,
                network.parameters,
                (network.min_gpus, network.max_gpus),
                network.train.stopping.max_epochs,
            ),
        )


class Mailbox:
    """The commands of a user."""

    def __init__(self):
        self.waiting, self.answers = [], []

    def commands(self):
        return list(self.waiting)

    def answer(self, name, content):
        self.waiting = [command for command in self.waiting if command.name != name]
        self.answers.append((name, content))


class Harvest(RunSharing):
    """Leases of networks, one after another."""

    has_others = False

    def __init__(self, names, run):
        self._names, self._run = list(names), run

    def poll(self, now_s, training, ends):
        if not self._names or ends or self._run.chance.random.random() < 0.9:
            return []
        name = self._names.pop(0)
        history = tuple(self._run.trained[name])
        return [
            do.LeaseGranted(
                name,
                NetworkStatus(history),
                len(name),
                0,
                took_over=bool(history),
                unlogged=history[-1:],
            )
        ]


class RandomRun(Ranks):
    """One launch."""

    def __init__(self, seed, folder):
        self.chance = chance = RandomOptions(seed)
        random, self.title = chance.random, str(chance)
        on_each = random.choice([3, 5, 4, 2])
        local = chance.policy == "baseline" or random.random() < 0.2
        roles = assign(
            tuple(node for node in range(chance.nodes) for _ in range(on_each)),
            None if local else chance.nodes * random.choice([1, 1, on_each - 1]),
            None,
            local,
            slots=chance.slots,
        )
        models, behaviors, remaining = [], {}, {}
        size = [4, 16] if chance.is_elastic else 4
        for position in range(
            random.choice([3, 4, 2, 1]) if chance.searches else random.choice([3, 4, 5, 2])
        ):
            minimum = min(random.choice([1, 1, 2]), roles.cluster.whole_gpus)
            maximum = random.choice([roles.cluster.whole_gpus, roles.cluster.whole_gpus, minimum])
            batch = {"size": size}
            if not chance.is_elastic:
                batch["when_scaled"] = random.choice(["fixed", "fixed", "per_gpu"])
            models.append(
                {
                    "family": "softmax",
                    "name": f"n{position}",
                    "gpus": [minimum, maximum],
                    "train": {"batch": batch},
                }
            )
            behaviors[f"n{position}"] = Behavior(
                random.choice([3, 6, 1]), random.choice([[], [], [True], [False], [True, False]])
            )
            if random.random() < 0.2:
                remaining[f"n{position}"] = tuple(
                    self.epoch_of(f"n{position}", epoch, stream_epoch=epoch - 1)
                    for epoch in range(1, random.randint(1, behaviors[f"n{position}"].epochs) + 1)
                )
        for position in range(chance.searches):
            ask = random.choice(["random", f"{SEARCHERS}:Careful", f"{SEARCHERS}:Raising"])
            models.append(
                {
                    "family": "softmax",
                    "name": f"net{position}",
                    "train": {"batch": {"size": size}},
                    "search": {"sampler": ask, "max_trials": random.choice([5, 9]), "seed": seed},
                    "space": {LEARNING_RATE: {"low": 1e-5, "high": 0.1, "log": True}},
                }
            )
        policy = chance.policy
        if policy == "restless":
            policy = "tests.fleet.runtime.random_runs:RESTLESS"
        parts = {
            "retries": random.randint(0, 2),
            "schedule": {"policy": policy},
            "train": {"stopping": {"max_epochs": 6}},
        }
        if chance.prune:
            parts["prune"] = chance.prune
        if chance.keep_open:
            parts["keep_open"] = chance.keep_open
        self.spec = content = spec(*models, **parts)
        kind = "none" if local else random.choice(["lockstep", "whole", "ring", "none"])
        self.table = None
        if chance.rates == "given":
            self.table = RateTable(
                SAMPLES,
                roles.gpus_per_node,
                tuple(
                    Network(
                        network.name,
                        tuple(
                            random.uniform(1, 50) * gpus**0.9
                            for gpus in range(1, roles.cluster.whole_gpus + 1)
                        ),
                        min_gpus=network.min_gpus,
                        max_gpus=network.max_gpus,
                    )
                    for network in content.networks
                ),
            )
        elsewhere = frozenset()
        if chance.harvests:
            elsewhere = frozenset(network.name for network in content.networks)
        setup = LaunchConfig(
            content,
            roles,
            layout(kind),
            SAMPLES,
            outlives=chance.outlives,
            ends_s=chance.ends_s,
            first_epoch=max(map(len, remaining.values()), default=0),
            elsewhere=elsewhere,
        )
        super().__init__(
            lambda: None, setup, seed, behaviors, remaining, chance.deaths, chance.end_at
        )
        self.actions, self.paths = 0, RunPaths(folder)
        self.world, self.interruption, self.mailbox = (
            World(self, chance.outlives),
            Interruption(),
            Mailbox(),
        )
        statuses = {name: NetworkStatus(history) for name, history in remaining.items()}
        self.results = results_of(content, self.paths, {} if chance.harvests else statuses)
        self.log = EventLog(self.paths.events, clock=lambda: self.now)
        self.coordinator = self.make_coordinator()
        check_every_event(self.coordinator._controller)

    @property
    def statuses(self):
        return self.results.run.statuses

    def make_coordinator(self):
        setup, content, chance = self.setup, self.spec, self.chance
        self.learns = chance.rates == "learned"
        ends = with_extreme_networks(content)
        searchers = {
            name: search.searcher for name, search in start_searches(ends, self.results.run).items()
        }
        admission = Admission(self)
        search = make_controller(
            content, ends, self.results.run, searchers, len(setup.roles.trainers)
        )
        search.restore(())
        sharing = Harvest(list(setup.elsewhere), self) if chance.harvests else RunSharing()
        return Coordinator(
            self.world,
            setup,
            make_prior_rates(setup, self.table, self.learns),
            self.results,
            self.log,
            ProfileFile(self.paths.profile),
            NO_FENCE,
            Tracking([], self.paths, ""),
            [self.on_event],
            lambda *pace: None,
            self.interruption,
            search,
            Searchers(searchers, Random("searchers " + self.title.partition(" prune=")[0])),
            admission,
            CommandHandler(self.mailbox, self.results, admission, (), clock=lambda: self.steps),
            sharing,
        )

    # ---- inputs of the coordinator ----

    def run(self):
        with (
            mock.patch("fleet.runtime.coordinator.read_network_status", self.look_up),
            mock.patch.object(EstimateSchedule, "is_due", return_value=False),
        ):
            self.coordinator.start()
            return super().run()

    def look_up(self, results, network):
        self.disown(network.name)
        return self.saved(network.name), None

    def handle(self, word):
        self.note_input(word)
        match word:
            case None:
                pass
            case do.EndRequested(reason):
                self.interruption.pending_reason = reason
            case do.RanksDied(ranks):
                self.world.dead_ranks |= frozenset(ranks)
            case _:
                self.world.inbox.append(word)
        self.coordinator.step()
        while self.world.inbox and self.coordinator.status is None:
            self.coordinator.step()
        self.status = self.coordinator.status

    def step(self):
        if self.chance.commands and self.steps >= self.chance.commands[0]:
            self.chance.commands.pop(0)
            self.mailbox.waiting.append(Command(f"command {self.steps}", self.command()))
        super().step()

    def command(self):
        random = self.chance.random
        do = random.choice(["pause", "resume", "stop", "add", "yield", "pause", "resume"])
        if do == "add":
            return {
                "do": do,
                "entry": {
                    "family": "softmax",
                    "name": f"late{self.steps}",
                    "train": {"batch": {"size": [4, 16] if self.chance.is_elastic else 4}},
                },
            }
        if do == "yield":
            return {
                "do": do,
                "nodes": random.choice([1, 2]),
                "within_s": random.choice([0.1, 5, 120]),
            }
        return {"do": do, "network": random.choice(sorted(self.results.networks))}

    def let_time_pass(self):
        before = self.actions
        for _ in range(200):
            self.now += 1000.0
            self.handle(None)
            if self.actions > before or self.status is not None:
                return
        raise Stuck(self.locate())

    def ask_nodes(self, count, within_s):
        raise AssertionError("nodes are requested by a command here")

    def receive(self, rank, tag, message):
        if isinstance(message, m.LeaveLaunch):  # a command has released it
            self.released_ranks.add(rank)
        super().receive(rank, tag, message)

    def epoch_of(self, name, epoch, **more):
        return record(epoch, val_accuracy=curve(name, epoch), **more)

    # ---- effects of the coordinator ----

    def on_event(self, event):
        self.actions += 1
        self.events.append(event)

    def admitted(self, network, added):
        self.actions += 1
        self.results.add(network, None)
        random = Random(f"fate of {network.name}")
        self.behaviors[network.name] = Behavior(
            random.choice([6, 6, 3]), random.choice([[], [], [], [True], [False]])
        )
        self.trained[network.name] = []
        rates = None
        if (
            self.table is not None
            and added.number >= 0
            and self.table.models
            and random.random() < 0.5
        ):
            rates = replace(self.table.models[0], name=network.name)
        return do.NetworkAdmitted(
            network,
            added,
            network.name,
            traits(network) if self.learns and not added.wrong else None,
            {},
            rates,
        )

    def log_lines(self):
        self.log.close()
        return self.paths.events.read_text().splitlines()
