"""Keep the result of each network, and write them as a table for users and tools.

The test result of a finished network is in a file of its own, because it is computed once.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fleet.domain import events
from fleet.domain import network as net
from fleet.domain.json_record import read_record, write_record
from fleet.domain.run import RunState
from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.spec.criteria import SelectionCriterion, ranking_of
from fleet.spec.layers import count_for
from fleet.spec.old_keys import values_with_new_names
from fleet.storage.checkpoint import CheckpointLookup, find_newest, is_exported
from fleet.storage.files import (
    SharedWriteThrottle,
    WriteThrottle,
    atomic_write,
    blank_if_missing,
    map_in_threads,
    nan_if_blank,
    remove,
    with_retries,
    write_json,
)
from fleet.storage.paths import RunPaths
from fleet.storage.rank_deaths import RankDeaths
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
        deviation: standard deviation of each value over the folds (with n - 1), by column.
        parent: the network whose weights it started from; empty if there is none.
        parent_epoch: epoch of the parent.
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

    def value(self, name: str) -> float:
        """Return the value of a column; NaN if there is none."""
        if name in _VALUES:
            return getattr(self, name)
        return self.metrics.get(name, math.nan)

    def cells(self) -> dict[str, Any]:
        """Return the row with a column per drawn parameter, metric, and deviation over folds."""
        columns = {name: getattr(self, name) for name in _PLAIN}
        columns |= (
            prefix_conflicts(
                self.drawn, [*columns, *_OF_FOLDS, *_OF_CHILDREN, *self.metrics], "drawn"
            )
            | self.metrics
        )
        if self.folds:
            columns |= {
                "folds": self.folds,
                **{f"{name}_deviation": value for name, value in self.deviation.items()},
            }
        return columns | (
            {"parent": self.parent, "parent_epoch": self.parent_epoch} if self.parent else {}
        )


# the outcome of skipped networks
SKIPPED = net.Outcome(
    "left out by fleet skip; with --undo launches train it again", is_pruned=True, is_skipped=True
)

SHOWN_PARAMETERS = 6  # maximum drawn parameters in the final table
_LONGEST_VALUE = 20  # maximum letters of a value
_FEW = 100  # up to this many networks, the table is written at every change


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
    _lines: dict[str, tuple[NetworkResult, _Columns, str]] = field(default_factory=dict)

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
                status = self.run.status_of(event.network)
                if status.tested is not None:
                    path = self.paths.test_result(event.network)
                    write_test_result(path, self.test, status.history, status.tested)
            case events.NetworkFailed():
                write_json(
                    self.paths.failure(event.network),
                    {
                        "reason": event.reason,
                        "may_pass": event.may_pass,
                        "tried": self.attempt_id(self.networks[event.network]),
                        **({"deaths": event.deaths} if event.deaths else {}),
                    },
                )
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
        nan = math.nan
        scores = dict.fromkeys(net.SCORES, nan)
        metrics: dict[str, float] = {}
        if record is not None:
            scores = {name: record.value(name) for name in net.SCORES}
            metrics = {
                name: record.value(name) for name in record.metrics if name not in net.SCORES
            }
        tested = status.tested or net.EvaluationResult(nan, nan, 0)
        return NetworkResult(
            name,
            shown_status,
            "" if outcome is None else outcome.reason,
            self.run.parameters.get(name),
            len(history),
            best,
            scores["loss"],
            scores["accuracy"],
            scores["val_loss"],
            scores["val_accuracy"],
            tested.loss,
            tested.accuracy,
            seconds=sum(record.seconds for record in history),
            drawn=network.parameters,
            parent=network.parent,
            parent_epoch=network.parent_epoch,
            metrics={
                **metrics,
                **{
                    f"test_{metric}": nan if value is None else value
                    for metric, value in tested.metrics.items()
                    if metric not in net.SCORES
                },
                **self._rate(network, self.run.objective_values.get(name, ())),
            },
        )

    def _rate(self, network: NetworkSpec, objective_values: tuple[float, ...]) -> dict[str, float]:
        """Return the samples/s on one GPU that the searcher received, if it is an objective."""
        search = self.spec.document.models[network.entry].search if objective_values else None
        if search is None:
            objectives: Sequence[str] = ()
        else:
            objectives = [objective.value for objective in search.objectives]
        rate = dict(zip(objectives, objective_values, strict=False)).get("rate", math.nan)
        if math.isnan(rate):
            return {}
        return {"rate": rate}

    def rows(self) -> list[NetworkResult]:
        """Return all networks, best first; those without a value last, folds after their mean."""
        rank = self._ranking()
        rows = [self.row(network) for network in self.networks.values()]
        stems = {
            network.name: network.stem
            for network in self.networks.values()
            if network.fold is not None
        }
        if not stems:
            return sorted(rows, key=rank)
        folds: dict[str, list[NetworkResult]] = {}
        for row in rows:
            folds.setdefault(stems[row.name], []).append(row)
        means = sorted((mean_of_folds(stem, of_stem) for stem, of_stem in folds.items()), key=rank)
        return [row for mean in means for row in (mean, *folds[mean.name])]

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
            columns = _Columns.of(rows)
            file.write(_line([*columns.names, *columns.metrics]))
            file.writelines(self._line(row, columns) for row in rows)

    def _line(self, row: NetworkResult, columns: _Columns) -> str:
        before = self._lines.get(row.name)
        if before is None or before[0] is not row or before[1] != columns:
            self._lines[row.name] = before = (row, columns, _line(columns.cells(row)))
        return before[2]


@dataclass(frozen=True)
class _Columns:
    """The columns of a table: columns of all rows, columns that some rows need, and metrics."""

    names: tuple[str, ...]
    metrics: tuple[str, ...]

    @classmethod
    def of(cls, rows: Sequence[NetworkResult]) -> _Columns:
        """Return the columns that rows need."""
        return cls(
            (
                *_COLUMNS,
                *(_OF_FOLDS if any(row.folds for row in rows) else ()),
                *(_OF_CHILDREN if any(row.parent for row in rows) else ()),
            ),
            tuple(dict.fromkeys(name for row in rows for name in row.metrics)),
        )

    def cells(self, row: NetworkResult) -> list[Any]:
        """Return the cells of a row."""
        values = [*(getattr(row, name) for name in self.names), *map(row.metrics.get, self.metrics)]
        return [
            json.dumps(value) if isinstance(value, dict) else blank_if_missing(value)
            for value in values
        ]


def _line(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


# columns that exist only if needed
_OF_FOLDS = ("folds", "deviation")
_OF_CHILDREN = ("parent", "parent_epoch")
_COLUMNS = [
    item.name
    for item in dataclasses.fields(NetworkResult)
    if item.name not in ("metrics", *_OF_FOLDS, *_OF_CHILDREN)
]
_PLAIN = [name for name in _COLUMNS if name != "drawn"]
_VALUES = ("loss", "accuracy", "val_loss", "val_accuracy", "test_loss", "test_accuracy")


def without_fold_means(rows: Sequence[NetworkResult]) -> list[NetworkResult]:
    """Return the rows of single networks, without the means of folds."""
    return [row for row in rows if not row.folds]


def mean_of_folds(name: str, rows: Sequence[NetworkResult]) -> NetworkResult:
    """Return the mean of all folds of a network; folds without a value are excluded.

    Args:
        name: name of the network.
        rows: rows of its folds.
    """
    column_values = {
        column: [value for row in rows if not math.isnan(value := row.value(column))]
        for column in (*_VALUES, *dict.fromkeys(metric for row in rows for metric in row.metrics))
    }
    mean = {
        column: fmean(values) if values else math.nan for column, values in column_values.items()
    }
    failed = [row for row in rows if row.status is Status.FAILED]
    statuses = {row.status for row in rows}
    if failed:
        status = Status.FAILED
    elif len(statuses) == 1:
        status = statuses.pop()
    else:
        status = Status.TRAINING
    trained = [row for row in rows if row.epochs] or rows
    values: dict[str, Any] = {column: mean.pop(column) for column in _VALUES}
    return replace(
        rows[0],
        name=name,
        status=status,
        reason=f"{failed[0].name}: {failed[0].reason}" if failed else "",
        epochs=round(fmean(row.epochs for row in trained)),
        best_epoch=round(fmean(row.best_epoch for row in trained)),
        seconds=sum(row.seconds for row in rows),
        folds=len(rows),
        **values,
        metrics=mean,
        deviation={
            column: stdev(numbers) for column, numbers in column_values.items() if len(numbers) > 1
        },
    )


def _rank(row: NetworkResult, columns: Sequence[tuple[str, int]]) -> tuple:
    """Return a sort key: failed or diverged networks last, those without a value before them."""
    values = [(sign, row.value(name)) for name, sign in columns]
    keys = [(1, 0.0) if math.isnan(value) else (0, -sign * value) for sign, value in values]
    is_lost = (
        row.status is Status.FAILED or net.has_diverged(row.loss) or net.has_diverged(row.val_loss)
    )
    return (is_lost, *keys, row.name)


def network_facts(row: NetworkResult, run: RunState) -> dict[str, float | None]:
    """Return values of a network that :data:`fleet.spec.search.NETWORK_OBJECTIVES` names."""
    rates = run.launch.rates.get(row.name) if run.launch is not None else None
    return {
        "parameters": row.parameters,
        "rate": row.metrics.get("rate", rates[0] if rates else None),
        "epochs": row.epochs or None,
        "seconds": row.seconds or None,
    }


def known_parameters(network: NetworkSpec, sample: SampleSpec) -> int | None:
    """Return the number of parameters of a network if known without building it."""
    if network.architecture.kind != "family":
        return None
    try:
        return count_for(network.architecture.settings, sample.for_pipeline(network.pipeline))
    except UserError:  # images too small for it, which emulated engines accept
        return None


def recover(
    results: Results, lookups: Mapping[str, CheckpointLookup] = MappingProxyType({})
) -> tuple[dict[str, net.NetworkStatus], dict[str, net.TrainingState]]:
    """Read the records of all checkpoints of a run, without arrays.

    Args:
        results: results of the run.
        lookups: lookups of networks whose checkpoints have been read.

    Returns:
        The status of each network of the spec, and the existing checkpoints.
    """
    with suppress(UserError):  # there is no table yet, or it is damaged
        for row in read_results(results.paths.root):
            if row.parameters is not None and row.name in results.spec.by_name:
                results.run.parameters.setdefault(row.name, row.parameters)
    names = [network.name for network in results.spec.networks]
    restored = map_in_threads(
        lambda network: restore_network(results, network, lookups.get(network.name)),
        results.spec.networks,
    )
    results.damaged = {name: results.damaged[name] for name in names if name in results.damaged}
    return (
        {name: status for name, (status, _) in zip(names, restored, strict=True)},
        {
            name: state
            for name, (_, state) in zip(names, restored, strict=True)
            if state is not None
        },
    )


def restore_network(
    results: Results, network: NetworkSpec, lookup: CheckpointLookup | None = None
) -> tuple[net.NetworkStatus, net.TrainingState | None]:
    """Return the status of a network from its files, and its checkpoint's record.

    A network that failed has an outcome.

    Args:
        results: results of the run.
        network: the network to restore.
        lookup: its checkpoint, if already read.
    """
    status, state = read_network_status(results, network, lookup)
    failure = _final_failure(results, network)
    if failure is not None:
        status = replace(status, outcome=net.Outcome(failure, is_failure=True))
    if status.outcome is not None:
        return status, state
    deaths = results.deaths.deaths_of(network.name, len(status.history))
    reason = results.deaths.reason(deaths)
    if reason:
        died = net.Outcome(reason, is_failure=True, deaths=len(deaths))
        return replace(status, outcome=died), state
    if network.name in results.skipped:
        return replace(status, outcome=SKIPPED), state
    return status, state


def read_network_status(
    results: Results, network: NetworkSpec, lookup: CheckpointLookup | None = None
) -> tuple[net.NetworkStatus, net.TrainingState | None]:
    """Return a network's status by its newest intact checkpoint, and its record.

    Args:
        results: results of the run.
        network: the network to look up.
        lookup: its checkpoint, if already read.

    Returns:
        The status, and the record without arrays; None if there is no checkpoint.
    """
    # Damaged arrays are found only when they are read; the trainer reports them.
    lookup = lookup or find_newest(results.paths, network.name, with_arrays=False)
    state = lookup.state
    if state is None:
        return net.NetworkStatus(), None
    # Evaluate the stopping rule again, because the spec may now ask for more epochs. A finished
    # network whose export is missing or out of date gets a group once more.
    reason = _stop_reason(lookup, network)
    keep = results.spec.checkpoint.keep
    engine = results.spec.engine
    is_current_export = not engine.exports or is_exported(
        results.paths, network.name, keep, engine.suffix
    )
    is_kept = keep == "last" or results.paths.best(network.name).exists()
    tested = read_test_result(results.paths.test_result(network.name), results.test, lookup.history)
    is_judged = tested is not None or not results.test
    if reason and not state.position and is_kept and is_current_export and is_judged:
        if lookup.damage:
            results.damaged[network.name] = lookup.damage
        return net.NetworkStatus(lookup.history, net.Outcome(reason), tested), state
    return net.NetworkStatus(state.history), state


def _stop_reason(lookup: CheckpointLookup, network: NetworkSpec) -> str:
    """Return why a network has ended according to its checkpoint; empty if it has not."""
    stopping = network.train.stopping
    state = lookup.state
    # If only the best checkpoint is left, only the table has the epochs after it. That suffices
    # unless the network must continue, or another epoch is the best one now.
    is_table = state is not None and state.epoch < len(lookup.history)
    if state is None or (
        is_table and state.epoch != net.check_convergence(lookup.history, stopping).best_epoch
    ):
        return ""
    return net.finished_reason(lookup.history, state.final, stopping)


def _final_failure(results: Results, network: NetworkSpec) -> str | None:
    """Return why a network failed permanently; None if it did not, or may succeed now."""
    try:
        content = json.loads(results.paths.failure(network.name).read_text(encoding="utf-8"))
        is_final = not content["may_pass"] and content["tried"] == results.attempt_id(network)
        # max_deaths may have been raised
        is_final &= content.get("deaths", math.inf) >= results.deaths.max_deaths
        if is_final:
            return str(content["reason"])
        return None
    except (OSError, ValueError, LookupError, TypeError):  # unknown: it is tried again
        return None


def write_test_result(
    path: Path, test: str, history: Sequence[net.EpochRecord], tested: net.EvaluationResult
) -> None:
    """Write a network's test result.

    Args:
        path: path of the file.
        test: identity of the test data.
        history: history of the network.
        tested: the result.
    """
    write_json(path, {**write_record(tested), "test": test, "history": net.stream_epochs(history)})


def read_test_result(
    path: Path, test: str, history: Sequence[net.EpochRecord]
) -> net.EvaluationResult | None:
    """Return a network's test result; None if there is none for this history and test data.

    Args:
        path: path of the file.
        test, history: their current values.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if (record["test"], record["history"]) != (test, net.stream_epochs(history)):
            return None
        return read_record(net.EvaluationResult, record)
    except (OSError, ValueError, LookupError, TypeError):  # unknown: it is evaluated again
        return None


def read_results(run: str | Path) -> Table[NetworkResult]:
    """Return the networks of a run, best first; ``to_pandas()`` makes a data frame.

    Args:
        run: the run's folder.

    Raises:
        UserError: there is no run, or its table is damaged.
    """
    path = RunPaths(Path(run)).results
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return Table(
                (_parse_row(row) for row in csv.DictReader(file, restkey="beyond the head")), _PLAIN
            )
    except OSError as error:
        raise UserError(
            f"{run} is not the folder of a run that can be read: {path.name}: {error.strerror}"
        ) from None
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is not a table of results: {error}") from None


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


def _parse_row(row: dict[str, str]) -> NetworkResult:
    row = row | {name: nan_if_blank(row.get(name, "")) for name in _VALUES}
    metrics = {
        name: float(value)
        for name, value in row.items()
        if name not in (*_COLUMNS, *_OF_FOLDS, *_OF_CHILDREN) and value
    }
    return NetworkResult(
        row["name"],
        Status(row["status"]),
        row["reason"],
        int(row["parameters"]) if row["parameters"] else None,
        int(row["epochs"]),
        int(row["best_epoch"]),
        float(row["loss"]),
        float(row["accuracy"]),
        float(row["val_loss"]),
        float(row["val_accuracy"]),
        float(row["test_loss"]),
        float(row["test_accuracy"]),
        float(row["seconds"]),
        values_with_new_names(json.loads(row["drawn"])),
        metrics,
        int(row.get("folds", 0)),
        json.loads(row.get("deviation", "{}")),
        row.get("parent", ""),
        int(row.get("parent_epoch", 0)),
    )


def leaderboard(rows: Sequence[NetworkResult]) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows of the final table."""

    def format_value(row: NetworkResult, name: str) -> str:
        value = row.value(name)
        deviation = row.deviation.get(name)
        around = "" if deviation is None else f" ± {deviation:.4f}"
        if math.isnan(value):
            return ""
        return f"{value:.4f}{around}"

    has_test = any(not math.isnan(row.test_loss) for row in rows)
    has_accuracy = any(not math.isnan(row.accuracy) for row in rows) or all(
        math.isnan(row.loss) for row in rows
    )
    values = {
        **({"val acc": "val_accuracy"} if has_accuracy else {}),
        "val loss": "val_loss",
        **({"acc": "accuracy"} if has_accuracy else {"loss": "loss"}),
        **({"test acc": "test_accuracy"} if has_test and has_accuracy else {}),
        **({"test loss": "test_loss"} if has_test else {}),
    }
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    metrics = [
        name
        for name in metrics
        if name.startswith(("val_", "test_")) or f"val_{name}" not in metrics
    ]
    has_children = any(row.parent for row in rows)
    varied = varied_parameters(rows)[:SHOWN_PARAMETERS]
    headers = [
        "network",
        "status",
        "epochs",
        "best",
        *values,
        *(re.sub("^(val|test)_", r"\1 ", name) for name in metrics),
        *short_names(varied),
        "params",
        "s",
        *(["from"] if has_children else []),
        "why",
    ]
    return headers, [
        [
            row.name,
            str(row.status),
            row.epochs,
            row.best_epoch or "",
            *(format_value(row, name) for name in (*values.values(), *metrics)),
            *(_brief(row.drawn.get(name)) for name in varied),
            row.parameters,
            round(row.seconds, 1),
            *([row.parent and f"{row.parent}, epoch {row.parent_epoch}"] if has_children else []),
            row.reason if len(row.reason) <= 50 else row.reason[:47] + "...",
        ]
        for row in rows
    ]


def varied_parameters(rows: Sequence[NetworkResult]) -> list[str]:
    """Return the drawn parameters in which networks differ, in the order of drawing."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.drawn.items():
            values.setdefault(name, set()).add(repr(value))
    return [name for name, distinct in values.items() if len(distinct) > 1]


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten names of parameters by their common prefixes, where they stay unique.

    >>> short_names(["train.optimizer.learning_rate", "train.batch.size", "train.seed", "seed"])
    ['learning_rate', 'batch.size', 'train.seed', 'seed']
    """
    short = [re.sub(r"^train\.(optimizer\.)?", "", name) for name in names]
    counts = Counter(short)
    return [name if counts[brief] > 1 else brief for name, brief in zip(names, short, strict=True)]


def _brief(value: Any) -> Any:
    """Return a drawn value for a cell: numbers with four digits, long texts truncated."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        if value is None:
            return ""
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return text[: _LONGEST_VALUE - 3] + "..."
