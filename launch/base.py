"""Shared helpers: checks and parsing of text, and calls of commands."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence, Set
from string import Formatter
from typing import Any

from launch.errors import InputError

TIMEOUT_S = 120  # of a command of a batch system


def check_fields(text: str, allowed: Set[str], source: str) -> None:
    """Refuse braces around anything but the given fields.

    Raises:
        InputError: another field is in braces.

    >>> check_fields("--nodes={count}", {"nodes"}, "my site")
    Traceback (most recent call last):
    ...
    launch.errors.InputError: my site: '--nodes={count}' may have braces only around {nodes}
    """
    try:
        fields = [
            (name, spec, conversion)
            for _, name, spec, conversion in Formatter().parse(text)
            if name is not None
        ]
    except ValueError:
        fields = [(text, "", None)]
    if any(name not in allowed or spec or conversion for name, spec, conversion in fields):
        allowed_fields = ", ".join(f"{{{name}}}" for name in sorted(allowed))
        raise InputError(f"{source}: {text!r} may have braces only around {allowed_fields}")


def ask(
    command: Sequence[str], text: str | None = None, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of a batch system and return its result, also if it fails.

    Args:
        text: the command's input.
        timeout_s: timeout in seconds; :data:`TIMEOUT_S` by default.

    Raises:
        InputError: the command is missing or does not answer.
    """
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise InputError(
            f"{command[0]} is not on the PATH; is this machine part of the cluster?"
        ) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{command[0]} did not answer within {timeout_s} s") from None


def call(
    command: Sequence[str],
    text: str | None = None,
    missing_pattern: str = "",
    timeout_s: float | None = None,
) -> str:
    """Run a command of a batch system and return its output.

    Args:
        text, timeout_s: see :func:`ask`.
        missing_pattern: a regular expression for the error of an unknown job; the output is then
            empty.

    Raises:
        InputError: the command is missing, did not answer, or failed; the message ends with its
            last line.
    """
    done = ask(command, text, timeout_s)
    if not done.returncode:
        return done.stdout
    output = (done.stderr.strip() or done.stdout.strip()).splitlines()
    problem = f"{command[0]} failed: {output[-1] if output else f'exit status {done.returncode}'}"
    if missing_pattern and re.search(missing_pattern, problem, re.IGNORECASE):
        return ""
    raise InputError(problem)


def read_records(command: str, text: str, part: str, *keys: str) -> dict[str, dict[str, Any]]:
    """Parse the records of a command's JSON output, by name; each has the given keys.

    Raises:
        InputError: the output has another format.
    """
    try:
        records = json.loads(text).get(part, {})
        if all(key in record for record in records.values() for key in keys):
            return records
    except (ValueError, AttributeError, TypeError):
        pass
    raise InputError(f"{command} printed {text[:80]!r}, which has an unexpected format")


def clock_s(text: str) -> float | None:
    """Convert ``[[days-]hours:]minutes:seconds`` to seconds; None if it has another format.

    >>> clock_s("0:10"), clock_s("01:00:05"), clock_s("2-00:00:01"), clock_s("UNLIMITED")
    (10.0, 3605.0, 172801.0, None)
    """
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
