"""What there is to report of a run, taken together from its files: the table of results, curves, the account."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import UserError
from fleet.monitor.account import Account, account
from fleet.spec.model import one_line
from fleet.storage.event_log import Logged, read_events
from fleet.storage.events import EpochEnded
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, read_results
from fleet.storage.state import EpochRecord


@dataclass(frozen=True)
class Curve:
    """How a network learned: a point an epoch, NaN where there is none.

    Attributes:
        accuracy: of validation, where there is any.
    """

    name: str
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Report:
    """What is to be said of a run."""

    name: str
    rows: tuple[NetworkResult, ...]
    curves: tuple[Curve, ...]  # the best network's first
    account: Account

    def numbers(self) -> dict[str, Any]:
        """The report without its pictures."""
        told = self.account
        return {"name": self.name, "policy": told.policy, "seconds": told.seconds, "launches": told.launches,
                "gpus": len(told.devices), "networks": list(self.rows),
                "spent_gpu_s": dataclasses.asdict(told.spent), "measured_s": told.measured_s,
                "simulated_s": told.simulated_s, "costs": told.costs, "epoch_s": told.epoch_s}


def read_report(paths: RunPaths) -> Report:
    """Take together what a run's files say; it may still be going on.

    Raises:
        UserError: there is no run there, or it has not begun.
    """
    rows = read_results(paths.root)
    if not paths.events.is_file():
        raise UserError(f"{paths.root} has no {paths.events.name}: there is nothing to report")
    log = list(read_events(paths.events))
    try:
        told = account(log)
    except (ValueError, ArithmeticError) as error:
        raise UserError(f"{paths.events} is damaged: {one_line(error)}") from error
    if told is None:
        raise UserError(f"{paths.events} tells of no launch: there is nothing to report")
    return Report(paths.root.resolve().name, tuple(rows), _curves(log, rows), told)


def _curves(log: Iterable[Logged], rows: Sequence[NetworkResult]) -> tuple[Curve, ...]:
    histories: dict[str, dict[int, EpochRecord]] = {}
    for _, event in log:
        if isinstance(event, EpochEnded):  # an epoch that was trained again takes the place of the first
            histories.setdefault(event.network, {})[event.record.epoch] = event.record
    return tuple(_curve(row.name, histories[row.name]) for row in rows if row.name in histories)


def _curve(name: str, records: Mapping[int, EpochRecord]) -> Curve:
    known = [records.get(epoch) for epoch in range(1, max(records) + 1)]
    return Curve(name, tuple(math.nan if record is None else record.loss for record in known),
                 tuple(math.nan if record is None else _accuracy(record) for record in known))


def _accuracy(record: EpochRecord) -> float:
    return record.accuracy if math.isnan(record.val_accuracy) else record.val_accuracy
