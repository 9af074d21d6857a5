"""Keep the result of each network, and write them as a table for users and tools.

The test result of a finished network is in a file of its own, because it is computed once.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, Protocol, SupportsIndex, TypeVar, overload

from fleet.domain import events
from fleet.domain import network as net
from fleet.domain.json_record import Flat, OmitDefault, write_record
from fleet.domain.objectives import violations_of
from fleet.domain.run import RunState
from fleet.errors import UserError
from fleet.notebook_table import notebook_table
from fleet.spec import NetworkSpec, Spec
from fleet.spec.constraints import parse_constraint, violated
from fleet.spec.criteria import SelectionCriterion, ranking_of
from fleet.spec.layers import count_for
from fleet.spec.old_keys import values_with_new_names
from fleet.spec.search import Search
from fleet.storage.csv_records import OPTIONAL, csv_cells, csv_columns, read_csv_records
from fleet.storage.files import (
    SharedWriteThrottle,
    WriteThrottle,
    atomic_write,
    remove,
    with_retries,
    write_json,
)
from fleet.storage.paths import RunPaths
from fleet.storage.rank_deaths import RankDeaths
from fleet.units import kilojoules
from preprocess.sample import SampleSpec

if TYPE_CHECKING:
    import pandas


class Row(Protocol):
    """A row of a table."""

    def cells(self) -> dict[str, Any]:
        """Return its cells by column."""


R = TypeVar("R", bound=Row)


class Table(list[R]):
    """Rows in their order.

    Args:
        rows: rows of the table.
        head: the first columns, which exist even without rows.
    """

    def __init__(self, rows: Iterable[R] = (), head: Sequence[str] = ()) -> None:
        super().__init__(rows)
        self._head = head

    @overload
    def __getitem__(self, index: SupportsIndex) -> R: ...

    @overload
    def __getitem__(self, index: slice) -> Table[R]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> R | Table[R]:
        if isinstance(index, slice):
            return Table(super().__getitem__(index), self._head)
        return super().__getitem__(index)

    def _repr_html_(self) -> str:
        """Return the table for the cell of a notebook."""
        columns = self.columns()
        return notebook_table(list(columns), list(zip(*columns.values(), strict=True)))

    def columns(self) -> dict[str, list[Any]]:
        """Return the values of each column; None where a row has none."""
        cells = [row.cells() for row in self]
        names = dict.fromkeys([*self._head, *(name for row_cells in cells for name in row_cells)])
        return {name: [row_cells.get(name) for row_cells in cells] for name in names}

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError(
                "to_pandas() needs pandas: pip install 'fleet-ensemble[pandas]'"
            ) from None
        return pandas.DataFrame(self.columns())


def prefix_conflicts(
    columns: Mapping[str, Any], reserved: Sequence[str], prefix: str
) -> dict[str, Any]:
    """Prefix user-defined column names that are already in use.

    Args:
        columns: values by user-defined name.
        reserved: names in use.
        prefix: prefix for conflicting names.

    >>> prefix_conflicts({"width": 8, "epochs": 3}, ["name", "epochs"], "drawn")
    {'width': 8, 'drawn.epochs': 3}
    """
    return {
        f"{prefix}.{name}" if name in reserved else name: value for name, value in columns.items()
    }


class Status(StrEnum):
    """The status of a network."""

    WAITING = "waiting"
    TRAINING = "training"
    PAUSED = "paused"
    FINISHED = "finished"
    PRUNED = "pruned"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class NetworkResult:
    """One row of ``results.csv``.

    Attributes:
        reason: why the network ended or failed.
        parameters: number of parameters; None until it is built, or if its engine cannot tell.
        best_epoch: counted from 1, by the monitored value; losses and accuracies are of this epoch.
        test_loss, test_accuracy: loss and accuracy of the exported network on the test data; NaN
            until it ends, or without such data.
        seconds: training time.
        drawn: parameters drawn for it.
        metrics: requested by its spec, at the best epoch, by column.
        folds: 0 for a network. Otherwise the row stands for that many folds: epochs and values are
            means, and seconds the sum.
        deviation: standard deviation of each value over folds or repeats (with n - 1), by column.
        parent: the network whose weights it started from; empty if there is none.
        parent_epoch: epoch of the parent.
        repeats: as ``folds``, for the repeats of a configuration; failed ones are left out.
        violates: the constraints of its search that it violates, joined by commas.
        energy_kj: energy of its training, with epochs that were lost; None where none is counted.
            Of several networks, the sum.
    """

    name: str
    status: Status
    reason: str
    parameters: int | None
    epochs: int
    best_epoch: int
    loss: float
    accuracy: float
    val_loss: float
    val_accuracy: float
    test_loss: float
    test_accuracy: float
    seconds: float
    drawn: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    folds: int = 0
    deviation: dict[str, float] = field(default_factory=dict)
    parent: str = ""
    parent_epoch: int = 0
    repeats: int = 0
    violates: str = ""
    energy_kj: float | None = None

    @property
    def is_mean(self) -> bool:
        """Whether the row stands for several networks."""
        return bool(self.folds or self.repeats)

    def value(self, name: str) -> float:
        """Return the value of a column; NaN if there is none."""
        if name in _VALUES:
            return getattr(self, name)
        return self.metrics.get(name, math.nan)

    def cells(self) -> dict[str, Any]:
        """Return the row with a column per drawn parameter, metric, and deviation."""
        columns = {name: getattr(self, name) for name in _PLAIN}
        columns |= prefix_conflicts(self.drawn, [*_FIELDS, *self.metrics], "drawn") | self.metrics
        if self.is_mean:
            columns |= {"folds": self.folds} if self.folds else {"repeats": self.repeats}
            columns |= {f"{name}_deviation": value for name, value in self.deviation.items()}
        if self.parent:
            columns |= {"parent": self.parent, "parent_epoch": self.parent_epoch}
        if self.violates:
            columns["violates"] = self.violates
        if self.energy_kj is not None:
            columns["energy_kj"] = self.energy_kj
        return columns


_FEW = 100  # up to this many networks, the table is written at every change


@dataclass(frozen=True)
class SavedFailure:
    """Why a network failed.

    Attributes:
        reason, may_pass, deaths: as in :class:`fleet.domain.network.Outcome`.
        tried: fingerprint of the attempt.
    """

    reason: str
    may_pass: bool
    tried: str
    deaths: Annotated[int, OmitDefault] = 0


@dataclass(frozen=True)
class SavedTest:
    """The test result of a finished network.

    Attributes:
        test: identity of the test data.
        history: the stream epochs of the network.
    """

    tested: Annotated[net.EvaluationResult, Flat]
    test: str
    history: list[int]


@dataclass
class Results:
    """The table of a run's networks, and the files with their outcomes.

    Args:
        run: state of the run.
        attempt_id: returns a fingerprint of an attempt at a network; a failed network is retried if
            it differs.
        unreadable: unreadable sample -> reason.
        check: raises if this launch may no longer write.
        damaged: finished network -> damage of its newest checkpoint, which is no longer needed.
        test: identity of the test data for finished networks; empty if there is none.
        skipped: networks that this launch leaves out.

    Attributes:
        deaths: deaths of ranks, over all launches.
        networks: networks of the spec and added later, by name.
    """

    spec: Spec
    paths: RunPaths
    run: RunState
    attempt_id: Callable[[NetworkSpec], str] = lambda network: ""
    unreadable: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None
    test: str = ""
    pacing: WriteThrottle = field(default_factory=WriteThrottle)
    skipped: frozenset[str] = frozenset()
    _version: int = 0  # of the run, when the table was written
    # Cached for each of perhaps thousands of networks: its version and row, and its line.
    _rows: dict[str, tuple[int, NetworkResult]] = field(default_factory=dict)
    _lines: dict[str, tuple[NetworkResult, list[str], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.networks = dict(self.spec.by_name)
        self.deaths = RankDeaths(self.paths, self.spec.document.max_deaths)
        self._criteria = {
            name: SelectionCriterion.of(network.train) for name, network in self.networks.items()
        }

    def add(self, network: NetworkSpec, parameters: int | None) -> None:
        """Add a network to the run.

        Args:
            network: the network to add.
            parameters: number of parameters, if known.
        """
        name = network.name
        self.networks[name] = network
        self._criteria[name] = SelectionCriterion.of(network.train)
        if parameters is not None:
            self.run.set_parameters(name, parameters)
        self.run.changes.add(name)
        self.write_if_due()

    def on_event(self, event: events.Event) -> None:
        """Write the files that follow from an event, which the state of the run has already."""
        with_retries(lambda: self._write_files(event))
        self.write_if_due()

    def _write_files(self, event: events.Event) -> None:
        match event:
            case events.RankDied():
                self.deaths.remove_markers(event.rank)
            case events.SampleSkipped():
                self.add_unreadable(event.name, event.reason)
            case events.NetworkTested():
                epochs = net.stream_epochs(self.run.status_of(event.network).history)
                saved = SavedTest(event.tested, self.test, epochs)
                write_json(self.paths.test_result(event.network), write_record(saved))
            case events.NetworkFailed():
                attempt = self.attempt_id(self.networks[event.network])
                failure = SavedFailure(event.reason, event.may_pass, attempt, event.deaths)
                write_json(self.paths.failure(event.network), write_record(failure))
                self.deaths.reset(event.network)  # if it is tried again, they no longer count
            case events.NetworkFinished() | events.NetworkVerdict() | events.GroupFailed():
                if self.run.status_of(event.network).outcome is not None:
                    remove(self.paths.failure(event.network))  # of an earlier launch

    def add_unreadable(self, name: str, reason: str) -> None:
        """Record a sample that could not be read.

        Args:
            name: name of the sample.
            reason: reason of the failure.
        """
        self.unreadable[name] = reason
        with atomic_write(self.paths.unreadable_samples) as file:
            writer = csv.writer(file)
            writer.writerow(["sample", "reason"])
            writer.writerows(self.unreadable.items())

    # ---- the table ----

    def row(self, network: NetworkSpec) -> NetworkResult:
        """Return the row of one network."""
        version = self.run.changes.version_of(network.name)
        before = self._rows.get(network.name)
        if before is None or before[0] != version:
            self._rows[network.name] = before = version, self._row(network)
        return before[1]

    def _row(self, network: NetworkSpec) -> NetworkResult:
        name = network.name
        status = self.run.status_of(name)
        history = status.history
        outcome = status.outcome
        best = net.check_convergence(history, network.train.stopping).best_epoch
        record = history[best - 1] if best else None
        if outcome is not None:
            if outcome.is_failure:
                shown_status = Status.FAILED
            elif outcome.is_skipped:
                shown_status = Status.SKIPPED
            elif outcome.is_pruned:
                shown_status = Status.PRUNED
            else:
                shown_status = Status.FINISHED
        elif status.is_paused:
            shown_status = Status.PAUSED
        else:
            shown_status = Status.TRAINING if history else Status.WAITING
        metrics = {}
        if record is not None:
            metrics = {
                name: record.value(name) for name in dict.fromkeys([*net.SCORES, *record.metrics])
            }
        scores = [metrics.pop(name, math.nan) for name in net.SCORES]
        loss, accuracy, val_loss, val_accuracy = scores
        tested = status.tested or net.EvaluationResult(math.nan, math.nan, 0)
        row = NetworkResult(
            name,
            shown_status,
            "" if outcome is None else outcome.reason,
            self.run.parameters.get(name),
            len(history),
            best,
            loss,
            accuracy,
            val_loss,
            val_accuracy,
            tested.loss,
            tested.accuracy,
            seconds=sum(record.seconds for record in history),
            energy_kj=kilojoules(self.run.joules.get(name)),
            drawn=network.parameters,
            parent=network.parent,
            parent_epoch=network.parent_epoch,
            metrics={
                **metrics,
                **{
                    f"test_{metric}": math.nan if value is None else value
                    for metric, value in tested.metrics.items()
                    if metric not in net.SCORES
                },
                **self._rate(network, self.run.objective_values.get(name, ())),
            },
        )
        entry = self.spec.searches.get(network.entry)
        if entry is None or entry.search is None or not entry.search.constraints:
            return row
        violations = row_violations(row, entry.search, self.run)
        return replace(row, violates=", ".join(violated(entry.search.constraints, violations)))

    def _rate(self, network: NetworkSpec, objective_values: tuple[float, ...]) -> dict[str, float]:
        """Return the samples/s on one GPU that the searcher received, if it is an objective."""
        search = self.spec.document.models[network.entry].search if objective_values else None
        if search is not None:
            for objective, value in zip(search.objectives, objective_values, strict=False):
                if objective.value == "rate" and not math.isnan(value):
                    return {"rate": value}
        return {}

    def rows(self) -> list[NetworkResult]:
        """Return all networks, best first; those without a value last.

        Folds are after their mean, and repeats after theirs, the best first.
        """
        rank = self._ranking()
        heads: list[NetworkResult] = []
        folds: dict[str, list[NetworkResult]] = {}
        repeats: dict[str, list[NetworkResult]] = {}
        for network in self.networks.values():
            row = self.row(network)
            if network.fold is not None:
                folds.setdefault(network.stem, []).append(row)
            elif network.repeat is not None:
                repeats.setdefault(network.stem, []).append(row)
            else:
                heads.append(row)
        heads += [mean_of_folds(stem, rows) for stem, rows in folds.items()]
        heads += [mean_of_repeats(stem, rows) for stem, rows in repeats.items()]
        parts = folds | {stem: sorted(rows, key=rank) for stem, rows in repeats.items()}
        return [
            row
            for head in sorted(heads, key=rank)
            for row in (head, *(parts[head.name] if head.is_mean else ()))
        ]

    def _ranking(self) -> Callable[[NetworkResult], tuple]:
        """Return the ranking key: the criterion of networks with epochs, or else of all."""
        started = {
            criterion
            for name, criterion in self._criteria.items()
            if self.run.status_of(name).history
        }
        columns = ranking_of(started or set(self._criteria.values()))
        return lambda row: _rank(row, columns)

    def write_if_due(self) -> None:
        """Write ``results.csv`` if it has changed; for many networks not at every change."""
        is_immediate = len(self.networks) <= _FEW and not isinstance(
            self.pacing, SharedWriteThrottle
        )
        changes = self.run.changes.version - self._version
        if changes and (is_immediate or self.pacing.is_due(changes)):
            self.write()

    def write(self) -> None:
        """Write ``results.csv``."""
        with_retries(self._write)

    def _write(self) -> None:
        with self.pacing.writing(), atomic_write(self.paths.results, check=self.check) as file:
            self._version = self.run.changes.version
            rows = self.rows()
            columns = csv_columns(NetworkResult, rows)
            file.write(_line(columns))
            file.writelines(self._line(row, columns) for row in rows)

    def _line(self, row: NetworkResult, columns: list[str]) -> str:
        before = self._lines.get(row.name)
        if before is None or before[0] is not row or before[1] != columns:
            self._lines[row.name] = before = (row, columns, _line(csv_cells(row, columns)))
        return before[2]


def _line(cells: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


_VALUES = ("loss", "accuracy", "val_loss", "val_accuracy", "test_loss", "test_accuracy")
_FIELDS = [item.name for item in dataclasses.fields(NetworkResult)]
_PLAIN = [name for name in _FIELDS if name not in ("drawn", "metrics", *OPTIONAL)]


def without_means(rows: Sequence[NetworkResult]) -> list[NetworkResult]:
    """Return the rows of single networks, without the means of folds and repeats."""
    return [row for row in rows if not row.is_mean]


def mean_of_folds(name: str, rows: Sequence[NetworkResult]) -> NetworkResult:
    """Return the mean of all folds of a network; folds without a value are excluded.

    Args:
        name: name of the network.
        rows: rows of its folds.
    """
    failed = [row for row in rows if row.status is Status.FAILED]
    status = Status.FAILED if failed else common_status([row.status for row in rows])
    reason = f"{failed[0].name}: {failed[0].reason}" if failed else ""
    return replace(_mean(name, rows), status=status, reason=reason, folds=len(rows))


def mean_of_repeats(name: str, rows: Sequence[NetworkResult]) -> NetworkResult:
    """Return the mean of the repeats of a configuration; failed ones count only if all have failed.

    Args:
        name: name of the configuration.
        rows: rows of its repeats.
    """
    failed = [row for row in rows if row.status is Status.FAILED]
    counted = [row for row in rows if row.status is not Status.FAILED] or rows
    return replace(
        _mean(name, counted),
        status=common_status([row.status for row in counted]),
        reason=f"{failed[0].name}: {failed[0].reason}" if failed else "",
        seconds=sum(row.seconds for row in rows),
        energy_kj=total_kj(rows),
        repeats=len(rows),
        parent="",
        parent_epoch=0,
    )


def common_status(of_networks: Iterable[Status]) -> Status:
    """Return the status of several networks as one."""
    statuses = set(of_networks)
    if len(statuses) == 1:
        return statuses.pop()
    if statuses <= {Status.FINISHED, Status.PRUNED, Status.SKIPPED}:
        return Status.FINISHED
    return Status.TRAINING


def _mean(name: str, rows: Sequence[NetworkResult]) -> NetworkResult:
    column_values = {
        column: [value for row in rows if not math.isnan(value := row.value(column))]
        for column in (*_VALUES, *dict.fromkeys(metric for row in rows for metric in row.metrics))
    }
    mean = {
        column: fmean(values) if values else math.nan for column, values in column_values.items()
    }
    trained = [row for row in rows if row.epochs] or rows
    values: dict[str, Any] = {column: mean.pop(column) for column in _VALUES}
    return replace(
        rows[0],
        name=name,
        epochs=round(fmean(row.epochs for row in trained)),
        best_epoch=round(fmean(row.best_epoch for row in trained)),
        seconds=sum(row.seconds for row in rows),
        energy_kj=total_kj(rows),
        **values,
        metrics=mean,
        deviation={
            column: stdev(numbers) for column, numbers in column_values.items() if len(numbers) > 1
        },
    )


def total_kj(rows: Iterable[NetworkResult]) -> float | None:
    """Return the energy of several networks in kJ; None if none is counted."""
    counted = [row.energy_kj for row in rows if row.energy_kj is not None]
    return sum(counted) if counted else None


def _rank(row: NetworkResult, columns: Sequence[tuple[str, int]]) -> tuple:
    """Return a sort key: failed or diverged networks are last.

    Before them come networks that violate constraints, and among each, networks without a value.
    """
    values = [(sign, row.value(name)) for name, sign in columns]
    keys = [(1, 0.0) if math.isnan(value) else (0, -sign * value) for sign, value in values]
    is_lost = (
        row.status is Status.FAILED or net.has_diverged(row.loss) or net.has_diverged(row.val_loss)
    )
    return (is_lost, bool(row.violates), *keys, row.name)


def row_violations(row: NetworkResult, search: Search, run: RunState) -> tuple[float, ...]:
    """Return by how much a network violates each constraint of its search; NaN if unknown."""
    reported = run.violations.get(row.name)  # its searcher may not have received them yet
    if reported is not None and len(reported) == len(search.constraints):
        return reported
    constraints = tuple(map(parse_constraint, search.constraints))
    return violations_of(constraints, row, network_facts(row, run))


def network_facts(row: NetworkResult, run: RunState) -> dict[str, float | None]:
    """Return values of a network that :data:`fleet.spec.search.NETWORK_OBJECTIVES` names."""
    rates = run.launch.rates.get(row.name) if run.launch is not None else None
    return {
        "parameters": row.parameters,
        "rate": row.metrics.get("rate", rates[0] if rates else None),
        "epochs": row.epochs or None,
        "seconds": row.seconds or None,
        "energy": row.energy_kj,
    }


def known_parameters(network: NetworkSpec, sample: SampleSpec) -> int | None:
    """Return the number of parameters of a network if known without building it."""
    if network.architecture.kind != "family":
        return None
    try:
        return count_for(network.architecture.settings, sample.for_pipeline(network.pipeline))
    except UserError:  # images too small for it, which emulated engines accept
        return None


def describe_spec_as_run(path: Path) -> str:
    """Return a hint for those who name a spec instead of its run; empty for other paths."""
    if path.suffix not in (".yaml", ".yml", ".json") or not path.is_file():
        return ""
    return f"; if {path} is a spec, its run is in the folder of its output, runs/NAME by default"


def read_results(run: str | Path) -> Table[NetworkResult]:
    """Return the networks of a run, best first; ``to_pandas()`` makes a data frame.

    Args:
        run: the run's folder.

    Raises:
        UserError: there is no run, or its table is damaged.
    """
    path = RunPaths(Path(run)).results
    try:
        rows = read_csv_records(path, NetworkResult)
    except OSError as error:
        raise UserError(
            f"{run} is not the folder of a run that can be read: {path.name}: {error.strerror}"
            f"{describe_spec_as_run(Path(run))}"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not a table of results: {error}") from None
    return Table((replace(row, drawn=values_with_new_names(row.drawn)) for row in rows), _PLAIN)


def ended_in_table(paths: RunPaths) -> set[str]:
    """Return networks that have ended or failed according to the table; empty if unreadable."""
    try:
        return {
            row.name
            for row in read_results(paths.root)
            if row.status in (Status.FINISHED, Status.FAILED)
        }
    except UserError:
        return set()
