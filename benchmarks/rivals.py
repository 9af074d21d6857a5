"""Run the processes of another data loader, and collect the records of its consumers.

Its servers always listen on all addresses of the machine. So all processes of a loader run in their
own network namespace, with only a loopback interface (`unshare --net`, of util-linux).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_TIMEOUT_S = 60
_FOLDER = Path(__file__).parent
# A prefix that runs a command in its own network namespace.
ISOLATED = [
    "unshare",
    "--map-root-user",
    "--net",
    "sh",
    "-c",
    'ip link set lo up && exec "$@"',
    "sh",
]


def can_isolate() -> bool:
    """Return True if processes on this machine may have their own network namespace."""
    try:
        return subprocess.run([*ISOLATED, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def measure_consumers(
    python: str, program: str, servers: Sequence[Sequence[str]], consumers: Sequence[Sequence[str]]
) -> list[list[float]]:
    """Return the times at which each consumer received each batch; see :func:`pace.record`.

    Args:
        python: The interpreter.
        program: A script in this folder. It prints `ready`, then waits for a line; a consumer then
            prints its record. Servers are killed after all consumers have finished.
        servers: The arguments of each server process.
        consumers: The arguments of each consumer process.
    """
    request = json.dumps([python, program, servers, consumers])
    process = subprocess.run(
        [*ISOLATED, sys.executable, __file__, request], check=False, capture_output=True, text=True
    )
    if process.returncode:
        raise RuntimeError(f"{program}: {(process.stderr.strip().splitlines() or ['?'])[-1]}")
    return json.loads(process.stdout.splitlines()[-1])


def main() -> None:
    def stop(*_: object) -> None:
        raise SystemExit(f"{program} did not finish within {_TIMEOUT_S} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(_TIMEOUT_S)
    python, program, servers, consumers = json.loads(sys.argv[1])
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONWARNINGS": "ignore",
    }

    def start(arguments: Sequence[str]) -> subprocess.Popen:
        return subprocess.Popen(
            [python, str(_FOLDER / program), *arguments],
            stdin=subprocess.PIPE,
            text=True,
            stdout=subprocess.PIPE,
            env=environment,
        )

    running = [start(arguments) for arguments in servers]
    try:
        for process in running:
            _await_ready(process)
        readers = [start(arguments) for arguments in consumers]
        running += readers
        for process in readers:
            _await_ready(process)
        for process in readers:
            _send_line(process)
        print(json.dumps([json.loads(_read_line(process)) for process in readers]))
    finally:
        for process in running:
            process.kill()


def _await_ready(process: subprocess.Popen) -> None:
    while _read_line(process).strip() != "ready":
        pass


def _read_line(process: subprocess.Popen) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args!r} exited early")
    return line


def _send_line(process: subprocess.Popen) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


if __name__ == "__main__":
    main()
