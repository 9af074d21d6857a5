"""Commands of batch systems: run, and asked what they print."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from launch.base import InputError

TIMEOUT_S = 120


def ask(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of a batch system, whatever it says.

    Args:
        text: its input.

    Raises:
        InputError: it is not there, or does not answer.
    """
    try:
        return subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="backslashreplace",
                              timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise InputError(f"{command[0]} is not on the PATH: is this machine a part of the cluster?") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{command[0]} did not answer within {TIMEOUT_S} s") from None


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """What a command has printed.

    Raises:
        InputError: it failed; the message has its last words.
    """
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise InputError(f"{done.args[0]} failed: {said[-1] if said else f'exit status {done.returncode}'}")
    return done.stdout


def call(command: Sequence[str], text: str | None = None) -> str:
    """What a command of a batch system prints.

    Args:
        text: its input.

    Raises:
        InputError: it is not there, failed, or did not answer.
    """
    return printed(ask(command, text))
