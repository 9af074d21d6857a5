"""Whether the file system of a run takes files now, and how a job waits until it does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fleet.errors import StorageError
from fleet.storage.files import storing
from fleet.units import format_duration

PATIENCE_S = 900.0  # of a job, with a disk that is full or away; it waits no longer than its walltime
_PROBE_BYTES = 2**20
_LEAST_S, _MOST_S = 1.0, 30.0  # between two tries
_LAST_BYTES = 2**15


def say(text: str) -> None:
    """Tell people; the file of what a job prints may be on the disk that is full."""
    with suppress(OSError):
        print(f"fleet job: {text}", file=sys.stderr, flush=True)


def refusal(folder: Path) -> StorageError | None:
    """What the file system says to a mebibyte, where it refuses: until that is mended no job would do better."""
    probe = folder / ".probe.tmp"
    try:
        with storing(probe, _PROBE_BYTES):
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(bytes(_PROBE_BYTES))
    except StorageError as error:
        return error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


def keep_last_room(path: Path) -> None:
    """Hold some room with a file, unless there is one, or none to be had; to delete it gives a full disk that room."""
    with suppress(StorageError), storing(path):
        if not path.exists():
            path.write_bytes(os.urandom(_LAST_BYTES))  # not zeros, which some file systems do not store


def await_room(folder: Path, is_warned: Callable[[], bool]) -> StorageError | None:
    """Wait until files can be written, as long as what the file system says may pass.

    Args:
        is_warned: whether the job is about to be ended: then nobody waits any more.

    Returns:
        What it says in the end, where it still refuses.
    """
    until, pause_s, is_told = time.monotonic() + PATIENCE_S, _LEAST_S, False
    while (refused := refusal(folder)) is not None:
        if not refused.may_pass or is_warned() or time.monotonic() >= until:
            return refused
        if not is_told:
            is_told = True
            say(f"{refused}; it is waited for, {format_duration(until - time.monotonic())} at most")
        pause(min(pause_s, max(0.0, until - time.monotonic())), is_warned)
        pause_s = min(2 * pause_s, _MOST_S)
    return None


def pause(seconds: float, is_warned: Callable[[], bool]) -> None:
    """Do nothing for a while, unless the job is about to be ended."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not is_warned():
        time.sleep(min(left, 0.5))
