"""Trying out all networks of a spec, each for a limited time, whatever users' functions do.

A process of its own does it (:mod:`fleet.engines.trial`). If it dies or hangs, the network that it was at is to blame,
and another process goes on with the others.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from fleet.engines.trial import Request, Trial
from fleet.errors import UserError
from fleet.spec import Spec
from fleet.units import format_duration
from launch.memory import free_memory
from preprocess.sample import SampleSpec
from scheduler.base import RateTable

_START_S = 300.0  # to import TensorFlow from a slow file system
_SPEAK_S = 3.0  # for a process that hangs to say where
_OF_LIBRARIES = re.compile(rf"/site-packages/|/lib/python[\d.]+/|^{re.escape(str(Path(__file__).parents[1]))}/")
_SHARE = 0.8  # of this machine's free memory that a network may take


@dataclass
class Trials:
    """What came out.

    Attributes:
        trials: by the places of networks in the spec.
        missing: why no network could be built here, such as a library that is not there; empty where some could.
    """

    trials: dict[int, Trial] = field(default_factory=dict)
    missing: str = ""


def try_networks(spec: Spec, sample: SampleSpec, networks: Sequence[int], rates: RateTable | None = None,
                 steps: bool = True, advance: Callable[[int], object] = lambda count: None,
                 samples: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None) -> Trials:
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
    done, left = Trials(), list(networks)
    while left:
        before = len(left)
        request = Request(spec, sample, tuple(left), rates, steps, int(_SHARE * free_memory()), samples or {})
        with _process(request) as process:
            for trial in _watched(process, request, done):
                done.trials[trial.network] = trial
                left.remove(trial.network)
                advance(1)
            if len(left) == before and not done.missing:
                done.missing = f"the process that should build them ended before it came to one{process.last_line()}"
        if done.missing:
            break
    return done


class _Process:
    """The process that tries; what it prints goes to a file."""

    def __init__(self, request: Request, log: IO[bytes], temporary: str) -> None:
        self._log = log
        # GPUs of the node where people check their specs are for others; its modules are those of this process.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1", "TMPDIR": temporary,
                       "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self.popen = subprocess.Popen([sys.executable, "-m", "fleet.engines.trial"], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=log, env=environment)
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self._lines = self.popen.stdout
        self._partial = b""
        with self.popen.stdin as pipe, suppress(BrokenPipeError):  # it has ended, as is heard below
            pickle.dump(request, pipe)

    def read(self, seconds: float) -> list[dict[str, Any]] | None:
        """What it has said within some seconds, perhaps nothing; None where it has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._lines, selectors.EVENT_READ)
            if not selector.select(seconds):
                return []
        if not (read := os.read(self._lines.fileno(), 1 << 16)):
            return None
        *lines, self._partial = (self._partial + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def where(self) -> str:
        """The place in a user's module at which it hangs; empty where it does not say."""
        size = self._log.seek(0, os.SEEK_END)
        self.popen.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _SPEAK_S
        while time.monotonic() < deadline:
            time.sleep(0.1)
            self._log.seek(size)
            frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', self._log.read().decode(errors="replace"))
            if frames:
                own = [frame for frame in frames if not _OF_LIBRARIES.search(frame[0])]
                file, line, function = (own or frames)[0]
                return f"{file}, line {line}, in {function}"
        return ""

    def last_line(self) -> str:
        """The last line that it has printed, as the end of a sentence."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"; the last that was printed: {lines[-1][:200]}" if lines else ""

    def end(self) -> int:
        """End it, however it is; returns the status that it had ended with, if it had."""
        self.popen.kill()
        status = self.popen.wait()
        self._lines.close()
        return status


@contextmanager
def _process(request: Request) -> Iterator[_Process]:
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="fleet-check-") as temporary:
        process = _Process(request, log, temporary)  # what it leaves there, as it is ended, goes with the folder
        try:
            yield process
        finally:
            process.end()


def _watched(process: _Process, request: Request, done: Trials) -> Iterator[Trial]:
    """The trials of a process until it ends, and that of the network with which it ends."""
    stage, index, since = "starting", None, time.monotonic()
    while True:
        limit = _START_S if index is None else request.spec.networks[index].train.build_timeout
        if (left := since + limit - time.monotonic()) <= 0:
            break
        lines = process.read(left)
        if lines is None:
            break
        for line in lines:
            since = time.monotonic()
            if "trial" in line:
                stage, index = "", None
                said: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value
                                        for key, value in line["trial"].items()}
                yield Trial(**said)
            elif "stage" in line:
                stage, index = line["stage"], line.get("network")
            elif "missing" in line:
                done.missing = line["missing"]
            elif "unusable" in line:
                raise UserError(line["unusable"])
    if index is not None:
        yield Trial(index, _ended(process) if left > 0 else _hung(process, stage, limit))


def _ended(process: _Process) -> str:
    """Why a process ended with a network."""
    status, heard = process.popen.wait(), process.last_line()
    if status >= 0:
        return f"it exited, with status {status}, and took the whole process along{heard}"
    name = signal.Signals(-status).name
    return f"it crashed: {name}{', as when memory runs out' if name == 'SIGKILL' else ''}{heard}"


def _hung(process: _Process, stage: str, limit_s: float) -> str:
    """Where a process hangs."""
    where = process.where()
    return (f"{stage} took longer than {format_duration(limit_s)} (train.build_timeout)"
            f"{f'; it was at {where}' if where else ''}")
