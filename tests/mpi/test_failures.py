"""A network fails alone with a reason; a bug ends all ranks with one report."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet.api import mpirun
from fleet.domain.events import EpochEnded, GroupStarted, NetworkWarned
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from launch.mpirun_kinds import is_mpich
from tests.cluster.slurm import shared_memory
from tests.examples import long_but_first
from tests.mpi.conftest import ROOT, await_end, kill, rank_process, spec
from tests.places import RANK
from tests.waiting import wait_until

GOOD = {"family": "softmax", "name": "good"}


@pytest.mark.parametrize(
    ("function", "reason"),
    long_but_first(
        ("broken", "ValueError: unknown layer"),
        ("too_large", "out of memory: MemoryError: wanted 900 GB"),
        ("not_a_number", "the loss became nan in epoch 1"),
    ),
)
@pytest.mark.parametrize("gpus", long_but_first(2, 1))
def test_failed_network_is_a_row_and_the_others_go_on(launch, tmp_path, function, reason, gpus):
    bad = {"build": f"tests.sources:{function}", "name": "bad", "gpus": gpus}
    run = launch(3, spec(tmp_path, [bad, GOOD]))
    assert run.status == 3, run.output
    rows = run.results()
    assert rows["good"].status == "finished"
    assert rows["bad"].status == "failed"
    assert reason in rows["bad"].reason
    assert reason in run.output
    assert (
        "\nStatus 3: some networks failed; see the reasons in the table. The launcher" in run.output
    )


@pytest.mark.long
def test_bug_in_a_source_ends_all_ranks_with_one_report(launch, tmp_path):
    run = launch(
        5,
        spec(tmp_path, [GOOD], source="raising", resources={"engine": "numpy", "preprocessors": 2}),
    )
    assert run.status not in (0, 2, 3, 75)
    assert run.seconds < 30
    assert run.output.count("all ranks end") == 1
    assert "RuntimeError: the source has a bug" in run.output
    assert "fleet: rank 0 of 5 on " in run.output or "fleet: rank 1 of 5 on " in run.output


@pytest.mark.long
def test_wrong_sample_of_a_source_is_bad_input(launch, tmp_path):
    run = launch(3, spec(tmp_path, [GOOD], source="wrong"))
    assert run.status == 2, run.output
    assert "fleet: read(59) lacks the input y\n" in run.output
    assert "Traceback" not in run.output


@pytest.mark.long
def test_bug_in_a_trainer_ends_all_ranks(launch, tmp_path):
    process = launch.start(
        3, spec(tmp_path, [{**GOOD, "gpus": 2}]), program=(str(ROOT / "tests/mpi/trainer_bug.py"),)
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, 2, 3, 75)
    assert "fleet: rank 2 of 3 on " in output
    assert "RuntimeError: a bug outside of any model" in output
    await_end(process)


@pytest.mark.long
def test_second_launch_is_refused_until_first_is_killed(launch, tmp_path):
    content = spec(
        tmp_path, [GOOD], samples=600, source="slow", train={"stopping": {"max_epochs": 99}}
    )
    first = launch.start(2, content)
    wait_until((tmp_path / "run" / "events.jsonl").exists, first)
    second = launch(2, content, "--fresh")
    assert second.status == 2
    assert "another launch is running in this folder (process " in second.output
    assert second.events(EpochEnded)
    first.kill()  # the launcher alone: the ranks take a moment to end
    content["train"]["stopping"]["max_epochs"] = 1
    third = launch(2, content)
    first.communicate()
    assert third.status == 0, third.output
    assert third.results()["good"].status == "finished"


@pytest.mark.long
@pytest.mark.parametrize(
    ("stopped", "data", "message"),
    [
        (2, {"shared_memory": 3 * 64 * 16}, "the window is full, and reader"),
        (0, {}, "the preprocessor that should write it does not"),
        (0, {"order": "ring"}, "the preprocessor that should write it does not"),
    ],
    ids=["reader", "writer", "writer of a ring"],
)
def test_stopped_reader_or_writer_ends_all_ranks(launch, tmp_path, stopped, data, message):
    content = spec(
        tmp_path,
        [GOOD, {**GOOD, "name": "other"}],
        samples=2000,
        source="slow",
        data={**data, "data_timeout": "2s"},
        train={"stopping": {"max_epochs": 50}},
    )
    process = launch.start(3, content)
    wait_until(lambda: events_of(RunPaths(tmp_path / "run").events, GroupStarted), process)
    time.sleep(0.2)
    os.kill(rank_process(process.pid, stopped), signal.SIGSTOP)
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, 2, 3, 75), output
    late = (
        r"(good|other) on ranks [12]: chunk \d+ of the (stream|ring) has not arrived for 2 s "
        r"\(data.data_timeout\)"
    )
    assert re.search(late, output)
    assert message in output
    await_end(process)


@pytest.mark.long
def test_unreadable_sample_is_skipped_and_named(launch, tmp_path):
    run = launch(
        3, spec(tmp_path, [{**GOOD, "gpus": 2}], source="partly_bad", data={"max_unreadable": "5%"})
    )
    assert run.status == 0, run.output
    assert "skipped sample 5: torn file" in run.output
    assert run.paths.unreadable_samples.read_text().splitlines()[1] == "sample 5,torn file"
    assert {record.samples for record in run.history("good")} == {59}


@pytest.mark.long
def test_too_many_unreadable_samples_end_the_run(launch, tmp_path):
    run = launch(3, spec(tmp_path, [GOOD], source="partly_bad"))
    assert run.status == 2
    assert "1 of 60 samples are unreadable, more than data.max_unreadable: 1.00%" in run.output


@pytest.mark.long
def test_warning_of_networks_is_printed_once(launch, tmp_path):
    twins = [{"build": "tests.sources:warning", "name": name, "gpus": 2} for name in ("a", "b")]
    run = launch(3, spec(tmp_path, twins))
    assert run.status == 0, run.output
    assert run.output.count("a loss is not used") == 1
    assert [event.warning for event in run.events(NetworkWarned)] == ["a loss is not used"]


# ---- bad input: one clear message and status 2 before any rank waits ----


@pytest.mark.parametrize(
    ("change", "message"),
    long_but_first(
        ({"modles": []}, "unknown key 'modles'; did you mean models?"),
        ({"data": {"source": "image_folder", "path": "no/such/folder"}}, "no/such/folder"),
        ({"models": [{"build": "no_such_module:f"}]}, "no module 'no_such_module'"),
        ({"resources": {"engine": "numpy", "preprocessors": 3}}, "start at least 4 ranks"),
    ),
)
def test_bad_input_ends_with_status_2_before_any_rank_waits(launch, tmp_path, change, message):
    run = launch(3, spec(tmp_path, **{"models": [GOOD], **change}), timeout=30)
    assert run.status == 2, run.output
    assert message in run.output
    assert "Traceback" not in run.output
    assert not (tmp_path / "run").exists()


@pytest.mark.long_but_first
@pytest.mark.parametrize("prefix", ["OMPI_COMM_WORLD", "PMI"])  # of Open MPI, of MPICH
def test_rank_without_launcher_starts_no_run(prefix, tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**spec(tmp_path, [GOOD]), "output": str(tmp_path / "run")}))
    # The environment of a rank under mpirun.
    environment = {**os.environ, f"{prefix}_SIZE": "3", f"{prefix}_RANK": "0"}
    ended = subprocess.run(
        [sys.executable, "-m", "fleet.run", str(path)],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert "started 3 ranks, but MPI sees only this one" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_run_without_mpi4py_says_what_to_install(launch, tmp_path):
    # A rank 0 that is slower than the other one, which must not stop it before it reports.
    (tmp_path / "mpi4py.py").write_text(
        "import os, time\n"
        f"time.sleep(0 if int({RANK}) else 1)\n"
        "raise ModuleNotFoundError('absent', name='mpi4py')\n"
    )
    run = launch(
        2,
        spec(tmp_path, [GOOD]),
        environment={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert run.status == 2, run.output
    assert run.output.count("install it with Open MPI by pip install 'fleet-ensemble[keras]'") == 1
    assert "Traceback" not in run.output


def test_killed_launchers_remains_are_deleted_next_time(launch, tmp_path):
    content = spec(tmp_path, [GOOD], train={"stopping": {"max_epochs": 100_000}})
    process = launch.start(2, content)
    wait_until(lambda: events_of(RunPaths(tmp_path / "run").events, GroupStarted), process)
    files = [
        Path(file)
        for rank in range(2)
        for file in shared_memory(rank_process(process.pid, rank))
        if Path(file).exists()
    ]
    assert files
    assert list(tmp_path.glob("fleet.*"))
    kill(process)
    process.communicate()
    assert list(tmp_path.glob("ompi.*")) or is_mpich(mpirun(2)[0])  # which makes no folder
    for file in files:
        os.utime(file, (0, 0))
    doctor = launch(2, content, program=("-m", "fleet", "doctor"))  # a run does it silently
    assert "fleet doctor: removed" in doctor.output
    assert not any(file.exists() for file in files)
    assert not [*tmp_path.glob("ompi.*"), *tmp_path.glob("fleet.*"), *tmp_path.glob("__autograph*")]
