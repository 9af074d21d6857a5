"""A file for the HDF5 library, which may crash if it sees that the disk is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import h5py

from preprocess.base import CannotWrite


class DeferredErrorFile:
    """A file object that reports write errors later.

    If the HDF5 library sees in the middle of a file that the disk is full, it may crash when it
    closes the file. It may also crash when it reads back something else than it wrote. Here it goes
    on writing into memory, and :meth:`check` raises the error outside of the library.

    Args:
        file: the file to write into.
        path: its name in errors.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        # h5py recognizes a file object by `read`
        self.read = file.read
        self.seek = file.seek
        self.tell = file.tell
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []  # (offset, bytes) not yet in the file

    def check(self) -> None:
        """Raise CannotWrite if there was an error."""
        error = self._error
        if error is not None:
            raise CannotWrite(error.errno, error.strerror or str(error), str(self._path)) from error

    @contextmanager
    def hdf5(self, **options: Any) -> Iterator[h5py.File]:
        """Open an HDF5 file in it, which is complete when the context ends.

        Args:
            options: those of ``h5py.File``.

        Raises:
            CannotWrite: it cannot be written. HDF5 itself would report something else.
        """
        try:
            with h5py.File(self, "w", **options) as file:
                yield file
        except Exception:
            self.check()
            raise
        self.check()

    def write(self, data: memoryview | bytes) -> int:
        """Write all bytes, or record why not."""
        remaining = memoryview(data).cast("B")
        try:
            while remaining and self._error is None:
                remaining = remaining[self._file.write(remaining) :]
        except OSError as error:
            self._error = error
        if remaining:
            self._unwritten.append((self._file.tell(), bytes(remaining)))
        return memoryview(data).nbytes

    def truncate(self, size: int) -> int:
        """Set the size, or record why not."""
        try:
            self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
        return size

    def readinto(self, buffer: memoryview) -> int:
        """Read what was written, from the file or from memory."""
        start = self._file.tell()
        view = memoryview(buffer).cast("B")
        count: int = self._file.readinto(view)  # type: ignore[attr-defined]
        view[count:] = bytes(len(view) - count)
        for position, data in self._unwritten:
            first = max(start, position)
            end = min(start + len(view), position + len(data))
            if first < end:
                view[first - start : end - start] = data[first - position : end - position]
            # also bytes before it that were skipped, which are zero
            count = max(count, min(len(view), position + len(data) - start))
        return count

    def flush(self) -> None:
        """Do nothing: no bytes are buffered."""
