"""Write and read checkpoints: everything that a network needs to resume.

A checkpoint is an HDF5 file of arrays (weights, optimizer, random state) and one record (JSON),
verified when it is read (see :mod:`fleet.storage.verified_hdf5`). It is written to a temporary name
and then renamed; the previous one is kept, and replaces the newest if that is damaged. Nothing in
it is unpickled.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleet.domain.json_record import write_record
from fleet.domain.network import EpochRecord, TrainingState, check_convergence, stream_epochs
from fleet.errors import CheckpointError, DamagedError, LeaseLost, UserError
from fleet.spec import Stopping
from fleet.storage.csv_records import csv_cells, csv_columns, read_csv_records
from fleet.storage.files import (
    atomic_write,
    pinned_folder,
    storage_errors,
    sync_names,
    with_retries,
    write_json,
)
from fleet.storage.json_lines import read_json_record
from fleet.storage.lease import NO_FENCE, Fence
from fleet.storage.paths import RunPaths
from fleet.storage.verified_hdf5 import read_verified, write_verified
from launch.errors import pluralize

# ---- files -------------------------------------------------------------------------------------


def write_state(
    path: Path, state: TrainingState, previous: Path | None = None, fence: Fence = NO_FENCE
) -> None:
    """Write a checkpoint.

    Args:
        path: path of the checkpoint.
        state: the state to write.
        previous: new name of the old checkpoint, once the new one is complete.
        fence: the right to write; its token is stored in the checkpoint as the generation.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
        LeaseLost: another launch has taken the run over.
    """
    state = dataclasses.replace(state, generation=fence.token or state.generation)
    record = vars(state) | {"history": [vars(epoch) for epoch in state.history]}
    write_verified(path, record.pop("arrays"), record, previous, write_check(fence, path))


def write_check(fence: Fence, path: Path) -> Callable[[], None]:
    """Return a function to call before a checkpoint is replaced.

    It raises LeaseLost if another launch has taken the run over, or if the existing checkpoint is
    from a newer generation, whatever the lease says.

    Args:
        fence: the right to write.
        path: path of the checkpoint.
    """

    def check() -> None:
        if not fence.generation:
            return
        fence.check()
        newer = checkpoint_generation(path)
        if newer > fence.token:
            raise LeaseLost(
                f"{path} is of a later launch (generation {newer}) than this one "
                f"({fence.token}), which ends and writes nothing more"
            )

    return check


def checkpoint_generation(path: Path) -> int:
    """Return the generation that wrote a checkpoint; 0 if none can be read."""
    try:
        return read_verified(path, with_arrays=False, read=_generation)[1]
    except CheckpointError:
        return 0


# inside a string the quotes would be escaped
_GENERATION = re.compile(rb'(?<!\\)"generation": (\d+)')


def _generation(record: bytes) -> int:
    match = _GENERATION.search(record)
    if match:
        return int(match[1])
    return 0


def read_state(path: Path, with_arrays: bool = True) -> TrainingState:
    """Read a checkpoint.

    Args:
        path: path of the checkpoint.
        with_arrays: False to read only the record, which is fast.

    Raises:
        DamagedError: it is incomplete or corrupted.
        CheckpointError: it is missing, or the file system cannot read it.
    """
    arrays, record = read_verified(path, with_arrays)
    try:
        history = tuple(EpochRecord(**epoch) for epoch in record.pop("history"))
        return TrainingState(
            arrays=arrays,
            history=history,
            **{**record, "path": tuple(record["path"]), "sums": tuple(record["sums"])},
        )
    except (LookupError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"{path} cannot be read: its record has another format: {error}"
        ) from error


@dataclass(frozen=True)
class CheckpointLookup:
    """The checkpoint found for a network, and damage found on the way.

    Attributes:
        state: state of the newest intact checkpoint; None if there is none.
        damage: what is wrong with skipped checkpoints; empty if none was skipped.
        history: the epochs that the network has trained: more than those of the state if only the
            checkpoint of the best epoch is left, and the table of epochs continues from there.
        path: path of the checkpoint.
        start: checksum of the file with the initial weights; empty if there is none.
    """

    state: TrainingState | None
    damage: str = ""
    history: tuple[EpochRecord, ...] = ()
    path: Path | None = None
    start: str = ""


def find_newest(paths: RunPaths, name: str, with_arrays: bool = True) -> CheckpointLookup:
    """Find the newest intact checkpoint of a network: last, or else the later of previous and best.

    Args:
        paths: files of the run.
        name: name of the network.
        with_arrays: False to read and verify only the records, which is fast.

    Raises:
        CheckpointError: a possibly intact checkpoint cannot be read.
    """
    damage: list[str] = []
    for path in _newest_first(paths, name):
        is_best = path == paths.best(name)
        try:
            state = read_state(path, with_arrays)
            if is_best:
                history = _extend_history(state.history, paths.history(name))
            else:
                history = state.history
            # A launch was killed before it wrote the last one, or a user deleted it.
            if path != paths.last(name) and not damage:
                damage.append(
                    f"{paths.last(name)} is "
                    f"missing{_describe_extra_epochs(state.epoch, paths.history(name))}"
                )
            return CheckpointLookup(state, "; ".join(damage), history, path)
        except CheckpointError as error:
            if _is_unrecoverable(error):
                damage.append(str(error))
            elif not isinstance(error.__cause__, FileNotFoundError):
                raise
            elif path == paths.last(name) and not path.parent.exists():
                return CheckpointLookup(None)  # quick for thousands of networks of a new run
    if not damage and (more := _describe_extra_epochs(0, paths.history(name))):
        damage.append(f"{paths.last(name)} is missing, and no other checkpoint is left{more}")
    return CheckpointLookup(None, "; ".join(damage))


def _newest_first(paths: RunPaths, name: str) -> Iterator[Path]:
    """Yield the paths of a network's checkpoints; the records of old ones are read if needed."""
    yield paths.last(name)
    yield from sorted((paths.previous(name), paths.best(name)), key=_progress, reverse=True)


def _progress(path: Path) -> tuple[int, int]:
    """Return the epochs and the position of a checkpoint; (-1, 0) if its record is unreadable."""
    try:
        state = read_state(path, with_arrays=False)
    except CheckpointError:
        return -1, 0
    return state.epoch, state.position


def _describe_extra_epochs(epochs: int, path: Path) -> str:
    """Return a phrase on epochs in the table beyond those of a checkpoint."""
    trained = len(read_history(path))
    if trained > epochs:
        return f", though {pluralize(trained, 'epoch')} had been saved"
    return ""


def copy_parent(
    paths: RunPaths,
    name: str,
    parent: str,
    architecture: str,
    make_room: Callable[[Path, int], None],
    fence: Fence = NO_FENCE,
) -> int:
    """Start a network with a copy of the newest checkpoint of another one.

    Args:
        paths: files of the run.
        name: name of the network, which has not been trained.
        parent: name of the other network.
        architecture: architecture of the network (:attr:`fleet.spec.model.Architecture.key`).
        make_room: makes room for a file of a size (:meth:`fleet.storage.quota.Quota.make_room`).
        fence: the right to write.

    Returns:
        The epoch of the parent at which it starts.

    Raises:
        UserError: the parent has no checkpoint, or its architecture differs.
        StorageError: there is no room for the copy.
    """
    lookup = find_newest(paths, parent)
    if lookup.state is None:
        raise UserError(f"{parent} has no checkpoint yet from which another network could begin")
    if lookup.state.architecture != architecture:
        raise UserError(f"{parent} has another architecture, so it cannot be the parent of {name}")
    state = lookup.state
    path = paths.first(name)
    make_room(path, state.size)

    def write() -> None:
        with pinned_folder(path):
            write_state(path, state, fence=fence)
        sync_names(paths.models)  # before a log says that the network has a parent

    with_retries(write)
    return state.epoch


def saved_epochs(paths: RunPaths, name: str) -> int:
    """Return the number of epochs in the newest checkpoint of a network."""
    state = find_newest(paths, name, with_arrays=False).state
    if state is None:
        return 0
    return state.epoch


def merge_inherited(
    arrays: Mapping[str, np.ndarray],
    parents: Mapping[str, np.ndarray],
    own_suffixes: Collection[str],
) -> dict[str, np.ndarray]:
    """Return the initial arrays of a network with a parent.

    They are its parent's, except the arrays that its own spec determines.

    Args:
        arrays: arrays of the network as built.
        parents: weights and optimizer of the parent.
        own_suffixes: name endings of its own arrays
            (:attr:`fleet.spec.engines.EngineInfo.own_arrays`).
    """
    return {
        name: arrays[name] if name in arrays and name.rpartition("/")[2] in own_suffixes else array
        for name, array in parents.items()
    }


def _extend_history(history: tuple[EpochRecord, ...], path: Path) -> tuple[EpochRecord, ...]:
    """Extend a history by the epochs of a table, if both begin equally."""
    table = read_history(path)
    if stream_epochs(table[: len(history)]) == stream_epochs(history):
        return table
    return history


def _is_unrecoverable(error: CheckpointError) -> bool:
    """Return True if retrying is useless: the content is damaged, or the disk lost it."""
    cause = error.__cause__
    return isinstance(error, DamagedError) or (
        isinstance(cause, OSError) and cause.errno == errno.EIO
    )


def promote_previous(
    paths: RunPaths, name: str, lookup: CheckpointLookup, fence: Fence = NO_FENCE
) -> None:
    """Make a network's files agree with the checkpoint from which it resumes.

    Args:
        paths: files of the run.
        name: name of the network.
        lookup: the checkpoint.
        fence: the right to write.
    """
    write_check(fence, paths.last(name))()
    with storage_errors(paths.last(name)):
        if lookup.state is None:
            for path in (paths.last(name), paths.previous(name), paths.best(name)):
                path.unlink(missing_ok=True)
        elif lookup.path == paths.best(name):
            write_state(paths.last(name), lookup.state, fence=fence)
            paths.previous(name).unlink(missing_ok=True)
        elif lookup.damage:
            os.replace(paths.previous(name), paths.last(name))
    write_history(paths.history(name), () if lookup.state is None else lookup.state.history, fence)


def rewrite_states(
    paths: RunPaths,
    name: str,
    change: Callable[[TrainingState], TrainingState],
    fence: Fence = NO_FENCE,
) -> None:
    """Rewrite all intact checkpoints of a network with a changed record.

    Args:
        paths: files of the run.
        name: name of the network.
        change: changes a state.
        fence: the right to write.
    """
    for path in (paths.previous(name), paths.best(name), paths.last(name)):
        try:
            state = read_state(path)
        except CheckpointError as error:
            if _is_unrecoverable(error) or isinstance(error.__cause__, FileNotFoundError):
                continue
            raise
        write_state(path, change(state), fence=fence)
        if path == paths.last(name):
            write_history(paths.history(name), change(state).history, fence)


def find_best(paths: RunPaths, name: str, stopping: Stopping, keep: str) -> CheckpointLookup:
    """Return the state of a finished network's best epoch, or else of its last one.

    If the last checkpoint is damaged, the newest intact one determines the epochs.

    Args:
        paths: files of the run.
        name: name of the network.
        stopping: determines the best epoch.
        keep: ``checkpoint.keep`` of the spec.

    Raises:
        CheckpointError: the file system cannot read it, or no intact checkpoint is left.
    """
    lookup = find_newest(paths, name, with_arrays=False)
    if lookup.path is None:
        raise CheckpointError(lookup.damage or f"{paths.last(name)} is missing")
    if keep == "last":
        return CheckpointLookup(read_state(lookup.path), lookup.damage)
    history = lookup.history
    epoch = check_convergence(history, stopping).best_epoch
    try:
        best = read_state(paths.best(name))
        # After a checkpoint was lost, the best one may be of an epoch that no history has.
        if stream_epochs(best.history) == stream_epochs(history[:epoch]):
            return CheckpointLookup(best)
        damage = f"{paths.best(name)} is not of epoch {epoch}"
    except CheckpointError as error:
        if not (_is_unrecoverable(error) or isinstance(error.__cause__, FileNotFoundError)):
            raise
        damage = str(error)
    newest_intact = read_state(lookup.path)
    return CheckpointLookup(
        newest_intact,
        f"{damage}; epoch {newest_intact.epoch}, the last, replaces epoch {epoch}, the best",
    )


def write_history(path: Path, history: Sequence[EpochRecord], fence: Fence = NO_FENCE) -> None:
    """Write a network's history as CSV, one row per epoch.

    Args:
        path: path of the file.
        history: the history to write.
        fence: the right to write.
    """
    columns = csv_columns(EpochRecord, history)
    with atomic_write(path, check=fence.check) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(csv_cells(record, columns) for record in history)


def read_history(path: Path) -> tuple[EpochRecord, ...]:
    """Read what :func:`write_history` wrote; empty if it is missing or damaged."""
    try:
        return tuple(read_csv_records(path, EpochRecord))
    except (OSError, ValueError):
        return ()


def complete_history(path: Path, history: Sequence[EpochRecord], fence: Fence = NO_FENCE) -> None:
    """Write a network's table if it lacks epochs; see :func:`is_history_current`."""
    if history and not is_history_current(path, history):
        write_history(path, history, fence)


def is_history_current(path: Path, history: Sequence[EpochRecord]) -> bool:
    """Return True if a network's table has the epochs of its history.

    A launch that was killed may have saved a checkpoint, but not its table.

    Args:
        path: path of the table.
        history: the history of the newest checkpoint.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            # Parsing all cells of thousands of tables would take half a minute.
            table = [int(row["stream_epoch"]) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return False
    return table == stream_epochs(history)


# ---- which checkpoint was exported; a network that has trained since is exported again ----------


@dataclass(frozen=True)
class ExportNote:
    """The state that was exported, by its number of epochs and its stream epochs."""

    epoch: int
    history: list[int]


def record_export(
    paths: RunPaths, name: str, exported: TrainingState, fence: Fence = NO_FENCE
) -> None:
    """Record which state was exported, after the export, so at worst it is repeated.

    Args:
        paths: files of the run.
        name: name of the network.
        exported: the state.
        fence: the right to write.

    Raises:
        StorageError: the disk is full, ...
        LeaseLost: another launch has taken the run over.
    """
    note = ExportNote(exported.epoch, stream_epochs(exported.history))
    write_json(paths.export_note(name), write_record(note), fence.check)


def is_exported(paths: RunPaths, name: str, keep: str, suffix: str) -> bool:
    """Return True if the export of a network exists and is current.

    Exports of 0.1.0, and exports whose checkpoint cannot be read any more, are accepted.

    Args:
        paths: files of the run.
        name: name of the network.
        keep: ``checkpoint.keep`` of the spec.
        suffix: suffix of the engine's exports.
    """
    if not paths.exported(name, suffix).exists():
        return False
    note = read_json_record(paths.export_note(name), ExportNote)
    source = paths.last(name) if keep == "last" else paths.best(name)
    try:
        history = stream_epochs(read_state(source, with_arrays=False).history)
    except CheckpointError:
        return True
    if note is None:
        return not paths.export_note(name).exists()
    return note.history == history
