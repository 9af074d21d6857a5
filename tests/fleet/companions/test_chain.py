"""Tests of chains of jobs, with scripts in place of mpirun."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.batch_systems import lease_of_process
from fleet.companions.batch_jobs.job_events import ChainCancelled, JobStarted
from fleet.companions.batch_jobs.launching import BatchJob
from fleet.companions.chains.chain import (
    ChainHistory,
    JobStop,
    JobStopped,
    add_note,
    find_end,
)
from fleet.domain.events import LaunchStarted, ScheduleOptions
from fleet.domain.json_record import to_json
from fleet.storage.paths import RunPaths
from launch.systems import SYSTEMS
from scheduler.base import Delta
from tests.fakes import put_programs
from tests.places import ROOT
from tests.waiting import wait_until

STARTED = LaunchStarted(
    1,
    1,
    1,
    1,
    1,
    "baseline",
    (),
    0,
    60,
    (0,),
    "free",
    ScheduleOptions(0.8, Delta(0.15, relative=True), True, 0),
    {},
)
STOPPED = JobStop(75)
FAILED = JobStop(1)
LOST = JobStop(None)


@pytest.mark.parametrize(
    ("stops", "reason"),
    [
        ([STOPPED], ""),
        ([STOPPED] * 4, ""),
        ([STOPPED] * 5, "jobs of the chain have run 5 times (jobs: 5)"),
        ([JobStop(0)], "all networks finished"),
        ([JobStop(2)], "the spec or the arguments are invalid"),
        ([JobStop(3)], "some networks failed"),
        ([FAILED, JobStop(139)], ""),
        ([FAILED, STOPPED, FAILED, JobStop(127)], "the machine failed 3 times (retries: 2)"),
        ([JobStop(1, warned=True)] * 4, ""),
        ([LOST] * 4, ""),
        ([LOST] * 5, "jobs of the chain have run 5 times (jobs: 5)"),
    ],
    ids=str,
)
def test_find_end_after_newest_stop(stops, reason):
    end = find_end(stops, max_jobs=5, retries=2)
    assert end.startswith(reason)
    assert bool(end) is bool(reason)


@given(
    st.lists(
        st.builds(JobStop, st.sampled_from([75, 1, 137, 143, None]), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 8),
    st.integers(0, 4),
)
def test_chain_ends_after_its_limits(stops, jobs, retries):
    length = next(
        (count for count in range(1, len(stops) + 1) if find_end(stops[:count], jobs, retries)),
        len(stops),
    )
    assert length <= jobs
    assert sum(stop.is_failure for stop in stops[:length]) <= retries + 1


def test_chain_continues_with_its_successor_only(
    tmp_path,
):
    paths = RunPaths(tmp_path)
    assert ChainHistory.read(paths).stops_before("1") == []
    for job, status, following in (("1", 75, "1"), ("1", 1, "2"), ("2", 75, None)):
        add_note(paths, JobStarted(job))
        add_note(paths, JobStopped(job, JobStop(status), "", next=following))
    assert ChainHistory.read(paths).stops_before("3") == []
    add_note(paths, JobStarted("3"))
    add_note(paths, JobStopped("3", JobStop(75, warned=True), "", next="4"))
    assert ChainHistory.read(paths).stops_before("4") == [JobStop(75, warned=True)]
    assert ChainHistory.read(paths).stops_before("3") == []


# ---- a job ---------------------------------------------------------------------------------------

# A launch: it logs what a run would, and ends as the next line of a file says: "status end" (end
# may be -, for none), with "waits" if it is to wait for a signal, and "early" if it ends before it
# has started.
LAUNCH = """
import json, os, signal, sys, time
run = sys.argv[1]
lines = open(f"{run}/script").read().split("\\n")
with open(f"{run}/launches", "a") as file: file.write("x")
with open(f"{run}/arguments", "a") as file:
    file.write(" ".join([os.environ["FLEET_SYSTEM"], *sys.argv[2:]]) + "\\n")
status, end, *more = lines[os.path.getsize(f"{run}/launches") - 1].split()
if "early" in more: sys.exit(int(status))
warned = []
signal.signal(signal.SIGUSR2, lambda number, frame: warned.append(number))
with open(f"{run}/events.jsonl", "a", buffering=1) as log:
    log.write(open(f"{run}/started").read())
    while "waits" in more and not warned: time.sleep(0.01)
    if warned: log.write('{"event": "interrupted", "reason": "SIGUSR2 came"}\\n')
    if end != "-": log.write('{"event": "end", "status": %s}\\n' % end)
sys.exit(int(status))
"""


@pytest.fixture
def job(tmp_path):
    """Return a function that starts a job whose launches end as given."""
    root = tmp_path / "run"
    root.mkdir()
    (tmp_path / "played.py").write_text(LAUNCH)

    def start(*launches, arguments=(), system="local", prefix=(), **environment):
        (root / "script").write_text("\n".join(launches))
        (root / "started").write_text(json.dumps({"t_s": 0.0, **to_json(STARTED)}) + "\n")
        command = [
            sys.executable,
            "-m",
            "fleet",
            "job",
            "run",
            "--system",
            system,
            "--jobs=5",
            "--retries=1",
            *arguments,
            "--",
            sys.executable,
            "played.py",
            str(root),
        ]
        return subprocess.Popen(
            [*prefix, *command],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )

    def finished(*launches, **options):
        process = start(*launches, **options)
        process.stderr_text = process.communicate(timeout=60)[1]
        return process

    def stops():
        lines = [json.loads(line) for line in RunPaths(root).stops.read_text().splitlines()]
        return [line for line in lines if line["event"] == "stopped"]

    finished.start, finished.stops, finished.root = start, stops, root
    return finished


def test_once_options_apply_until_a_launch_has_started(job):
    once = ["--once=--fresh-network=a", "--once=--remeasure"]
    (job.root / "events.jsonl").write_text(
        json.dumps({"t_s": 0.0, **to_json(STARTED)}) + "\n"
    )  # of an earlier chain
    assert job("1 - early", "75 75", "0 0", arguments=once).returncode == 0
    assert (job.root / "arguments").read_text().splitlines() == [
        "local --fresh-network=a --remeasure",
        "local --fresh-network=a --remeasure",
        "local",
    ]


def test_local_job_launches_until_all_networks_are_done(job):
    ended = job("75 75", "75 75", "0 0", "never")
    assert ended.returncode == 0, ended.stderr_text
    assert [stop["status"] for stop in job.stops()] == [75, 75, 0]


def test_full_disk_ends_the_chain(job):
    ended = job(
        "1 -", "0 0", prefix=["bash", "-c", 'ulimit -f 500; exec "$@"', "-"]
    )  # files of 500 KiB at most
    assert ended.returncode == 1
    (stop,) = job.stops()
    assert "cannot be written: File too large" in stop["then"]
    assert not list(job.root.rglob("*.tmp"))


def test_launcher_status_0_without_end_of_run_is_a_failure(job):
    assert job("75 75", "0 -", "0 0").returncode == 0
    assert [(stop["status"], stop["then"]) for stop in job.stops()] == [
        (75, "networks remain"),
        (1, "networks remain"),
        (0, "all networks finished"),
    ]
    assert "its launcher ended with status 0" in job.stops()[1]["why"]


@pytest.mark.long_but_first
@pytest.mark.parametrize("launch", ["2 -", "3 3"])
def test_invalid_input_and_failed_networks_end_the_chain(job, launch):
    assert job(launch, "0 0").returncode == int(launch[0])
    assert len(job.stops()) == 1


def test_chain_retries_machine_failures_up_to_retries(job):
    ended = job("1 -", "7 -", "0 0")
    assert ended.returncode == 7
    assert "twice" not in ended.stderr_text
    assert job.stops()[-1]["then"] == "the machine failed 2 times (retries: 1)"
    assert job.stops()[-1]["next"] is None


def test_job_warns_its_launch_if_the_system_does_not(job):
    assert job("75 75 waits", "0 0", arguments=["--warn-after", "3"]).returncode == 0
    assert job.stops()[0]["warned"] is True
    assert job.stops()[0]["why"] == "SIGUSR2 came"


def wait_until_it_logs(job):
    wait_until((job.root / "events.jsonl").exists)
    time.sleep(0.2)


@pytest.mark.long_but_first
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_signal_reaches_launch_as_sigusr2_and_ends_local_chain(job, number):
    process = job.start("75 75 waits", "0 0")
    wait_until_it_logs(job)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert [(stop["status"], stop["warned"], stop["then"]) for stop in job.stops()] == [
        (75, True, "it received a signal to stop")
    ]


def test_second_interrupt_ends_the_launch_immediately(tmp_path):
    sent = []
    warned = BatchJob(RunPaths(tmp_path), SYSTEMS["local"], "1")
    warned._process = SimpleNamespace(returncode=None, send_signal=sent.append)
    for _ in range(2):
        warned._pass_on(signal.SIGINT, None)
    assert sent == [signal.SIGUSR2, signal.SIGINT]


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Install a scontrol that only records that it requeues a job."""
    put_programs(
        tmp_path,
        {"scontrol": f'[ $1 = show ] && cat {tmp_path}/state || echo "$@" >> {tmp_path}/called'},
    )
    (tmp_path / "state").write_text("PreemptTime=None")
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}


def test_job_on_batch_system_launches_once_and_requeues(job, scontrol, tmp_path):
    assert job("75 75", "0 0", system="slurm", **scontrol).returncode == 75
    assert (tmp_path / "called").read_text() == "requeue 17\n"
    assert job("75 75", "0 0", system="slurm", **scontrol).returncode == 0
    assert (tmp_path / "called").read_text() == "requeue 17\n"
    assert [(stop["job"], stop["next"]) for stop in job.stops()] == [("17", "17"), ("17", None)]


@pytest.mark.long
def test_launch_ended_by_preemption_is_no_failure(job, scontrol, tmp_path):
    (tmp_path / "state").write_text("PreemptTime=2026-11-20T14:29:52")
    for _ in range(3):
        assert job(*["1 -"] * 3, system="slurm", **scontrol).returncode == 1
    assert [stop["then"] for stop in job.stops()] == ["networks remain"] * 3
    assert job.stops()[0]["why"].endswith("after a preemption")


def test_next_job_notes_job_that_ended_without_reporting(job, scontrol):
    add_note(RunPaths(job.root), JobStarted("17"))
    assert job("0 0", system="slurm", **scontrol).returncode == 0
    assert [(stop["status"], stop["next"]) for stop in job.stops()] == [(None, "17"), (0, None)]


def test_job_requeued_too_often_does_nothing(job, scontrol):
    for _ in range(5):
        add_note(RunPaths(job.root), JobStarted("17"))
        add_note(RunPaths(job.root), JobStopped("17", LOST, "", next="17"))
    ended = job("0 0", system="slurm", **scontrol)
    assert ended.returncode == 75
    assert "jobs of the chain have run 5 times (jobs: 5)" in ended.stderr_text
    assert not (job.root / "launches").exists()


def test_failed_submission_is_reported(job, scontrol, tmp_path):
    put_programs(tmp_path, {"scontrol": "exit 1", "sbatch": "echo 'invalid partition' >&2; exit 1"})
    assert job("75 75", system="slurm", **scontrol).returncode == 75
    assert job.stops()[-1]["then"].endswith(
        "no other job could be submitted: sbatch failed: invalid partition"
    )


def test_incomplete_line_does_not_hide_the_next(tmp_path):
    paths = RunPaths(tmp_path)
    add_note(paths, JobStarted("1"))
    with open(paths.stops, "a") as file:
        file.write('{"time": "2026-')
    add_note(paths, JobStopped("1", STOPPED, "", next="2"))
    assert ChainHistory.read(paths).stops_before("2") == [STOPPED]


def test_file_of_stops_has_the_format_of_0_1_0(tmp_path):
    paths = RunPaths(tmp_path)
    paths.jobs.mkdir()
    paths.stops.write_text(
        '{"time": "2026-11-20T10:00:00+00:00", "event": "begun", "job": "1"}\n'
        '{"time": "2026-11-20T11:00:00+00:00", "event": "stopped", "job": "1", "status": null, '
        '"warned": false, "next": "2", '
        '"why": "it ended without reporting: preempted, killed, or its node died"}\n'
        '{"time": "2026-11-20T11:00:01+00:00", "event": "begun", "job": "2"}\n'
        '{"time": "2026-11-20T12:00:00+00:00", "event": "stopped", "job": "2", "status": 75, '
        '"warned": true, "why": "SIGUSR2 came", "next": "3", "then": "networks remain"}\n'
    )
    assert ChainHistory.read(paths).stops_before("3") == [LOST, JobStop(75, warned=True)]
    add_note(
        paths,
        JobStopped("2", JobStop(75, warned=True), "SIGUSR2 came", next="3", then="networks remain"),
    )
    *_, before, written = (json.loads(line) for line in paths.stops.read_text().splitlines())
    assert list(written) == list(before)
    assert {**written, "time": ""} == {**before, "time": ""}


def test_damaged_lines_of_stops_are_skipped(tmp_path):
    paths = RunPaths(tmp_path)
    add_note(paths, JobStopped("1", STOPPED, "", next="2"))
    with open(paths.stops, "a") as file:
        file.write('{"event": "stopped", "job": "1"}\n{"job": "1"}\n')
    assert ChainHistory.read(paths).stops_before("2") == [STOPPED]


@pytest.mark.long
def test_missing_launcher_is_recorded(job):
    command = [
        sys.executable,
        "-m",
        "fleet",
        "job",
        str(job.root),
        "--system",
        "local",
        "--",
        "missing-launcher",
    ]
    for count in (1, 2):
        ended = subprocess.run(
            command,
            cwd=job.root.parent,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert ended.returncode == 2
        assert [(stop["status"], stop["why"], stop["next"]) for stop in job.stops()] == [
            (2, f"missing-launcher cannot be started: {os.strerror(errno.ENOENT)}", None)
        ] * count


@pytest.mark.long
def test_second_chain_in_same_folder_is_refused(job):
    with lease_of_process({}) as lease:
        lease.take(RunPaths(job.root).jobs_lease)
        ended = job("0 0")
    assert ended.returncode == 2
    assert "another launch is running in this folder" in ended.stderr_text
    assert not RunPaths(job.root).stops.exists()


def test_nothing_is_launched_if_stops_cannot_be_written(job):
    (job.root / "jobs").touch()
    ended = job("0 0")
    assert ended.returncode == 1
    assert ended.stderr_text.startswith("fleet job: ")
    assert len(ended.stderr_text.splitlines()) == 1
    assert not (job.root / "launches").exists()


def test_job_outside_batch_or_without_launcher_is_refused(job):
    ended = job("0 0", system="pbs")
    assert ended.returncode == 2
    assert "PBS_JOBID is not set" in ended.stderr_text


@pytest.mark.long
def test_cancelled_chain_submits_no_job(job, tmp_path):
    process = job.start("75 75 waits", system="slurm", SLURM_JOB_ID="17")
    paths = RunPaths(job.root)
    wait_until_it_logs(job)
    add_note(paths, ChainCancelled())
    process.send_signal(signal.SIGUSR2)
    assert "the chain was cancelled (fleet submit --end)" in process.communicate(timeout=60)[1]
    assert [(stop["status"], stop["next"]) for stop in job.stops()] == [(75, None)]
    again = job(
        "0 0", system="slurm", SLURM_JOB_ID="17"
    )  # its batch system requeues it after a node has died
    assert again.returncode == 75
    assert len((job.root / "launches").read_text()) == 1
    assert (
        job("0 0", "0 0", system="slurm", SLURM_JOB_ID="18").returncode == 0
    )  # submitted by a user later
