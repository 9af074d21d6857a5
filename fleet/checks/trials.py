"""Smoke-test all networks of a spec, each for a limited time, even if users' functions misbehave.

Another process tests them (:mod:`fleet.engines.smoke_test`). If it dies or hangs, its current
network has failed, and a new process continues with the others.
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
_SPEAK_S = 3.0  # for a hanging process to report its stack
_OF_LIBRARIES = re.compile(
    rf"/site-packages/|/lib/python[\d.]+/|^{re.escape(str(Path(__file__).parents[1]))}/"
)
_MAIN = "from fleet.engines import smoke_test; smoke_test.main()"
_SHARE = 0.8  # share of this machine's free memory that a network may use


@dataclass
class SmokeTestResults:
    """The results of a smoke test.

    Attributes:
        trials: index of a network in the spec -> its result.
        problem: why no network can be built here, such as a missing library; empty if some can.
    """

    trials: dict[int, SmokeTestResult] = field(default_factory=dict)
    problem: str = ""


def try_networks(
    spec: Spec,
    sample: SampleSpec,
    networks: Sequence[int],
    rates: RateTable | None,
    steps: bool,
    advance: Callable[[int], object],
    samples: Mapping[str, tuple[np.ndarray, np.ndarray]] | None,
) -> SmokeTestResults:
    """Build networks, take a step with each, and export those of users' functions.

    Args:
        spec: the spec.
        sample: the samples.
        networks: indices of networks in the spec.
        rates: the rates that the spec names, if any.
        steps: True to take a step.
        advance: called with the number of networks tested since the last call.
        samples: some data of each input pipeline, as in :class:`Request`.

    Raises:
        UserError: the engine cannot be created.
    """
    done = SmokeTestResults()
    untested = list(networks)
    while untested:
        before = len(untested)
        request = SmokeTestRequest(
            spec, sample, tuple(untested), rates, steps, int(_SHARE * free_memory()), samples or {}
        )
        # Leftovers of the process are deleted with its folder.
        with (
            tempfile.TemporaryFile() as log,
            tempfile.TemporaryDirectory(prefix="fleet-check-") as temporary,
            closing(_Process(request, log, temporary)) as process,
        ):
            for trial in _results_of(process, request, done):
                done.trials[trial.network] = trial
                untested.remove(trial.network)
                advance(1)
            if len(untested) == before and not done.problem:
                done.problem = (
                    "the process that builds networks ended before the first one"
                    f"{process.last_line()}"
                )
        if done.problem:
            break
    return done


class _Process:
    """The process that runs the tests; it prints to a file, and answers through a pipe."""

    def __init__(self, request: SmokeTestRequest, log: IO[bytes], temporary: str) -> None:
        self._log = log
        self.connection, child_end = Pipe()
        # Leave the GPUs of a login node to others; use the modules of this process.
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": temporary,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        with child_end:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[child_end.fileno()],
            )
        with suppress(BrokenPipeError):  # it has ended, which is noticed below
            self.connection.send(request)

    def find_hang(self) -> str:
        """Return the line of a user's module at which the process hangs, or an empty string."""
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
                user_frames = [frame for frame in frames if not _OF_LIBRARIES.search(frame[0])]
                file, line, function = (user_frames or frames)[0]
                return f"{file}, line {line}, in {function}"
        return ""

    def last_line(self) -> str:
        """Return the last line that it printed, as the end of a sentence."""
        self._log.seek(0)
        lines = [
            line.strip()
            for line in self._log.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
        if lines:
            return f"; its last line of output: {lines[-1][:200]}"
        return ""

    def close(self) -> None:
        """End the process, whatever its state."""
        self.popen.kill()
        self.connection.close()
        self.popen.wait()


def _results_of(
    process: _Process, request: SmokeTestRequest, done: SmokeTestResults
) -> Iterator[SmokeTestResult]:
    """Yield results of a process until it ends, and then of the network that ended it."""
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
            message = process.connection.recv()
        except (EOFError, OSError):
            has_ended = True
            break
        if "trial" in message:
            stage = ""
            index = None
            yield message["trial"]
        elif "stage" in message:
            stage = message["stage"]
            index = message.get("network")
        elif "missing" in message:
            done.problem = message["missing"]
        elif "unusable" in message:
            raise UserError(message["unusable"])
    if index is not None:
        if has_ended:
            problem = _describe_end(process)
        else:
            problem = _describe_hang(process, stage, limit)
        yield SmokeTestResult(index, problem)


def _describe_end(process: _Process) -> str:
    """Return why a process ended with a network."""
    status = process.popen.wait()
    output = process.last_line()
    if status >= 0:
        return f"it exited with status {status} and ended the process{output}"
    name = signal.Signals(-status).name
    return f"it crashed: {name}{', perhaps out of memory' if name == 'SIGKILL' else ''}{output}"


def _describe_hang(process: _Process, stage: str, limit_s: float) -> str:
    """Return where a process hangs."""
    location = process.find_hang()
    return (
        f"{stage} took longer than {format_duration(limit_s)} (train.build_timeout)"
        f"{f'; it was in {location}' if location else ''}"
    )
