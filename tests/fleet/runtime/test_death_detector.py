"""Markers of ranks after signals."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fleet.storage.paths import RunPaths

_RANK = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from fleet.runtime.interrupt import Interruption
from fleet.runtime.death_detector import DeathDetector
from fleet.storage.paths import RunPaths

world = SimpleNamespace(
    rank=1,
    host="node",
    is_fault_tolerant=sys.argv[2] == "outlives",
    allgather=lambda value: [value] * 2,
)
interruption = Interruption(None)
interruption.watch()
detector = DeathDetector(world, RunPaths(Path(sys.argv[1])))
interruption.on_signal = detector.on_signal
detector.marker.set("good")
print("ready", flush=True)
time.sleep(20)
"""
_LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"


@pytest.fixture
def launcher(tmp_path):
    started = []

    def launch(how):
        environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2"}
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, "-c", _RANK, str(tmp_path), how],
            env=environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield launch
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def markers(tmp_path):
    return list(RunPaths(tmp_path).training.glob("*"))


def test_death_of_the_launcher_is_blamed_on_no_network(launcher, tmp_path):
    process = launcher("ends")
    assert markers(tmp_path)
    process.kill()
    until = time.monotonic() + 15
    while markers(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert not markers(tmp_path)


def test_death_of_a_fault_tolerant_rank_leaves_no_marker(launcher, tmp_path):
    launcher("outlives")
    assert not markers(tmp_path)
