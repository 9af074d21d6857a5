"""A run as trackers model it: networks with parameters, metrics, status and files (pure)."""

from __future__ import annotations

import hashlib
import math
import pwd
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from fleet.domain.events import SearcherStarted
from fleet.domain.network import SCORES, BestEpoch, EpochRecord
from fleet.domain.run import RunNetwork, RunState
from fleet.errors import UserError
from fleet.monitor.run_history import PastRun, read_past_run
from fleet.prediction.ensembles import find_joinable
from fleet.spec import ModelEntry, NetworkSpec, Stopping
from fleet.spec.hyperparameters import Plain, hyperparameters_of
from fleet.spec.space import space_of
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Status, without_means

DATABASES = (".db", ".sqlite", ".sqlite3")  # file name extensions of SQLite
_ENDS = (Status.FINISHED, Status.PRUNED, Status.FAILED)  # after which nothing is left to train
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
        return self.status in _ENDS

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

    @property
    def best_values(self) -> dict[str, float]:
        """Its losses, accuracies and metrics at its best epoch; empty without one."""
        best = self.facts.get("best_epoch")
        values = next((epoch.values for epoch in self.epochs if epoch.epoch == best), {})
        return {name: value for name, value in values.items() if name not in _OF_EPOCHS}

    @property
    def numbers(self) -> dict[str, float]:
        """The facts that are numbers."""
        return {name: value for name, value in self.facts.items() if isinstance(value, int | float)}

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
class TrackedModel:
    """The best network for use by others.

    Attributes:
        network: its name.
        files: what :class:`fleet.predictor.Predictor` needs: path in the run's folder -> path.
        keras: its export by Keras, as a path in the run's folder; empty with other engines, and for
            the folds of a network.
    """

    network: str
    files: Mapping[str, Path]
    keras: str


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
        earlier_spaces: entry of a search -> the other spaces that it has had, the newest first.
        networks: its networks, in the order in which they were added.
        files: name -> path.
        user: the account that its spec belongs to.
        facts: further values, such as the command that started it.
        best: name of the best network; empty if there is none.
        model: the best network for use by others; None before it is exported.
    """

    name: str
    key: str
    began: float
    ended: float
    is_going_on: bool
    params: Mapping[str, Plain]
    spaces: Mapping[str, Mapping[str, Any]]
    earlier_spaces: Mapping[str, Sequence[Mapping[str, Any]]]
    networks: tuple[TrackedNetwork, ...]
    files: Mapping[str, Path]
    user: str
    facts: Mapping[str, Plain]
    best: str
    model: TrackedModel | None

    @property
    def is_over(self) -> bool:
        """True if no network has anything left to train."""
        return all(network.is_over for network in self.networks)

    @property
    def best_network(self) -> TrackedNetwork | None:
        """The best network; None if there is none."""
        return next((network for network in self.networks if network.name == self.best), None)

    @property
    def numbers(self) -> dict[str, float]:
        """Its numbers: values of the best network at its best epoch, counts of networks, energy."""
        counts = Counter(network.status for network in self.networks)
        best = self.best_network
        energies = [
            network.numbers["energy_kj"]
            for network in self.networks
            if "energy_kj" in network.numbers
        ]
        return {
            "networks": len(self.networks),
            **{f"networks_{status}": counts[status] for status in _ENDS},
            **({} if best is None else {**best.best_values, **best.numbers}),
            **({"energy_kj": sum(energies)} if energies else {}),
        }


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
    spaces = {entry.stem: _space(entry) for entry in document.models if _space(entry)}
    origin = run.launches[0].start.origin if run.launches else None
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
        spaces,
        _earlier_spaces(paths, spaces),
        tuple(networks),
        {path.name: path for path in files if path.exists()},
        _owner(paths.spec),
        {} if origin is None else {name: value for name, value in asdict(origin).items() if value},
        _best(past.rows),
        _model(past, paths),
    )


def _earlier_spaces(
    paths: RunPaths, spaces: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the spaces that searches have had before, the newest first."""
    earlier: dict[str, list[Mapping[str, Any]]] = {}
    for began in (event for log in paths.event_logs() for event in events_of(log, SearcherStarted)):
        with suppress(UserError):  # an early version may have accepted it
            space = space_of(began.settings.get("space", {}))
            if space != spaces.get(began.entry):
                earlier.setdefault(began.entry, []).insert(0, space)
    return earlier


def _owner(path: Path) -> str:
    """Return the account that a file belongs to; its number if the system has no name for it."""
    number = path.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _best(rows: Sequence[NetworkResult]) -> str:
    """Return the best network among rows, of which the best is first.

    It has finished and violates no constraint, if any does so.
    """
    trained = [row for row in without_means(rows) if row.epochs and row.status is not Status.FAILED]
    finished = [row for row in trained if row.status is Status.FINISHED]
    meeting = [row for row in finished if not row.violates]
    return next((row.name for row in (*meeting, *finished, *trained)), "")


def _model(past: PastRun, paths: RunPaths) -> TrackedModel | None:
    """Return the network by which a predictor of the run predicts, once it is exported."""
    finished = [
        candidate for candidate in find_joinable(past.spec, past.rows)[1] if candidate.is_finished
    ]
    engine = past.spec.engine
    if not finished or engine.join is None:
        return None
    parts = [part.name for part in finished[0].parts]
    exports = [paths.exported(name, engine.suffix) for name in parts]
    if not all(path.is_file() for path in exports):
        return None
    folders = [paths.model(name) for name in parts]
    descriptions = [
        path for folder in folders for path in (folder / "best.json", *folder.glob("files/*"))
    ]
    files = [paths.spec, paths.sample, paths.results, *exports, *descriptions]
    return TrackedModel(
        finished[0].row.name,
        {path.relative_to(paths.root).as_posix(): path for path in files if path.exists()},
        exports[0].relative_to(paths.root).as_posix()
        if engine.suffix == ".keras" and len(exports) == 1
        else "",
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
            "energy_kj": row.energy_kj,
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
