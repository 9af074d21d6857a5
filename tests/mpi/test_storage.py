"""A full or read-only disk ends the run with one message; everything saved so far is kept."""

import subprocess

import pytest

from fleet.storage.checkpoint import read_state
from tests.mpi.conftest import PYTHON, ROOT, spec

MODELS = [{"family": "softmax", "name": name} for name in ("a", "b")]


def content(folder):
    return {
        **spec(folder, MODELS, train={"stopping": {"max_epochs": 4}}),
        "output": str(folder / "run"),
    }


def check_message(run, reason):
    """Check that the run printed one line with the reason, and no traceback."""
    assert run.status == 1, run.output
    lines = [line for line in run.output.splitlines() if "cannot be written: " + reason in line]
    assert lines, run.output
    # mpirun may put a zero byte before a rank's output.
    assert lines[0].lstrip("\0").startswith("fleet: ")
    assert lines[0].endswith("and the same command resumes the run")
    assert "Traceback" not in run.output


@pytest.mark.long
@pytest.mark.parametrize("pages", [3, 9, 20])
def test_full_disk_ends_run_and_it_resumes_with_room(launch, full_disk, pages):
    ballast = full_disk / "ballast"
    ballast.write_bytes(bytes(4 * 1024 * 1024 - 4096 * pages))
    run = launch(3, content(full_disk))
    check_message(run, "No space left on device")
    saved = {
        name: read_state(run.paths.last(name)) for name in "ab" if run.paths.last(name).exists()
    }
    ballast.unlink()
    again = launch(3, content(full_disk))
    assert again.status == 0, again.output
    for name in "ab":
        assert again.results()[name].epochs == 4
        before = saved[name].history if name in saved else ()
        assert again.history(name)[: len(before)] == before  # no saved epoch is trained again
    assert again.paths.foreign_files() == []


@pytest.mark.long
def test_read_only_folder_ends_run_before_it_starts(launch, full_disk):
    stopped = launch(3, {**content(full_disk), "walltime": 0.001})
    assert stopped.status == 75, stopped.output
    subprocess.run(["mount", "-o", "remount,ro", full_disk], check=True)
    check_message(launch(3, content(full_disk)), "Read-only file system")
    subprocess.run(["mount", "-o", "remount,rw", full_disk], check=True)
    assert launch(3, content(full_disk)).status == 0


@pytest.mark.long
def test_full_disk_under_batch_log_ends_run_and_it_resumes(launch, tmp_path):
    spec_file = launch.write(content(tmp_path))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [PYTHON, "-m", "fleet.run", str(spec_file)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=launch.environment({}),
            timeout=90,
            check=False,
        )
    assert done.returncode == 1
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert launch(1, content(tmp_path)).status == 0
