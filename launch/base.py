"""What the modules of this package share: their error, how texts are checked and read, and calls of commands."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence, Set
from string import Formatter

TIMEOUT_S = 120  # of a command of a batch system


class InputError(ValueError):
    """A batch system, or what it or the user said, that cannot be worked with; the message says what would be right."""


def check_fields(text: str, known: Set[str], place: str) -> None:
    """Refuse braces that are not around one of the words that are filled in.

    Raises:
        InputError: they are around something else; the message names the place.

    >>> check_fields("--nodes={count}", {"nodes"}, "my site")
    Traceback (most recent call last):
    ...
    launch.base.InputError: my site: '--nodes={count}' may have braces only around {nodes}
    """
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(text) if name is not None]
    except ValueError:
        fields = [(text, "", None)]
    if any(name not in known or spec or conversion for name, spec, conversion in fields):
        wanted = ", ".join(f"{{{name}}}" for name in sorted(known))
        raise InputError(f"{place}: {text!r} may have braces only around {wanted}")


def ask(command: Sequence[str], text: str | None = None, timeout_s: float | None = None
        ) -> subprocess.CompletedProcess[str]:
    """Run a command of a batch system, whatever it says.

    Args:
        text: its input.
        timeout_s: for how long it is waited for; :data:`TIMEOUT_S` where nothing is said.

    Raises:
        InputError: it is not there, or does not answer.
    """
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    try:
        return subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="backslashreplace",
                              timeout=timeout_s, check=False)
    except FileNotFoundError:
        raise InputError(f"{command[0]} is not on the PATH: is this machine a part of the cluster?") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{command[0]} did not answer within {timeout_s} s") from None


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """What a command has printed.

    Raises:
        InputError: it failed; the message has its last words.
    """
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise InputError(f"{done.args[0]} failed: {said[-1] if said else f'exit status {done.returncode}'}")
    return done.stdout


def call(command: Sequence[str], text: str | None = None, gone: str = "", timeout_s: float | None = None) -> str:
    """What a command of a batch system prints.

    Args:
        text, timeout_s: see :func:`ask`.
        gone: a regular expression for what it says where it fails only since there is no such job any more; then it
            prints nothing.

    Raises:
        InputError: it is not there, failed, or did not answer.
    """
    try:
        return printed(ask(command, text, timeout_s))
    except InputError as error:
        if gone and re.search(gone, str(error), re.IGNORECASE):
            return ""
        raise


def clock_s(text: str) -> float | None:
    """Seconds of ``hours:minutes:seconds``; None where it is something else.

    >>> clock_s("01:00:05"), clock_s("")
    (3605.0, None)
    """
    match = re.fullmatch(r"(\d+):(\d+):(\d+)", text)
    return None if match is None else float(3600 * int(match[1]) + 60 * int(match[2]) + int(match[3]))
