"""Start ``mpirun`` from a test and read the files of the run."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from fleet.api import mpirun
from fleet.runtime.replay import largest_difference
from fleet.storage.checkpoint import read_state
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from launch.processes import kill_launch, launch_members
from tests.places import ON_ONE_MACHINE, RANK_VARIABLES, ROOT
from tests.waiting import wait_until


@dataclass(frozen=True)
class Launch:
    """A finished launch: its exit status, output, duration and folder."""

    status: int
    output: str
    seconds: float
    paths: RunPaths

    def events(self, kind):
        return events_of(self.paths.events, kind)

    def results(self):
        return {row.name: row for row in read_results(self.paths.root)}

    def history(self, name):
        return read_state(self.paths.last(name), with_arrays=False).history

    def differs(self, name):
        """Return the largest relative difference between a network's history and its replay."""
        replay = replace(self, paths=RunPaths(self.paths.replay(name)))
        return largest_difference(self.history(name), replay.history(name))


def spec(tmp_path, models, samples=60, source="numbered", **parts):
    """Return a spec on generated samples for the numpy engine, whose samples are not stored."""
    content = {
        "name": "test",
        "seed": 5,
        "output": str(tmp_path / "run"),
        "data": {
            "source": f"tests.sources:{source}",
            "path": str(samples),
            "validation": None,
            "transforms": ["tests.sources:noise", {"scale": {"mean": 0.5, "std": 0.5}}],
            "cache": "none",
        },
        "models": models,
        "train": {
            "batch": {"size": 8},
            "optimizer": {"name": "sgd", "learning_rate": 0.02, "momentum": 0.5},
            "stopping": {"max_epochs": 3},
        },
        "profile": {"batches": 4, "timed": 2, "max_gpus": 2},
        "resources": {"engine": "numpy"},
    }
    for key, value in parts.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    return content


class Launcher:
    """Starts ranks with a separate cache of rates and Open MPI session folder.

    See tests/conftest.py.
    """

    def __init__(self, folder):
        self.folder = folder

    def environment(self, extra):
        # If this process was started by an MPI, its variables would confuse another one.
        plain = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "MPI_LOCAL"))
        }
        return {
            **plain,
            **ON_ONE_MACHINE,
            "TMPDIR": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **extra,
        }

    def write(self, content):
        path = self.folder / "spec.yaml"
        path.write_text(yaml.safe_dump(content) if isinstance(content, dict) else content)
        return path

    def start(
        self,
        ranks,
        content,
        *arguments,
        program=("-m", "fleet.run"),
        environment=None,
        survive=False,
    ):
        """Start the launch and return its process."""
        command = [*mpirun(ranks, survive), *program, str(self.write(content)), *arguments]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment(environment or {}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __call__(self, ranks, content, *arguments, timeout=90, **options):
        """Start the launch, wait for its end, and fail the test if it takes too long."""
        began = time.monotonic()
        process = self.start(ranks, content, *arguments, **options)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill(process)
            output, _ = process.communicate()
            pytest.fail(f"no end after {timeout} s:\n{output[-5000:]}")
        root = content["output"] if isinstance(content, dict) else self.folder / "run"
        return Launch(process.returncode, output, time.monotonic() - began, RunPaths(Path(root)))


def send_all(process, number):
    """Send a signal to the launcher and all ranks."""
    for pid in launch_members(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill(process):
    """Kill a launch, and wait until the launcher and all ranks have ended."""
    members = launch_members(process.pid)
    process.kill()
    kill_launch(process.pid, members, patience_s=10)
    await_end(process)


def await_end(process):
    """Wait until the launcher and all ranks have ended; killed processes take a moment."""
    wait_until(lambda: not launch_members(process.pid), seconds=10)


def rank_process(launcher, rank):
    """Return the process id of a rank."""
    for pid in launch_members(launcher):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if {f"{name}={rank}".encode() for name in RANK_VARIABLES} & {*variables}:
            return pid
    raise LookupError(f"no process is rank {rank}")


@pytest.fixture
def launch(tmp_path):
    return Launcher(tmp_path)


def read_lines(folder):
    """Return the JSON lines of all files of a folder."""
    return [
        json.loads(line)
        for file in sorted(folder.iterdir())
        for line in file.read_text().splitlines()
    ]


PYTHON = sys.executable
