"""A run's report: one HTML file with its pictures inside, which wants no server and no internet."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import UserError
from fleet.monitor.account import Account, Event, account
from fleet.spec.model import one_line
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, read_results


@dataclass(frozen=True)
class Curve:
    """How a network learned: a point an epoch, NaN where there is none."""

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
    events = list(read_events(paths.events))
    try:
        told, curves = account(events), _curves(events, rows)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{paths.events} is damaged: {one_line(error)}") from error
    if told is None:
        raise UserError(f"{paths.events} tells of no launch: there is nothing to report")
    return Report(paths.root.resolve().name, tuple(rows), curves, told)


def _curves(events: Sequence[Event], rows: Sequence[NetworkResult]) -> tuple[Curve, ...]:
    points: dict[str, dict[int, tuple[float, float]]] = {}
    for event in events:
        if event["event"] == "epoch":
            held_out = event["val_accuracy"]
            accuracy = event["accuracy"] if held_out is None else held_out
            points.setdefault(event["network"], {})[event["epoch"]] = (event["loss"], accuracy)

    def series(name: str, which: int) -> tuple[float, ...]:
        values = points[name]
        known = [values.get(epoch, (None, None))[which] for epoch in range(1, max(values) + 1)]
        return tuple(math.nan if value is None else value for value in known)

    return tuple(Curve(row.name, series(row.name, 0), series(row.name, 1)) for row in rows if row.name in points)


# ---- the page ----------------------------------------------------------------------------------


# ---- pictures ----------------------------------------------------------------------------------
