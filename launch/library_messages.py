"""Keep messages of C++ libraries off the screen, and in the log of the process.

TensorFlow prints lines such as ``I0000 00:00:1795974227.867410 1049 port.cc:153] oneDNN ...``
whatever its log level is, while it is imported and when it looks for GPUs.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

log = logging.getLogger("fleet.libraries")
log.addHandler(logging.NullHandler())  # without a log they are dropped

_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
# The format of absl, and the line with which it begins.
_MESSAGE = re.compile(r"([IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\] (.*)")
_FIRST = re.compile(r"WARNING: All log messages before absl::InitializeLog\(\) is called")
_window = threading.Lock()  # one thread at a time may redirect the standard error


@contextmanager
def logged_messages() -> Iterator[None]:
    """Log what libraries print on the standard error inside; print all other output afterwards.

    Output of Python is printed at once.
    """
    if not _window.acquire(blocking=False):  # inside of another window
        yield
        return
    try:
        with tempfile.TemporaryFile() as captured:
            try:
                with _redirected(captured):
                    yield
            finally:
                captured.seek(0)
                _show(captured.read().decode(errors="replace"))
    finally:
        _window.release()


@contextmanager
def _redirected(target: IO[bytes]) -> Iterator[None]:
    """Let file descriptor 2 point to another file, except for Python's ``sys.stderr``."""
    try:
        screen = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    before = sys.stderr
    during = before
    if _descriptor(before) == 2:
        before.flush()
        during = os.fdopen(
            os.dup(screen), "w", buffering=1, encoding=before.encoding, errors=before.errors
        )
        sys.stderr = during
    os.dup2(target.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        if during is not before:
            during.flush()
            if sys.stderr is during:
                sys.stderr = before


def _descriptor(stream: IO[str] | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):  # it is not a file, as in a notebook
        return None


def _show(text: str) -> None:
    """Log the messages of libraries, and print all other lines."""
    other_lines = []
    for line in text.splitlines(keepends=True):
        message = _MESSAGE.match(line)
        if message:
            log.log(_LEVELS[message[1]], "%s", message[2].rstrip())
        elif not _FIRST.match(line):
            other_lines.append(line)
    if other_lines and sys.stderr is not None:
        sys.stderr.write("".join(other_lines))
        sys.stderr.flush()
