"""Trying out all networks of a spec, each for a limited time, whatever users' functions do.

A process of its own does it (:mod:`fleet.engines.smoke_test`). If it dies or hangs, the network that it was at is to blame,
and another process goes on with the others.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import IO

import numpy as np

from fleet.engines.smoke_test import SmokeTestRequest, SmokeTestResult
from fleet.errors import UserError
from fleet.spec import Spec
from fleet.units import format_duration
from launch.memory import free_memory
from preprocess.sample import SampleSpec
from scheduler.base import RateTable

_START_S = 300.0  # to import TensorFlow from a slow file system
_SPEAK_S = 3.0  # for a process that hangs to say where
_OF_LIBRARIES = re.compile(
    rf"/site-packages/|/lib/python[\d.]+/|^{re.escape(str(Path(__file__).parents[1]))}/"
)
_MAIN = "from fleet.engines import smoke_test; smoke_test.main()"
_SHARE = 0.8  # of this machine's free memory that a network may take


@dataclass
class SmokeTestResults:
    """What came out.

    Attributes:
        trials: by the places of networks in the spec.
        problem: why no network could be built here, such as a library that is not there; empty where some could.
    """

    trials: dict[int, SmokeTestResult] = field(default_factory=dict)
    problem: str = ""


def try_networks(
    spec: Spec,
    sample: SampleSpec,
    networks: Sequence[int],
    rates: RateTable | None = None,
    steps: bool = True,
    advance: Callable[[int], object] = lambda count: None,
    samples: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> SmokeTestResults:
    """Build networks, take a step with each, and export those of users' functions.

    Args:
        networks: their places in the spec.
        rates: where the spec names some.
        steps: whether to take a step.
        advance: called with the number of networks that are done since it was called last.
        samples: of each feed some of the data, as in :class:`Request`.

    Raises:
        UserError: the engine cannot be made.
    """
    done = SmokeTestResults()
    left = list(networks)
    while left:
        before = len(left)
        request = SmokeTestRequest(
            spec, sample, tuple(left), rates, steps, int(_SHARE * free_memory()), samples or {}
        )
        # What the process leaves in its folder, as it is ended, goes with that.
        with (
            tempfile.TemporaryFile() as log,
            tempfile.TemporaryDirectory(prefix="fleet-check-") as temporary,
            closing(_Process(request, log, temporary)) as process,
        ):
            for trial in _watched(process, request, done):
                done.trials[trial.network] = trial
                left.remove(trial.network)
                advance(1)
            if len(left) == before and not done.problem:
                done.problem = f"the process that should build them ended before it came to one{process.last_line()}"
        if done.problem:
            break
    return done


class _Process:
    """The process that tries; what it prints goes to a file, and what it says comes through a pipe."""

    def __init__(self, request: SmokeTestRequest, log: IO[bytes], temporary: str) -> None:
        self._log = log
        self.connection, theirs = Pipe()
        # GPUs of the node where people check their specs are for others; its modules are those of this process.
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": temporary,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        with suppress(BrokenPipeError):  # it has ended, as is heard below
            self.connection.send(request)

    def find_hang(self) -> str:
        """The place in a user's module at which it hangs; empty where it does not say."""
        size = self._log.seek(0, os.SEEK_END)
        self.popen.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _SPEAK_S
        while time.monotonic() < deadline:
            time.sleep(0.1)
            self._log.seek(size)
            frames = re.findall(
                r'File "(.+)", line (\d+) in (\S+)', self._log.read().decode(errors="replace")
            )
            if frames:
                own = [frame for frame in frames if not _OF_LIBRARIES.search(frame[0])]
                file, line, function = (own or frames)[0]
                return f"{file}, line {line}, in {function}"
        return ""

    def last_line(self) -> str:
        """The last line that it has printed, as the end of a sentence."""
        self._log.seek(0)
        lines = [
            line.strip()
            for line in self._log.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
        if lines:
            return f"; the last that was printed: {lines[-1][:200]}"
        return ""

    def close(self) -> None:
        """End it, however it is."""
        self.popen.kill()
        self.connection.close()
        self.popen.wait()


def _watched(
    process: _Process, request: SmokeTestRequest, done: SmokeTestResults
) -> Iterator[SmokeTestResult]:
    """The trials of a process until it ends, and that of the network with which it ends."""
    stage = "starting"
    index = None
    has_ended = False
    while True:
        if index is None:
            limit = _START_S
        else:
            limit = request.spec.networks[index].train.build_timeout
        if not process.connection.poll(limit):
            break
        try:
            said = process.connection.recv()
        except (EOFError, OSError):
            has_ended = True
            break
        if "trial" in said:
            stage = ""
            index = None
            yield said["trial"]
        elif "stage" in said:
            stage = said["stage"]
            index = said.get("network")
        elif "missing" in said:
            done.problem = said["missing"]
        elif "unusable" in said:
            raise UserError(said["unusable"])
    if index is not None:
        yield SmokeTestResult(index, _ended(process) if has_ended else _hung(process, stage, limit))


def _ended(process: _Process) -> str:
    """Why a process ended with a network."""
    status = process.popen.wait()
    heard = process.last_line()
    if status >= 0:
        return f"it exited, with status {status}, and took the whole process along{heard}"
    name = signal.Signals(-status).name
    return f"it crashed: {name}{', as when memory runs out' if name == 'SIGKILL' else ''}{heard}"


def _hung(process: _Process, stage: str, limit_s: float) -> str:
    """Where a process hangs."""
    where = process.find_hang()
    return (
        f"{stage} took longer than {format_duration(limit_s)} (train.build_timeout)"
        f"{f'; it was at {where}' if where else ''}"
    )
