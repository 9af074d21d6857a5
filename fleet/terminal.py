"""Print tables, progress and bars on a terminal or into a file."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from fleet.units import format_duration

_UNBOUNDED = 10_000  # columns of a table that is never folded
_GAP = 3  # between two columns of a table


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    optional: Sequence[str] = (),
) -> None:
    """Print a table whose columns of numbers are aligned to the right.

    Args:
        headers: names of the columns.
        rows: their cells.
        title: a line above the table.
        optional: columns to leave out, the first one first, if the terminal is too narrow for all.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = [list(row) for row in rows]
    cells = [["" if value is None else brief(value) for value in row] for row in rows]
    screen = terminal()
    # Never fold a table in a batch log.
    width = _UNBOUNDED if screen is None else terminal_width(screen)
    visible, widths = fit_columns(headers, cells, width, optional)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in visible:
        numeric = all(
            isinstance(row[column], int | float) or row[column] in ("", None) for row in rows
        )
        table.add_column(
            headers[column],
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=widths.get(column),
        )
    for row in cells:
        table.add_row(*(row[column] for column in visible))
    console = Console(
        highlight=False,
        markup=False,  # names may contain brackets
        emoji=False,
        force_terminal=screen is not None,
        width=width,
    )
    if title:
        console.print(title, style="table.title")  # it may be longer than the table
    console.print(table)
    omitted = [header for column, header in enumerate(headers) if column not in visible]
    if omitted:
        console.print(f"Columns that do not fit: {', '.join(omitted)}.\n")


def fit_columns(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, optional: Sequence[str] = ()
) -> tuple[list[int], dict[int, int]]:
    """Choose the columns of a table that fit a terminal.

    Args:
        headers, rows: texts of the table.
        width: columns of the terminal.
        optional: headers of columns to leave out as far as necessary, the first one first.

    Returns:
        The indices of the shown columns, and for each of them the width below which its words would
        be broken; empty if words have to be broken.

    >>> fit_columns(["name", "why"], [["net", "ten epochs"]], 9, ["why"])
    ([0], {0: 4})
    """
    from rich.cells import cell_len

    widths = [
        max(
            cell_len(word)
            for text in (header, *(row[column] for row in rows))
            for word in text.split() or [""]
        )
        for column, header in enumerate(headers)
    ]
    visible = list(range(len(headers)))

    def fits() -> bool:
        return sum(widths[column] + _GAP for column in visible) < width

    for header in optional:
        if fits():
            break
        visible = [column for column in visible if headers[column] != header]
    return visible, {column: widths[column] for column in visible} if fits() else {}


def print_any_name() -> None:
    r"""Let standard output and error print ``\\xNN`` for characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def brief(value: object) -> str:
    """Format a value with at most four significant digits.

    >>> brief(0.123456), brief(123456), brief("adam")
    ('0.1235', '123456', 'adam')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def terminal() -> IO[str] | None:
    """Open the user's terminal; None in a batch job or a pipe.

    Under ``mpirun`` a rank's standard output is a pseudo-terminal or a pipe of the launcher, so the
    standard output of the launcher decides.
    """
    for descriptor in (f"/proc/{os.getppid()}/fd/1", "/proc/self/fd/1"):
        try:
            target = os.readlink(descriptor)
        except OSError:
            return None
        if not target.startswith(("/dev/pts/", "/dev/tty")):
            return None
    try:
        return open(
            os.readlink(f"/proc/{os.getppid()}/fd/1"),
            "w",
            encoding="utf-8",
            errors="backslashreplace",
        )
    except OSError:
        return None


def terminal_size(screen: IO[str]) -> tuple[int, int]:
    """Return the numbers of columns and rows of a terminal; 80 x 24 if it does not say so."""
    try:
        columns, rows = os.get_terminal_size(screen.fileno())
    except (OSError, ValueError):  # it has been closed, or is no terminal
        columns = rows = 0
    return columns or 80, rows or 24


def terminal_width(screen: IO[str]) -> int:
    """Return the number of columns of a terminal."""
    return terminal_size(screen)[0]


@contextmanager
def progress_bar(total: int, description: str) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with each number of finished items; draw a bar on a terminal only.

    Args:
        total: number of items.
        description: label of the bar.
    """
    screen = terminal()
    if screen is None:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=screen, force_terminal=True, width=terminal_width(screen))
    with screen, Progress(console=console) as progress:
        task = progress.add_task(description, total=total)
        yield lambda count: progress.advance(task, count)


@dataclass
class ProgressLine:
    """Reports the progress, the rate and the remaining time of long work on standard error.

    Work of a few seconds is not reported. On a terminal the line is updated in place; in a file,
    lines become less and less frequent.

    Args:
        prefix: the beginning of each line.
        action: a participle, such as ``replayed``.
        unit: the unit of the counts, such as ``changes``.
        clock: returns seconds.
    """

    prefix: str
    action: str
    unit: str
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.began = self.clock()
        self.next = self.began + 2
        self.wrote = False

    def __call__(self, done: int, total: int) -> None:
        """Report progress, if the last line is old enough.

        Args:
            done: number of finished units.
            total: number of all units.
        """
        now = self.clock()
        if now < self.next:
            return
        seconds = now - self.began
        rate = done / seconds
        if rate:
            remaining = f"about {format_duration((total - done) / rate)} left"
        else:
            remaining = "nothing yet"
        screen = sys.stderr.isatty()
        print(
            f"{self.prefix}: {self.action} {done:,} of {total:,} {self.unit} "
            f"({done / total:.0%}), {rate:,.0f}/s, {remaining}",
            end="\x1b[K\r" if screen else "\n",
            file=sys.stderr,
            flush=True,
        )
        self.wrote = screen
        self.next = now + (0.5 if screen else max(5.0, seconds / 4))

    def end(self) -> None:
        """Move to the next line, if a line was updated in place."""
        if self.wrote:
            print(file=sys.stderr)


def bar(value: float, largest: float, width: int = 30) -> str:
    """Return a bar of block characters.

    Args:
        value: the value of this bar.
        largest: the value whose bar is ``width`` characters long.
        width: the maximum length in characters.

    >>> bar(1, 2, width=4)
    '██'
    """
    if not largest > 0 or not math.isfinite(value):
        return ""
    return "█" * max(0, round(width * value / largest))
