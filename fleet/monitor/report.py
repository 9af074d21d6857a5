"""The report of a run, compiled from its files: the table of results, curves, and the account."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fleet.domain.events import SupplyChanged
from fleet.domain.network import EpochRecord
from fleet.domain.run import RunState
from fleet.domain.timeline import replay_log
from fleet.errors import UserError
from fleet.gc_pause import paused_collection
from fleet.monitor.accounting import Account, account
from fleet.monitor.run_history import read_log, read_past_run, resolve_spec
from fleet.monitor.search_summary import (
    RungReport,
    SearchReport,
    make_rung_reports,
    make_search_reports,
)
from fleet.prediction.ensembles import EnsembleResult, read_ensembles
from fleet.spec import NetworkSpec, Spec
from fleet.spec.model import one_line
from fleet.storage import leaderboard
from fleet.storage import results as table
from fleet.storage.network_leases import find_held_lease
from fleet.storage.paths import RunPaths
from fleet.storage.run_spec import load_run_spec
from launch.errors import pluralize
from preprocess.sample import SampleSpec

_SHUFFLES = {
    "network": "Each network has its own shuffle in each epoch, so the schedule does not change "
    "its samples.",
    "stream": "Networks share a stream of samples: the shuffle of a network depends on the epochs "
    "of the stream that it trained on. Its history records them, and a replay repeats them.",
}

MAX_ROWS = 200  # maximum number of networks in a table


@dataclass(frozen=True)
class RunReport:
    """The report of a run.

    Attributes:
        name: name of its folder.
        run: its state.
        rows: the table of results, best network first.
        histories: the epochs of each network in the same order, without networks that have none.
        account: the account of its time.
        searches: its searches.
        rungs: epochs at which networks were paused or pruned, lowest first.
        ensembles: scores of the best networks combined, once the run has ended.
        data_now: changes of the data since the run, as text.
        paths: paths of the run; None for an earlier time, of which the files are not.
        spec: its spec, with added networks and defaults that follow from the data; None if it
            cannot be read, for example because a module is missing.
        spec_problem: why the spec cannot be read; empty if it can.
        samples: the sample of each input pipeline; empty if none was stored.
        is_live: whether a launch is working on the run.
    """

    name: str
    run: RunState
    rows: tuple[table.NetworkResult, ...]
    histories: tuple[tuple[str, Sequence[EpochRecord]], ...]
    account: Account
    searches: tuple[SearchReport, ...]
    rungs: tuple[RungReport, ...]
    ensembles: tuple[EnsembleResult, ...] = ()
    data_now: tuple[str, ...] = ()
    paths: RunPaths | None = None
    spec: Spec | None = None
    spec_problem: str = ""
    samples: Mapping[str, SampleSpec] = field(default_factory=dict)
    is_live: bool = False

    @property
    def data_changes(self) -> str:
        """Changes of the data, as text; empty if there are none."""
        now = (
            f"The data differs from what the networks were trained on: {'; '.join(self.data_now)}."
        )
        return "\n".join(
            [
                *([self._accepted] if self.run.data_changes else []),
                *([now] if self.data_now else []),
            ]
        )

    @property
    def _accepted(self) -> str:
        changes = " Then: ".join(
            f"{'; '.join(change.changes)} ({_after(change.epochs)})."
            for change in self.run.data_changes
        )
        return (
            f"The data changed during the run, and you accepted that: {changes} Values from before "
            "and after are not comparable; the best epoch of a network that has trained since then "
            "is one after the change."
        )

    @property
    def cache_summary(self) -> str:
        """How decoded samples were stored and shuffled; empty if the log does not say so."""
        cache = self.run.cache
        if cache is None:
            return ""
        return f"{cache.summary}. {_SHUFFLES[cache.shuffle]}"

    @property
    def supply(self) -> SupplyChanged | None:
        """The input of the last launch; None if samples were stored or not prepared for all."""
        if self.run.launch is None:
            return None
        return self.run.launch.supply

    @property
    def input_summary(self) -> str:
        """The rate of the input, as text; empty if samples were stored or not prepared for all."""
        if self.supply is None:
            return ""
        return self.supply.summary

    @property
    def missed_summary(self) -> str:
        """The chunks of the ring that groups missed, as text; empty if there were none."""
        if not self.run.missed:
            return ""
        return (
            f"{pluralize(self.run.missed, 'chunk')} of the ring could not be used by a group that "
            "needed them, because one of its nodes had dropped them"
        )

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of all, finished, and failed networks."""
        networks = table.without_means(self.rows)
        return {
            "networks": len(networks),
            "finished": sum(row.status is table.Status.FINISHED for row in networks),
            "failed": sum(row.status is table.Status.FAILED for row in networks),
        }

    @property
    def energy_kj(self) -> float | None:
        """The energy of all networks in kJ; None where none is counted."""
        return table.total_kj(table.without_means(self.rows))

    def spec_of(self, network: str) -> NetworkSpec | None:
        """Return the spec of a network; None if it cannot be read, or of a mean of networks."""
        return None if self.spec is None else self.spec.by_name.get(network)

    def as_dict(self) -> dict[str, Any]:
        """Return the report without charts, as a dictionary for JSON."""
        account = self.account
        optional = {
            "ensembles": self.ensembles,
            "cache": self.run.cache,
            "supply": self.supply,
            # Rows may be means of folds or repeats, which do not count as networks.
            "counts": self.counts if any(row.is_mean for row in self.rows) else None,
            "data_changes": self.run.data_changes,
            "data_now": self.data_now,
            "energy_kj": self.energy_kj,
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
            **{name: value for name, value in optional.items() if value},
        }


def _after(epochs: Mapping[str, int]) -> str:
    """Format after how many epochs of each network that was.

    >>> _after({"a": 2, "b": 3, "c": 2})
    'after epoch 2 of a, c; after epoch 3 of b'
    """
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, epoch in epochs.items():
        names[epoch].append(name)
    return "; ".join(
        f"after epoch {epoch} of {', '.join(affected[:5])}{' ...' if len(affected) > 5 else ''}"
        for epoch, affected in sorted(names.items())
    )


def best_rows(
    rows: Sequence[table.NetworkResult], parameters: int = leaderboard.SHOWN_PARAMETERS
) -> tuple[list[str], list[list[Any]], str]:
    """Return headers and rows of the table of results, and a note on what it leaves out.

    It shows the best networks; the others, and drawn parameters without a column, are in
    ``results.csv``.

    Args:
        rows: the networks, best first.
        parameters: maximum number of drawn parameters with a column.
    """
    headers, lines = leaderboard.leaderboard(rows, parameters)
    notes = []
    omitted = table.without_means(rows[MAX_ROWS:])
    counts = Counter(str(row.status) for row in omitted)
    if counts:
        left_out = ", ".join(f"{number} {status}" for status, number in counts.items())
        total = len(table.without_means(rows))
        notes.append(
            f"These are the best {total - len(omitted)} of {total} networks. See results.csv for "
            f"all; not shown: {left_out}."
        )
    more = leaderboard.varied_parameters(rows)[parameters:]
    if more:
        notes.append(
            f"Networks also differ in {', '.join(leaderboard.short_names(more))}: see `drawn` in "
            "results.csv."
        )
    return headers, lines[:MAX_ROWS], " ".join(notes)


def _record(row: table.NetworkResult) -> dict[str, Any]:
    """Return a row of the table as a dictionary; some keys only if the network has them."""
    record = dataclasses.asdict(row)
    unneeded = {key for key in ("metrics", "repeats", "violates") if not record[key]}
    if row.energy_kj is None:
        unneeded.add("energy_kj")
    return {key: value for key, value in record.items() if key not in unneeded}


@paused_collection()
def read_report(paths: RunPaths) -> RunReport:
    """Compile the report of a run, which may still be going on.

    Raises:
        UserError: there is no run, it has not started, or it has a search and an unreadable spec.
    """
    rows = table.read_results(paths.root)
    run = replay_log(read_log(paths))
    run_account = _account(paths, run)
    if run_account is None:
        raise UserError(f"{_log_path(paths)} has no launch yet, so there is nothing to report")
    report = _report(paths, run, rows, run_account)
    launch = run.launches[-1]
    return replace(
        report,
        ensembles=tuple(read_ensembles(paths.root)),
        is_live=not launch.has_ended and find_held_lease(paths) is not None,
    )


@paused_collection()
def report_at(paths: RunPaths, t_s: float) -> RunReport:
    """Return the report of a run at an earlier time, from its log, its spec, and its sample.

    Args:
        paths: the paths of the run.
        t_s: seconds of the run, as its report counts them; the end if it is later.

    Raises:
        UserError: there is no run, or it cannot be read.
    """
    past = read_past_run(paths, t_s)
    run_account = _account(paths, past.run) or Account(0.0, past.spec.schedule.policy)
    report = _report(paths, past.run, past.rows, run_account, past.spec, past.samples)
    return replace(report, paths=None)


def _log_path(paths: RunPaths) -> Path:
    """Return the path of a run's log, or the folder of its logs."""
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
    paths: RunPaths,
    run: RunState,
    rows: Sequence[table.NetworkResult],
    run_account: Account,
    spec: Spec | None = None,
    samples: Mapping[str, SampleSpec] = MappingProxyType({}),
) -> RunReport:
    has_search = bool(run.searches or run.added)
    problem = ""
    if spec is None:
        try:
            spec, samples = resolve_spec(paths, load_run_spec(paths), run)
        except UserError as error:
            if has_search:
                raise
            problem = str(error)
    searches: tuple[SearchReport, ...] = ()
    if spec is not None and has_search:
        searches = make_search_reports(spec, run, rows)
    return RunReport(
        paths.root.resolve().name,
        run,
        tuple(rows),
        tuple((row.name, history) for row in rows if (history := run.status_of(row.name).history)),
        run_account,
        searches,
        make_rung_reports(run, rows),
        paths=paths,
        spec=spec,
        spec_problem=problem,
        samples=samples,
    )
