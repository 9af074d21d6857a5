"""A harvest on a real Slurm while jobs of other users come and go, with the use of every node.

The other jobs follow from a seed: a job of one or two nodes every few tens of seconds, for about as
long, in a partition that preempts the harvest. The queue is polled twice a second for the owner of
each node; the event logs tell what the launches did. All clocks are of one machine.
"""

import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from fleet.domain import timeline
from fleet.domain.events import EpochEnded, FirstStep
from fleet.storage.event_log import read_events, read_run
from fleet.storage.json_lines import read_lines
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from scheduler.idle.allocate import RateCurve, Trainer
from scheduler.simulation.idle_nodes import Settings, replay
from scheduler.simulation.idle_trace import Trace, TrainerJob
from tests.cluster.slurm import NODES
from tests.mpi.conftest import ROOT, Launcher

POLL_S = 0.5
HARVEST, OTHER_USERS, IDLE = "low", "high", ""  # the partition whose job has a node


@dataclass(frozen=True)
class OtherJobs:
    """The jobs of other users.

    Attributes:
        seconds: time during which jobs arrive.
        nodes: minimum and maximum of a job's nodes.
        lasting_s: minimum and maximum of its duration.
        between_s: minimum and maximum of the time to the next job.
    """

    seed: int
    seconds: float
    nodes: tuple[int, int] = (1, 2)
    lasting_s: tuple[float, float] = (15.0, 45.0)
    between_s: tuple[float, float] = (15.0, 35.0)

    def jobs(self):
        """Yield the arrival of each job in seconds from the start, its nodes and its duration."""
        draw, now = random.Random(self.seed), 0.0
        while now < self.seconds:
            yield now, draw.randint(*self.nodes), draw.uniform(*self.lasting_s)
            now += draw.uniform(*self.between_s)


@dataclass(frozen=True)
class QueueSnapshot:
    """The owners of all nodes at one time.

    Attributes:
        date: seconds since 1970.
        owners: node -> partition and id of the job that has it.
    """

    date: float
    owners: dict[str, tuple[str, str]]


@dataclass
class NodeTime:
    """Node-seconds, by use, while jobs of other users came and went.

    Attributes:
        other_users: in jobs of other users, or being freed for them.
        waiting: in no job.
        starting: in harvest jobs, before the first step of a launch.
        training: in harvest jobs while groups trained.
        resting: in harvest jobs at other times.
        departures: number of times that a node went to another user.
    """

    other_users: float = 0.0
    waiting: float = 0.0
    starting: float = 0.0
    training: float = 0.0
    resting: float = 0.0
    departures: int = 0

    @property
    def idle(self):
        return self.waiting + self.starting + self.training + self.resting

    @property
    def share(self):
        """Return the share of idle node time that was used for training."""
        return self.training / self.idle

    @property
    def share_once_started(self):
        """Return the same share without startup and time in the queue."""
        return self.training / (self.training + self.resting)

    @property
    def start_s(self):
        """Return the average time from a node's return to its first step, in seconds."""
        return (self.waiting + self.starting) / max(1, self.departures)


@dataclass(frozen=True)
class HarvestOutcome:
    """The outcome of a harvest.

    Attributes:
        preempted: number of launches that other users' jobs ended.
        epochs: (network, epoch) -> how often it was trained.
        rows: rows of the results.
        time: node-seconds by use.
        samples: samples trained while jobs of other users came and went.
        predicted: samples according to a replay on the same nodes.
    """

    preempted: int
    epochs: Counter
    rows: tuple
    time: NodeTime
    samples: float
    predicted: float

    @property
    def again(self):
        """Return the number of epochs that were trained a second time."""
        return self.epochs.total() - len(self.epochs)

    def line(self, name):
        """Return a row of a table."""
        return (
            f"| {name} | {self.preempted} | {self.again} | {self.time.idle:.0f} | "
            f"{self.time.waiting:.0f} | {self.time.starting:.0f} | {self.time.training:.0f} | "
            f"{self.time.share:.1%} | {self.time.share_once_started:.1%} | {self.samples:.0f} | "
            f"{self.predicted:.0f} | {self.predicted / max(1, self.samples) - 1:+.1%} |"
        )


@dataclass
class HarvestTrial:
    """A harvest of a spec beside jobs of other users.

    Args:
        slurm: the cluster.
        folder: for the spec, the run and caches.
        content: the content of the spec.
        variables: environment variables of its jobs.
        max_jobs: maximum number of queued and running jobs.
        first: number of launches that train before other jobs arrive.
    """

    slurm: object
    folder: Path
    content: dict
    variables: dict = field(default_factory=lambda: {"FLEET_LEASE": "6s"})
    max_jobs: int = len(NODES)
    first: int = len(NODES)

    def __post_init__(self):
        self.paths = RunPaths(Path(self.content["output"]))

    def run(self, other_jobs, patience_s=900):
        """Start the harvest, submit other jobs once launches train, and wait for the end."""
        self.slurm.clean()
        self.slurm.call(
            sys.executable,
            "-m",
            "fleet",
            "harvest",
            str(Launcher(self.folder).write(self.content)),
            "--system=slurm",
            "--nodes-per-job=1",
            "--ranks-per-node=2",
            "--backlog=2",
            f"--max-jobs={self.max_jobs}",
            "--idle-timeout=20s",
            "--walltime=1h",
            "--",
            "--partition=low",
            PYTHONPATH=str(ROOT),
            XDG_CACHE_HOME=str(self.folder / "cache"),
            **self.variables,
        )
        self.slurm.wait_until(
            f"{self.first} launches train",
            lambda: len(self.training()) >= self.first,
            self.report,
            patience_s,
        )
        monitor = QueueMonitor(self.slurm)
        started = time.time()
        self._submit_other_jobs(other_jobs)
        ended = time.time()
        monitor.stop()
        self.slurm.wait_until(
            "all networks are done",
            lambda: {row.status for row in read_results(self.paths.root)} == {"finished"},
            self.report,
            patience_s,
        )
        self.slurm.wait_until("no job is left", self.is_over, self.report, patience_s)
        return self._outcome(monitor.snapshots, started, ended)

    def epochs(self):
        """Return (network, epoch) -> how often it was trained so far."""
        return Counter(
            (event.network, event.record.epoch)
            for _, event in read_run(self.paths)
            if isinstance(event, EpochEnded)
        )

    def training(self):
        """Return the logs of launches that have finished an epoch."""
        return [
            log
            for log in self.paths.event_logs()
            if any(isinstance(event, EpochEnded) for _, event in read_events(log))
        ]

    def report(self):
        """Return the ends of the jobs' output."""
        return "\n".join(
            file.read_text(errors="replace")[-2000:] for file in sorted(self.paths.jobs.glob("*"))
        )

    def is_over(self):
        return not self.slurm.call("squeue", "--noheader").strip()

    def _submit_other_jobs(self, other_jobs):
        began = time.monotonic()
        for after_s, nodes, seconds in other_jobs.jobs():
            time.sleep(max(0.0, began + after_s - time.monotonic()))
            self.slurm.submit(
                f"#!/bin/sh\nsleep {seconds:.1f}\n",
                "--partition=high",
                f"--nodes={nodes}",
                "--exclusive",
            )
        time.sleep(max(0.0, began + other_jobs.seconds - time.monotonic()))

    def _outcome(self, snapshots, started, ended):
        lines = list(read_lines(self.paths.harvest_log))
        preempted = sum(job["event"] == "begun" for job in lines) - sum(
            job["event"] == "ended" and not job.get("warning") for job in lines
        )
        snapshots = [snapshot for snapshot in snapshots if started <= snapshot.date <= ended]
        spent = node_time(snapshots, self.paths)
        samples, predicted = self._samples(snapshots, spent)
        rows = tuple(read_results(self.paths.root))
        return HarvestOutcome(preempted, self.epochs(), rows, spent, samples, predicted)

    def _samples(self, snapshots, spent):
        """Return the samples trained between the snapshots, and those of a replay on the nodes."""
        started, ended = snapshots[0].date, snapshots[-1].date
        first = {}
        for at, event in dated_events(self.paths):
            if isinstance(event, EpochEnded):
                first.setdefault((event.network, event.record.epoch), (at, event.record))
        done = [record.samples for at, record in first.values() if started <= at <= ended]
        end_s = defaultdict(float)
        for (network, _), (at, record) in first.items():
            end_s[network] += record.samples if at >= started else 0
        rate = statistics.median(record.samples / record.seconds for _, record in first.values())
        epoch_s = statistics.median(record.seconds for _, record in first.values())
        curve = RateCurve((1,), (rate,))
        # A departure costs a start and the work in progress, half an epoch on average.
        jobs = tuple(
            TrainerJob(name, 0.0, total, curve, Trainer(curve, down_s=spent.start_s + epoch_s / 2))
            for name, total in sorted(end_s.items())
            if total
        )
        settings = Settings(horizon_s=60.0, max_parallel=len(NODES), completions_are_events=True)
        replayed = replay(trace_of(snapshots), jobs, settings)
        return sum(done), sum(trainer.samples for trainer in replayed.trainers)


class QueueMonitor:
    """Polls the queue in a thread."""

    def __init__(self, slurm):
        self.snapshots = []
        self._slurm = slurm
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self):
        """Stop polling."""
        self._stopped.set()
        self._thread.join()

    def _poll(self):
        while not self._stopped.wait(POLL_S):
            # On a busy machine Slurm may answer late.
            with suppress(AssertionError, subprocess.TimeoutExpired):
                text = self._slurm.call(
                    "squeue", "--noheader", "--states=all", "--format=%i|%P|%t|%N"
                )
                self.snapshots.append(QueueSnapshot(time.time(), owners_of(text)))


def owners_of(text):
    """Return node -> partition and job, from squeue's output.

    The nodes of a completing job count as other users' nodes.

    >>> owners_of("7|low|R|n1\\n8|high|R|n[2-3]\\n9|low|CG|n4\\n6|low|PD|\\n")
    {'n1': ('low', '7'), 'n2': ('high', '8'), 'n3': ('high', '8'), 'n4': ('high', '9')}
    """
    owners = {}
    for job, partition, state, nodes in (line.strip().split("|") for line in text.splitlines()):
        if state in ("R", "CF", "CG", "S"):
            for node in hosts(nodes):
                owners.setdefault(node, (OTHER_USERS if state == "CG" else partition, job))
    return dict(sorted(owners.items()))


def hosts(listed):
    """Expand a node list in Slurm's short form.

    >>> hosts("n[1,3-4]"), hosts("n2")
    (['n1', 'n3', 'n4'], ['n2'])
    """
    parts = re.findall(r"(\d+)(?:-(\d+))?", listed)
    return [f"n{number}" for low, high in parts for number in range(int(low), int(high or low) + 1)]


def dated_events(paths):
    """Yield the events of all launches, each with its time in seconds since 1970."""
    for log in paths.event_logs():
        for launch in timeline.place_launches(read_events(log)):
            for t_s, event in launch.lines:
                yield launch.start.date + t_s - launch.lines[0].t_s, event


@dataclass(frozen=True)
class LaunchTimes:
    """Start and first step of a launch, and stints of its groups, in seconds since 1970."""

    began: float
    first_step: float
    stints: list[tuple[float, float]]


def launch_times(log):
    """Return the times of the launches of a log."""
    launches = []
    for launch in timeline.place_launches(read_events(log)):
        began = launch.start.date - launch.lines[0].t_s
        records = timeline.replay_log(launch.lines).records
        first = next(
            (began + t_s for t_s, event in launch.lines if isinstance(event, FirstStep)), np.inf
        )
        since, stints = {}, []
        for record in records:
            if record.event == "group":
                since.setdefault(record.network, began + record.t_s)
            elif record.event == "stopped":
                stints.append((since.pop(record.network), began + record.t_s))
        stints += [(start, began + launch.lines[-1].t_s) for start in since.values()]
        stints = [(max(first, start), end) for start, end in stints]
        launches.append(LaunchTimes(launch.start.date, first, stints))
    return launches


def node_time(snapshots, paths):
    """Return the use of all nodes between the first and the last snapshot.

    A killed launch counts as training until the last line of its log.
    """
    launches = {log.stem: launch_times(log) for log in paths.event_logs()}
    spent = NodeTime()
    for node in NODES:
        # Harvest job that has the node -> since when; the first job's start is unknown.
        since = {snapshots[0].owners.get(node, (IDLE, ""))[1]: 0.0}
        for now, then in pairwise(snapshots):
            partition, job = now.owners.get(node, (IDLE, ""))
            next_partition, _ = then.owners.get(node, (IDLE, ""))
            seconds = then.date - now.date
            if partition == OTHER_USERS:
                spent.other_users += seconds
            elif partition == IDLE:
                spent.waiting += seconds
            else:
                since = {job: since.get(job, now.date)}
                _add_job_time(spent, now.date, then.date, since[job], launches.get(job, []))
            if partition != HARVEST:
                since = {}
            spent.departures += partition != OTHER_USERS and next_partition == OTHER_USERS
    return spent


def _add_job_time(spent, start, end, since, launches):
    """Add the time of a node in a harvest job that has it since ``since``."""
    # A requeued job has several launches; a job that is starting has none in the log yet.
    launch = next((launch for launch in reversed(launches) if launch.began <= end), None)
    if launch is None or launch.began < since - 1:
        first_step, stints = end, []
    else:
        first_step, stints = launch.first_step, launch.stints
    starting = min(end, max(start, first_step)) - start
    training = sum(max(0.0, min(end, last) - max(start, first)) for first, last in stints)
    spent.starting += starting
    spent.training += training
    spent.resting += end - start - starting - training


def trace_of(snapshots):
    """Return the trace of nodes without jobs of other users, for the replay."""
    start = snapshots[0].date
    rows, idle = [], set()
    for snapshot in snapshots:
        now = {
            number
            for number, node in enumerate(NODES)
            if snapshot.owners.get(node, (IDLE, ""))[0] != OTHER_USERS
        }
        t_s = snapshot.date - start
        rows += [(t_s, node, False) for node in sorted(idle - now)]
        rows += [(t_s, node, True) for node in sorted(now - idle)]
        idle = now
    times, nodes, joined = zip(*rows, strict=True)
    seconds = snapshots[-1].date - start
    return Trace.of(np.array(times), np.array(nodes), np.array(joined), len(NODES), seconds)


def leaderboard(rows):
    """Return the networks, the best first, with status and epochs but without times."""
    return [(row.name, str(row.status), row.epochs, row.best_epoch) for row in rows]


def losses(rows):
    """Return network -> validation loss."""
    return {row.name: row.val_loss for row in rows}
