"""Tests of whole harvests on a simulated site, with simulated time.

The backlog is the real one, with real files; the launches only log what launches log, and hold and
release networks. Each launch writes the table of results from its own point of view.
"""

import random
from dataclasses import replace

import pytest

from fleet.companions.batch_jobs.job_events import JobStarted
from fleet.companions.harvest.backlog import HarvestLimits
from fleet.companions.harvest.harvest import Backlog, HarvestPlan, HarvestRun
from fleet.companions.harvest.harvest_log import LaunchEnded, add_note
from fleet.companions.shared_run.lease_requests import LeaseRequests
from fleet.domain import events
from fleet.domain.events import (
    EpochEnded,
    FirstStep,
    NetworkFailed,
    NetworkFinished,
    NetworkLeased,
)
from fleet.domain.network import NetworkStatus, Outcome
from fleet.spec import parse
from fleet.storage.event_log import EventLog
from fleet.storage.lease import Holder, create_generation
from fleet.storage.paths import RunPaths
from launch.queues import QueuedJob
from tests.fleet.histories import apply_status, record, results_of
from tests.fleet.logs import START

START_S, IDLE_S, LOOK_S = (
    8,
    60,
    30,
)  # of a launch until it takes networks, without any, and between two checks


class Site:
    """Nodes, a queue, and the clock; it is a :class:`BatchQueue`."""

    def __init__(self, nodes):
        self.nodes, self.now, self.handed_in = nodes, 0, 0
        self.listed, self.launches, self.node_s = [], {}, 0

    def jobs(self, names):
        return [job for job in self.listed if job.name in names]

    def idle_nodes(self, partition=None):
        return self.nodes - sum(job.nodes for job in self.listed if job.runs)

    def submit(self, script, nodes, plan):
        self.handed_in += 1
        run = next(run for run in self.runs if script.is_relative_to(run.root))
        self.listed.append(QueuedJob(str(self.handed_in), run.job, nodes, False))
        return self.listed[-1].id

    def cancel(self, job):
        self.listed = [queued for queued in self.listed if queued.id != job or queued.runs]

    def harvest(self, runs, trainings, backlog=2, most_s=3000):
        """Simulate until no job is left."""
        self.runs, self.plan = runs, HarvestPlan(tuple(runs), HarvestLimits(backlog=backlog))
        self.truth = {training.run.job: training for training in trainings}
        Backlog(self.plan, self).top_up()
        while self.listed:
            assert self.now < most_s, "it has no end"
            self._tick()

    def _tick(self):
        self.now += 1
        for job in [job for job in self.listed if not job.runs]:
            if (
                job in self.listed and self.idle_nodes() >= job.nodes
            ):  # it may just have been cancelled
                self.listed[self.listed.index(job)] = job._replace(runs=True)
                backlog = Backlog(self.plan, self)
                if backlog.has_work(self.truth[job.name].run.root, job.id):
                    self.launches[job.id] = Launch(self, self.truth[job.name], job.id, backlog)
                else:
                    self.listed = [queued for queued in self.listed if queued.id != job.id]
        self.node_s += self.nodes - self.idle_nodes()
        for job in [job for job in self.listed if job.runs]:
            self.launches[job.id].step()


class Training:
    """The networks of a run, and their actual progress."""

    def __init__(self, root, epochs, failing=()):
        names = [f"net{number:02}" for number in range(len(epochs))]
        self.run = HarvestRun(
            f"job-{root.name}", root, tuple(names), 1, dict(zip(names, epochs, strict=True))
        )
        self.epochs_left = dict(self.run.epochs)
        self.failing = {names[number] for number in failing}
        self.holders = {}
        self.generation = 0
        self.trained = 0


class Launch:
    """A launch on one node that trains one network at a time, one epoch per second."""

    def __init__(self, site, training, job, backlog):
        self.site, self.training, self.job, self.backlog = site, training, job, backlog
        self.paths = RunPaths(training.run.root, job)
        self.began, self.log, self.claims, self.epochs = site.now, None, None, 0
        add_note(self.paths, JobStarted(job))
        backlog.top_up()

    def step(self):
        site, age = self.site, self.site.now - self.began
        if age == START_S:
            self._begin()
        elif age > START_S:
            self._work()
        if age % LOOK_S == LOOK_S - 1 and self.job in {job.id for job in site.listed}:
            self.backlog.top_up()

    def _begin(self):
        self.log = EventLog(self.paths.events, clock=lambda: self.site.now)
        epochs_left = self.training.epochs_left
        done = tuple(name for name, epochs in epochs_left.items() if not epochs)
        self.log.add(
            replace(
                START,
                date=1e6 + self.site.now,
                trainers=1,
                networks=len(epochs_left),
                finished=done,
            )
        )
        spec = parse(
            {
                "models": [{"family": "softmax", "name": name} for name in epochs_left],
                "output": str(self.training.run.root),
            }
        )
        self.results = results_of(
            spec, self.paths, {name: NetworkStatus((), Outcome("before")) for name in done}
        )
        self.results.write()
        self.claims = LeaseRequests(
            {name: 0 for name in epochs_left if epochs_left[name]}, 1, IDLE_S
        )
        self._request()

    def _work(self):
        for name in list(self.claims.leased):
            self._train(name)
        self._request()
        if not self.claims.epochs:
            self._end(0)

    def _train(self, name):
        if not self.epochs:
            self.log.add(FirstStep(name))
        training, epoch = (
            self.training,
            self.training.run.epochs[name] - self.training.epochs_left[name] + 1,
        )
        training.trained += 1
        self.epochs += 1
        if name in training.failing:
            training.epochs_left[name] = 0
            self.log.add(NetworkFailed(name, "loss is NaN"))
            apply_status(
                self.results, name, NetworkStatus((), Outcome("loss is NaN", is_failure=True))
            )
        else:
            training.epochs_left[name] -= 1
            self.log.add(EpochEnded(name, record(epoch, seconds=1.0, samples=10)))
            if not training.epochs_left[name]:
                self.log.add(NetworkFinished(name, f"{epoch} epochs", epoch))
            apply_status(
                self.results,
                name,
                NetworkStatus(
                    (), None if training.epochs_left[name] else Outcome(f"{epoch} epochs")
                ),
            )
        if not training.epochs_left[name]:
            self._let_go(name)
            self._request()

    def _request(self):
        names, max_leases, leave_reason = self.claims.decide(self.site.now)
        holders, free = self.training.holders, len(self.claims.leased) < max_leases
        if leave_reason:
            self._end(75)
            return
        available = [name for name in names if free and name not in holders]
        if available:
            holders[available[0]] = self.job
            self._take(available[0])

    def _take(self, name):
        training = self.training
        training.generation += 1
        folder = self.paths.network_lease(name)
        folder.mkdir(parents=True, exist_ok=True)
        create_generation(
            folder,
            training.generation,
            Holder(f"{self.job}-{training.generation}", "host", 1, system="slurm", job=self.job),
        )
        epochs = training.run.epochs[name] - training.epochs_left[name]
        self.log.add(NetworkLeased(name, training.generation, epochs, 0))
        self.claims.add_lease(name, epochs)
        if not training.epochs_left[name]:
            self._let_go(name)
        self._request()

    def _let_go(self, name):
        self.claims.end_lease(name)
        del self.training.holders[name]
        for file in self.paths.network_lease(name).iterdir():
            file.unlink()

    def _end(self, status):
        self.log.add(events.LaunchEnded(status))
        self.log.close()
        add_note(self.paths, LaunchEnded(self.job, status))
        self.backlog.top_up(self.job)
        self.site.listed = [queued for queued in self.site.listed if queued.id != self.job]


def shuffled(seed):
    return random.Random(seed).sample([1, 2, 5, 9, 14, 20, 27, 33, 61, 118], 10)


@pytest.mark.long
@pytest.mark.parametrize(
    ("epochs", "failing", "nodes"),
    [
        ([240, 8, 8, 8], (), 4),
        ([240, 8, 8, 8], (), 2),
        ([240, 8, 8, 8], (), 9),
        ([12], (), 4),
        ([5] * 30, (), 4),
        ([40] * 30, (), 40),
        ([30, 30, 3, 30], (2,), 4),
        *((shuffled(seed), (), 3) for seed in range(3)),
    ],
)
def test_simulated_harvest_wastes_few_launches(tmp_path, epochs, failing, nodes):
    site, training = Site(nodes), Training(tmp_path / "run", epochs, failing)
    site.harvest([training.run], [training])
    assert not any(training.epochs_left.values())
    assert training.trained == sum(epochs) - sum(epochs[number] - 1 for number in failing)
    idle = [launch for launch in site.launches.values() if not launch.epochs]
    assert (
        len(site.launches) <= min(len(epochs), nodes) + 3,
        len(idle) <= 1,
        site.handed_in <= len(epochs) + 3,
    ) == (True, True, True), (len(site.launches), len(idle), site.handed_in)
    assert site.node_s <= sum(epochs) + len(site.launches) * (START_S + IDLE_S + 5)


def test_simulated_harvest_shares_nodes_between_runs(tmp_path):
    site = Site(4)
    trainings = [Training(tmp_path / name, [40] * 8) for name in ("a", "b", "c")]
    site.harvest([training.run for training in trainings], trainings)
    assert not any(epochs for training in trainings for epochs in training.epochs_left.values())
    first = {
        training.run.job: min(
            launch.began for launch in site.launches.values() if launch.training is training
        )
        for training in trainings
    }
    assert max(first.values()) <= START_S + LOOK_S, first
