"""A thread of rank 0 that ends a stuck launch in time.

The code of users may never come back, in a step, a loss, a transform or a searcher. Once a launch
is to end, this thread coordinates if the main thread does not, so groups that answer are saved and
those that do not are given up. If that does not end the launch either, because a rank is stuck
elsewhere, all ranks are ended.
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

_LOOK_S = 0.25
_LATE_S = 1.0  # for the main thread to do its duties
_MORE_S = 3.0  # after the coordinator should have given up who does not answer
_LEAVING_S = 30.0  # for all ranks to leave, after the launch is over
_NOT_OF_USERS = (
    str(Path(__file__).parents[1]),
    "<",
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class Watchdog:
    """Ends a stuck launch; see the module.

    Args:
        status: how the launch ends, once the coordinator has decided that; None before.
        cut: writes what came out, and ends all ranks; receives the reason.
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
        self.tasks_ran_s = time.monotonic()

    def start(self) -> None:
        """Start the watchdog's thread."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop the watchdog: the launch has ended by itself."""
        self._is_over.set()

    def note_task_run(self) -> bool:
        """Record that background tasks run; this is itself such a task."""
        self.tasks_ran_s = time.monotonic()
        return False

    def _watch(self) -> None:
        asked_s = decided_s = None
        while not self._is_over.wait(_LOOK_S):
            now = time.monotonic()
            if asked_s is None and self._interruption.reason():
                asked_s = now
            if decided_s is None and self._status() is not None:
                decided_s = now
            if decided_s is not None:
                if now > decided_s + _LEAVING_S:
                    self._cut(f"not all ranks have left; rank 0 is at {self._describe_position()}")
                continue
            if asked_s is None:
                continue
            if now > asked_s + self._interruption.patience_s + _MORE_S:
                self._cut(
                    f"the launch could not be ended otherwise: rank 0 is at {self._describe_position()}"
                )
            elif now > self.tasks_ran_s + _LATE_S:
                self._world.run_background_tasks()

    def _describe_position(self) -> str:
        """Describe where the main thread is: its innermost line of user code, if any."""
        frame = sys._current_frames().get(self._main.ident or 0)
        lines = traceback.extract_stack(frame)
        user_lines = [line for line in lines if not line.filename.startswith(_NOT_OF_USERS)]
        innermost = (user_lines or lines)[-1:]
        return ", ".join(
            f"{line.filename}, line {line.lineno}, in {line.name}" for line in innermost
        )
