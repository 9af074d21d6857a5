"""Run a case: the same command again and again, until faults are over and all is done."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

import fleet.run
from fleet.comm import group as comm_group
from fleet.control.group import GROUP_MESSAGES, Phase, TrainingGroup
from fleet.errors import ExitStatus
from fleet.storage import results
from tests.simulate import changes, commands, features
from tests.simulate import disk as d
from tests.simulate import kernel as k
from tests.simulate.cases import Case, Event
from tests.simulate.cluster import Cluster, Launch
from tests.simulate.oracles import Failure, Observer

_LONGEST_S = 1800.0  # virtual seconds of one launch
_SMALL_SUM = comm_group._SMALL
_FEW_NETWORKS = results._FEW  # whose table is written at each change
_REPLAYED = 6  # one of so many seeds ends with a replay of a network
_CALM_LAUNCHES = 12  # launches without faults until all must be done
# Virtual seconds of these launches until all must be done: for leases of launches that have died,
# and for the networks of others to come free; then for each epoch, and for each sample of it.
_WAITS_S = 200.0
_EPOCH_S = 2.0
_SAMPLE_S = 0.05
_HELD_S = 2.0  # by which a report is late
_WITH_NEWS = 0.5  # amount of an event from which a report arrives with the news of a death
_GPU = "proc/driver/nvidia/gpus/0000:01:00.0/information"
_MOST_STEPS = 3_000_000  # of one launch
_ENDED = (ExitStatus.OK, ExitStatus.NETWORK_FAILED)


@dataclass
class Outcome:
    """What came of a seed.

    Attributes:
        failure: what went wrong; empty if all is well.
        launches: number of launches.
        counts: how often each fault happened.
        history: the last events.
        waiting: what each thread waited for at the end, if it failed or was stopped.
        output: what the ranks have printed.
    """

    seed: int
    failure: str = ""
    launches: int = 0
    virtual_s: float = 0.0
    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    waiting: str = ""
    output: str = ""

    @property
    def digest(self) -> str:
        """A short text that differs if the seed went otherwise."""
        output = zlib.crc32(self.output.encode())
        return f"{self.launches} {self.steps} {output} {self.virtual_s:.6f}"

    def describe(self, events: int) -> str:
        """Describe the end of the run: the last events, and who waits for what."""
        return "\n".join((*self.history[-events:], "", self.waiting))


def simulate(
    case: Case,
    root: Path,
    trace: Callable[[str], object] | None = None,
    until_s: float | None = None,
) -> Outcome:
    """Run a case; returns its outcome.

    Args:
        root: a folder in memory, which is created and deleted.
        trace: receives each event.
        until_s: stop at the first event after this virtual time, to see who waits for what.
    """
    gc.collect()
    gc.disable()
    kernel = k.Kernel(case.seed)
    kernel.trace = trace
    kernel.stretch = case.stretch
    kernel.watts = case.watts
    kernel.terminal = case.terminal
    if case.cores:
        kernel.cores = case.cores
    elif "networks_per_gpu" in case.content.get("resources", {}):
        kernel.cores = 1
    results._FEW = 3 if case.seed % 16 == 5 else _FEW_NETWORKS
    comm_group._SMALL = 64 if case.seed % 3 == 0 else _SMALL_SUM
    disk = d.Disk(kernel, root, replace(case.disk))
    outcome = Outcome(case.seed)
    with k.running(kernel), d.mounted(disk):
        run = _Run(case, kernel, disk)
        try:
            run.all(until_s)
        except Exception as error:
            outcome.failure = f"{type(error).__name__}: {error}"
        if outcome.failure or until_s is not None:
            outcome.waiting = kernel.describe()
        outcome.output = run.output().replace(str(root), "ROOT")
        outcome.launches = len(run.cluster.launches)
    outcome.virtual_s = kernel.now
    outcome.steps = kernel.steps
    outcome.counts = dict(kernel.counts)
    outcome.history = [f"{at_s:12.6f} {process}: {text}" for at_s, process, text in kernel.history]
    return outcome


class _Run:
    def __init__(self, case: Case, kernel: k.Kernel, disk: d.Disk) -> None:
        self.case = case
        self.kernel = kernel
        self.disk = disk
        names = [f"node{number}" for number in range(case.nodes * case.side_by_side + 1)]
        self.cluster = Cluster(kernel, names)
        for node, offset in zip(self.cluster.nodes, (*case.offsets, *[0.0] * 9), strict=False):
            node.clock_offset_s = offset
        self.folder = disk.shared / "run"
        self.spec = disk.shared / "spec.yaml"
        spec = yaml.safe_dump({**case.content, "output": str(self.folder)})
        self.spec.write_text(spec.replace(features.SHARED, str(disk.shared)))
        for name, content in features.FILES.items():
            (disk.shared / name).parent.mkdir(parents=True, exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content)
            (disk.shared / name).write_text(text)
        self.observer = Observer(case, kernel, disk, self.cluster, self.folder, self.spec)

    def all(self, until_s: float | None) -> None:
        """Launch until all is done; raises if an oracle objects."""
        self._until_s = until_s
        calm_s = 0.0
        for number in range(self.case.launches + _CALM_LAUNCHES):
            if number == self.case.launches:
                self.disk.faults = d.Faults(lag_s=self.case.disk.lag_s)
            began_s = self.kernel.now
            launches = self._launch(number)
            if self._is_stopped:
                return
            if number >= self.case.launches:
                calm_s += self.kernel.now - began_s
            self._observe(partial(self.observer.launches_ended, launches))
            statuses = [launch.status for launch in launches]
            if number >= self.case.launches and all(status in _ENDED for status in statuses):
                self._observe(self.observer.run_ended)
                self._check_liveness(calm_s)
                if self.observer.may_replay and self.case.seed % _REPLAYED == 0:
                    self._replay(self.observer.may_replay[0])
                return
        names = " and ".join(map(_name_of, statuses))
        raise Failure(f"the run has not ended: the last statuses are {names}")

    def _check_liveness(self, calm_s: float) -> None:
        """Check that the launches without faults have not taken longer than their work takes."""
        samples = int(str(self.case.content["data"]["path"]).split()[0])
        epoch_s = (_EPOCH_S + _SAMPLE_S * samples) * self.case.slow
        limit_s = _WAITS_S + epoch_s * self.observer.epochs
        if calm_s > limit_s:
            raise Failure(f"launches without faults took {calm_s:.0f} s, above {limit_s:.0f} s")

    def _replay(self, name: str) -> None:
        """Train a network again by FLEET itself, and check that nothing differs.

        If it has started from the weights of a file, other weights must be refused before.
        """
        options = ["--replay", str(self.folder), "--only", name]
        models = {model["name"]: model for model in self.case.content["models"]}
        if "start" in models.get(name, {"train": {}})["train"]:
            weights = self.disk.shared / "start.txt"
            before = weights.read_text()
            weights.write_text(before.replace("0.01", "0.02"))
            self.observer.refuses_replay(self._run_again(options), weights)
            weights.write_text(before)
        self._observe(partial(self.observer.replayed, self._run_again(options), name))

    def _run_again(self, options: list[str]) -> Launch:
        """Give the command with other options, and wait for its end."""
        launch = self._start(self.cluster.nodes[: self.case.nodes], options)
        until_s = self.kernel.now + _LONGEST_S
        self.kernel.run(lambda: self.cluster.is_idle, until_s, _MOST_STEPS)
        return launch

    def _observe(self, check: Callable[[], None]) -> None:
        """Run a check in a process of the cluster, on a disk without faults."""
        faults = self.disk.faults
        self.disk.faults = d.Faults()
        errors: list[BaseException] = []

        def main() -> int:
            try:
                check()
            except Exception as error:
                errors.append(error)
            return 0

        process = self.kernel.start_process(self.cluster.nodes[0], "observer", {}, main)
        until_s = self.kernel.now + _LONGEST_S
        self.kernel.run(lambda: not process.is_alive, until_s, _MOST_STEPS)
        self.disk.faults = faults
        if errors:
            raise errors[0]

    @property
    def _is_stopped(self) -> bool:
        history = self.kernel.history
        return self._until_s is not None and bool(history) and history[-1][0] > self._until_s

    def _launch(self, number: int) -> list[Launch]:
        """Give the command on each allocation, and wait until all have ended."""
        case = self.case
        kernel = self.kernel
        calm = number >= case.launches
        events = [event for event in case.events if event.launch == number and not calm]
        options = []
        for event in events:
            if event.kind == "walltime":
                longest_s = (0.1, 1.0, 5.0)[event.target % 3]
                options = ["--walltime", f"{0.01 + longest_s * event.amount:.3f}s"]
        began_s = kernel.now
        self.disk.faults.until_s = began_s + 60.0
        restore = [changes.before_launch(self, event) for event in events]
        if case.side_by_side > 1:
            options += ["--share-run", "--idle-timeout", "90s"]
        launches = [
            self._start(self.cluster.nodes[index * case.nodes :][: case.nodes], options)
            for index in range(case.side_by_side)
        ]
        for launch in launches:
            for rank in launch.ranks:
                if case.slow > 1 and kernel.random.random() < 0.3:
                    rank.slowness = kernel.random.uniform(1, case.slow)
        for event in events:
            launch = launches[event.target % len(launches)]
            happen = partial(self._happen, event, launch)
            if event.at_end:
                launch.ranks[0].before_end.append(
                    lambda at_s=event.at_s, happen=happen: kernel.call_at(kernel.now + at_s, happen)
                )
            else:
                kernel.call_at(began_s + event.at_s, happen)
        kernel.run(
            lambda: self.cluster.is_idle or self._is_stopped,
            began_s + _LONGEST_S,
            _MOST_STEPS,
        )
        for function in restore:
            function(launches)
        return launches

    def _start(self, nodes: list[k.Node], options: list[str]) -> Launch:
        case = self.case
        for node in nodes if case.gpus else ():
            file = Path(f"{self.disk.root}/{node.name}-{node.boot}/{_GPU}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"Model: \t\t {case.gpus}\nIRQ:   \t\t 16\n")
        argv = [str(self.spec), *([] if case.terminal else ["--plain"]), *options]
        launch = self.cluster.launch(
            nodes,
            case.ranks_per_node,
            lambda: _main(argv),
            case.fault_tolerant,
            case.delay_s,
            case.late,
            {
                "HOME": str(self.disk.shared / "home"),
                "PATH": os.environ["PATH"],
                "XDG_CACHE_HOME": str(self.disk.shared / "cache"),
            },
        )
        self.observer.begins(launch, "--share-run" in options)
        return launch

    def _happen(self, event: Event, launch: Launch) -> None:
        kernel = self.kernel
        if launch.has_ended:
            return
        rank = event.target % len(launch.ranks)
        kernel.note("fault", f"{event.kind}, rank {rank}")
        kernel.counts[event.kind] += 1
        self._faults[event.kind](event, launch, rank)

    def _signal(self, event: Event, launch: Launch, rank: int) -> None:
        numbers = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGINT)
        number = numbers[event.target % 4]
        self.cluster.interrupt(launch, number)
        if event.target % 4 == 3:
            self.kernel.call_at(
                self.kernel.now + 0.3 * event.amount,
                lambda: self.cluster.interrupt(launch, number),
            )

    def _kill_rank(self, event: Event, launch: Launch, rank: int) -> None:
        self.cluster.kill_rank(launch, rank)

    def _kill_launcher(self, event: Event, launch: Launch, rank: int) -> None:
        self.cluster.kill_launcher(launch)
        self.kernel.call_at(self.kernel.now + 40.0, lambda: self.cluster.kill_all(launch))

    def _kill_all(self, event: Event, launch: Launch, rank: int) -> None:
        self.cluster.kill_all(launch)

    def _die_in_collective(self, event: Event, launch: Launch, rank: int) -> None:
        process = launch.ranks[rank]
        moment = ("collective", "arrived")[event.target % 2]
        calls = 1 + int(20 * event.amount**3)
        process.doom = k.Doom(moment, calls, lambda: self.cluster.kill_rank(launch, rank))

    def _die_in_phase(self, event: Event, launch: Launch, rank: int) -> None:
        """Kill a rank of the next group that enters a phase."""

        def entered(group: TrainingGroup) -> None:
            alive = _alive(launch, group)
            if alive:
                self.kernel.call_at(
                    self.kernel.now + 0.02 * event.amount**3,
                    lambda: self.cluster.kill_rank(launch, alive[-1]),
                )

        self._in_phase(event, launch, entered)

    def _known_death(self, event: Event, launch: Launch, rank: int) -> None:
        """Kill a rank of the next group that enters a phase; rank 0 knows it at once."""
        self._in_phase(event, launch, lambda group: self._kill_known(launch, group))

    def _in_phase(
        self, event: Event, launch: Launch, happen: Callable[[TrainingGroup], object]
    ) -> None:
        """Let something happen to the next group that enters a phase."""
        phase = list(Phase)[event.target % len(Phase)]

        def entered(process: k.Process, group: TrainingGroup) -> bool:
            if process is not launch.ranks[0] or group.phase is not phase:
                return False
            happen(group)
            return True

        self.kernel.phase_watches.append(entered)

    def _kill_known(
        self,
        launch: Launch,
        group: TrainingGroup,
        on_news: Callable[[], object] = lambda: None,
    ) -> None:
        """Kill a rank of a group; rank 0 knows it as soon as it asks."""
        alive = _alive(launch, group)
        if alive:
            first, victim = launch.ranks[0], launch.ranks[alive[-1]]
            self.kernel.call_at(self.kernel.now, lambda: self.cluster.kill_rank(launch, alive[-1]))
            first.mpi.tell_death(first, victim, on_news)

    def _death_before_report(self, event: Event, launch: Launch, rank: int) -> None:
        """Kill a rank of a group that reports; the report arrives with the news or later."""

        def happen(group: TrainingGroup, envelope: Any) -> bool:
            if len(_alive(launch, group)) < 2:  # rank 0 ignores reports of the dead
                return False
            longer_s = _HELD_S * (event.amount < _WITH_NEWS)

            def arrive() -> None:
                envelope.visible_s = self.kernel.now + longer_s

            envelope.visible_s = math.inf
            self._kill_known(launch, group, arrive)
            return True

        self._before_report(event, launch, happen)

    def _signal_before_report(self, event: Event, launch: Launch, rank: int) -> None:
        """Interrupt the launch before a report of a group arrives."""

        def happen(group: TrainingGroup, envelope: Any) -> bool:
            envelope.visible_s += _HELD_S
            self.cluster.interrupt(launch, signal.SIGUSR2)
            return True

        self._before_report(event, launch, happen)

    def _late_report(self, event: Event, launch: Launch, rank: int) -> None:
        """Let a report of a group arrive later, or when another group has ended."""

        def happen(group: TrainingGroup, envelope: Any) -> bool:
            envelope.visible_s += _HELD_S

            def ended(process: k.Process, candidate: TrainingGroup) -> bool:
                has_ended = candidate.phase is Phase.ENDED and candidate.name != group.name
                if has_ended:
                    envelope.visible_s = min(envelope.visible_s, self.kernel.now)
                return has_ended

            self.kernel.phase_watches.append(ended)
            return True

        self._before_report(event, launch, happen)

    def _before_report(
        self, event: Event, launch: Launch, happen: Callable[[TrainingGroup, Any], bool]
    ) -> None:
        """Let something happen when a group sends a report of a kind."""
        report = GROUP_MESSAGES[event.target % len(GROUP_MESSAGES)]
        groups: dict[str, TrainingGroup] = {}

        def entered(process: k.Process, group: TrainingGroup) -> bool:
            if process is launch.ranks[0]:
                groups[group.name] = group
            return launch.has_ended

        def sent(process: k.Process, envelope: Any) -> bool:
            if process not in launch.ranks:
                return launch.has_ended
            message = envelope.message
            if not isinstance(message, report) or message.network not in groups:
                return False
            return happen(groups[message.network], envelope)

        self.kernel.phase_watches.append(entered)
        self.kernel.message_watches.append(sent)

    def _die_in_write(self, event: Event, launch: Launch, rank: int) -> None:
        calls = 1 + int(60 * event.amount**2)
        launch.ranks[rank].doom = k.Doom(
            "write", calls, lambda: self.cluster.kill_rank(launch, rank)
        )

    def _crash_node(self, event: Event, launch: Launch, rank: int) -> None:
        self.cluster.crash(launch.ranks[rank].node, self.disk)

    def _crash_in_write(self, event: Event, launch: Launch, rank: int) -> None:
        calls = 1 + int(60 * event.amount**2)
        launch.ranks[rank].doom = k.Doom(
            "write", calls, lambda: self.cluster.crash(launch.ranks[rank].node, self.disk)
        )

    def _crash_storage(self, event: Event, launch: Launch, rank: int) -> None:
        for node in self.cluster.nodes:
            self.cluster.crash(node, self.disk)
        self.disk.crash_storage()
        self.observer.storage_crashed()

    def _die_in_message(self, event: Event, launch: Launch, rank: int) -> None:
        calls = 1 + int(30 * event.amount**2)
        launch.ranks[rank].doom = k.Doom(
            "send", calls, lambda: self.cluster.kill_rank(launch, rank)
        )

    def _crash_storage_in_write(self, event: Event, launch: Launch, rank: int) -> None:
        calls = 1 + int(80 * event.amount**2)
        launch.ranks[rank].doom = k.Doom(
            "write", calls, lambda: self._crash_storage(event, launch, rank)
        )

    def _freeze(self, event: Event, launch: Launch, rank: int) -> None:
        seconds = (0.1, 2.0, 90.0)[event.target % 3] * event.amount
        launch.ranks[rank].frozen_until = self.kernel.now + seconds

    def _suspend(self, event: Event, launch: Launch, rank: int) -> None:
        for process in launch.ranks:
            process.frozen_until = self.kernel.now + 150.0 * event.amount
        if event.target % 2:
            self.kernel.call_at(self.kernel.now + 1.0, partial(self._start_elsewhere))

    def _jump(self, event: Event, launch: Launch, rank: int) -> None:
        longest_s = (1.0, 100.0, 4000.0)[event.target % 3]
        launch.ranks[rank].node.clock_offset_s += longest_s * (2 * event.amount - 1)

    def _second_launch(self, event: Event, launch: Launch, rank: int) -> None:
        self._start_elsewhere()

    def _start_elsewhere(self) -> None:
        """Give the same command on the last node."""
        self._start([self.cluster.nodes[-1]], [])

    def _give_command(self, event: Event, launch: Launch, rank: int) -> None:
        """Give a command on another node, and wait for the answer there."""
        commands.start(self.kernel, self.cluster.nodes[-1], self.folder, event, self.observer)

    def _give_verdict(self, event: Event, launch: Launch, rank: int) -> None:
        node = self.cluster.nodes[-1]
        commands.start_verdict(self.kernel, node, self.folder, event, self.observer)

    @property
    def _faults(self) -> dict[str, Callable[[Event, Launch, int], None]]:
        return {
            "signal": self._signal,
            "kill rank": self._kill_rank,
            "kill launcher": self._kill_launcher,
            "kill all": self._kill_all,
            "die in collective": self._die_in_collective,
            "die in write": self._die_in_write,
            "die in phase": self._die_in_phase,
            "known death": self._known_death,
            "death before report": self._death_before_report,
            "signal before report": self._signal_before_report,
            "late report": self._late_report,
            "crash node": self._crash_node,
            "crash in write": self._crash_in_write,
            "crash storage": self._crash_storage,
            "walltime": lambda event, launch, rank: None,  # an option of the launch
            "freeze": self._freeze,
            "suspend": self._suspend,
            "clock jump": self._jump,
            "second launch": self._second_launch,
            "commands": self._give_command,
            "die in message": self._die_in_message,
            "crash storage in write": self._crash_storage_in_write,
            "damage": lambda event, launch, rank: None,  # before the launch
            "edit code": lambda event, launch, rank: None,
            "give verdict": self._give_verdict,
            "lazy policy": lambda event, launch, rank: None,
            "lose best": lambda event, launch, rank: None,  # before the launch
            "ask too much": lambda event, launch, rank: None,
        }

    def output(self) -> str:
        """Return what the launches have printed."""
        return "\n".join(
            f"--- rank {rank.label}: status {rank.status}\n{''.join(rank.output)}"
            for launch in self.cluster.launches
            for rank in launch.ranks
            if rank.output
        )


def _alive(launch: Launch, group: TrainingGroup) -> list[int]:
    """Return the living ranks of a group, the master first; trainers follow one preprocessor."""
    ranks = [1 + device for device in group.devices]
    return [rank for rank in ranks if launch.ranks[rank].is_alive]


def _name_of(status: int | None) -> str:
    """Return a word for a status, which tells failures apart when cases are shrunk."""
    return ExitStatus(status).name if status in list(ExitStatus) else "KILLED"


def _main(argv: list[str]) -> Any:
    return fleet.run.leave(fleet.run.main(argv))
