"""What Open MPI's mpirun says of a rank that ends with a status, and how a launch is shown without it.

mpirun takes every status but 0 for an abort, and says so in a box of eight lines or more. Where the status is one of
which the program has spoken already, the box has nothing to add. All other boxes stay: of ranks
that were killed, that crashed, or that ended with another status.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO

from launch.processes import end_with_parent
from launch.stale_files import remove_leftovers

_RULE = re.compile(rb"-{70,}\s*")
_STATUS = re.compile(rb"Exit code: +(\d+)\s*$|Errorcode: (\d+)\s*$", re.MULTILINE)
# How boxes begin that tell of a status; the last one of an abort that the one before has told of.
_OF_A_STATUS = (
    b"prterun detected that one or more processes exited with non-zero status",
    b"MPI_ABORT was invoked",
)
_OF_AN_ABORT = b"prterun has exited due to process rank"
# What mpirun says of ranks and daemons that a batch system ends; it advises to debug them.
_OF_AN_END = (
    b"srun returned non-zero exit status",
    b"prterun noticed that process rank",
    b"PRTE has lost communication with a remote daemon",
)
_MOST_LINES = 20  # of a box
PATIENCE_S = 5.0  # for the last that a launch has written: something that it left behind may hold its output open


class Notices:
    """Takes what a launch writes, piece by piece, and gives back what is to be shown.

    Args:
        explained: the statuses of which the program itself speaks.
        is_ended: whether the batch system is ending the job now, which explains all ends.
    """

    def __init__(
        self, explained: Sequence[int], is_ended: Callable[[], bool] = lambda: False
    ) -> None:
        self._explained = frozenset(explained)
        self._is_ended = is_ended
        self._partial_line = b""  # of a line
        self._is_inside_line = False  # which has been shown as far as it came
        self._box: list[bytes] = []
        self._was_dropped = False  # the last box that told of a status

    def feed(self, data: bytes) -> bytes:
        """Take data; return the text to show now."""
        *lines, partial_line = (self._partial_line + data).split(b"\n")
        self._partial_line = b""
        text = b"".join(self._line(line + b"\n") for line in lines)
        if self._box or (partial_line.startswith(b"-") and not self._is_inside_line):
            self._partial_line = partial_line
        elif partial_line:
            self._is_inside_line = True
            text += partial_line
        return text

    def close(self) -> bytes:
        """Return the remaining text at the end."""
        text = b"".join(self._box) + self._partial_line
        self._box = []
        self._partial_line = b""
        return text

    def _line(self, line: bytes) -> bytes:
        if self._is_inside_line:
            self._is_inside_line = False
            return line
        is_rule = _RULE.fullmatch(line) is not None
        if not (self._box or is_rule):
            return line
        self._box.append(line)
        if len(self._box) == 1:
            return b""
        if len(self._box) == 2 and not line.startswith((*_OF_A_STATUS, _OF_AN_ABORT, *_OF_AN_END)):
            return self._open(is_rule)
        if is_rule:
            box = b"".join(self._box)
            self._box = []
            if self._tells_nothing_new(box):
                return b""
            return box
        if len(self._box) > _MOST_LINES:
            return self._open()
        return b""

    def _open(self, begins_another: bool = False) -> bytes:
        """No box of mpirun's: what was held back of it, but for a rule that may begin one."""
        text = b"".join(self._box[:-1] if begins_another else self._box)
        self._box = self._box[-1:] if begins_another else []
        return text

    def _tells_nothing_new(self, box: bytes) -> bool:
        if box.split(b"\n")[1].startswith(_OF_AN_END):
            return self._is_ended()
        if _OF_AN_ABORT in box:
            return self._was_dropped
        match = _STATUS.search(box)
        self._was_dropped = match is not None and int(match[1] or match[2]) in self._explained
        return self._was_dropped


def run_quietly(
    command: Sequence[str],
    explained: Sequence[int],
    out: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Start a launch, wait for it, and return how it ended; see :func:`start` and :func:`wait`."""
    process, output_thread = start(command, explained, out, environment)
    try:
        return wait(process, explained, lambda: process.send_signal(signal.SIGUSR2))
    finally:
        output_thread.join(PATIENCE_S)
        remove_leftovers()


def wait(
    process: subprocess.Popen[bytes], explained: Sequence[int], stop: Callable[[], object]
) -> int:
    """Wait for a launch, and return how it ended. Ctrl-C stops it with everything saved; a second one ends it at once.

    Args:
        explained: the statuses of which the program itself speaks.
        stop: has the launch save everything and end.

    Raises:
        KeyboardInterrupt: the launch was ended at once, or before it had begun.
    """
    try:
        try:
            return process.wait()
        except KeyboardInterrupt:
            stop()
            status = process.wait()
            if status in (0, *explained):
                return status
            raise
    except BaseException:
        end_at_once(process)
        raise


def end_at_once(process: subprocess.Popen[bytes]) -> None:
    """End a launch, and save nothing."""
    process.send_signal(signal.SIGINT)  # mpirun ends its ranks, too
    try:
        process.wait(PATIENCE_S)
    finally:
        process.kill()


def start(
    command: Sequence[str],
    explained: Sequence[int],
    out: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
    on_output: Callable[[bytes], None] = lambda said: None,
    is_ended: Callable[[], bool] = lambda: False,
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Start a launch whose notices of explained statuses are not shown.

    It has a session of its own, for mpirun would end its ranks at once upon Ctrl-C; :func:`wait`
    passes that on. If this process dies, the launch saves everything and ends.

    Args:
        explained, is_ended: see :class:`Notices`.
        out: where it prints; here, where that is None.
        environment: its variables; those of this process, where that is None.
        on_output: called with all output, in a thread.

    Returns:
        The process, and the thread to join after it has ended: by then all that it wrote is shown.

    Raises:
        OSError: it cannot be started.
    """
    # Linux takes the end of the thread that starts a process for the end of its parent.
    is_main = threading.current_thread() is threading.main_thread()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=partial(end_with_parent, signal.SIGUSR2) if is_main else None,
    )
    assert process.stderr is not None
    thread = threading.Thread(
        target=_pass_on,
        daemon=True,
        args=(
            process.stderr,
            2 if out is None else out.fileno(),
            Notices(explained, is_ended),
            on_output,
        ),
    )
    thread.start()
    return process, thread


def _pass_on(
    source: IO[bytes], target: int, notices: Notices, on_output: Callable[[bytes], None]
) -> None:
    def show(text: bytes) -> None:
        on_output(text)
        _write(target, text)

    with source:
        while data := os.read(source.fileno(), 65536):
            show(notices.feed(data))
    show(notices.close())


def _write(target: int, data: bytes) -> None:
    """All of it; a full disk, or a reader that is gone, is no reason to let the launch stand still."""
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
