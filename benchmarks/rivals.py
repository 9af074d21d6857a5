"""Starts the processes of another data loader, lets them meet, and collects what its consumers had.

Their servers listen on all addresses of the machine and can be told nothing else. So all processes of a side run in
a network of their own, which has a loopback interface and no other (`unshare --net`, of util-linux).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PATIENCE_S = 60
_HERE = Path(__file__).parent
# A command behind these words has a network of its own.
ALONE = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def can_isolate() -> bool:
    """Whether processes here may have a network of their own."""
    try:
        return subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def consumed(
    python: str, program: str, servers: Sequence[Sequence[str]], consumers: Sequence[Sequence[str]]
) -> list[list[float]]:
    """When each consumer had each batch; see :func:`pace.record`.

    Args:
        python: the interpreter.
        program: beside this file; prints `ready`, then waits for a line; a consumer then prints its record.
            Servers are killed when all consumers have.
        servers, consumers: the arguments of each process.
    """
    request = json.dumps([python, program, servers, consumers])
    done = subprocess.run(
        [*ALONE, sys.executable, __file__, request], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{program}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    def give_up(*_: object) -> None:
        raise SystemExit(f"{program} took too long")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_PATIENCE_S)
    python, program, servers, consumers = json.loads(sys.argv[1])
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONWARNINGS": "ignore",
    }

    def start(arguments: Sequence[str]) -> subprocess.Popen:
        return subprocess.Popen(
            [python, str(_HERE / program), *arguments],
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
            _tell(process)
        print(json.dumps([json.loads(_answer(process)) for process in readers]))
    finally:
        for process in running:
            process.kill()


def _await_ready(process: subprocess.Popen) -> None:
    while _answer(process).strip() != "ready":
        pass


def _answer(process: subprocess.Popen) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args!r} ended early")
    return line


def _tell(process: subprocess.Popen) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


if __name__ == "__main__":
    main()
