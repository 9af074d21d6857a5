"""The launch of a job: wait for the disk, forward warnings, and find out why the launch ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from fleet.batch_systems import SYSTEM_VARIABLE
from fleet.domain.events import LaunchInterrupted
from fleet.errors import EXPLAINED, ExitStatus, StorageError, shortened
from fleet.storage.event_log import events_of, launch_status
from fleet.storage.files import storage_errors
from fleet.storage.paths import RunPaths
from fleet.units import format_duration
from launch.mpirun_kinds import stop_signal
from launch.mpirun_messages import PATIENCE_S, start
from launch.stale_files import remove_leftovers
from launch.systems import System, is_preempted

# Statuses with which a launch ends by itself; with any other one the machine failed.
ORDERLY_STATUSES = (
    ExitStatus.OK,
    ExitStatus.BAD_INPUT,
    ExitStatus.NETWORK_FAILED,
    ExitStatus.RESUMABLE,
)
# Batch systems send these.
_WARNINGS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
_ROOM_S = 900.0  # that a job waits for a full or missing disk, within its walltime
_PROBE_BYTES = 2**20
# Minimum and maximum pause between two tries.
_MIN_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0
_LAST_BYTES = 2**15


def print_message(text: str) -> None:
    """Print a message; the output file may be on the disk that is full."""
    with suppress(OSError):
        print(f"fleet job: {text}", file=sys.stderr, flush=True)


def find_storage_error(folder: Path) -> StorageError | None:
    """Return the error of writing a mebibyte to `folder`, or None."""
    try:
        with storage_errors(folder / ".probe.tmp", _PROBE_BYTES):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(bytes(_PROBE_BYTES))
    except StorageError as error:
        return error
    return None


def reserve_emergency_space(path: Path) -> None:
    """Create a small file, if possible, whose deletion frees room on a full disk."""
    with suppress(StorageError), storage_errors(path):
        if not path.exists():
            path.write_bytes(os.urandom(_LAST_BYTES))  # some file systems do not store zeros


class BatchJob:
    """A batch job, which makes one launch at a time, and warns it before the job ends.

    Args:
        paths: the paths of the run.
        system: the batch system.
        job: the id of the job.
        warn_after: seconds after which to warn the launch, if the batch system does not.

    Attributes:
        environment: environment variables of the launch.
        warning: the last warning of the newest launch; empty if there was none.
        end_reason: why the newest launch ended, as text.
        is_signalled: True if a warning came from outside.
    """

    def __init__(
        self, paths: RunPaths, system: System, job: str, warn_after: float | None = None
    ) -> None:
        self._paths = paths
        self._system = system
        self._job = job
        self._warn_after = warn_after
        self.environment = {**os.environ, SYSTEM_VARIABLE: system.name}
        self._process: subprocess.Popen | None = None
        self.warning = ""
        self.end_reason = ""
        self._last_message = ""  # the last line of the launch on standard error
        self._partial_line = b""
        self.is_signalled = False
        self._stop_signal: signal.Signals = signal.SIGUSR2
        self._is_interrupted = False  # by Ctrl-C; a second one ends the launch immediately

    def prepare(self) -> StorageError | None:
        """Begin to forward the signals of the batch system, and wait until files can be written.

        Returns:
            The last error, or None if files can be written.
        """
        for number in _WARNINGS:
            signal.signal(number, self._pass_on)
        error = self.wait_for_space()
        if error is None:
            reserve_emergency_space(self._paths.reserved_space)
        return error

    def wait_for_space(self) -> StorageError | None:
        """Wait until files can be written, unless the error is permanent or a warning arrives.

        Returns:
            The last error, or None if files can be written.
        """
        until = time.monotonic() + _ROOM_S
        pause_s = _MIN_PAUSE_S
        is_reported = False
        while (error := find_storage_error(self._paths.jobs)) is not None:
            if not error.may_pass or self.is_signalled or time.monotonic() >= until:
                return error
            if not is_reported:
                is_reported = True
                print_message(
                    f"{error}; waiting for at most {format_duration(until - time.monotonic())}"
                )
            self.pause(min(pause_s, max(0.0, until - time.monotonic())))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        return None

    def pause(self, seconds: float) -> None:
        """Sleep, unless the job is about to end."""
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0 and not self.is_signalled:
            time.sleep(min(remaining, 0.5))

    def launch(
        self,
        command: Sequence[str],
        log_position: tuple[int, int],
        every_s: float | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> int:
        """Launch, wait for the end, and return the status (:class:`fleet.errors.ExitStatus`).

        Args:
            command: the command of the launcher.
            log_position: the position in the event log before the launch.
            every_s: seconds between two calls of `meanwhile`; None for no calls.
            meanwhile: called at intervals.
        """
        self.warning = ""
        self._last_message = ""
        self._partial_line = b""
        self._stop_signal = stop_signal(command[0])
        timer = threading.Timer(self._warn_after or 0, self._warn, ["the walltime is almost over"])
        try:
            self._process, printer = start(
                command,
                EXPLAINED,
                environment=self.environment,
                on_output=self._read_output,
                is_ended=self._is_ended,
            )
        except OSError as error:
            self.end_reason = f"{command[0]} cannot be started: {error.strerror}"
            print_message(self.end_reason)
            return ExitStatus.BAD_INPUT
        if self._warn_after is not None:
            timer.start()
        try:
            if self.is_signalled:  # before the process had started
                self._process.send_signal(self._stop_signal)
            ended = self._wait(self._process, every_s, meanwhile)
            printer.join(PATIENCE_S)
            self._read_output(b"\n")
        finally:
            timer.cancel()
            remove_leftovers()
        ended = ended if ended >= 0 else 128 - ended
        status = launch_status(ended, self._paths.events, log_position)
        if (
            status not in ORDERLY_STATUSES
            and not self.warning
            and is_preempted(self._system, self._job)
        ):
            self.warning = "a preemption"
        self.end_reason = self._describe_end(status, ended)
        return status

    def _describe_end(self, status: int, ended: int) -> str:
        """Return why the launch ended, from its status and that of its launcher."""
        if status == ExitStatus.RESUMABLE:
            interrupted = events_of(self._paths.events, LaunchInterrupted)
            if interrupted:
                return interrupted[-1].reason
            return self.warning
        if status in (ExitStatus.OK, ExitStatus.NETWORK_FAILED):
            return "it ended"
        if status == ExitStatus.BAD_INPUT:
            return self._last_message or "it ended"
        after = f" after {self.warning}" if self.warning else ""
        message = f": {self._last_message}" if self._last_message else ""
        return f"it failed: its launcher ended with status {ended}{after}{message}"

    def _is_ended(self) -> bool:
        """Return True, and print it, if the batch system is ending the job."""
        is_ended = self.is_signalled or is_preempted(self._system, self._job)
        if is_ended:
            print_message("the batch system is ending this job and its launch")
        return is_ended

    def _read_output(self, output: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + output).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").lstrip("\0")
            if text.startswith("fleet: "):
                self._last_message = shortened(text.removeprefix("fleet: "))

    def _wait(
        self, process: subprocess.Popen, every_s: float | None, meanwhile: Callable[[], object]
    ) -> int:
        while True:
            try:
                return process.wait(every_s)
            except subprocess.TimeoutExpired:
                meanwhile()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        is_second = number == signal.SIGINT and self._is_interrupted
        self._is_interrupted |= number == signal.SIGINT
        self.is_signalled = True
        self._warn(
            f"received {signal.Signals(number).name}",
            signal.SIGINT if is_second else self._stop_signal,
        )

    def _warn(self, warning: str, number: int | None = None) -> None:
        self.warning = warning
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number or self._stop_signal)
