"""`fleet run` starts a launch on this machine, and hands on its status."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fleet import local_launch
from fleet.domain.events import LaunchInterrupted
from fleet.errors import ExitStatus, InfrastructureError
from fleet.storage.event_log import events_of
from fleet.storage.lease import newest_state
from fleet.storage.results import read_results
from tests.examples import long_but_first
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


@pytest.mark.parametrize("ranks", long_but_first(2, 1, 3))
def test_run_trains_and_prints_the_mpirun_line(launch, tmp_path, ranks):
    process = fleet("run", spec_of(launch, tmp_path), "-np" if ranks == 2 else "-n", ranks)
    out, err = process.communicate(timeout=300)
    assert process.returncode == ExitStatus.OK, err
    assert f"mpirun -n {ranks} " in err
    assert "-m fleet.run" in err
    assert "the best network first" in out
    assert [row.epochs for row in read_results(tmp_path / "run")] == [2]


def test_check_temporary_folder_says_that_it_is_full(tmp_path, monkeypatch):
    def fail(dir):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(local_launch.tempfile, "TemporaryFile", fail)
    with pytest.raises(InfrastructureError, match=f"{tmp_path}: No space left on device"):
        local_launch.check_temporary_folder()


def test_run_reports_a_mistake_before_it_starts_ranks(launch, tmp_path):
    spec = launch.write(
        {
            "models": [{"family": "sofmax"}],
            "resources": {"engine": "numpy"},
            "output": str(tmp_path / "run"),
        }
    )
    process = fleet("run", spec, "-n", 2)
    _, err = process.communicate(timeout=300)
    assert process.returncode == ExitStatus.BAD_INPUT
    assert "did you mean softmax?" in err
    assert "mpirun" not in err


@pytest.fixture
def endless(launch, tmp_path):
    """Start a run without end; return its process, and a function that waits for its epochs."""
    spec = spec_of(launch, tmp_path, epochs=100_000)
    processes = []

    def start(ranks=2):
        process = fleet("run", spec, "-n", ranks, start_new_session=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def await_epochs(process, tmp_path, count=1):
    events = tmp_path / "run" / "events.jsonl"
    wait_until(lambda: events.exists() and events.read_text().count("epoch") > count, process, 120)


def ranks_of(spec):
    """Return the processes of a launch."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"fleet.run\0" + os.fsencode(spec) in (folder / "cmdline").read_bytes():
                processes.append(folder.name)
    return processes


@pytest.mark.parametrize("ranks", long_but_first(3, 1, 5))
def test_run_saves_and_ends_upon_ctrl_c(endless, tmp_path, ranks):
    process = endless(ranks)
    await_epochs(process, tmp_path)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == ExitStatus.RESUMABLE, err
    assert "the best network first" in out
    last = out.splitlines()[-1]
    assert last.startswith("Status 75: ")
    assert f"fleet run {tmp_path}/spec.yaml -n {ranks} resumes the run." in last
    assert "prterun" not in err


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_run_saves_and_ends_upon_other_signals(endless, tmp_path, number):
    process = endless()
    await_epochs(process, tmp_path)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == ExitStatus.RESUMABLE, err


def test_ranks_save_and_end_if_fleet_run_is_killed(endless, tmp_path):
    process = endless()
    await_epochs(process, tmp_path)
    process.kill()
    process.communicate(timeout=60)  # the launch has closed its output
    wait_until(lambda: not ranks_of(tmp_path / "spec.yaml"), seconds=60)
    assert events_of(tmp_path / "run" / "events.jsonl", LaunchInterrupted)


def test_second_ctrl_c_ends_run_at_once(endless, tmp_path):
    process = endless(3)
    await_epochs(process, tmp_path)
    for number in ranks_of(tmp_path / "spec.yaml"):
        os.kill(int(number), signal.SIGSTOP)  # so that they cannot save
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.5)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - began < 30
    assert "Traceback" not in err
    assert "prterun" not in err
    assert "resumes the run" in err.splitlines()[-1]
    assert ranks_of(tmp_path / "spec.yaml") == []
    assert newest_state(tmp_path / "run" / ".fleet-lease").is_free


@pytest.mark.long
def test_ctrl_c_before_training_loses_nothing(endless, tmp_path):
    process = endless(3)
    for line in process.stderr:
        if "mpirun" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.RESUMABLE
    assert "nothing is lost" in err
    assert "prterun" not in err
    assert ranks_of(tmp_path / "spec.yaml") == []
    again = endless(3)
    await_epochs(again, tmp_path)
    os.kill(again.pid, signal.SIGINT)
    again.communicate(timeout=300)
    assert again.returncode == ExitStatus.RESUMABLE
