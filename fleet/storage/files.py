"""Write files atomically and rarely enough, and explain refusals of the file system."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

from fleet.errors import StorageError
from fleet.units import format_size
from preprocess.transient_errors import is_transient_for_writer

S = TypeVar("S")
T = TypeVar("T")

log = logging.getLogger("fleet.storage.files")

# how long a launch retries when a disk is full or unavailable; after that its job waits
PATIENCE_S = 20.0

# errors that concern the name of a file rather than the state of the disk
_PATH_ERRORS = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.ELOOP,
}


_ADVICE = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EROFS: "make it writable",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
}


# Processes of two nodes may have the same id, and write into one folder.
_HOST = socket.gethostname()
STDOUT = Path("standard output")  # for messages; a batch log may lie on the disk that is full


@contextmanager
def storage_errors(path: Path, size: int = 0, kind: type[OSError] = OSError) -> Iterator[None]:
    """Convert errors of the file system into messages with advice.

    Args:
        path: path of the file.
        size: bytes to write, if known.
        kind: type of the errors to convert; narrower than OSError if files are also read inside.

    Raises:
        StorageError: the file system refused.
    """
    try:
        yield
    except kind as error:
        raise StorageError(_explain(path, size, error), is_transient_for_writer(error)) from error


def with_retries(write: Callable[[], T], patience_s: float | None = None) -> T:
    """Retry a write for a while if its error may be transient.

    Args:
        write: writes once; it is repeated as a whole.
        patience_s: seconds from the first failure to the last attempt; :data:`PATIENCE_S` by
            default.

    Raises:
        StorageError: the error is permanent, or has persisted.
    """
    patience = PATIENCE_S if patience_s is None else patience_s
    until = None
    pause_s = 0.1
    while True:
        try:
            return write()
        except StorageError as error:
            now = time.monotonic()
            if not error.may_pass or (until is not None and now >= until):
                raise
            if until is None:
                until = now + patience
                log.warning("%s; this may pass: retrying for up to %.0f s", error, patience)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)


def map_in_threads(read: Callable[[S], T], keys: Iterable[S]) -> list[T]:
    """Map a function over items in threads, to overlap the latency of a file server.

    Args:
        read: the function.
        keys: the items.
    """
    items = list(keys)
    parts = [items[first : first + _PER_TASK] for first in range(0, len(items), _PER_TASK)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(chain.from_iterable(pool.map(lambda part: list(map(read, part)), parts)))


_THREADS = 16
_PER_TASK = 16


def is_path_error(error: StorageError) -> bool:
    """Return True if the path of the file is wrong, rather than the state of the disk."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _PATH_ERRORS


def _explain(path: Path, size: int, error: OSError) -> str:
    # Libraries put much text into their errors; the error number is enough.
    if error.errno:
        reason = os.strerror(error.errno)
    else:
        reason = str(error).partition("\n")[0]
    sizes = [f"{format_size(size)} wanted"] * bool(size)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        sizes += [f"{format_size(free)} free" for free in _free(path)]
    suffix = f" ({', '.join(sizes)})" if sizes else ""
    advice = "" if error.errno in _PATH_ERRORS else _advise(error)
    return f"{path} cannot be written: {reason}{suffix}{advice}"


def explain_refused_read(error: OSError) -> str:
    """Return a message about a file that could not be read, with advice."""
    return f"{error.filename} cannot be read: {error.strerror}{_advise(error)}"


def _advise(error: OSError) -> str:
    return (
        f"; what was saved before is intact: {_ADVICE.get(error.errno or 0, 'fix that')}, and the "
        "same command resumes the run"
    )


def _free(path: Path) -> list[int]:
    """Return the free bytes in the folder of a file, as a list; empty if unknown."""
    try:
        return [shutil.disk_usage(path.parent).free]
    except OSError:
        return []


def _always() -> None:
    """Allow writing."""


@contextmanager
def atomic_write(
    path: Path,
    mode: str = "w",
    check: Callable[[], None] = _always,
    size: int = 0,
    previous: Path | None = None,
    buffering: int = -1,
) -> Iterator[IO[Any]]:
    """Write a file atomically: to a temporary name, to the disk, then renamed.

    An exception inside leaves the old file unchanged.

    Args:
        path: path of the file.
        mode, buffering: arguments of :func:`open`.
        check: called before files are renamed; raises if this process may no longer write. They are
            renamed in the folder that existed before the call, because a launch that takes over
            recreates all folders (:func:`fleet.storage.fencing.fence_out`).
        size: bytes to write, if known.
        previous: new name of the old file, once the new one is complete.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
    """
    temporary = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.tmp")
    with (
        storage_errors(path, size),
        _renaming(path, check) as rename,
        _removing_on_error(temporary),
    ):
        encoding, errors = (None, None) if "b" in mode else ("utf-8", "backslashreplace")
        with open(temporary, mode, buffering, encoding, errors) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename(temporary, previous)


def atomic_write_with(
    path: Path, write: Callable[[Path], None], check: Callable[[], None] = _always
) -> None:
    """Write a file atomically with a library that needs a path; the suffix is kept.

    Args:
        path: path of the file.
        write: writes to a path.
        check: see :func:`atomic_write`.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
    """
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    with storage_errors(path), _renaming(path, check) as rename, _removing_on_error(temporary):
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        rename(temporary, None)


# the folder that :func:`pinned_folder` has opened in a thread, and its descriptor
_pinned = threading.local()


@contextmanager
def pinned_folder(path: Path) -> Iterator[None]:
    """Rename all files that this thread writes beside a path in the folder that exists now.

    Calls to a file server are slow, so the folder is opened once. One check of the right to write
    inside suffices for all that follows, because folders are recreated when another launch takes
    over.
    """
    with storage_errors(path):
        descriptor = _open_folder(path.parent)
    _pinned.folder = path.parent, descriptor
    try:
        yield
        with storage_errors(path.parent):
            _sync_folder(descriptor)
    finally:
        _pinned.folder = None
        os.close(descriptor)


def sync_names(folder: Path) -> None:
    """Write the names in a folder to the disk, if its file system can.

    Otherwise a crash of the storage may bring back the files that were there before, or none.

    Raises:
        StorageError: the file system may be able to, but not now.
    """
    with storage_errors(folder):
        descriptor = _open_folder(folder)
        try:
            _sync_folder(descriptor)
        finally:
            os.close(descriptor)


def _sync_folder(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if is_transient_for_writer(error):
            raise


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


@contextmanager
def _renaming(
    path: Path, check: Callable[[], None]
) -> Iterator[Callable[[Path, Path | None], None]]:
    """Rename files in the folder that exists now, even if another folder takes its name."""
    pinned: tuple[Path, int] | None = getattr(_pinned, "folder", None)
    is_pinned = pinned is not None and pinned[0] == path.parent
    if pinned is not None and is_pinned:
        folder = pinned[1]
    else:
        folder = _open_folder(path.parent)

    def rename(temporary: Path, previous: Path | None) -> None:
        check()
        if previous is not None:
            with suppress(FileNotFoundError):  # no old file
                os.replace(path.name, previous.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.replace(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)

    try:
        yield rename
    except OSError:
        check()  # a fenced launch finds no folder: its error explains why
        raise
    finally:
        if not is_pinned:
            os.close(folder)


@contextmanager
def _removing_on_error(temporary: Path) -> Iterator[None]:
    """Remove a temporary file that was not renamed, if the file system allows it."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the first error says more
            temporary.unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Delete a file if it exists.

    Raises:
        StorageError: the folder is read-only, ...
    """
    with storage_errors(path):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any, check: Callable[[], None] = _always) -> None:
    """Write a value as JSON, atomically; see :func:`atomic_write` for ``check``."""
    with atomic_write(path, check=check) as file:
        json.dump(value, file, indent=1)
        file.write("\n")


class WriteThrottle:
    """Limits how often a long file is rewritten, to bound rank 0's time.

    Writing may take 0.05 ms per change, or a five-hundredth of the elapsed time, but happens at
    least once a minute.

    Args:
        clock: seconds.

    >>> times = iter([0.0, 0.01, 1.0, 1.0, 9.0])
    >>> pacing = WriteThrottle(lambda: next(times))
    >>> with pacing.writing():  # takes 10 ms
    ...     pass
    >>> pacing.is_due(changes=1), pacing.is_due(changes=200), pacing.is_due(changes=1)
    (False, True, True)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cost_s = 0.0
        self._at_s = -math.inf

    def is_due(self, changes: int) -> bool:
        """Return True if the file should be written now, after a number of changes."""
        passed_s = self._clock() - self._at_s
        return changes > 0 and (
            changes * _CHANGE_S >= self._cost_s
            or passed_s >= min(_MAX_PAUSE_S, _SHARE * self._cost_s)
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measure how long writing takes inside the context."""
        began_s = self._clock()
        yield
        self._at_s = self._clock()
        self._cost_s = self._at_s - began_s


_CHANGE_S = 0.00005
_SHARE = 500
_MAX_PAUSE_S = 60.0


class SharedWriteThrottle(WriteThrottle):
    """Lets one of several launches write a file, some time after it was last written.

    Clocks of nodes differ, so the time counts at which this launch has seen the file change.

    Args:
        path: path of the file.
        every_s: minimum seconds between two writes by any launch; longer if they take long.
        clock: seconds.
    """

    def __init__(
        self, path: Path, every_s: float = 1.5, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._path = path
        self._every_s = every_s
        self._seen = 0

    def is_due(self, changes: int) -> bool:
        """Return True if the file should be written now, after a number of changes."""
        now = self._clock()
        if not changes or now < self._at_s + max(self._every_s, _PAUSE_RATIO * self._cost_s):
            return False
        seen = self._changed()
        if seen == self._seen:
            return True
        # written by another launch, which may have lacked some changes
        self._seen = seen
        self._at_s = now
        return False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measure how long writing takes inside the context."""
        with super().writing():
            yield
            self._seen = self._changed()

    def _changed(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


_PAUSE_RATIO = 20  # a launch waits this many times the duration of a write
