"""The remaining walltime of a job under three batch systems."""

import time

import pytest

from launch.walltime import parse_bjobs, parse_qstat, seconds_left
from tests.fakes import put_programs

# The output of qstat for a running job under PBS Pro and Torque, only the lines about times.
PBS_PRO = """Job Id: 1234.pbs
    Job_Name = search
    resources_used.ncpus = 64
    resources_used.walltime = 00:10:03
    job_state = R
    Resource_List.walltime = 01:00:00
    stime = Fri Nov 20 13:00:00 2026
    Variable_List = PBS_O_HOME=/home/me,PBS_O_WORKDIR=/home/me,
\tPBS_O_QUEUE=prod
"""
TORQUE = PBS_PRO.replace("stime", "start_time").replace("01:00:00", "48:00:00")
STARTED = time.mktime(time.strptime("2026-11-20 13:00:00", "%Y-%m-%d %H:%M:%S"))


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put a fake command on the PATH that records its calls and runs a shell script."""

    def write(name, script):
        put_programs(tmp_path, {name: f'printf "%s\\n" "$@" > {tmp_path}/called\n{script}'})
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "called"

    return write


def test_seconds_left_is_none_outside_of_jobs():
    assert seconds_left({"PATH": "/nowhere"}) is None


def test_seconds_left_reads_slurms_environment():
    remaining_s = seconds_left(
        {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": str(int(time.time()) + 1000)}
    )
    assert 990 < remaining_s <= 1000
    assert seconds_left({"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "5"}) == 0


def test_seconds_left_is_at_most_the_walltime_of_slurm():
    now = int(time.time())
    assert (
        seconds_left(
            {
                "SLURM_JOB_ID": "17",
                "SLURM_JOB_START_TIME": str(now + 300),
                "SLURM_JOB_END_TIME": str(now + 1000),
            }
        )
        == 700
    )


@pytest.mark.parametrize(
    ("answer", "remaining_s"),
    [("1:00:10", 3610), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_seconds_left_asks_an_older_slurm(command, answer, remaining_s):
    called = command("squeue", f"echo {answer}")
    assert seconds_left({"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "soon"}) == remaining_s
    assert called.read_text().split() == ["--noheader", "--format=%L", "--jobs=17"]


@pytest.mark.parametrize(
    ("answer", "remaining_s"),
    [
        ("2:05 L", 7500),
        ("0:00 L", 0),
        ("0:12 E", None),
        ("0:00 X", None),
        ("-", None),
        ("Job <17> is not found", None),
    ],
)
def test_seconds_left_of_lsf_counts_only_limits(command, answer, remaining_s):
    called = command("bjobs", f"echo '{answer}'")
    assert seconds_left({"LSB_JOBID": "17"}) == remaining_s
    assert called.read_text().split() == ["-noheader", "-o", "time_left", "17"]
    assert parse_bjobs(f" {answer} \n") == remaining_s


def test_seconds_left_asks_pbs(command, tmp_path):
    (tmp_path / "answer").write_text(
        PBS_PRO.replace("stime = Fri Nov 20 13:00:00 2026", "stime = soon")
    )
    called = command("qstat", f"cat {tmp_path}/answer")
    assert seconds_left({"PBS_JOBID": "1234.pbs"}) == 3600 - 603
    assert called.read_text().split() == ["-f", "1234.pbs"]


@pytest.mark.parametrize(
    ("text", "after", "remaining_s"),
    [
        (PBS_PRO, 1200, 2400),  # the recorded use is older than the start time implies
        (PBS_PRO, 60, 2997),
        (PBS_PRO, 9999, 0),
        (TORQUE, 7200, 46 * 3600),
        (PBS_PRO.replace("Resource_List.walltime", "Resource_List.mem"), 0, None),
        ("Job Id: 1\n    Resource_List.walltime = 00:30:00\n", 0, 1800),
        ("qstat: Unknown Job Id 1234.pbs", 0, None),
    ],
)
def test_parse_qstat_uses_the_larger_of_used_and_elapsed_time(text, after, remaining_s):
    assert parse_qstat(text, STARTED + after) == remaining_s


def test_seconds_left_falls_back_to_the_walltime_of_torque(command):
    command("qstat", "exit 153")
    assert seconds_left({"PBS_JOBID": "17", "PBS_WALLTIME": "7200"}) == 7200
    assert seconds_left({"PBS_JOBID": "17"}) is None


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID"])
def test_seconds_left_is_none_if_commands_fail(command, monkeypatch, tmp_path, variable):
    for name in ("squeue", "bjobs", "qstat"):
        command(name, "head -c 10000 /dev/urandom")
    assert seconds_left({variable: "17"}) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert seconds_left({variable: "17"}) is None
