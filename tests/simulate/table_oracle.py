"""Results, report, log, histories and checkpoints of a run agree with one another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.domain.network import SCORES, EpochRecord, NetworkStatus
from fleet.monitor.report import read_report
from fleet.storage.checkpoint import find_newest, read_history
from fleet.storage.event_log import read_run_state
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Status, without_means
from tests.simulate.cluster import Launch

_STATUSES = "|".join(Status)
_PRINTED = re.compile(rf"^  +(\S+) +({_STATUSES}) +(\d+) ", re.MULTILINE)


class TableOracle:
    """Compares what a run has written.

    Args:
        is_plain: whether networks have all scores: no network fails, and there are samples for
            validation.
        is_calm: whether launches end in order, if at all.
        object_to: is called with what is wrong.
    """

    def __init__(
        self, paths: RunPaths, is_plain: bool, is_calm: bool, object_to: Callable[[str], None]
    ) -> None:
        self._paths = paths
        self._is_plain = is_plain
        self._is_calm = is_calm
        self._object_to = object_to

    def check(self, rows: Mapping[str, NetworkResult]) -> None:
        """Compare the table of results with checkpoints, histories and logs."""
        statuses = read_run_state(self._paths).statuses
        for name, row in rows.items():
            history = find_newest(self._paths, name, with_arrays=False).history
            self._check_row(row, history)
            if row.status is not Status.SKIPPED:
                self._check_status(row, statuses.get(name, NetworkStatus()))
            # A crash may come between a checkpoint and the table, which is written again when the
            # network continues or is exported.
            if row.status is Status.FINISHED:
                table = read_history(self._paths.history(name))
                self._compare(name, "history.csv", table, history)

    def check_report(self, rows: Mapping[str, NetworkResult]) -> None:
        """Compare the report with the table of results and the checkpoints."""
        report = read_report(self._paths)
        reported = {row.name: row for row in without_means(report.rows)}
        if repr(reported) != repr(dict(rows)):
            self._object_to(f"the report has {reported}, but the results are {rows}")
        histories = dict(report.histories)
        for name in rows:
            history = find_newest(self._paths, name, with_arrays=False).history
            self._compare(name, "the report", histories.get(name, ()), history)

    def check_output(self, launch: Launch, rows: Mapping[str, NetworkResult]) -> None:
        """Compare the table that a launch has printed with the table of results."""
        output = "".join(launch.ranks[0].output)
        printed = {name: (status, int(epochs)) for name, status, epochs in _PRINTED.findall(output)}
        for name, (status, epochs) in printed.items():
            if name in rows and (status, epochs) != (rows[name].status, rows[name].epochs):
                self._object_to(f"{name} was shown as {status}, {epochs}; the row: {rows[name]}")

    def _check_row(self, row: NetworkResult, history: Sequence[EpochRecord]) -> None:
        if row.epochs != len(history):
            self._object_to(f"{row.name} has {len(history)} epochs by its checkpoint: {row}")
        if bool(row.epochs) != (0 < row.best_epoch <= row.epochs):
            self._object_to(f"{row.name} has no best epoch: {row}")
        if row.status is Status.TRAINING and row.parameters is None and self._is_calm:
            self._object_to(f"{row.name} has no number of parameters: {row}")
        if row.status is Status.FAILED and not row.reason:
            self._object_to(f"{row.name} failed without a reason")
        if self._is_plain and row.epochs and any(math.isnan(row.value(name)) for name in SCORES):
            self._object_to(f"{row.name} has no value: {row}")

    def _check_status(self, row: NetworkResult, logged: NetworkStatus) -> None:
        outcome = logged.outcome
        if outcome is None:
            status = Status.TRAINING if logged.history else Status.WAITING
            status = Status.PAUSED if logged.is_paused else status
        elif outcome.is_failure:
            status = Status.FAILED
        else:
            status = Status.PRUNED if outcome.is_pruned else Status.FINISHED
        if (status, len(logged.history)) != (row.status, row.epochs):
            self._object_to(f"{row.name} is {status}, {logged} by the logs, but its row is {row}")

    def _compare(
        self, name: str, source: str, records: Sequence[Any], history: Sequence[EpochRecord]
    ) -> None:
        values = [(record.epoch, record.stream_epoch, record.samples) for record in records]
        expected = [(record.epoch, record.stream_epoch, record.samples) for record in history]
        if values != expected:
            self._object_to(f"{name} has {values} by {source}, but {expected} by its checkpoint")
