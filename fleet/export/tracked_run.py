"""A run as trackers model it: networks with parameters, metrics, status and files (pure)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from fleet.domain.network import SCORES, BestEpoch, EpochRecord
from fleet.domain.run import RunNetwork, RunState
from fleet.monitor.run_history import read_past_run
from fleet.spec import ModelEntry, NetworkSpec, Stopping
from fleet.spec.hyperparameters import Plain, hyperparameters_of
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Status

DATABASES = (".db", ".sqlite", ".sqlite3")  # file name extensions of SQLite
_OF_EPOCHS = ("learning_rate", "batch", "samples", "gpus", "seconds")


@dataclass(frozen=True)
class TrackedEpoch:
    """An epoch.

    Attributes:
        epoch: its number.
        date: when it ended, in seconds since 1970.
        values: its finite values, by name.
        run_time_s: seconds since the network started, without the time between launches.
    """

    epoch: int
    date: float
    values: Mapping[str, float]
    run_time_s: float


class TrackedObjective(NamedTuple):
    """An objective with the best value of a network, NaN without any."""

    name: str
    value: float
    is_larger_better: bool


@dataclass(frozen=True)
class TrackedNetwork:
    """A network of a run.

    Attributes:
        name: its name.
        key: unique among all runs, including runs that were started over in the same folder.
        params: its hyperparameters.
        drawn: the hyperparameters that differ within its entry, as the spec writes them.
        entry: name of its entry; empty if the entry's networks do not differ.
        objectives: the monitored value first.
        status: its status.
        epochs: its epochs.
        began: when it started, in seconds since 1970.
        facts: further values.
        files: name -> path.
    """

    name: str
    key: str
    params: Mapping[str, Plain]
    drawn: Mapping[str, Any]
    entry: str
    objectives: tuple[TrackedObjective, ...]
    status: Status
    epochs: tuple[TrackedEpoch, ...]
    began: float
    facts: Mapping[str, Plain]
    files: Mapping[str, Path]

    @property
    def is_over(self) -> bool:
        """True if nothing is left to train."""
        return self.status in (Status.FINISHED, Status.PRUNED, Status.FAILED)

    @property
    def ended(self) -> float:
        """When its newest epoch ended, in seconds since 1970."""
        if self.epochs:
            return self.epochs[-1].date
        return self.began

    @property
    def run_time_s(self) -> float:
        """Seconds from its start to the end of its newest epoch; see :class:`TrackedEpoch`."""
        return self.epochs[-1].run_time_s if self.epochs else 0.0

    def digest(self, epochs: int | None = None) -> str:
        """Return a hash of its first epochs and its hyperparameters."""
        content = (
            sorted(self.params.items()),
            [(epoch.epoch, sorted(epoch.values.items())) for epoch in self.epochs[:epochs]],
        )
        return _digest(repr(content))

    @property
    def fingerprint(self) -> str:
        """A hash of everything known, because a test may follow the last epoch, and files may."""
        return (
            f"{self.digest()} {self.status} "
            f"{_digest(repr((sorted(self.facts.items()), sorted(self.files))))}"
        )


@dataclass(frozen=True)
class TrackedRun:
    """A run.

    Attributes:
        name: its name.
        key: unique among all runs.
        began, ended: in seconds since 1970.
        is_going_on: True if no launch has logged its end.
        params: its settings.
        spaces: entry -> its space or grid.
        networks: its networks, in the order in which they were added.
        files: name -> path.
    """

    name: str
    key: str
    began: float
    ended: float
    is_going_on: bool
    params: Mapping[str, Plain]
    spaces: Mapping[str, Mapping[str, Any]]
    networks: tuple[TrackedNetwork, ...]
    files: Mapping[str, Path]

    @property
    def is_over(self) -> bool:
        """True if no network has anything left to train."""
        return all(network.is_over for network in self.networks)


def read_tracked_run(paths: RunPaths) -> TrackedRun:
    """Read a run from its log and its spec; it may go on.

    Raises:
        UserError: there is no run, or its spec cannot be read.
    """
    past = read_past_run(paths)
    document = past.spec.document
    run = past.run
    began = run.launches[0].start.date if run.launches else 0.0
    key = _digest(f"{document.name}\0{began}")
    rows = {row.name: row for row in past.rows}
    builder = _NetworkBuilder(run, paths, key, began)
    networks = [
        builder.network(spec, document.models[spec.entry], rows[spec.name])
        for spec in past.spec.networks
    ]
    files = (paths.spec, paths.results, paths.report, paths.ensembles)
    return TrackedRun(
        document.name,
        key,
        began,
        max([began, *(network.ended for network in networks)]),
        past.is_going_on,
        {
            "policy": document.schedule.policy,
            "engine": document.resources.engine,
            "seed": document.seed,
        },
        {entry.stem: _space(entry) for entry in document.models if _space(entry)},
        tuple(networks),
        {path.name: path for path in files if path.exists()},
    )


def _space(entry: ModelEntry) -> Mapping[str, Any]:
    """Return the space or grid of an entry."""
    return entry.space or entry.grid or {}


@dataclass
class _NetworkBuilder:
    """Builds the networks of a tracked run."""

    run: RunState
    paths: RunPaths
    key: str
    began: float

    def __post_init__(self) -> None:
        self._ended = {
            (epoch.network, epoch.record.epoch, epoch.record.stream_epoch): epoch.t_s
            for epoch in self.run.epochs
        }
        self._began: dict[str, float] = {}
        for record in self.run.records:
            self._began.setdefault(record.network, record.t_s)

    def network(self, spec: NetworkSpec, entry: ModelEntry, row: NetworkResult) -> TrackedNetwork:
        """Return one network."""
        stopping = spec.train.stopping
        name = spec.name
        began = self._date(self._began[name]) if name in self._began else self.began
        run_network = self.run.networks.get(name, RunNetwork(0, 0))
        facts: dict[str, Any] = {
            "reason": row.reason,
            "parameters": row.parameters,
            "best_epoch": row.best_epoch,
            # what repeats of a configuration have in common
            "configuration": spec.stem if spec.repeat is not None else "",
            "parent": row.parent,
            "parent_epoch": row.parent_epoch,
            **{column: row.value(column) for column in ("test_loss", "test_accuracy")},
            **{
                column: value for column, value in row.metrics.items() if column.startswith("test_")
            },
        }
        monitored = TrackedObjective(stopping.metric, row.value(stopping.metric), stopping.sign > 0)
        return TrackedNetwork(
            name,
            _digest(f"{self.key}\0{name}"),
            hyperparameters_of(spec),
            spec.parameters,
            entry.stem if _space(entry) else "",
            self._objectives(entry, name, monitored),
            row.status,
            tuple(self._epochs(name, run_network.status.history, stopping)),
            began,
            {
                column: value
                for column, value in facts.items()
                if value not in ("", 0, None) and value == value
            },
            {
                path.name: path
                for path in (
                    *sorted(self.paths.model(name).glob("best.*")),
                    self.paths.history(name),
                )
                if path.exists()
            },
        )

    def _objectives(
        self, entry: ModelEntry, name: str, monitored: TrackedObjective
    ) -> tuple[TrackedObjective, ...]:
        """Return the objectives of a network, with the values that its searcher received."""
        secondary = () if entry.search is None else entry.search.objectives[1:]
        values = chain(self.run.objective_values.get(name, ())[1:], repeat(math.nan))
        return (
            monitored,
            *(
                TrackedObjective(objective.value, value, objective.sense == "maximize")
                for objective, value in zip(secondary, values, strict=False)
            ),
        )

    def _epochs(
        self, name: str, history: Sequence[EpochRecord], stopping: Stopping
    ) -> Iterator[TrackedEpoch]:
        best = BestEpoch()
        monitor = stopping.metric
        began_s = self._began.get(name, 0.0)
        run_time_s = 0.0
        for record in history:
            best = best.with_epoch(record, stopping)
            values = {column: record.value(column) for column in (*SCORES, *record.metrics)}
            values |= {column: float(getattr(record, column)) for column in _OF_EPOCHS} | {
                f"best_{monitor}": stopping.sign * best.score
            }
            t_s = self._ended.get((name, record.epoch, record.stream_epoch))
            if t_s is not None:
                run_time_s = t_s - began_s
            yield TrackedEpoch(
                record.epoch,
                self.began if t_s is None else self._date(t_s),
                {column: value for column, value in values.items() if math.isfinite(value)},
                run_time_s,
            )

    def _date(self, t_s: float) -> float:
        """Convert a time of the run, whose clock skips gaps of launches, to seconds since 1970."""
        launches = (launch for launch in reversed(self.run.launches) if launch.began_s <= t_s)
        launch = next(launches, None)
        if launch is None:
            return self.began
        return launch.start.date + t_s - launch.began_s


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
