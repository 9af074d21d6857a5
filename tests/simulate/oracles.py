"""What must hold whatever happens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleet.domain import events as ev
from fleet.domain.network import EpochRecord
from fleet.errors import ExitStatus
from fleet.runtime.external.command_handler import NetworkEnded
from fleet.runtime.startup.launch import Ranks
from fleet.runtime.startup.prepare import prepare
from fleet.runtime.startup.request import Request
from fleet.spec import NetworkSpec
from fleet.storage.checkpoint import find_best, find_newest
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Status, read_results, without_means
from fleet.stream.order import parse_path
from tests.simulate import disk as d
from tests.simulate import engines, mpi
from tests.simulate import kernel as k
from tests.simulate.cache_oracle import CacheOracle
from tests.simulate.cases import Case
from tests.simulate.cluster import Cluster, Launch
from tests.simulate.durability_oracle import ORDERLY, DurabilityOracle
from tests.simulate.economy_oracle import EconomyOracle
from tests.simulate.energy_oracle import EnergyOracle
from tests.simulate.features import DEATH, FAILING, has_plain_data
from tests.simulate.lease_oracle import LeaseOracle
from tests.simulate.log_oracle import LogOracle
from tests.simulate.lone_training import LoneTraining, last_epoch, train_alone
from tests.simulate.rates_oracle import RatesOracle
from tests.simulate.resource_oracle import ResourceOracle
from tests.simulate.results_oracle import check_files, check_means, check_order, check_row
from tests.simulate.table_oracle import TableOracle
from tests.simulate.time_oracle import TimeOracle
from tests.simulate.training_oracle import TrainingOracle
from tests.simulate.witness import Witness

# events of a group that has to begin again at its last checkpoint
_FAILURES = {event.word for event in (ev.NetworkRetried, ev.NetworkRolledBack, ev.GroupFailed)}
_GROUPS = {ev.GroupStarted.word, ev.GroupChanged.word}
_DIFFERENCE = re.compile(r"^largest relative difference: (\S+)", re.MULTILINE)
_FORCED = "is ended by force"
_TRACE = "Traceback (most recent call last):\n"
# of a death that MPI reports while a launch starts
_ALLOWED = f"{mpi.__name__}.{mpi.Exception.__name__}"
# Kinds of faults that do not delay the end of a launch.
_NO_DELAYS = {"signal", "walltime", "clocks", "late messages"}
_STOPS_WITHIN_S = 8.0
_REFUSES_WITHIN_S = 20.0
_HANGING = {"tests.sources:hangs", "tests.simulate.models:uninterruptible"}


class Failure(Exception):
    """An oracle objects."""


class Observer(Witness):
    """Watches the launches of a run."""

    def __init__(
        self,
        case: Case,
        kernel: k.Kernel,
        disk: d.Disk,
        cluster: Cluster,
        folder: Path,
        spec: Path,
    ) -> None:
        self.case = case
        self.kernel = kernel
        self.disk = disk
        self.cluster = cluster
        self.folder = folder
        self.spec = spec
        self.paths = RunPaths(folder)
        self.commands: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        self._checked = 0
        self.epochs = 0  # of all networks, once all is done
        self.may_replay: list[str] = []
        self._leftovers = set[str]()
        self._on_several = set[str]()  # networks that have had several GPUs
        self._stopped = set[str]()  # networks that somebody has stopped or paused
        self._objections: list[str] = []
        object_to = self.object_to = self._objections.append
        is_plain = has_plain_data(case.content)
        samples = int(case.content["data"]["path"]) if is_plain else None
        self._training = TrainingOracle(samples, object_to)
        self._logs = LogOracle(object_to)
        self._leases = LeaseOracle(disk, folder, object_to)
        self._durability = DurabilityOracle(self.paths, object_to)
        self._resources = ResourceOracle(disk, object_to)
        is_calm = set(case.kinds) <= {"signal"} and case.side_by_side == 1
        self._tables = TableOracle(self.paths, is_plain, is_calm, object_to)
        self._times = TimeOracle(case, kernel, object_to)
        self._economy = EconomyOracle(case, self.paths, object_to)
        self._energy = EnergyOracle(case.watts, object_to)
        self._caches = CacheOracle(case.content, case.ranks_per_node > kernel.cores, object_to)
        self._rates = RatesOracle(
            case.content,
            disk.shared / "cache" / "fleet" / "rates.json",
            self.paths.profile,
            case.gpus,
            case.side_by_side == 1 and disk.faults == d.Faults(),
            object_to,
        )
        kernel.witness = self
        disk.watch = self._did
        disk.on_crash = lambda: self._logs.check(has_crashed=True)

    # ---- what product code reports ----

    def begins_part(self, process: k.Process, training: Any, state: Any) -> None:
        self._training.begin(process, training, state)
        name = training.network.name
        self._durability.begins_part(name)
        self._resources.begins_part(process, training.trainable)
        self._economy.begins_part(process, name)
        if training.group.is_master:
            self._times.begins_part(process, name)

    def steps(self, process: k.Process, trainable: Any, inputs: Any, size: int) -> None:
        self._training.step(process, trainable, inputs, size)
        self._resources.count(process)
        self._energy.steps(process, self.kernel.now)
        if hasattr(trainable, "simulated"):
            part, _ = trainable.simulated
            self._times.steps(process, part.network, trainable._group.is_master)

    def trained(
        self, process: k.Process, name: str, began_s: float, ended_s: float, failed: bool
    ) -> None:
        self._energy.trained(process, name, began_s, ended_s, failed)

    def reaches(self, process: k.Process, training: Any, state: Any) -> None:
        self._training.reached(process, training, state)

    def ends_epoch(self, process: k.Process, training: Any, state: Any) -> None:
        self._training.end_epoch(process, training, state)

    def reports_epoch(self, process: k.Process, training: Any, state: Any) -> None:
        self._training.report_epoch(process, training, state)

    def saved(self, process: k.Process, name: str, state: Any) -> None:
        if self._leases.holds(process, name):
            self._durability.saved(name, state)
        self._times.saved(process, name)
        self._economy.saved(process, name, state)

    def saves(self, process: k.Process, name: str, state: Any) -> None:
        self._economy.saves(process, name, state)

    def reads_arrays(self, process: k.Process, path: Path) -> None:
        self._economy.reads_arrays(process, path)

    def reads_sample(self, process: k.Process, source: str, index: int) -> None:
        self._economy.reads_sample(process, source, index)

    def takes_chunk(self, process: k.Process, sequence: int, missed: Iterable[int]) -> None:
        if sequence in missed:
            self.object_to(f"{process} reads chunk {sequence}, which it has counted as missed")

    def observed_rate(self, process: k.Process, name: str, shape: Any, observed: Any) -> None:
        self._rates.observed(process, name, shape, observed)

    def planned(self, process: k.Process, rates: Mapping[str, Any]) -> None:
        self._rates.planned(process, rates)

    def limited(self, table: Any, limited: Any) -> None:
        self._rates.limited(table, limited)

    def built(self, process: k.Process, name: str, parameters: int, in_row: int | None) -> None:
        if in_row != parameters:
            self.object_to(f"{name} has {parameters} parameters, but its row has {in_row}")

    def augmented(self, process: k.Process, has_work: bool, epochs: int) -> None:
        if epochs and not has_work:
            self.object_to(f"{process} keeps {epochs} epochs of samples that need no work")

    def is_idle(self, process: k.Process, devices: Iterable[int], is_idle: bool) -> None:
        self._economy.is_idle(process, devices, is_idle)

    def wrote_table(self, process: k.Process) -> None:
        self._economy.wrote_table(process, self.kernel.now)

    def left_table(self, process: k.Process, networks: int) -> None:
        self._economy.left_table(process, networks)

    def chose_cache(self, spec: Any, opened: Any, resources: Any, earlier: Any, cache: str) -> None:
        self._caches.chosen(spec, opened, resources, earlier, cache)

    def shares_epochs(self, spec: Any, opened: Any, used_bytes: int, epochs: int) -> None:
        self._caches.shares_epochs(spec, opened, used_bytes, epochs)

    def throughput(self, process: k.Process, rank: int, samples_per_s: float) -> None:
        self._economy.throughput(process, rank, samples_per_s)

    def begins_line(self, process: k.Process, path: Path, record: Any) -> Any:
        self._resources.count(process)
        self._durability.logged(record, self._training.epochs)
        self._rates.logged(process, record)
        self._times.logged(process, record)
        self._economy.logged(process, record)
        self._energy.logged(record)
        if record["event"] == ev.CommandReceived.word and record["do"] in ("stop", "pause"):
            self._stopped.update(record["networks"])
        if record["event"] in _GROUPS and len(record["devices"]) > 1:
            self._on_several.add(record["network"])
        if record["event"] in _FAILURES:
            self._training.failed.add(record["network"])
        return self._logs.begins_line(process, path, record)

    def ends_line(self, path: Path, line: Any, is_written: bool) -> None:
        self._logs.ends_line(path, line, is_written)

    def synced_log(self, process: k.Process, path: Path) -> None:
        self._logs.synced(process, path)

    def decided(self, process: k.Process, path: Path, statuses: Mapping[str, Any]) -> None:
        self._logs.decided(process, path, statuses)
        self._rates.decided(process)

    # ---- during a launch ----

    def begins(self, launch: Launch, shares_run: bool) -> None:
        """Watch the ranks of a launch.

        Args:
            shares_run: whether it shares the run with others.
        """
        self._resources.begin(launch)
        self._times.begin(launch)
        self._economy.begin(launch)
        if shares_run:
            self._leases.sharing.add(str(launch.number))

    def _did(self, call: str, path: str, data: bytes) -> None:
        self._leases.did(call, path, data)
        self._resources.did(call, path)
        self._economy.did(self.kernel.process, call, path)

    def storage_crashed(self) -> None:
        """Allow that files are lost that were not synced."""
        self._training.storage_crashed()
        self._leases.storage_crashed()
        self._durability.storage_crashed(self.cluster.launches)
        self._rates.storage_crashed()
        self._economy.storage_crashed()

    def damaged(self, name: str, remaining: tuple[int, int]) -> None:
        """Allow that a network loses what its newest checkpoint had.

        Args:
            remaining: epochs and position of the next one.
        """
        self._training.damaged(name, remaining)
        self._durability.damaged(name, remaining)
        self._economy.damaged(name, remaining)

    def answered(self, content: dict[str, Any], answer: dict[str, Any] | None) -> None:
        """Record the answer to a command; None if there was none in time."""
        self.commands.append((content, answer))

    def refused(self, seconds: float) -> None:
        """A command was refused after some seconds."""
        # Launches that share a run take no commands, so none need be waited for.
        shares = self.case.side_by_side > 1 and "slow disk" not in self.case.kinds
        if shares and seconds > _REFUSES_WITHIN_S:
            self.object_to(f"a command to launches that share a run waits for {seconds:.1f} s")

    def refused_verdict(self, network: str, error: Exception) -> None:
        """A command to a network was refused, because it has ended or for another reason."""
        has_ended = str(error).startswith(f"{network} has ended")
        if has_ended != isinstance(error, NetworkEnded):
            self.object_to(f"a command to {network} was refused by {error!r}")

    # ---- after each launch ----

    def launches_ended(self, launches: list[Launch]) -> None:
        """Check what must hold between two launches."""
        self._logs.check(has_crashed=False)
        for launched in launches if self.case.side_by_side == 1 else ():
            # A launch that is ended by force, while a file cannot be written, may have decided what
            # it could not log or show any more.
            if not _is_forced(launched):
                self._logs.check_fold(self.paths.events, launched.ranks[0].label)
        self._durability.check(self.cluster.launches, launches)
        if self.paths.results.exists():
            self._rows()  # whatever has happened, it can be read
        new = self.cluster.launches[self._checked :]
        self._checked = len(self.cluster.launches)
        if all(launched.status in ORDERLY for launched in new):
            rows = self._rows()
            self._durability.ended(new, rows.values())
            # A launch that is ended by force may not have counted its last checkpoint.
            if len(new) == 1 and not _is_forced(new[0]):
                self._tables.check(rows)
                self._tables.check_output(new[0], rows)
                self._economy.ended(rows.values(), new[0].status)
                self._energy.check(rows.values())
                self._rates.check(new[0].ranks[0].label)
        for launched in new:
            self._check_output(launched)
        for task, error in self.kernel.unhandled:
            if isinstance(error, mpi.Exception):  # a rank has died before FLEET could react
                continue
            raise Failure(f"{task} raised {error!r}")
        self._check_leftovers(launches)
        self._check_ends(launches)
        self._raise()

    def _check_ends(self, launches: list[Launch]) -> None:
        """Check that launches stop soon after a signal if nothing else happens to them."""
        functions = {model.get("build") for model in self.case.content["models"]}
        if not set(self.case.kinds) <= _NO_DELAYS or functions & _HANGING:
            return
        for launched in launches:
            seconds = launched.ended_s - launched.interrupted_s
            if seconds > _STOPS_WITHIN_S:
                raise Failure(f"launch {launched.number} ends {seconds:.1f} s after a signal")

    def _check_leftovers(self, launches: list[Launch]) -> None:
        """Check that launches whose ranks all ended in order leave no files on their nodes."""
        present = {
            str(path)
            for local in ("dev/shm", "tmp")
            for path in self.disk.root.glob(f"node*/{local}/**/*")
            if path.is_file()
        }
        new = present - self._leftovers
        self._leftovers = present
        in_order = all(rank.status in ORDERLY for launch in launches for rank in launch.ranks)
        if new and in_order:
            raise Failure(f"files are left on nodes: {sorted(new)}")

    def _raise(self) -> None:
        if self._objections:
            raise Failure(self._objections[0])

    def _rows(self) -> dict[str, NetworkResult]:
        return {row.name: row for row in without_means(read_results(self.folder))}

    def _check_output(self, launch: Launch) -> None:
        """Check that ranks print no traceback of a mistake."""
        for rank in launch.ranks:
            text = "".join(rank.output)
            for block in text.split(_TRACE)[1:]:
                error = next((line for line in block.splitlines() if line[:1].strip()), "")
                if not error.startswith(_ALLOWED):
                    raise Failure(f"rank {rank} raised {error}\n{block[:3000]}")

    # ---- at the end ----

    def run_ended(self) -> None:
        """Check the results once all is done."""
        prepared = prepare(
            Request(str(self.spec)),
            Ranks(tuple(0 for _ in range(max(2, self.case.ranks))), cores=self.kernel.cores),
            None,
            lambda plan: None,
            "",
        )
        rows = self._rows()
        self.epochs = sum(row.epochs for row in rows.values())
        networks = prepared.spec.by_name
        self._check_balance(networks.values())
        if set(rows) != set(networks):
            raise Failure(f"results have {sorted(rows)} instead of {sorted(networks)}")
        stopped = set(self._stopped)
        for content, answer in self.commands:
            if answer is None or "error" in answer:
                continue
            added = answer["networks"] if content["do"] in ("add", "clone") else ()
            if not set(added) <= set(rows):
                raise Failure(f"a command was answered, and lost: {content}: {answer}")
            stopped.update(answer["networks"] if content["do"] in ("stop", "pause") else ())
        may_prune = "prune" in self.case.content or any(
            "search" in model for model in self.case.content["models"]
        )
        for name, network in networks.items():
            row = rows[name]
            if row.status is Status.PRUNED and (may_prune or name in stopped):
                self._check_training(prepared, name, row.epochs)
                continue
            if row.status is Status.FAILED and self._may_fail(network, row):
                continue
            if row.status is Status.SKIPPED and self.kernel.counts.get("command skip"):
                continue  # the command that includes it again was killed
            if row.status is not Status.FINISHED:
                raise Failure(f"{name} is {row.status.value}: {row.reason}")
            history, lone = self._check_training(prepared, name, row.epochs)
            epochs = last_epoch(history, network.train.stopping)
            if row.epochs != epochs:
                raise Failure(f"{name} has {row.epochs} epochs instead of {epochs}")
            if self.case.content["resources"]["engine"] == "emulated":
                continue  # it has scores of its own
            if row.epochs:
                is_undisturbed = not self.case.kinds
                _raise_first(
                    f"{name}: ",
                    check_row(
                        row,
                        network,
                        history,
                        lone,
                        self.paths.predictions(name, "validation"),
                        is_undisturbed,
                    ),
                )
            # A replay has no time limit, so it leaves out an epoch that one has cut.
            is_whole = any(not record.cut_at for record in history)
            if is_whole and network.train.batch.when_scaled == "fixed":
                self.may_replay.append(name)
        foreign = self.paths.foreign_files()
        if foreign and not self.cluster.kernel.counts.get("crash storage"):
            raise Failure(f"files of unknown origin: {foreign}")
        table = read_results(self.folder)
        _raise_first("results: ", check_means(table))
        _raise_first("results: ", check_order(table, networks))
        _raise_first("", check_files(prepared, table))
        self._check_log({name: row.epochs for name, row in rows.items()})
        if engines.takes_together(self.case.content) and not self.kernel.counts["stride"]:
            raise Failure("short steps of a network with one rank were never taken together")
        self._durability.check_stopped(rows.values())
        self._tables.check(rows)
        self._tables.check_report(rows)
        self._raise()

    def _check_balance(self, networks: Iterable[NetworkSpec]) -> None:
        """Check that balanced classes were resolved to weights by the data."""
        for network in networks:
            if network.train.class_weights == "balanced":
                raise Failure(f"{network.name}: the weights of balanced classes are not known")

    def _may_fail(self, network: NetworkSpec, row: NetworkResult) -> bool:
        """Return True if a network may have failed for the reason in its row."""
        if network.architecture.target in FAILING or network.train.step == engines.FAILING_STEPS:
            return True
        if self.case.content["resources"]["engine"] == engines.FAILING_EXPORT:
            return True
        if row.reason.startswith("ask(") and row.name.startswith("s-"):
            return "tests.simulate.searchers" in str(self.case.content["models"])
        return self.case.content["max_deaths"] < 99 and bool(DEATH.search(row.reason))

    def _check_training(
        self, prepared: Any, name: str, epochs: int
    ) -> tuple[Sequence[EpochRecord], LoneTraining]:
        """Check that a network is as if it had been trained alone; returns both trainings."""
        history = find_newest(self.paths, name, with_arrays=False).history
        if [record.epoch for record in history] != list(range(1, epochs + 1)):
            raise Failure(f"{name}: epochs {[record.epoch for record in history]}")
        consumed = [
            chunk
            for record in history
            for chunk in parse_path(record.path) or [record.stream_epoch]
        ]
        if len(set(consumed)) != len(consumed):
            raise Failure(f"{name} was trained twice on a part of the stream: {consumed}")
        lone = train_alone(prepared, name, history)
        for record, alone in zip(history, lone.scores, strict=True):
            measured = (record.loss, record.accuracy, record.val_loss, record.val_accuracy)
            if self.case.content["resources"]["engine"] == "emulated":
                continue  # it has losses of its own
            if not np.allclose(measured, alone, rtol=1e-9, equal_nan=True):
                raise Failure(f"{name}, epoch {record.epoch}: {measured}; alone: {alone}")
        if not epochs:
            return history, lone
        lookup = find_best(
            self.paths,
            name,
            prepared.spec.by_name[name].train.stopping,
            prepared.spec.checkpoint.keep,
        )
        if lookup.state is None or lookup.damage:
            raise Failure(f"{name} has no best checkpoint: {lookup.damage}")
        best = lone.weights[lookup.state.epoch - 1]
        exact = name not in self._on_several
        for key, array in best.items():
            measured = lookup.state.arrays[key]
            same = (
                np.array_equal(measured, array)
                if exact
                else np.allclose(measured, array, rtol=1e-9)
            )
            if not same:
                raise Failure(f"{name}: {key} differs from that of a training alone")
        return history, lone

    def refuses_replay(self, launch: Launch, changed: Path) -> None:
        """Check that a replay was refused because a file has changed."""
        if launch.status != ExitStatus.BAD_INPUT:
            raise Failure(f"{changed.name} was changed, but a replay returned {launch.status}")

    def replayed(self, launch: Launch, name: str) -> None:
        """Check that the replay of a network gave the same losses and accuracies."""
        output = "".join(launch.ranks[0].output)
        difference = _DIFFERENCE.search(output)
        if launch.status or difference is None or float(difference[1]) > 1e-9:
            raise Failure(f"the replay of {name} returned {launch.status}: {output[-2000:]}")
        replay = RunPaths(self.paths.replay(name))
        trainers = max(event.trainers for event in events_of(replay.events, ev.LaunchStarted))
        sizes, again = (
            {record.gpus for record in find_newest(paths, name, with_arrays=False).history}
            for paths in (self.paths, replay)
        )
        shares = "networks_per_gpu" in self.case.content["resources"]
        if len(sizes) == 1 and max(sizes) <= trainers and again != sizes and not shares:
            raise Failure(f"{name} was trained on {sizes} GPUs, and again on {again}")

    def _check_log(self, epochs: dict[str, int]) -> None:
        logged = Counter(
            (event.network, event.record.epoch)
            for log in self.paths.event_logs()
            for event in events_of(log, ev.EpochEnded)
        )
        for (name, epoch), count in logged.items():
            ended = self._training.times_ended(name, epoch)
            if count > ended:
                raise Failure(
                    f"{name}: epoch {epoch} was logged {count} times, and ended {ended} times"
                )
        for name, count in epochs.items():
            for epoch in range(1, count + 1):
                if not logged[name, epoch]:
                    raise Failure(f"{name}: epoch {epoch} is not in the log")


def _raise_first(prefix: str, objections: Iterator[str]) -> None:
    for objection in objections:
        raise Failure(prefix + objection)


def _is_forced(launch: Launch) -> bool:
    """Return True if the watchdog has ended a launch."""
    return _FORCED in "".join(launch.ranks[0].output)
