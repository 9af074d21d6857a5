"""A file for HDF5's library to write into, which crashes when it is told of a full disk."""

from __future__ import annotations

from typing import IO


class DeafFile:
    """A file that keeps to itself why it cannot be written.

    HDF5's library, told in the middle of a file that the disk is full, may crash when it closes that file. Here it
    writes on into nothing, and whoever made the file asks for the error.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def check(self) -> None:
        """Raise the error, if there was one."""
        if self.error is not None:
            raise self.error

    def write(self, data: memoryview | bytes) -> int:
        """Write all of it, or note why not."""
        left = memoryview(data).cast("B")
        try:
            while left and self.error is None:
                left = left[self._file.write(left):]
        except OSError as error:
            self.error = error
        return memoryview(data).nbytes

    def truncate(self, size: int) -> int:
        """Set the size, or note why not."""
        try:
            self._file.truncate(size)
        except OSError as error:
            self.error = self.error or error
        return size

    def read(self, size: int = -1) -> bytes:
        """By this h5py knows a file; it calls ``readinto``."""
        return self._file.read(size)

    def readinto(self, buffer: memoryview) -> int:
        """Read; what was not written is not there, and HDF5's library may complain of what it finds in its place."""
        return self._file.readinto(buffer) if self.error is None else len(buffer)  # type: ignore[attr-defined]

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of any file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As of any file."""
        return self._file.tell()

    def flush(self) -> None:
        """Nothing is held back."""
