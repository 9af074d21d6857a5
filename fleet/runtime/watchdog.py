"""A thread of rank 0 that ends a stuck launch in time.

Users' code may never return, in a step, a loss, a transform or a searcher. Once a launch is to end,
this thread coordinates if the main thread does not, so that responsive groups are saved and
unresponsive ones abandoned. If the launch still does not end, because a rank is stuck elsewhere,
all ranks are ended.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from fleet.comm.protocols import World
from fleet.errors import ExitStatus
from fleet.runtime.interrupt import Interruption

_CHECK_EVERY_S = 0.25
_LATE_S = 1.0  # after which this thread runs the background tasks
_GRACE_S = 3.0  # after the coordinator should have abandoned unresponsive groups
_EXIT_S = 30.0  # for all ranks to exit after the launch is over
_NOT_OF_USERS = (
    str(Path(__file__).parents[1]),
    "<",
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class Watchdog:
    """Ends a stuck launch; see the module.

    Args:
        interruption: says when to stop early.
        status: returns the launch's exit status; None before its end.
        cut: writes the results and ends all ranks; receives the reason.
    """

    def __init__(
        self,
        world: World,
        interruption: Interruption,
        status: Callable[[], ExitStatus | None],
        cut: Callable[[str], object],
    ) -> None:
        self._world = world
        self._interruption = interruption
        self._status = status
        self._cut = cut
        self._main = threading.current_thread()
        self._is_over = threading.Event()
        self._error: BaseException | None = None  # of background tasks in this thread
        self.tasks_ran_s = time.monotonic()

    def start(self) -> None:
        """Start the watchdog's thread."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop the watchdog, because the launch has ended."""
        self._is_over.set()

    def note_task_run(self) -> bool:
        """Record that background tasks run; this is itself such a task.

        Raises:
            BaseException: what the tasks raised in the watchdog's thread.
        """
        if self._error is not None and threading.current_thread() is self._main:
            raise self._error
        self.tasks_ran_s = time.monotonic()
        return False

    def _watch(self) -> None:
        stop_s = end_s = None
        while not self._is_over.wait(_CHECK_EVERY_S):
            now = time.monotonic()
            if stop_s is None and self._interruption.reason():
                stop_s = now
            if end_s is None and self._status() is not None:
                end_s = now
            if end_s is not None:
                if now > end_s + _EXIT_S:
                    self._cut(
                        f"some ranks have not exited; rank 0 is at {self._describe_position()}"
                    )
                continue
            if stop_s is None:
                continue
            if now > stop_s + self._interruption.patience_s + _GRACE_S:
                self._cut(
                    "the launch was stuck and is ended by force; rank 0 is at "
                    f"{self._describe_position()}"
                )
            elif now > self.tasks_ran_s + _LATE_S and self._error is None:
                try:
                    self._world.run_background_tasks()
                except BaseException as error:  # the main thread raises it, unless it is stuck
                    self._error = error

    def _describe_position(self) -> str:
        """Describe the position of the main thread: its innermost line of users' code, if any."""
        frame = sys._current_frames().get(self._main.ident or 0)
        lines = traceback.extract_stack(frame)
        user_lines = [line for line in lines if not line.filename.startswith(_NOT_OF_USERS)]
        innermost = (user_lines or lines)[-1:]
        return ", ".join(
            f"{line.filename}, line {line.lineno}, in {line.name}" for line in innermost
        )
