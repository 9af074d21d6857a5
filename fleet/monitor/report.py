"""What there is to report of a run, taken together from its files: the table of results, curves, the account."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from fleet.domain.events import SupplyChanged
from fleet.domain.network import EpochRecord
from fleet.domain.run import RunState
from fleet.errors import UserError
from fleet.gc_pause import paused_collection
from fleet.monitor.accounting import Account, account, empty_account
from fleet.monitor.run_history import read_log, read_past_run
from fleet.monitor.search_summary import (
    RungReport,
    SearchReport,
    make_rung_reports,
    make_search_reports,
)
from fleet.monitor.timeline import replay_log
from fleet.prediction.ensembles import EnsembleResult, read_ensembles
from fleet.spec.model import one_line
from fleet.storage import results as table
from fleet.storage.paths import RunPaths
from fleet.storage.run_spec import load_run_spec

_SHUFFLES = {
    "network": "Each network shuffles by its own epochs, so no schedule changes what it learns from.",
    "stream": "Samples pass by in a stream that networks share, and a network's shuffle is that of the stream's epochs "
    "which it met. They are recorded in its history, and a replay repeats them.",
}

MAX_ROWS = 200  # networks that a table for people has at most

# What is said of the chunks that were missed.
MISSED_CHUNKS = "{chunks} of the ring could not be taken by a group that lacked them: one of its nodes had let them go"


@dataclass(frozen=True)
class NetworkCurve:
    """How a network learned: a value for each of its epochs; NaN where it could not be computed."""

    name: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class RunReport:
    """What is to be said of a run.

    Attributes:
        name: of its folder.
        run: as it is by its events.
        rows: the table of results, the best network first.
        losses: of training, in the same order; networks without an epoch are left out.
        accuracies: of validation where there is any, otherwise of training; empty for targets that are no classes.
        val_losses: of validation, where there are no accuracies.
        ensembles: how good the best networks are together, once the run has come to its end.
        searches: of its entries, if networks were asked for.
        rungs: where networks were paused or pruned, the lowest first.
        account: of its time.
        data_now: what of the data has changed since, in words.
    """

    name: str
    run: RunState
    rows: tuple[table.NetworkResult, ...]
    losses: tuple[NetworkCurve, ...]
    accuracies: tuple[NetworkCurve, ...]
    account: Account
    val_losses: tuple[NetworkCurve, ...] = ()
    ensembles: tuple[EnsembleResult, ...] = ()
    searches: tuple[SearchReport, ...] = ()
    rungs: tuple[RungReport, ...] = ()
    data_now: tuple[str, ...] = ()

    @property
    def data_changes(self) -> str:
        """How the data has changed; nothing where it has not."""
        now = f"The data is not what the networks were trained on: {'; '.join(self.data_now)}."
        return "\n".join(
            [
                *([self._accepted] if self.run.data_changes else []),
                *([now] if self.data_now else []),
            ]
        )

    @property
    def _accepted(self) -> str:
        said = " Then: ".join(
            f"{'; '.join(change.changes)} ({_after(change.epochs)})."
            for change in self.run.data_changes
        )
        return (
            f"The data has changed during the run, and that was accepted: {said} Values from before and after "
            "cannot be compared; a network's best epoch is one after the change, if it has trained any."
        )

    @property
    def cache_summary(self) -> str:
        """What became of decoded samples, and whose shuffle they have; nothing where the log does not say so."""
        cache = self.run.cache
        if cache is None:
            return ""
        return f"{cache.summary}. {_SHUFFLES[cache.shuffle]}"

    @property
    def supply(self) -> SupplyChanged | None:
        """What the input gave in the last launch; None where samples were kept, or nobody prepared them for all."""
        if self.run.launch is None:
            return None
        return self.run.launch.supply

    @property
    def input_summary(self) -> str:
        """What preprocessors gave; nothing where samples were kept, or nobody prepared them for all."""
        if self.supply is None:
            return ""
        return self.supply.summary

    @property
    def counts(self) -> dict[str, int]:
        """How many networks there are, and how many of them have finished and failed."""
        networks = table.without_fold_means(self.rows)
        return {
            "networks": len(networks),
            "finished": sum(row.status is table.Status.FINISHED for row in networks),
            "failed": sum(row.status is table.Status.FAILED for row in networks),
        }

    def as_dict(self) -> dict[str, Any]:
        """The report without its pictures."""
        account = self.account
        some = {
            "ensembles": self.ensembles,
            "cache": self.run.cache,
            "supply": self.supply,
            # Where rows stand for means too, nobody should have to tell them from networks to count these.
            "counts": self.counts if any(row.folds for row in self.rows) else None,
            "data_changes": self.run.data_changes,
            "data_now": self.data_now,
            "searches": [search.as_dict() for search in self.searches],
            "rungs": self.rungs,
        }
        return {
            "name": self.name,
            "policy": account.policy,
            "seconds": account.seconds,
            "launches": account.launches,
            "gpus": account.gpus,
            "networks": [_record(row) for row in self.rows],
            "spent_gpu_s": account.spent,
            "measured_s": account.measured_s,
            "simulated_s": account.simulated_s,
            "costs": account.costs,
            "missed_chunks": self.run.missed,
            "startup_s": dict(account.startup),
            "first_signal_s": account.first_signal_s,
            **{name: told for name, told in some.items() if told},
        }


def _after(epochs: Mapping[str, int]) -> str:
    """After how many epochs that was, of each network.

    >>> _after({"a": 2, "b": 3, "c": 2})
    'after epoch 2 of a, c; after epoch 3 of b'
    """
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, epoch in epochs.items():
        names[epoch].append(name)
    return "; ".join(
        f"after epoch {epoch} of {', '.join(some[:5])}{' ...' if len(some) > 5 else ''}"
        for epoch, some in sorted(names.items())
    )


def best_rows(rows: Sequence[table.NetworkResult]) -> tuple[list[str], list[list[Any]], str]:
    """The table of results for people: headers, rows, and what is said of what it leaves out.

    Nobody reads thousands of rows: the best networks are there, and the others are in ``results.csv``. So are drawn
    parameters for which the table has no room.
    """
    headers, lines = table.leaderboard(rows)
    said = []
    rest = table.without_fold_means(rows[MAX_ROWS:])
    counts = Counter(str(row.status) for row in rest)
    if counts:
        left_out = ", ".join(f"{number} {status}" for status, number in counts.items())
        total = len(table.without_fold_means(rows))
        said.append(
            f"These are the best {total - len(rest)} of {total} networks. All are in results.csv; left out "
            f"here: {left_out}."
        )
    more = table.varied_parameters(rows)[table.SHOWN_PARAMETERS :]
    if more:
        said.append(
            f"Networks also differ in {', '.join(table.short_names(more))}: see `drawn` in results.csv."
        )
    return headers, lines[:MAX_ROWS], " ".join(said)


def _record(row: table.NetworkResult) -> dict[str, Any]:
    """A row of the table, with metrics where its spec asks for some."""
    record = dataclasses.asdict(row)
    if row.metrics:
        return record
    return {key: value for key, value in record.items() if key != "metrics"}


@paused_collection()
def read_report(paths: RunPaths) -> RunReport:
    """Take together what a run's files say; it may still be going on.

    Raises:
        UserError: there is no run there, it has not begun, or it has a search and its spec cannot be read.
    """
    rows = table.read_results(paths.root)
    run = replay_log(read_log(paths))
    found = _account(paths, run)
    if found is None:
        raise UserError(f"{_log_path(paths)} has no launch, so there is nothing to report")
    if run.searches or run.added:
        searches = make_search_reports(load_run_spec(paths), run, rows)
    else:
        searches = ()
    return replace(
        _report(paths, run, rows, found),
        searches=searches,
        ensembles=tuple(read_ensembles(paths.root)),
    )


@paused_collection()
def report_at(paths: RunPaths, t_s: float) -> RunReport:
    """What there was to report of a run at some time, by its log, its spec, and what a sample of it is.

    Args:
        t_s: seconds of the run, as its report counts them; beyond its end the end counts.

    Raises:
        UserError: there is no run there, or it cannot be read.
    """
    past = read_past_run(paths, t_s)
    return replace(
        _report(
            paths,
            past.run,
            past.rows,
            _account(paths, past.run) or empty_account(past.spec.schedule.policy),
        ),
        searches=make_search_reports(past.spec, past.run, past.rows)
        if past.run.searches or past.run.added
        else (),
    )


def _log_path(paths: RunPaths) -> Path:
    """Where the log of a run stands, or its logs."""
    logs = paths.event_logs()
    if len(logs) == 1:
        return logs[0]
    return logs[-1].parent


def _account(paths: RunPaths, run: RunState) -> Account | None:
    try:
        return account(run)
    except (ValueError, ArithmeticError) as error:
        raise UserError(f"{_log_path(paths)} is damaged: {one_line(error)}") from error


def _report(
    paths: RunPaths, run: RunState, rows: Sequence[table.NetworkResult], found: Account
) -> RunReport:
    histories = [
        (row.name, history) for row in rows if (history := run.status_of(row.name).history)
    ]
    judged = [
        (name, history)
        for name, history in histories
        if not all(math.isnan(_accuracy(one)) for one in history)
    ]
    return RunReport(
        paths.root.resolve().name,
        run,
        tuple(rows),
        account=found,
        rungs=make_rung_reports(run, rows),
        losses=tuple(_curve(name, history, attrgetter("loss")) for name, history in histories),
        accuracies=tuple(_curve(name, history, _accuracy) for name, history in judged),
        val_losses=()
        if judged
        else tuple(_curve(name, history, attrgetter("val_loss")) for name, history in histories),
    )


def _curve(
    name: str, history: Sequence[EpochRecord], value: Callable[[EpochRecord], float]
) -> NetworkCurve:
    return NetworkCurve(
        name, tuple(record.epoch for record in history), tuple(value(record) for record in history)
    )


def _accuracy(record: EpochRecord) -> float:
    if math.isnan(record.val_accuracy):
        return record.accuracy
    return record.val_accuracy
