"""Draw the screen of a running launch in a terminal of any size, which may change."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from fleet.domain import events as ev
from fleet.domain.run import RunState
from fleet.monitor.live_screen import Screen, make_rows, wrap_parts
from fleet.monitor.view import PASSING_EVENTS, LiveTitle, PlainView, format_event
from fleet.storage.results import NetworkResult
from fleet.terminal import terminal, terminal_size

_REFRESH_S = 0.25
_READ_S = 0.5  # shortest time between two looks at the table of results
_READ_SHARE = 0.02  # longest share of the time that these looks take
_REPEATED_LINES = 200  # lines above the screen that are drawn again when the size changes
_ERASE_BELOW = "\x1b[J"
_ERASE_ALL = "\x1b[H\x1b[2J"


class LiveView(LiveTitle):
    """A screen that is redrawn several times a second; lines about events scroll above it.

    Another thread draws it from the current state of the run. Under ``mpirun`` the terminal is that
    of the launcher, and a change of its size sends no signal to this rank, so each drawing reads
    the size again.

    Args:
        run: the state of the run, which has already applied each event passed here.
        screen: the terminal.
        rows: returns the table of results, best network first; called in the caller's thread.
        name: name of the run.
    """

    def __init__(
        self,
        run: RunState,
        screen: IO[str],
        rows: Callable[[], Sequence[NetworkResult]] = tuple,
        name: str = "",
    ) -> None:
        super().__init__(run)
        self._screen = screen
        self._read_rows = rows
        self._name = name
        self._rows: Sequence[NetworkResult] = ()
        self._next_read_s = 0.0
        self._lines: deque[str] = deque(maxlen=_REPEATED_LINES)
        self._pending: list[str] = []
        self._size = terminal_size(screen)
        self._height = 0  # lines of the screen as it was drawn
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._draw_on, name="screen", daemon=True)
        self._thread.start()

    def on_event(self, event: ev.Event) -> None:
        """Update the screen; print lines that should stay above it."""
        super().on_event(event)
        if not isinstance(event, PASSING_EVENTS) and (line := format_event(event, self._run)):
            with self._lock:
                self._pending.append(line)
        self.on_pace()
        if isinstance(event, ev.LaunchInterrupted):
            self.draw()  # the launcher may end this rank within a moment

    def on_pace(self) -> None:
        """Read the table of results again, if the last look at it is old enough."""
        now = time.monotonic()
        if now >= self._next_read_s:
            self._rows = self._read_rows()
            taken_s = time.monotonic() - now
            self._next_read_s = now + max(_READ_S, taken_s / _READ_SHARE)

    def close(self) -> None:
        """Leave the title and the numbers of networks on the screen."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._thread.join()
        self._rows = self._read_rows()
        self.draw(is_last=True)

    def draw(self, is_last: bool = False) -> None:
        """Draw the screen for the present size of the terminal.

        Args:
            is_last: whether the table is left out, because the results follow.
        """
        with self._lock:
            size = terminal_size(self._screen)
            lines = self._make_lines(*size, is_last)
            pending, self._pending = self._pending, []
            if size != self._size:
                # The terminal may have wrapped the old lines, so that they cannot be erased.
                self._size = size
                text = _ERASE_ALL
                above = _last_that_fit([*self._lines, *pending], size[0], size[1] - len(lines) - 1)
            else:
                text = f"\r\x1b[{self._height}A" if self._height else "\r"
                text += _ERASE_BELOW
                above = pending
            self._lines += pending
            text += "".join(f"{row}\n" for line in above for row in _wrapped(line, size[0]))
            text += "".join(f"{_ansi(line)}\n" for line in lines)
            self._height = len(lines)
            self._write(text)

    def _make_lines(self, width: int, height: int, is_last: bool) -> list[Text]:
        launch = self._run.launch
        name = f"{self._name}: " if self._name else ""
        screen = Screen(
            f"{name}{self.title}",
            make_rows(self._rows, self._run),
            "GPU" if launch is None else launch.start.device,
        )
        # Some lines about events stay visible; the last column stays free, where some terminals
        # wrap at once.
        room = max(height - max(height // 4, 2), 3)
        return screen.lines(max(width - 1, 1), room, with_table=not is_last)

    def _draw_on(self) -> None:
        while not self._is_closed.wait(_REFRESH_S):
            self.draw()

    def _write(self, text: str) -> None:
        # The terminal may have been closed; the run goes on.
        with suppress(OSError, ValueError):
            self._screen.write(text)
            self._screen.flush()


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap a line about an event at its spaces."""
    return wrap_parts(line.split(" "), width, " ")


def _last_that_fit(lines: Sequence[str], width: int, height: int) -> list[str]:
    """Return as many of the last lines as fit."""
    count = 0
    for line in reversed(lines):
        height -= sum(-(-max(cell_len(row), 1) // width) for row in _wrapped(line, width))
        if height < 0:
            break
        count += 1
    return list(lines[len(lines) - count :])


def _ansi(line: Text) -> str:
    """Return a line with its style as control sequences."""
    if not line.style or "NO_COLOR" in os.environ:
        return line.plain
    style = line.style if isinstance(line.style, Style) else Style.parse(line.style)
    return style.render(line.plain)


def make_view(
    run: RunState,
    plain: bool,
    rows: Callable[[], Sequence[NetworkResult]] = tuple,
    name: str = "",
) -> PlainView | LiveView:
    """Return the view that fits the output.

    Args:
        run: the state of the run.
        plain: True for plain lines in any case.
        rows: returns the table of results, best network first.
        name: name of the run.
    """
    screen = None if plain else terminal()
    if screen is None:
        return PlainView(run)
    return LiveView(run, screen, rows, name)
