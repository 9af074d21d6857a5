"""Files that are written whole or not at all, how often, and clear messages when the file system refuses to."""

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

PATIENCE_S = (
    20.0  # of a launch, with a disk that is full or away: longer ones are waited for by its job
)

# Errors that are about the name of a file rather than about the state of the disk.
_OF_THE_NAME = {
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


_MINE = (
    socket.gethostname()
)  # processes of two nodes may have the same number, and write into one folder
STDOUT = Path("standard output")  # for messages; a batch log may lie on the disk that is full


@contextmanager
def storage_errors(path: Path, size: int = 0, kind: type[OSError] = OSError) -> Iterator[None]:
    """A context in which a file is written; if the file system refuses, the error says what helps.

    Args:
        size: bytes that are to be written, if that is known.
        kind: of the errors that count; narrower than OSError if files are read inside as well.

    Raises:
        StorageError: the file system refused.
    """
    try:
        yield
    except kind as error:
        raise StorageError(_explain(path, size, error), is_transient_for_writer(error)) from error


def with_retries(write: Callable[[], T], patience_s: float | None = None) -> T:
    """Write something, again and again for a while where what the file system says may pass.

    Args:
        write: does it once; it is done again as a whole.
        patience_s: seconds from the first refusal to the last try; :data:`PATIENCE_S` for None.

    Raises:
        StorageError: that will not pass, or has not.
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
                log.warning("%s; this may pass, and is waited for: %.0f s at most", error, patience)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)


def map_in_threads(read: Callable[[S], T], of: Iterable[S]) -> list[T]:
    """What is read of many things, in their order; a file server that answers late is asked several at a time."""
    each = list(of)
    parts = [each[first : first + _PART] for first in range(0, len(each), _PART)]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(chain.from_iterable(pool.map(lambda part: list(map(read, part)), parts)))


_AT_A_TIME = 16
_PART = 16


def is_path_error(error: StorageError) -> bool:
    """Whether the name of the file is wrong, and not the state of the disk."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _OF_THE_NAME


def _explain(path: Path, wanted: int, error: OSError) -> str:
    # Libraries put much text into their errors; the error number is enough.
    if error.errno:
        why = os.strerror(error.errno)
    else:
        why = str(error).partition("\n")[0]
    sizes = [f"{format_size(wanted)} wanted"] * bool(wanted)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        sizes += [f"{format_size(free)} free" for free in _free(path)]
    shown = f" ({', '.join(sizes)})" if sizes else ""
    if error.errno in _OF_THE_NAME:
        advice = ""
    else:
        advice = (
            f"; what was saved before is intact: {_ADVICE.get(error.errno or 0, 'mend that')}, and the same command "
            "resumes the run"
        )
    return f"{path} cannot be written: {why}{shown}{advice}"


def _free(path: Path) -> list[int]:
    """Free bytes in the folder of a file, as a list of one; empty if the file system does not say."""
    try:
        return [shutil.disk_usage(path.parent).free]
    except OSError:
        return []


def _always() -> None:
    """Whoever writes may."""


@contextmanager
def atomic_write(
    path: Path,
    mode: str = "w",
    check: Callable[[], None] = _always,
    wanted: int = 0,
    previous: Path | None = None,
    buffering: int = -1,
) -> Iterator[IO[Any]]:
    """Write a file that never half exists: to a temporary name, to the disk, then renamed.

    An exception inside leaves the old file as it was.

    Args:
        mode, buffering: of :func:`open`.
        check: is called before files are renamed, and raises where this process may not write any more. Whatever
            happens between the two, they are renamed in the folder that was there before: another launch that takes
            over makes all folders anew (:func:`fleet.storage.fencing.fence_out`).
        wanted: bytes that are to be written, where that is known.
        previous: the name that the old file gets, once the new one is whole.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
    """
    temporary = path.with_name(f".{path.name}.{_MINE}.{os.getpid()}.tmp")
    with (
        storage_errors(path, wanted),
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
    """The same for a library that wants a name rather than a file; the suffix is kept.

    Args:
        write: if it writes nothing, nothing is replaced.
        check: see :func:`atomic_write`.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
    """
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    with storage_errors(path), _renaming(path, check) as rename, _removing_on_error(temporary):
        write(temporary)
        if not temporary.exists():
            check()
            return
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        rename(temporary, None)


_held = (
    threading.local()
)  # the folder that :func:`pinned_folder` has opened in a thread, and its descriptor


@contextmanager
def pinned_folder(path: Path) -> Iterator[None]:
    """A context in which all files that a thread replaces beside one are renamed in the folder that is there now.

    Each call to a file server is dear: so it is opened once. And one look at the right to write, within, is enough for
    all that follows: nobody reads a folder again of which another launch has taken over.
    """
    with storage_errors(path):
        descriptor = _open_folder(path.parent)
    _held.folder = path.parent, descriptor
    try:
        yield
    finally:
        _held.folder = None
        os.close(descriptor)


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
    """Rename files of the folder that is there now, whatever folder will have its name later."""
    held: tuple[Path, int] | None = getattr(_held, "folder", None)
    is_held = held is not None and held[0] == path.parent
    if held is not None and is_held:
        folder = held[1]
    else:
        folder = _open_folder(path.parent)

    def rename(temporary: Path, previous: Path | None) -> None:
        check()
        if previous is not None:
            with suppress(FileNotFoundError):  # there is no old file yet
                os.replace(path.name, previous.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.replace(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)

    try:
        yield rename
    except OSError:
        check()  # a fenced launch finds no folder: its error explains why
        raise
    finally:
        if not is_held:
            os.close(folder)


@contextmanager
def _removing_on_error(temporary: Path) -> Iterator[None]:
    """Remove a temporary file that was not renamed, if the file system allows it."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # what went wrong before says more
            temporary.unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Delete a file, where it is there.

    Raises:
        StorageError: the folder is read-only, ...
    """
    with storage_errors(path):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=1)
        file.write("\n")


class WriteThrottle:
    """When a file is written anew that may be long: often enough to be looked at, and for little of rank 0's time.

    It may take a twentieth of a millisecond for each change, or a five-hundredth of the time, but is written once a
    minute at least.

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
        """Whether it should be written now, after so many changes."""
        passed_s = self._clock() - self._at_s
        return changes > 0 and (
            changes * _CHANGE_S >= self._cost_s or passed_s >= min(_MOST_S, _SHARE * self._cost_s)
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A context in which it is written."""
        began_s = self._clock()
        yield
        self._at_s = self._clock()
        self._cost_s = self._at_s - began_s


_CHANGE_S = 0.00005
_SHARE = 500
_MOST_S = 60.0


class SharedWriteThrottle(WriteThrottle):
    """The same where several launches write a file: one of them does, a moment after whoever wrote it last.

    Clocks of nodes differ, so what counts is when this one has seen the file change.

    Args:
        path: of the file.
        every_s: seconds between two writings, whoever does them; longer where they take long.
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
        """Whether it should be written now, after so many changes."""
        now = self._clock()
        if not changes or now < self._at_s + max(self._every_s, _SHARED * self._cost_s):
            return False
        seen = self._changed()
        if seen == self._seen:
            return True
        # by another launch, which may not have known of all
        self._seen = seen
        self._at_s = now
        return False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A context in which it is written."""
        with super().writing():
            yield
            self._seen = self._changed()

    def _changed(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


_SHARED = 20  # times as long as a writing takes is no other, by one launch


# ---- cells of tables -----------------------------------------------------------------------------


def blank_if_missing(value: Any) -> Any:
    """Return what a cell of a CSV file holds of a value: nothing where there is none, as of NaN and None.

    >>> blank_if_missing(0.5), blank_if_missing(float("nan")), blank_if_missing(None)
    (0.5, '', '')
    """
    if value is None or value != value:
        return ""
    return value


def nan_if_blank(cell: str) -> str:
    """Return a cell with a number as Python reads it; versions before 0.3.0 wrote "nan" where there is none."""
    return cell or "nan"
