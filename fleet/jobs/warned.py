"""A launch that is waited for, and warned when the batch system is about to end its job."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from fleet.domain.events import Interrupted
from fleet.errors import EXPLAINED, ExitStatus, UserError, shortened
from fleet.jobs.room import say
from fleet.storage.event_log import events_of
from launch.leftovers import remove_leftovers
from launch.notices import PATIENCE_S, start

# What batch systems send; SIGUSR2 is what launchers pass on to the ranks (mpirun ends them at once upon SIGTERM).
_WARNINGS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)


class WarnedLaunch:
    """See the module.

    Args:
        environment: of the launch.
        warn_after: seconds after which to warn it, where the batch system does not.
        is_preempted: whether the batch system is taking the nodes of the job back.

    Attributes:
        warning: the latest, of the latest launch; empty where there was none.
        words: the last that the latest launch has said of itself, on standard error.
        is_signalled: whether a warning has come from outside.
    """

    def __init__(self, environment: Mapping[str, str], warn_after: float | None = None,
                 is_preempted: Callable[[], bool] = lambda: False) -> None:
        self._environment, self._warn_after, self._is_preempted = environment, warn_after, is_preempted
        self._process: subprocess.Popen | None = None
        self.warning = self.words = ""
        self._said = b""
        self.is_signalled = False

    def listen(self) -> None:
        """Pass on from now on what the batch system sends."""
        for number in _WARNINGS:
            signal.signal(number, self._pass_on)

    def run(self, command: Sequence[str], every_s: float | None = None, meanwhile: Callable[[], object] = lambda: None
            ) -> int:
        """Launch, and wait for the end; returns the status of the launcher.

        Args:
            meanwhile: is called now and then.
            every_s: seconds between two calls; None for none.

        Raises:
            UserError: the launcher cannot be started.
        """
        self.warning, self.words, self._said = "", "", b""
        timer = threading.Timer(self._warn_after or 0, self._warn, ["the walltime is nearly over"])
        try:
            self._process, shown = start(command, EXPLAINED, environment=self._environment, hear=self._hear,
                                         is_ended=self._is_ended)
        except OSError as error:
            raise UserError(f"{command[0]} cannot be started: {error.strerror}") from None
        if self._warn_after is not None:
            timer.start()
        try:
            if self.is_signalled:  # while nobody was there to be told
                self._process.send_signal(signal.SIGUSR2)
            status = self._wait(self._process, every_s, meanwhile)
            shown.join(PATIENCE_S)
            self._hear(b"\n")
        finally:
            timer.cancel()
            remove_leftovers()
        return status if status >= 0 else 128 - status

    def why(self, status: int, ended: int, log: Path) -> str:
        """Why the latest launch ended, for people.

        Args:
            status: how it ended (:class:`fleet.errors.ExitStatus`).
            ended: the status of its launcher.
            log: its events.
        """
        if status == ExitStatus.RESUMABLE:
            interrupted = events_of(log, Interrupted)
            return interrupted[-1].reason if interrupted else self.warning
        if status in (ExitStatus.OK, ExitStatus.NETWORK_FAILED):
            return "it ended"
        if status == ExitStatus.BAD_INPUT:
            return self.words or "it ended"
        after = f" after {self.warning}" if self.warning else ""
        return f"it broke off: its launcher ended with status {ended}{after}" + (self.words and f": {self.words}")

    def _is_ended(self) -> bool:
        """Whether the batch system is ending the job; says so, in place of what the launcher says of it."""
        is_ended = self.is_signalled or self._is_preempted()
        if is_ended:
            say("the batch system ends this job, and its launch with it")
        return is_ended

    def _hear(self, said: bytes) -> None:
        *lines, self._said = (self._said + said).split(b"\n")
        for line in lines:
            if (text := line.decode(errors="replace").lstrip("\0")).startswith("fleet: "):
                self.words = shortened(text.removeprefix("fleet: "))

    def _wait(self, process: subprocess.Popen, every_s: float | None, meanwhile: Callable[[], object]) -> int:
        while True:
            try:
                return process.wait(every_s)
            except subprocess.TimeoutExpired:
                meanwhile()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.is_signalled = True
        self._warn(f"{signal.Signals(number).name} came")

    def _warn(self, warning: str) -> None:
        self.warning = warning
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGUSR2)
