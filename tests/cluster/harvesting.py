"""Networks harvested on a real Slurm while jobs of others come and go: who had which node when, and what came of it.

The script of the others follows from a seed: a job of one or two nodes every few tens of seconds, for as long, in a
partition whose jobs preempt those of the harvest. Twice a second the queue says who has which node; the event logs say
what the launches did with theirs. All clocks are one machine's.
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

from fleet.domain.events import EpochEnded, FirstStep
from fleet.monitor import timeline
from fleet.storage.event_log import read_events, read_run
from fleet.storage.json_lines import read_lines
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from scheduler.idle.allocate import RateCurve, Trainer
from scheduler.simulation.idle_nodes import Settings, replay
from scheduler.simulation.idle_trace import Trace, TrainerJob
from tests.cluster.slurm import NODES
from tests.mpi.conftest import ROOT, Launcher

EVERY_S = 0.5  # between two looks at the queue
OURS, OTHERS, NOBODY = "low", "high", ""  # whose a node is, by its partition


@dataclass(frozen=True)
class Script:
    """What others do.

    Attributes:
        seconds: for which their jobs go on arriving.
        nodes, lasting_s, between_s: of a job, its length, and until the next one; the least and the most.
    """

    seed: int
    seconds: float
    nodes: tuple[int, int] = (1, 2)
    lasting_s: tuple[float, float] = (15.0, 45.0)
    between_s: tuple[float, float] = (15.0, 35.0)

    def jobs(self):
        """When each job arrives, in seconds from the start, with its nodes and seconds."""
        draw, now = random.Random(self.seed), 0.0
        while now < self.seconds:
            yield now, draw.randint(*self.nodes), draw.uniform(*self.lasting_s)
            now += draw.uniform(*self.between_s)


@dataclass(frozen=True)
class Look:
    """What the queue said at a moment.

    Attributes:
        at: seconds since 1970.
        owners: node -> partition and id of the job that has it.
    """

    at: float
    owners: dict[str, tuple[str, str]]


@dataclass
class NodeTime:
    """Seconds of all nodes while others came and went.

    Attributes:
        other_users: that they had, or that were being taken back for them.
        waiting: that no job had.
        starting: of our jobs, until the first step of a launch.
        training: that groups of ranks trained.
        resting: of our jobs, besides.
        departures: how often a node went over to others.
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
        """Of idle node time in training."""
        return self.training / self.idle

    @property
    def share_once_begun(self):
        """The same, without starting up and waiting in the queue."""
        return self.training / (self.training + self.resting)

    @property
    def start_s(self):
        """What a node waits and starts for, on average, when it comes back from others."""
        return (self.waiting + self.starting) / max(1, self.departures)


@dataclass(frozen=True)
class Came:
    """What came of a harvest.

    Attributes:
        cut: launches that others ended.
        epochs: (network, epoch) as often as one was trained.
        rows: of the results.
        time: of the nodes; None where nobody looked.
        samples, predicted: trained while others came and went, and what the replay says of the same nodes.
    """

    cut: int
    epochs: Counter
    rows: tuple
    time: NodeTime
    samples: float
    predicted: float

    @property
    def again(self):
        """Epochs that were trained once more."""
        return self.epochs.total() - len(self.epochs)

    def line(self, name):
        """A row of a table."""
        return (
            f"| {name} | {self.cut} | {self.again} | {self.time.idle:.0f} | {self.time.waiting:.0f} | "
            f"{self.time.starting:.0f} | {self.time.training:.0f} | {self.time.share:.1%} | "
            f"{self.time.share_once_begun:.1%} | {self.samples:.0f} | {self.predicted:.0f} | "
            f"{self.predicted / max(1, self.samples) - 1:+.1%} |"
        )


@dataclass
class Show:
    """A harvest of a spec, and the others.

    Args:
        content: of the spec.
        variables: of the environment of its jobs.
        most: jobs that wait or run.
        first: launches that train before the others come.
    """

    slurm: object
    folder: Path
    content: dict
    variables: dict = field(default_factory=lambda: {"FLEET_LEASE": "6s"})
    max_jobs: int = len(NODES)
    first: int = len(NODES)

    def __post_init__(self):
        self.paths = RunPaths(Path(self.content["output"]))

    def run(self, script, patience_s=900):
        """Begin, let the others come once some launches train, and wait for the end."""
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
        watch = Watch(self.slurm)
        started = time.time()
        self._let_others_come(script)
        ended = time.time()
        watch.stop()
        self.slurm.wait_until(
            "all networks are done",
            lambda: {row.status for row in read_results(self.paths.root)} == {"finished"},
            self.report,
            patience_s,
        )
        self.slurm.wait_until("no job is left", self._is_over, self.report, patience_s)
        return self._came(watch.looks, started, ended)

    def epochs(self):
        """What has been trained so far, as often as it was."""
        return Counter(
            (event.network, event.record.epoch)
            for _, event in read_run(self.paths)
            if isinstance(event, EpochEnded)
        )

    def training(self):
        """The logs of launches that have finished an epoch."""
        return [
            log
            for log in self.paths.event_logs()
            if any(isinstance(event, EpochEnded) for _, event in read_events(log))
        ]

    def report(self):
        """What the jobs printed."""
        return "\n".join(
            file.read_text(errors="replace")[-2000:] for file in sorted(self.paths.jobs.glob("*"))
        )

    def _is_over(self):
        return not self.slurm.call("squeue", "--noheader").strip()

    def _let_others_come(self, script):
        began = time.monotonic()
        for after_s, nodes, seconds in script.jobs():
            time.sleep(max(0.0, began + after_s - time.monotonic()))
            self.slurm.submit(
                f"#!/bin/sh\nsleep {seconds:.1f}\n",
                "--partition=high",
                f"--nodes={nodes}",
                "--exclusive",
            )
        time.sleep(max(0.0, began + script.seconds - time.monotonic()))

    def _came(self, looks, started, ended):
        noted = list(read_lines(self.paths.harvest_log))
        cut = sum(job["event"] == "begun" for job in noted) - sum(
            job["event"] == "ended" and not job.get("warning") for job in noted
        )
        looks = [look for look in looks if started <= look.at <= ended]
        spent = node_time(looks, self.paths)
        samples, predicted = self._trained(looks, spent)
        return Came(
            cut, self.epochs(), tuple(read_results(self.paths.root)), spent, samples, predicted
        )

    def _trained(self, looks, spent):
        """Samples that were trained while somebody looked, and what the replay says of the same nodes."""
        started, ended = looks[0].at, looks[-1].at
        first = {}
        for at, event in dated(self.paths):
            if isinstance(event, EpochEnded):
                first.setdefault((event.network, event.record.epoch), (at, event.record))
        done = [record.samples for at, record in first.values() if started <= at <= ended]
        end_s = defaultdict(float)
        for (network, _), (at, record) in first.items():
            end_s[network] += record.samples if at >= started else 0
        rate = statistics.median(record.samples / record.seconds for _, record in first.values())
        epoch_s = statistics.median(record.seconds for _, record in first.values())
        curve = RateCurve((1,), (rate,))
        # A departure costs a start, and what was under way: half an epoch, on average.
        jobs = tuple(
            TrainerJob(name, 0.0, total, curve, Trainer(curve, down_s=spent.start_s + epoch_s / 2))
            for name, total in sorted(end_s.items())
            if total
        )
        settings = Settings(horizon_s=60.0, max_parallel=len(NODES), completions_are_events=True)
        epochs_seen = replay(trace_of(looks), jobs, settings)
        return sum(done), sum(trainer.samples for trainer in epochs_seen.trainers)


class Watch:
    """Looks at the queue twice a second, in a thread of its own."""

    def __init__(self, slurm):
        self.probes, self._slurm, self._over = [], slurm, threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)
        self._thread.start()

    def stop(self):
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _keep_looking(self):
        while not self._over.wait(EVERY_S):
            with suppress(
                AssertionError, subprocess.TimeoutExpired
            ):  # a busy machine: Slurm may be late
                text = self._slurm.call(
                    "squeue", "--noheader", "--states=all", "--format=%i|%P|%t|%N"
                )
                self.probes.append(Look(time.time(), owners_of(text)))


def owners_of(text):
    """Node -> partition and job, as the queue says; a job of ours that is being ended gives its nodes to others.

    >>> owners_of("7|low|R|n1\\n8|high|R|n[2-3]\\n9|low|CG|n4\\n6|low|PD|\\n")
    {'n1': ('low', '7'), 'n2': ('high', '8'), 'n3': ('high', '8'), 'n4': ('high', '9')}
    """
    owners = {}
    for job, partition, state, nodes in (line.strip().split("|") for line in text.splitlines()):
        if state in ("R", "CF", "CG", "S"):
            for node in hosts(nodes):
                owners.setdefault(node, (OTHERS if state == "CG" else partition, job))
    return dict(sorted(owners.items()))


def hosts(listed):
    """The nodes of Slurm's short form.

    >>> hosts("n[1,3-4]"), hosts("n2")
    (['n1', 'n3', 'n4'], ['n2'])
    """
    parts = re.findall(r"(\d+)(?:-(\d+))?", listed)
    return [f"n{number}" for low, high in parts for number in range(int(low), int(high or low) + 1)]


def dated(paths):
    """The events of all launches, each with its time in seconds since 1970."""
    for log in paths.event_logs():
        for launch in timeline.place_launches(read_events(log)):
            for t_s, event in launch.lines:
                yield launch.start.date + t_s - launch.lines[0].t_s, event


@dataclass(frozen=True)
class Worked:
    """A launch of a job: when it was begun, when it took its first step, and when groups trained."""

    began: float
    first_step: float
    stints: list[tuple[float, float]]


def worked(log):
    """The launches of a log."""
    spans = []
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
        spans.append(
            Worked(launch.start.date, first, [(max(first, start), end) for start, end in stints])
        )
    return spans


def node_time(looks, paths):
    """What all nodes did between the first look and the last.

    A launch that was killed is taken to have trained until the last line of its log.
    """
    launches = {log.stem: worked(log) for log in paths.event_logs()}
    spent = NodeTime()
    for node in NODES:
        # Our job that has the node -> when it got it; one that had it at first, whenever that was.
        since = {looks[0].owners.get(node, (NOBODY, ""))[1]: 0.0}
        for now, then in pairwise(looks):
            partition, job = now.owners.get(node, (NOBODY, ""))
            seconds = then.at - now.at
            if partition == OTHERS:
                spent.other_users += seconds
            elif partition == NOBODY:
                spent.waiting += seconds
            else:
                since = {job: since.get(job, now.at)}
                _divide(spent, now.at, then.at, since[job], launches.get(job, []))
            if partition != OURS:
                since = {}
            spent.departures += partition != OTHERS and then.owners.get(node, ("", ""))[0] == OTHERS
    return spent


def _divide(spent, start, end, since, launches):
    """The seconds of a node that a job of ours had, from ``since`` on."""
    # A job that was put back into the queue has several launches; one that is starting has none in the log yet.
    launch = next((span for span in reversed(launches) if span.began <= end), None)
    if launch is None or launch.began < since - 1:
        first_step, stints = end, []
    else:
        first_step, stints = launch.first_step, launch.stints
    starting = min(end, max(start, first_step)) - start
    training = sum(max(0.0, min(end, last) - max(start, first)) for first, last in stints)
    spent.starting += starting
    spent.training += training
    spent.resting += end - start - starting - training


def trace_of(looks):
    """Which nodes others left idle, from the first look to the last, as the replay wants it."""
    rows, idle = [], set()
    for look in looks:
        now = {
            number
            for number, node in enumerate(NODES)
            if look.owners.get(node, ("", ""))[0] != OTHERS
        }
        at = look.at - looks[0].at
        rows += [(at, node, False) for node in sorted(idle - now)] + [
            (at, node, True) for node in sorted(now - idle)
        ]
        idle = now
    times, nodes, joined = zip(*rows, strict=True)
    return Trace.of(
        np.array(times), np.array(nodes), np.array(joined), len(NODES), looks[-1].at - looks[0].at
    )


def placed(rows):
    """The networks, the best first, with what came of each; times are left out."""
    return [(row.name, str(row.status), row.epochs, row.best_epoch) for row in rows]


def losses(rows):
    """What networks came to, by their names."""
    return {row.name: row.val_loss for row in rows}
