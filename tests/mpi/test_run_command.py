"""`fleet run` starts a launch on this machine, and hands on its status."""

import os
import signal
import subprocess
import sys

import pytest

from fleet.errors import ExitStatus
from fleet.storage.results import read_results
from tests.waiting import wait_until


def fleet(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "fleet", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def spec_of(launch, tmp_path, epochs=2):
    return launch.write(
        {
            "data": {
                "source": "builtin:digits",
                "transforms": [{"decode": {"mode": "L"}}, {"scale": {}}],
            },
            "models": [{"family": "softmax", "name": "net"}],
            "train": {"stopping": {"max_epochs": epochs}},
            "resources": {"engine": "numpy"},
            "output": str(tmp_path / "run"),
        }
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_run_trains_and_prints_the_mpirun_line(launch, tmp_path, ranks):
    process = fleet("run", spec_of(launch, tmp_path), "-n", ranks)
    out, err = process.communicate(timeout=300)
    assert process.returncode == ExitStatus.OK, err
    assert f"mpirun -n {ranks} " in err
    assert "-m fleet.run" in err
    assert "the best network first" in out
    assert [row.epochs for row in read_results(tmp_path / "run")] == [2]


def test_run_reports_a_mistake_before_it_starts_ranks(launch, tmp_path):
    spec = launch.write({"models": [{"family": "sofmax"}], "output": str(tmp_path / "run")})
    process = fleet("run", spec, "-n", 2)
    _, err = process.communicate(timeout=300)
    assert process.returncode == ExitStatus.BAD_INPUT
    assert "did you mean softmax?" in err
    assert "mpirun" not in err


def test_run_saves_and_ends_upon_ctrl_c(launch, tmp_path):
    spec = spec_of(launch, tmp_path, epochs=100_000)
    process = fleet("run", spec, "-n", 2, start_new_session=True)
    events = tmp_path / "run" / "events.jsonl"
    wait_until(lambda: events.exists() and "epoch" in events.read_text(), process, 120)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == ExitStatus.RESUMABLE, err
