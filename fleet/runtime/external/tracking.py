"""The process that writes trackers during a run (``trackers`` in a spec).

Rank 0 only writes a byte into a pipe after new events, and regularly reads reported failures. It
waits for the process only at the end, for a limited time, when all results are written.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fleet.domain import events as ev
from fleet.storage.paths import RunPaths

_TRACKED_EVENTS = (
    ev.EpochEnded,
    ev.NetworkFailed,
    ev.NetworkFinished,
    ev.NetworkVerdict,
    ev.NetworkTested,
)
_READ_EVERY_S = 1.0

log = logging.getLogger("fleet.runtime.external.tracking")


class Tracking:
    """The process that writes a run to trackers.

    Args:
        trackers: (tracker, file or folder); no process is started without any.
        paths: the run's folder.
        spec: path of the spec, from whose folder modules are imported.
    """

    def __init__(self, trackers: Sequence[tuple[str, Path]], paths: RunPaths, spec: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._unreported = list[ev.TrackerFailed]()
        self._buffer = b""
        self._read_s = 0.0
        if not trackers:
            return
        command = [
            sys.executable,
            "-m",
            "fleet.export.follow",
            spec,
            str(paths.root),
            *(f"{name}={path}" for name, path in trackers),
        ]
        try:
            paths.track_log.parent.mkdir(parents=True, exist_ok=True)
            with open(paths.track_log, "ab") as errors:
                # Spawned, not forked, because MPI may not support copies of its memory. In a new
                # session, so that signals to the launch leave it time for the last epochs.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                )
            for pipe in filter(None, (self._process.stdin, self._process.stdout)):
                os.set_blocking(pipe.fileno(), False)
        except OSError as error:
            self._unreported = [
                ev.TrackerFailed(name, str(path), str(error)) for name, path in trackers
            ]

    def on_event(self, event: ev.Event) -> None:
        """Wake the process if an event matters to trackers."""
        if (
            isinstance(event, _TRACKED_EVENTS)
            and self._process is not None
            and self._process.stdin is not None
        ):
            with suppress(OSError, ValueError):  # the process has ended, or the pipe is full
                os.write(self._process.stdin.fileno(), b".")

    def failures(self) -> list[ev.TrackerFailed]:
        """Return failures since the last call; checks once a second at most."""
        if self._process is None and not self._unreported:
            return []
        now = time.monotonic()
        if now >= self._read_s + _READ_EVERY_S:
            self._read_s = now
            self._read_failures()
        unreported = self._unreported
        self._unreported = []
        return unreported

    def _read_failures(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        with suppress(OSError, ValueError):  # there is nothing to read
            self._buffer += os.read(self._process.stdout.fileno(), 1 << 16)
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            with suppress(ValueError, TypeError, LookupError):
                failure = json.loads(line)
                self._unreported.append(
                    ev.TrackerFailed(failure["tracker"], failure["path"], failure["reason"])
                )

    def close(self, patience_s: float) -> list[ev.TrackerFailed]:
        """Let the process write the last epochs.

        Args:
            patience_s: longest time to wait; after that the process continues alone.

        Returns:
            Failures that have not been reported.
        """
        process = self._process
        if process is None:
            return self._unreported
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            log.warning("the trackers have not ended within %.0f s", patience_s)
            process.returncode = 0  # do not wait for it any longer
            self._unreported.append(
                ev.TrackerFailed("track", "", f"not ended within {patience_s:.0f} s")
            )
        self._read_failures()
        self._process = None
        if process.stdout is not None:
            process.stdout.close()
        return self._unreported
