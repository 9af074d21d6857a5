"""Checkpoints: what a network needs to go on, written in one place and read in one place.

A checkpoint is an HDF5 file of arrays (weights, optimizer, random state) and one record (a JSON text), verified
when it is read (see :mod:`fleet.storage.verified`). It is written by a background thread while training goes on, to a
temporary name that is then renamed; the one before is kept, and takes its place where the newest is damaged.
Nothing in it is unpickled.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fleet.errors import CheckpointError, DamagedError, InfrastructureError
from fleet.spec import Checkpoint, Converge
from fleet.storage.paths import RunPaths, replacing, storing
from fleet.storage.quota import Quota
from fleet.storage.verified import read_verified, write_verified


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch of a network: a row of its history.

    Attributes:
        epoch: counted from 1.
        stream_epoch: the epoch of the stream that was consumed; with it the epoch can be trained again.
        samples: that counted; the others could not be read.
        seconds: of training and validation.
        waited_s: of them, what the group's master waited for data.
        path: the chunks of the ring that were consumed (:func:`fleet.stream.order.write_path`); empty in strict order.
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
    path: str = ""


@dataclass(frozen=True)
class State:
    """A network in the middle of its training.

    Attributes:
        arrays: weights, optimizer and random state, by name.
        identity: of the architecture and the training settings; a checkpoint of another network is refused.
        history: its finished epochs.
        stream_epoch: the epoch of the stream that it is in the middle of, where ``position`` is above 0.
        position: samples of that epoch that it has consumed.
        path: the chunks of the ring that it consumes in that epoch; empty in strict order.
        sums: of that epoch so far: loss, correct, count.
        seconds, waited_s: of that epoch so far, as in its record.
        final: why it is done, or nothing.
    """

    arrays: Mapping[str, np.ndarray] = field(repr=False)
    identity: str
    history: tuple[EpochRecord, ...] = ()
    stream_epoch: int = -1
    position: int = 0
    path: tuple[int, ...] = ()
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    seconds: float = 0.0
    waited_s: float = 0.0
    final: str = ""

    @property
    def epoch(self) -> int:
        """How many epochs are finished."""
        return len(self.history)

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


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


def write_state(path: Path, state: State, previous: Path | None = None) -> None:
    """Write a checkpoint.

    Args:
        previous: the name that the old one gets, once the new one is whole.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
    """
    record = {item.name: getattr(state, item.name) for item in dataclasses.fields(state) if item.name != "arrays"}
    record["history"] = [dataclasses.asdict(epoch) for epoch in state.history]
    write_verified(path, state.arrays, record, previous)


def read_state(path: Path, with_arrays: bool = True) -> State:
    """Read a checkpoint.

    Args:
        with_arrays: without them only the record is read, which takes no time.

    Raises:
        DamagedError: it is torn or corrupted.
        CheckpointError: there is none, or the file system does not give it.
    """
    arrays, record = read_verified(path, with_arrays)
    try:
        history = tuple(EpochRecord(**epoch) for epoch in record.pop("history"))
        return State(arrays=arrays, history=history,
                     **{**record, "path": tuple(record["path"]), "sums": tuple(record["sums"])})
    except (LookupError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: its record is of another form: {error}") from error


@dataclass(frozen=True)
class Found:
    """What is left of a network.

    Attributes:
        state: the newest that is whole; None where there is none.
        damage: what is wrong with newer ones; nothing where there is none, or nothing is wrong.
    """

    state: State | None
    damage: str = ""


def newest(paths: RunPaths, name: str, with_arrays: bool = True) -> Found:
    """The newest checkpoint of a network that is whole.

    Args:
        with_arrays: without them only the records are read, and verified, which takes no time.

    Raises:
        CheckpointError: there is one that may be whole, and the file system does not give it.
    """
    damage: list[str] = []
    for path in (paths.last(name), paths.previous(name)):
        try:
            return Found(read_state(path, with_arrays), "; ".join(damage))
        except CheckpointError as error:
            if _is_lost(error):
                damage.append(str(error))
            elif not isinstance(error.__cause__, FileNotFoundError):
                raise
    return Found(None, "; ".join(damage))


def _is_lost(error: CheckpointError) -> bool:
    """Whether reading once more would not help: the content is wrong, or the disk says that it lost it."""
    cause = error.__cause__
    return isinstance(error, DamagedError) or (isinstance(cause, OSError) and cause.errno == errno.EIO)


def settle(paths: RunPaths, name: str, found: Found) -> None:
    """Make the files of a network agree with what was found of it, once it goes on from there."""
    with storing(paths.last(name)):
        if found.state is None:
            paths.last(name).unlink(missing_ok=True)
            paths.previous(name).unlink(missing_ok=True)
        elif found.damage:
            os.replace(paths.previous(name), paths.last(name))
    write_history(paths.history(name), () if found.state is None else found.state.history)


def best_state(paths: RunPaths, name: str, converge: Converge, keep: str) -> Found:
    """The state of a finished network's best epoch; of its last one, where the best is lost or was not to be kept.

    Args:
        keep: as the spec says.

    Raises:
        CheckpointError: the file system does not give it, or nothing whole is left.
    """
    if keep == "last":
        return Found(read_state(paths.last(name)))
    history = read_state(paths.last(name), with_arrays=False).history
    epoch = standing(history, converge).best_epoch
    try:
        best = read_state(paths.best(name))
        # After a checkpoint was lost, an epoch may have been the best one that is in no history any more.
        if _stream_epochs(best.history) == _stream_epochs(history[:epoch]):
            return Found(best)
        damage = f"{paths.best(name)} is not of epoch {epoch}"
    except CheckpointError as error:
        if not (_is_lost(error) or isinstance(error.__cause__, FileNotFoundError)):
            raise
        damage = str(error)
    return Found(read_state(paths.last(name)),
                 f"{damage}; epoch {len(history)}, the last, stands in for epoch {epoch}, the best")


def _stream_epochs(history: Sequence[EpochRecord]) -> list[int]:
    return [record.stream_epoch for record in history]


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

    Args:
        settings: what is kept, and how much of the disk that may take.
    """

    def __init__(self, paths: RunPaths, settings: Checkpoint) -> None:
        self.blocked_s = 0.0
        self._paths = paths
        self._settings, self._quota = settings, Quota(paths, settings)
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(1)
        self._error: Exception | None = None
        threading.Thread(target=self._work, name="checkpoint-writer", daemon=True).start()

    def save(self, name: str, state: State, is_best: bool) -> None:
        """Write a network's state as its last checkpoint, and as its best one if it is.

        Raises:
            InfrastructureError: an earlier checkpoint could not be written.
        """
        self._raise()
        began = time.perf_counter()
        self._jobs.put(lambda: self._write(name, state, is_best))
        self.blocked_s += time.perf_counter() - began

    def flush(self) -> None:
        """Wait until everything is on disk.

        Raises:
            InfrastructureError: something could not be written.
        """
        began = time.perf_counter()
        self._jobs.join()
        self.blocked_s += time.perf_counter() - began
        self._raise()

    def close(self) -> None:
        """Flush, and end the thread.

        Raises:
            InfrastructureError: something could not be written.
        """
        try:
            self.flush()
        finally:
            self._jobs.put(None)

    def _write(self, name: str, state: State, is_best: bool) -> None:
        best, last = self._paths.best(name), self._paths.last(name)
        if self._settings.keep == "last":
            best.unlink(missing_ok=True)
        elif is_best:  # before `last`, which says by its history that this epoch was the best
            self._quota.make_room(best, state.size)
            write_state(best, state)
        self._quota.make_room(last, state.size)
        write_state(last, state, previous=self._paths.previous(name))
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
            if isinstance(error, InfrastructureError):
                raise error
            raise InfrastructureError(f"a checkpoint cannot be written: {error}") from error
