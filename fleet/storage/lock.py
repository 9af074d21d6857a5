"""A lock on a run's folder, so that one launch works there at a time; it ends with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from fleet.errors import UserError
from fleet.storage.files import storing

_PATIENCE_S = 5.0  # a launch that was killed may take a moment to die


class FolderLock:
    """Locks a file of a run's folder for this process; programs that it starts do not inherit the lock.

    Args:
        patience_s: how long to wait for another process that holds it.
    """

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._file: IO[str] | None = None

    def take(self, path: Path) -> None:
        """Lock a file, and create it if it does not exist.

        Raises:
            UserError: another process holds it.
            StorageError: it cannot be created.
        """
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115 - open while it is held
        deadline = time.monotonic() + self._patience_s
        while not _is_mine(self._file):
            if time.monotonic() > deadline:
                self._file.seek(0)
                holder = self._file.read().strip()
                self._file.close()
                raise UserError(f"another launch is at work in this folder{holder and f' ({holder})'}; wait for its "
                                f"end, or name another output; if there is no such launch, delete {path}")
            time.sleep(0.1)
        with suppress(OSError):  # on a full disk the next launch is not told who holds the lock
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            self._file.flush()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def _is_mine(file: IO[str]) -> bool:
    """Try to lock a file. A file system that has no locks counts as success: that is no reason not to train."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
