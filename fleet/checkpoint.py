"""Checkpoints: what a network needs to go on, written in one place and read in one place.

A checkpoint is an HDF5 file of arrays (weights, optimizer, random state) and one record (a JSON text).
It is written by a background thread while training goes on, to a temporary name that is then renamed.
Nothing in it is unpickled.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fleet.errors import CheckpointError
from fleet.paths import RunPaths, replace_by, replacing
from fleet.spec import Converge


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch of a network: a row of its history.

    Attributes:
        epoch: counted from 1.
        stream_epoch: the epoch of the stream that was consumed; with it the epoch can be trained again.
        samples: that counted; the others could not be read.
        seconds: of training and validation.
        waited_s: of them, what the group's master waited for data.
    """

    epoch: int
    stream_epoch: int
    loss: float
    accuracy: float
    val_loss: float
    val_accuracy: float
    learning_rate: float
    samples: int
    gpus: int
    seconds: float
    waited_s: float


@dataclass(frozen=True)
class State:
    """A network in the middle of its training.

    Attributes:
        arrays: weights, optimizer and random state, by name.
        identity: of the architecture and the training settings; a checkpoint of another network is refused.
        history: its finished epochs.
        stream_epoch: the epoch of the stream that it is in the middle of, where ``position`` is above 0.
        position: samples of that epoch that it has consumed.
        sums: of that epoch so far: loss, correct, count.
        final: why it is done, or nothing.
    """

    arrays: Mapping[str, np.ndarray] = field(repr=False)
    identity: str
    history: tuple[EpochRecord, ...] = ()
    stream_epoch: int = -1
    position: int = 0
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    final: str = ""

    @property
    def epoch(self) -> int:
        """How many epochs are finished."""
        return len(self.history)


@dataclass(frozen=True)
class Standing:
    """What a network's history says of its convergence.

    Attributes:
        best_epoch: counted from 1; 0 when there is none.
        best: the monitored value of that epoch.
        reason: why training is over, or nothing.
    """

    best_epoch: int
    best: float
    reason: str


def standing(history: Sequence[EpochRecord], converge: Converge) -> Standing:
    """Judge a history. Early stopping has no state of its own: a resumed network stops where it would have.

    Args:
        history: the finished epochs.
        converge: when to stop.
    """
    sign = 1 if converge.monitor.endswith("accuracy") else -1
    best, best_epoch = -math.inf, 0
    for record in history:
        value = sign * getattr(record, converge.monitor)
        # The first epoch is the best so far whatever it is; one that is no number gives way to any that is.
        if not best_epoch or value > best + converge.min_delta or (math.isnan(best) and not math.isnan(value)):
            best, best_epoch = value, record.epoch
    reason = ""
    if converge.target is not None and best_epoch and best >= sign * converge.target:
        reason = f"{converge.monitor} reached {sign * best:.4g}"
    elif converge.patience is not None and len(history) - best_epoch >= converge.patience:
        reason = f"no better {converge.monitor} for {converge.patience} epochs"
    elif len(history) >= converge.max_epochs:
        reason = f"{converge.max_epochs} epochs"
    return Standing(best_epoch, sign * best if best_epoch else math.nan, reason)


# ---- files -------------------------------------------------------------------------------------


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any]) -> None:
    """Write arrays and a record as HDF5, whole or not at all."""

    def write(temporary: Path) -> None:
        with h5py.File(temporary, "w") as file:
            file.attrs["record"] = json.dumps(record)
            group = file.create_group("arrays", track_order=True)
            for name, array in arrays.items():
                group.create_dataset(name.replace("/", "\\"), data=array)

    replace_by(path, write)


def write_state(path: Path, state: State) -> None:
    """Write a checkpoint.

    Raises:
        CheckpointError: the disk is full, the folder read-only, ...
    """
    record = {item.name: getattr(state, item.name) for item in dataclasses.fields(state) if item.name != "arrays"}
    record["history"] = [dataclasses.asdict(epoch) for epoch in state.history]
    try:
        write_arrays(path, state.arrays, record)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def read_state(path: Path, with_arrays: bool = True) -> State:
    """Read a checkpoint.

    Args:
        with_arrays: without them only the record is read, which takes no time.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    try:
        with h5py.File(path, "r") as file:
            record = json.loads(file.attrs["record"])
            stored = file["arrays"].items() if with_arrays else ()
            arrays = {name.replace("\\", "/"): dataset[()] for name, dataset in stored}
        history = tuple(EpochRecord(**epoch) for epoch in record.pop("history"))
        return State(arrays=arrays, history=history, **{**record, "sums": tuple(record["sums"])})
    except (OSError, LookupError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def write_history(path: Path, history: Sequence[EpochRecord]) -> None:
    """Write a network's history as CSV, a row an epoch."""
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow([item.name for item in dataclasses.fields(EpochRecord)])
        writer.writerows(dataclasses.astuple(record) for record in history)


class CheckpointWriter:
    """Writes checkpoints in a thread of its own.

    ``blocked_s`` is what training has waited for it. At most one checkpoint waits its turn: a disk that
    is slower than the epochs slows training down rather than filling the memory.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.blocked_s = 0.0
        self._paths = paths
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(1)
        self._error: Exception | None = None
        threading.Thread(target=self._work, name="checkpoint-writer", daemon=True).start()

    def save(self, name: str, state: State, is_best: bool) -> None:
        """Write a network's state as its last checkpoint, and as its best one if it is.

        Raises:
            CheckpointError: an earlier checkpoint could not be written.
        """
        self._raise()
        began = time.perf_counter()
        self._jobs.put(lambda: self._write(name, state, is_best))
        self.blocked_s += time.perf_counter() - began

    def flush(self) -> None:
        """Wait until everything is on disk.

        Raises:
            CheckpointError: something could not be written.
        """
        began = time.perf_counter()
        self._jobs.join()
        self.blocked_s += time.perf_counter() - began
        self._raise()

    def close(self) -> None:
        """Flush, and end the thread.

        Raises:
            CheckpointError: something could not be written.
        """
        try:
            self.flush()
        finally:
            self._jobs.put(None)

    def _write(self, name: str, state: State, is_best: bool) -> None:
        if is_best:  # before `last`, which says by its history that this epoch was the best
            write_state(self._paths.best(name), state)
        write_state(self._paths.last(name), state)
        write_history(self._paths.history(name), state.history)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if job is None:
                    return
                job()
            except Exception as error:  # it is raised where training can stop for it
                self._error = error
            finally:
                self._jobs.task_done()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error if isinstance(error, CheckpointError) else CheckpointError(str(error)) from error
