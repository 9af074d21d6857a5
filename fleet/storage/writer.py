"""Write a trainer's checkpoints in a thread while training continues."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from fleet.domain.network import TrainingState
from fleet.errors import InfrastructureError, StorageError
from fleet.spec import Checkpoint, Stopping
from fleet.spec.engines import EngineInfo
from fleet.storage.checkpoint import (
    find_best,
    record_export,
    write_check,
    write_history,
    write_state,
)
from fleet.storage.files import (
    atomic_write,
    atomic_write_with,
    pinned_folder,
    remove,
    storage_errors,
    with_retries,
)
from fleet.storage.lease import NO_FENCE, Fence
from fleet.storage.paths import PARTS, RunPaths
from fleet.storage.quota import Quota
from preprocess.transient_errors import is_out_of_space

log = logging.getLogger("fleet.storage.writer")


class CheckpointWriter:
    """Writes checkpoints in a thread of its own.

    ``blocked_s`` is the time that training has waited for it. At most one checkpoint is not on the
    disk: a crash loses no more than the epoch that has ended last, and a disk that is slower than
    the epochs slows training down instead of filling the memory.

    Args:
        paths: files of the run.
        settings: what to keep, and how much disk space it may take.
        fence: this launch's right to write.
        suffix: suffix of the engine's exports.
    """

    def __init__(
        self,
        paths: RunPaths,
        settings: Checkpoint,
        fence: Fence = NO_FENCE,
        suffix: str = EngineInfo.suffix,
    ) -> None:
        self.blocked_s = 0.0
        self._paths = paths
        self._fence = fence
        self._suffix = suffix
        self._fences: dict[str, Fence] = {}
        self._without_best: set[str] = set()  # networks of which none is kept, and none is left
        self._settings = settings
        self._quota = Quota(paths, settings)
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(1)
        self._error: Exception | None = None
        threading.Thread(target=self._work, name="checkpoint-writer", daemon=True).start()

    def set_fence(self, name: str, fence: Fence) -> None:
        """Use a separate right to write for a network's files, if there is one.

        Args:
            name: name of the network.
            fence: the right to write.
        """
        if fence.generation:
            self._fences[name] = fence

    def fence(self, name: str) -> Fence:
        """Return the right to write a network's files."""
        return self._fences.get(name, self._fence)

    def save(self, name: str, state: TrainingState, is_best: bool) -> None:
        """Queue a network's state as its last checkpoint, and as its best one if it is.

        Waits until the checkpoint before is on the disk.

        Args:
            name: name of the network.
            state: the state to write.
            is_best: True if this is the best epoch.

        Raises:
            InfrastructureError: an earlier checkpoint could not be written.
        """
        self.flush()
        self._jobs.put(lambda: self._write(name, state, is_best))

    def flush(self) -> None:
        """Wait until everything is on disk.

        Raises:
            InfrastructureError: something could not be written.
        """
        began = time.perf_counter()
        self._jobs.join()
        self.blocked_s += time.perf_counter() - began
        self._raise_error()

    def export(
        self, name: str, stopping: Stopping, write: Callable[[Mapping[str, np.ndarray], Path], None]
    ) -> str:
        """Export the best state in the calling thread, once all checkpoints are on disk.

        Args:
            name: name of the network.
            stopping: determines the best epoch.
            write: writes a network of these arrays, and possibly a note as a ``.json`` file beside
                it.

        Returns:
            Why it is not the best epoch's, if it is not.

        Raises:
            CheckpointError: the file system cannot read the checkpoint, or no intact one is left.
            StorageError: the disk is full, or the quota used up.
        """
        self.flush()
        best = self._paths.best(name)
        exported = self._paths.exported(name, self._suffix)
        for part in PARTS:  # outputs of an earlier export
            remove(self._paths.predictions(name, part))
        lookup = find_best(self._paths, name, stopping, self._settings.keep)
        assert lookup.state is not None
        if lookup.damage:
            log.warning("%s: %s", name, lookup.damage)
            self._quota.make_room(best, lookup.state.size)
            write_state(best, lookup.state, fence=self.fence(name))
        self._quota.make_room(exported, lookup.state.size)
        fresh = exported.with_name(f".{os.getpid()}.tmp.fresh{exported.suffix}")
        note = fresh.with_suffix(".json")  # some engines write it, too
        check = write_check(self.fence(name), best)
        try:
            self._write_fresh(lookup.state.arrays, fresh, write)
            check()
            is_written = fresh.exists()
            for source, target in ((note, exported.with_suffix(".json")), (fresh, exported)):
                if source.exists():
                    atomic_write_with(target, partial(os.replace, source), check)
            if is_written:
                record_export(self._paths, name, lookup.state, self.fence(name))
        finally:
            for left_over in (fresh, note):
                with suppress(OSError):  # the export, or its error, says more
                    left_over.unlink(missing_ok=True)
        remove(self._paths.previous(name))  # not needed any more
        return lookup.damage

    def _write_fresh(
        self,
        arrays: Mapping[str, np.ndarray],
        path: Path,
        write: Callable[[Mapping[str, np.ndarray], Path], None],
    ) -> None:
        """Write the export; errors inside are the network's, except that of a full disk."""

        def once() -> None:
            try:
                write(arrays, path)
            except OSError as error:
                if not is_out_of_space(error):
                    raise
                with storage_errors(path):
                    raise

        with_retries(once)

    def write_optional(self, path: Path, size: int, write: Callable[[IO[bytes]], None]) -> None:
        """Write an optional file in the calling thread, if ``checkpoint.quota`` allows it.

        Args:
            path: path in the folder of a network.
            size: size in bytes.
            write: writes to a file; called again if that was refused and the reason may pass.

        Raises:
            StorageError: the disk is full, ...
        """
        if not self._quota.has_room(size):
            log.warning("%s is not kept: checkpoint.quota has no room for it", path)
            return

        def once() -> None:
            with atomic_write(path, "wb", check=self.fence(path.parent.name).check) as file:
                write(file)

        with_retries(once)

    def close(self) -> None:
        """Flush, and end the thread.

        Raises:
            InfrastructureError: something could not be written.
        """
        try:
            self.flush()
        finally:
            self._jobs.put(None)

    def _write(self, name: str, state: TrainingState, is_best: bool) -> None:
        best = self._paths.best(name)
        last = self._paths.last(name)
        fence = self.fence(name)
        if self._settings.keep == "last" and name not in self._without_best:
            remove(best)  # of a launch that kept it
            self._without_best.add(name)
        with pinned_folder(last):
            # before `last`, whose history says that this epoch is the best
            if is_best and self._settings.keep != "last":
                self._quota.make_room(best, state.size)
                write_state(best, state, fence=fence)
            self._quota.make_room(last, state.size)
            write_state(last, state, self._paths.previous(name), fence)
            try:
                # the fence was checked for `last`
                write_history(self._paths.history(name), state.history)
            except StorageError:
                fence.check()  # a fenced launch finds no folder: its error explains why
                raise

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if job is None:
                    return
                with_retries(job)
            except Exception as error:  # raised later, in the thread of training
                self._error = error
            finally:
                self._jobs.task_done()

    def _raise_error(self) -> None:
        if self._error is not None:
            error = self._error
            self._error = None
            if isinstance(error, InfrastructureError):
                raise error
            raise InfrastructureError(f"a checkpoint cannot be written: {error}") from error
