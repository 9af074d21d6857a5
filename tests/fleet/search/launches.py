"""Launches of a search without ranks: a controller, searchers, a disk, and simulated networks.

Which network ends an epoch next follows from the disk alone, so a search that was killed and
resumed can be compared with one that was not.
"""

import json
import random
import zlib
from dataclasses import dataclass, field

from fleet.domain.events import EpochEnded, NetworkFinished, event_from_json
from fleet.domain.json_record import to_json
from fleet.domain.network import EpochRecord, NetworkStatus, Outcome
from fleet.domain.run import RunState
from fleet.search.calls import make_call, replay
from fleet.search.controller import SearchController
from fleet.search.decisions import AddNetwork, CallSearcher
from fleet.search.entries import Entry
from fleet.search.pruning import make_pruner
from fleet.search.searcher import ResumesTrials, TrialOutcome, make_searcher
from fleet.search.trials import outcome_of
from fleet.spec.search import Prune, Search, find_rule

LEARNING_RATE = "train.optimizer.learning_rate"


class Killed(Exception):
    """The launch was killed."""


@dataclass
class Disk:
    """What outlives a launch: the lines of its log, and the statuses in checkpoints."""

    lines: list[str] = field(default_factory=list)
    statuses: dict[str, NetworkStatus] = field(default_factory=dict)

    @property
    def events(self):
        return [event_from_json(json.loads(line)) for line in self.lines]

    @property
    def run(self):
        run = RunState()
        for event in self.events:
            run.apply(0.0, event)
        return run

    @property
    def search(self):
        return self.run.search("net")

    @property
    def run_statuses(self):
        run = self.run
        return {
            name: status.with_logged_pruning(run.status_of(name))
            for name, status in self.statuses.items()
        }

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def record(epoch, value, seconds=1.0):
    return EpochRecord(
        epoch=epoch,
        stream_epoch=epoch - 1,
        loss=1.0,
        accuracy=0.0,
        val_loss=1.0,
        val_accuracy=value,
        learning_rate=0.1,
        samples=100,
        gpus=1,
        seconds=seconds,
        waited_s=0.0,
    )


def curve(name, epoch):
    """Return the value of a seeded learning curve; curves cross, and are noisy."""
    draw = random.Random(zlib.crc32(name.encode()))
    end, pace, noise = (
        draw.uniform(0.3, 1),
        draw.uniform(0.1, 1),
        random.Random(f"{name}/{epoch}").gauss(0, 0.02),
    )
    return end * (1 - 2.718 ** (-pace * epoch)) + noise


class Launch:
    """One launch of a run.

    Args:
        disk: the disk of the run.
        steps: number of writes to the disk after which it is killed; None for never.
    """

    def __init__(
        self,
        disk,
        search,
        space,
        prune=Prune(),
        epochs=9,
        steps=None,
        value=curve,
        trainers=3,
        fixed=(),
        searcher=None,
        began=None,
        earlier=(),
    ):
        self.disk = disk
        self.epochs = epochs
        self.value = value
        self.steps = steps
        self.searcher = searcher or make_searcher(
            search.sampler,
            space,
            search.seed,
            Entry("net", search, space).modes,
            search.options,
        )
        self.entry = Entry(
            "net",
            search,
            space,
            resumes=isinstance(self.searcher, ResumesTrials),
            prior_trials=tuple(earlier),
        )
        self.run_state = disk.run
        self.run_state.restore(disk.statuses)
        self.controller = SearchController(
            self.run_state,
            [self.entry],
            fixed,
            make_pruner(prune, epochs, seed=0),
            prune.rule,
            trainers,
            obeys=find_rule(prune.rule).obeys,
        )
        self.alive = set(fixed)
        self.added = {}
        self.ends = {}
        self.calls = []
        self.pending_call = None
        rates = {(event.network, event.record.epoch) for event in disk.of(EpochEnded)}
        for name, status in sorted(disk.statuses.items()):
            for subject in status.history:
                if (name, subject.epoch) not in rates:
                    self.write(EpochEnded(name, subject))
        if began is not None:
            self.write(began)
        self.difference = replay(self.searcher, disk.search.calls)
        self.controller.restore(disk.events)
        self.do(self.controller.decide())

    def write(self, event):
        self._step()
        self.disk.lines.append(json.dumps(to_json(event)))
        self.run_state.apply(0.0, event)

    def save(self, name, status):
        self._step()
        self.disk.statuses[name] = status

    def _step(self):
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise Killed

    def do(self, decisions):
        for decision in decisions:
            match decision:
                case AddNetwork():
                    self.added[decision.network] = decision
                    if not decision.wrong:
                        self.alive.add(decision.network)
                case CallSearcher():
                    self.pending_call = decision
                case event:
                    self.write(event)

    def run(self):
        """Run to the end; return the launch."""
        while True:
            self.do(self.controller.decide())
            if self.pending_call is not None:
                self.consult()
            elif (name := self.next()) is not None:
                self.train(name)
            else:
                assert self.controller.is_over
                assert not self.controller.trials.paused
                return self

    def consult(self):
        consult = self.pending_call
        self.pending_call = None
        self.calls.append(consult.call)
        try:
            answer = make_call(self.searcher, consult.call)
        except Exception as error:
            self.controller.fail_searcher(consult.entry, str(error))
        else:
            self.controller.handle_answer(consult.entry, consult.call, answer)

    def next(self):
        over = {name for name, status in self.disk.statuses.items() if status.outcome is not None}
        trials = self.controller.trials
        ready = (self.alive & set().union(*trials.alive.values())) - over - trials.awaited
        return min(
            ready,
            key=lambda name: (zlib.crc32(f"{name}/{self.done(name)}".encode()), name),
            default=None,
        )

    def done(self, name):
        return len(self.status_of(name).history)

    def status_of(self, name):
        return self.disk.statuses.get(name, NetworkStatus())

    def train(self, name):
        history = self.status_of(name).history
        epoch = len(history) + 1
        subject, is_done = record(epoch, self.value(name, epoch)), epoch == self.epochs
        self.save(name, NetworkStatus((*history, subject), Outcome("done") if is_done else None))
        self.write(EpochEnded(name, subject))
        self.controller.end_epoch(name, subject, is_done)
        if is_done:
            self.write(NetworkFinished(name, "done", epoch))
            self.controller.end_network(name, TrialOutcome.FINISHED)

    @property
    def decisions(self):
        """The events of calls and decisions, and of their inputs."""
        return [event for event in self.disk.events if not isinstance(event, NetworkFinished)]

    @property
    def outcomes(self):
        statuses = self.disk.run_statuses
        return {
            name: (self.done(name), outcome_of(statuses.get(name, NetworkStatus())))
            for name, trial in self.controller.trials.items()
            if trial.has_ended
        }


def search_of(sampler="random", max_trials=20, **settings):
    return Search(sampler=sampler, max_trials=max_trials, **settings)


def run_killed(kills, *arguments, kind=Launch, **settings):
    """Kill launches of a run after numbers of writes, until one ends.

    Returns:
        That launch, the disk, and the differences of replayed answers.
    """
    disk, differences = Disk(), []
    for steps in [*kills, None]:
        try:
            launch = kind(disk, *arguments, steps=steps, **settings)
            differences.append(launch.difference)
            launch.run()
            break
        except Killed:
            continue
    return launch, disk, [difference for difference in differences if difference]
