"""Start a launch and hide messages of Open MPI's mpirun about statuses that the program explains.

mpirun reports every status but 0 as an abort, in a box of eight lines or more. If the program has
already explained the status, the box is dropped. All other boxes are shown: of ranks that were
killed, that crashed, or that ended with another status.
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
from types import FrameType
from typing import IO, Any

from launch.mpirun_kinds import is_mpich, stop_signal
from launch.processes import end_with_parent, kill_launch, launch_members
from launch.stale_files import remove_leftovers

_RULE = re.compile(rb"-{70,}\s*")
_STATUS = re.compile(rb"Exit code: +(\d+)\s*$|Errorcode: (\d+)\s*$", re.MULTILINE)
# The first lines of boxes about a status; the last one repeats the abort of the box before.
_OF_A_STATUS = (
    b"prterun detected that one or more processes exited with non-zero status",
    b"MPI_ABORT was invoked",
)
_OF_AN_ABORT = b"prterun has exited due to process rank"
# Boxes about ranks and daemons that a batch system ended; mpirun advises to debug them.
_OF_AN_END = (
    b"srun returned non-zero exit status",
    b"prterun noticed that process rank",
    b"PRTE has lost communication with a remote daemon",
)
_MOST_LINES = 20  # of a box
# For the end of a launch's output, which a process that it left behind may keep open.
PATIENCE_S = 5.0
_POLL_S = 0.1


class Notices:
    """Filters the output of a launch, which arrives in pieces.

    Args:
        explained: the statuses that the program itself explains.
        is_ended: returns True if the batch system is ending the job, which explains all ends.
    """

    def __init__(
        self, explained: Sequence[int], is_ended: Callable[[], bool] = lambda: False
    ) -> None:
        self._explained = frozenset(explained)
        self._is_ended = is_ended
        self._partial_line = b""  # of a line
        self._is_inside_line = False  # which has been shown as far as it came
        self._box: list[bytes] = []
        self._was_dropped = False  # the last box about a status

    def feed(self, data: bytes) -> bytes:
        """Add data and return the text to show now."""
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
            if self._is_redundant(box):
                return b""
            return box
        if len(self._box) > _MOST_LINES:
            return self._open()
        return b""

    def _open(self, begins_another: bool = False) -> bytes:
        """Return the lines held back, which are no box, except a last rule that may begin one."""
        text = b"".join(self._box[:-1] if begins_another else self._box)
        self._box = self._box[-1:] if begins_another else []
        return text

    def _is_redundant(self, box: bytes) -> bool:
        if box.split(b"\n")[1].startswith(_OF_AN_END):
            return self._is_ended()
        if _OF_AN_ABORT in box:
            return self._was_dropped
        match = _STATUS.search(box)
        self._was_dropped = match is not None and int(match[1] or match[2]) in self._explained
        return self._was_dropped


class Interrupts:
    """Counts signals that ask a launch to stop, inside a ``with`` of the main thread.

    Unlike an exception, which Python drops in some callbacks, a count cannot be missed.

    Args:
        numbers: the signals to count.
    """

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self.count = 0
        self._numbers = numbers
        self._before: list[Any] = []

    def __enter__(self) -> Interrupts:
        self._before = [signal.signal(number, self._note) for number in self._numbers]
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in zip(self._numbers, self._before, strict=True):
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # A terminal that closes may send several signals, which are one wish to stop.
        if number != signal.SIGHUP or not self.count:
            self.count += 1


def run_quietly(
    command: Sequence[str],
    explained: Sequence[int],
    out: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
    can_save: Callable[[], bool] = lambda: True,
    interrupts: Interrupts | None = None,
) -> int:
    """Start a launch, wait for it, and return how it ended; see :func:`start` and :func:`wait`.

    Args:
        command, explained, out, environment: see :func:`start`.
        can_save: returns False while a launch has nothing to save. Then Ctrl-C ends it at once: its
            ranks may not handle signals yet.
        interrupts: counts signals; by default Ctrl-C raises KeyboardInterrupt as usual.
    """
    process, output_thread = start(command, explained, out, environment)

    def stop() -> None:
        if not can_save():
            raise KeyboardInterrupt
        request_stop(process)

    try:
        if interrupts is None:
            return wait(process, explained, stop)
        return _wait_counting(process, stop, interrupts)
    finally:
        output_thread.join(PATIENCE_S)
        remove_leftovers()


def _wait_counting(
    process: subprocess.Popen[bytes], stop: Callable[[], object], interrupts: Interrupts
) -> int:
    """Wait for a launch; the first signal stops it, and the second one kills it.

    Raises:
        KeyboardInterrupt: the launch was killed.
    """
    is_stopping = False
    try:
        while True:
            if interrupts.count > 1:
                raise KeyboardInterrupt
            if interrupts.count and not is_stopping:
                is_stopping = True
                stop()
            try:
                return process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                continue
    except KeyboardInterrupt:
        end_at_once(process)
        raise


def wait(
    process: subprocess.Popen[bytes], explained: Sequence[int], stop: Callable[[], object]
) -> int:
    """Wait for a launch and return its status. Ctrl-C saves and stops it; a second one kills it.

    Args:
        explained: the statuses that the program itself explains.
        stop: makes the launch save everything and end.

    Raises:
        KeyboardInterrupt: the launch was killed, or stopped before it had started.
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


def request_stop(process: subprocess.Popen[bytes]) -> None:
    """Let the ranks of a launch save everything and end."""
    process.send_signal(stop_signal(_program(process)))


def end_at_once(process: subprocess.Popen[bytes]) -> None:
    """End a launch without saving; none of its processes remains."""
    members = launch_members(process.pid)
    try:
        if not is_mpich(_program(process)):  # whose mpirun would let the ranks save
            process.send_signal(signal.SIGINT)  # mpirun ends its ranks, too
            process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
        kill_launch(process.pid, members)


def _program(process: subprocess.Popen[bytes]) -> str:
    """Return the program of a launch."""
    assert isinstance(process.args, Sequence)
    return str(process.args[0])


def start(
    command: Sequence[str],
    explained: Sequence[int],
    out: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
    on_output: Callable[[bytes], None] = lambda data: None,
    is_ended: Callable[[], bool] = lambda: False,
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Start a launch without mpirun's notices of explained statuses.

    The launch runs in a new session, since mpirun would kill its ranks upon Ctrl-C; :func:`wait`
    passes Ctrl-C on. If this process dies, the launch saves everything and ends.

    Args:
        explained: see :class:`Notices`.
        is_ended: see :class:`Notices`.
        out: receives the output; standard output by default.
        environment: the variables of the launch; those of this process by default.
        on_output: called with all output, in a thread.

    Returns:
        The process, and the thread to join after its end: all output has then been shown.

    Raises:
        OSError: the launch cannot be started.
    """
    # For Linux, a process loses its parent when the thread that started it ends.
    is_main = threading.current_thread() is threading.main_thread()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=partial(end_with_parent, stop_signal(command[0])) if is_main else None,
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
    """Write all data; a full disk or a closed reader must not stop the launch."""
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
