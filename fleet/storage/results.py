"""What became of each network: kept by the coordinator, written as a table, read by search scripts."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.storage.checkpoint import newest
from fleet.storage.files import replacing, storing, write_json
from fleet.storage.paths import RunPaths
from fleet.storage.state import EpochRecord, State, convergence


class Status(StrEnum):
    """How far a network is."""

    WAITING = "waiting"
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class NetworkResult:
    """One row of ``results.csv``.

    Attributes:
        reason: why the network is done, or why it failed.
        parameters: how many it has; None where only building it would tell.
        best_epoch: counted from 1, by the monitored value; the losses and accuracies are of this epoch.
        seconds: of training.
        drawn: the parameters that were drawn for it.
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
    seconds: float
    drawn: dict[str, Any]


@dataclass
class Results:
    """The standing of all networks of a run.

    Args:
        samples: training samples of the data set.
        parameters: network -> how many parameters it has, where that is known.
        tried: a fingerprint of what is tried with a network; where another one failed, it may do better.
    """

    spec: Spec
    paths: RunPaths
    samples: int
    parameters: dict[str, int] = field(default_factory=dict)
    tried: Callable[[NetworkSpec], str] = lambda network: ""
    histories: dict[str, tuple[EpochRecord, ...]] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)

    # ---- what the coordinator asks ----

    def finished(self) -> frozenset[str]:
        """Networks that are done, for good or for bad."""
        return frozenset(self._reasons) | frozenset(self._failed)

    def failed(self) -> dict[str, str]:
        """Networks that failed, and why."""
        return dict(self._failed)

    def epochs_done(self) -> dict[str, float]:
        """Finished epochs of the networks that have begun."""
        return {name: float(len(history)) for name, history in self.histories.items()}

    def next_own_epoch(self, name: str) -> int:
        """The stream epoch that a network trains on next, where every trainer prepares its own."""
        return 1 + max((record.stream_epoch for record in self.histories.get(name, ())), default=-1)

    # ---- what it is told ----

    def add_epoch(self, name: str, record: EpochRecord) -> None:
        """A network finished an epoch."""
        self.histories[name] = (*self.histories.get(name, ()), record)
        self.write()

    def fall_back(self, name: str, history: Sequence[EpochRecord]) -> None:
        """A network goes on from an earlier checkpoint than its newest, which is damaged; or starts over."""
        self.histories[name] = tuple(history)
        self.write()

    def finish(self, name: str, reason: str) -> None:
        """A network is done."""
        self._reasons[name] = reason
        with storing(self.paths.failure(name)):  # of an earlier launch
            self.paths.failure(name).unlink(missing_ok=True)
        self.write()

    def reopen(self, name: str) -> None:
        """A network is to be tried again, even if it was done."""
        if self._reasons.pop(name, None) is not None:
            self.write()

    def fail(self, name: str, reason: str, may_pass: bool = False) -> None:
        """A network failed, in this launch or for good."""
        self._failed[name] = reason
        write_json(self.paths.failure(name), {"reason": reason, "may_pass": may_pass,
                                              "tried": self.tried(self.spec.by_name[name])})
        self.write()

    def add_bad(self, name: str, reason: str) -> None:
        """A sample could not be read."""
        self.bad[name] = reason
        with replacing(self.paths.bad_samples) as file:
            writer = csv.writer(file)
            writer.writerow(["sample", "reason"])
            writer.writerows(self.bad.items())

    # ---- the table ----

    def row(self, network: NetworkSpec) -> NetworkResult:
        """The standing of one network."""
        name, history = network.name, self.histories.get(network.name, ())
        best = convergence(history, network.train.converge).best_epoch
        record = history[best - 1] if best else None
        status = (Status.FAILED if name in self._failed else Status.FINISHED if name in self._reasons
                  else Status.TRAINING if history else Status.WAITING)
        nan = math.nan
        loss, accuracy, val_loss, val_accuracy = (nan, nan, nan, nan) if record is None else (
            record.loss, record.accuracy, record.val_loss, record.val_accuracy)
        return NetworkResult(
            name, status, self._failed.get(name, self._reasons.get(name, "")), self.parameters.get(name),
            len(history), best, loss, accuracy, val_loss, val_accuracy,
            seconds=sum(record.seconds for record in history), drawn=network.parameters)

    def rows(self) -> list[NetworkResult]:
        """All networks, the best first; those without a value last."""
        return sorted((self.row(network) for network in self.spec.networks), key=_rank)

    def write(self) -> None:
        """Write ``results.csv``."""
        with replacing(self.paths.results) as file:
            writer = csv.writer(file)
            writer.writerow([item.name for item in dataclasses.fields(NetworkResult)])
            for row in self.rows():
                values = [getattr(row, item.name) for item in dataclasses.fields(row)]
                writer.writerow([json.dumps(value) if isinstance(value, dict) else value for value in values])


def _rank(row: NetworkResult) -> tuple:
    accuracy = row.accuracy if math.isnan(row.val_accuracy) else row.val_accuracy
    loss = row.loss if math.isnan(row.val_loss) else row.val_loss
    return (row.status is Status.FAILED, math.isnan(accuracy), -accuracy, loss, row.name)


def recover(results: Results) -> dict[str, State]:
    """Take up what earlier launches of a run have left: the records of all checkpoints, without arrays."""
    states = {}
    for network in results.spec.networks:
        if (state := take_up(results, network)) is not None:
            states[network.name] = state
        if (failure := _failure(results, network)) is not None:
            results._failed[network.name] = failure
    return states


def take_up(results: Results, network: NetworkSpec) -> State | None:
    """Hold a network to be as far as its newest checkpoint says: its record, without arrays; None without one."""
    name = network.name
    results.histories.pop(name, None)
    results._reasons.pop(name, None)
    # What is damaged inside its arrays is found out when they are read; the trainer says so.
    state = newest(results.paths, name, with_arrays=False).state
    if state is not None:
        results.histories[name] = state.history
        # Judged anew, for the spec may now ask for more epochs than it did. A network that had converged,
        # and was not exported any more, is given to a group once again.
        reason = convergence(state.history, network.train.converge).reason
        is_out = not results.spec.engine.exports or results.paths.exported(name).exists()
        is_kept = results.spec.checkpoint.keep == "last" or results.paths.best(name).exists()
        if reason and not state.position and is_kept and is_out:
            results._reasons[name] = reason
    return state


def _failure(results: Results, network: NetworkSpec) -> str | None:
    """Why a network failed for good; nothing where it did not, where it may pass, or was not this one."""
    try:
        content = json.loads(results.paths.failure(network.name).read_text(encoding="utf-8"))
        is_final = not content["may_pass"] and content["tried"] == results.tried(network)
        return str(content["reason"]) if is_final else None
    except (OSError, ValueError, LookupError, TypeError):  # nobody can tell: it is tried again
        return None


def read_results(run: str | Path) -> list[NetworkResult]:
    """The networks of a run, the best first.

    Args:
        run: the run's folder.

    Raises:
        UserError: there is no run there, or its table is damaged.
    """
    path = RunPaths(Path(run)).results
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [_parse_row(row) for row in csv.DictReader(file)]
    except OSError as error:
        raise UserError(f"{run} holds no run that can be read: {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is not a table of results: {error}") from None


def _parse_row(row: dict[str, str]) -> NetworkResult:
    return NetworkResult(
        row["name"], Status(row["status"]), row["reason"], int(row["parameters"]) if row["parameters"] else None,
        int(row["epochs"]), int(row["best_epoch"]), float(row["loss"]), float(row["accuracy"]),
        float(row["val_loss"]), float(row["val_accuracy"]), float(row["seconds"]), json.loads(row["drawn"]))


def leaderboard(rows: Sequence[NetworkResult]) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows of the final table."""
    def shown(value: float) -> str:
        return "" if math.isnan(value) else f"{value:.4f}"

    headers = ["network", "status", "epochs", "best", "val acc", "val loss", "acc", "params", "s", "why"]
    return headers, [[row.name, str(row.status), row.epochs, row.best_epoch or "", shown(row.val_accuracy),
                      shown(row.val_loss), shown(row.accuracy), row.parameters, round(row.seconds, 1),
                      row.reason if len(row.reason) <= 50 else row.reason[:47] + "..."]
                     for row in rows]
