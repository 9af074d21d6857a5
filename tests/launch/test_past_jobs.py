"""Durations of past jobs from the accounting of a batch system."""

import json
import os

import pytest

from launch.errors import InputError
from launch.systems import SYSTEMS, past_runs
from tests.fakes import put_programs
from tests.refusals import refused


def test_past_runs_add_up_the_runs_of_completed_jobs(made_up):
    made_up.set(
        past=[
            "17|REQUEUED|600",
            "17|COMPLETED|300",
            "18|TIMEOUT|60",
            "19|COMPLETED|500",
            "20|COMPLETED|0",
            "a wrapper's word",
            "21|COMPLETED|soon",
        ]
    )
    assert past_runs(SYSTEMS["slurm"], "photos", "me") == [900.0, 500.0]


def test_past_runs_quotes_disabled_accounting(made_up):
    made_up.set(says={"sacct": "Slurm accounting storage is disabled"})
    with pytest.raises(InputError, match="sacct failed: Slurm accounting storage is disabled"):
        past_runs(SYSTEMS["slurm"], "photos", "me")


PBS = {
    "17.pbs": {
        "job_state": "F",
        "Exit_status": 0,
        "resources_used": {"walltime": "01:00:05", "cput": "03:00:00"},
    },
    "18.pbs": {"job_state": "F", "Exit_status": 75, "resources_used": {"walltime": "00:10:00"}},
    "19.pbs": {"job_state": "R", "resources_used": {"walltime": "00:00:07"}},
    "20.pbs": {"job_state": "F", "Exit_status": 271},  # deleted before it started
    "21.pbs": {"job_state": "F", "Exit_status": 0, "resources_used": {"walltime": "100:00:00"}},
    "22.pbs": {"job_state": "F", "Exit_status": 0, "resources_used": {"walltime": "00:00:00"}},
}


@pytest.fixture
def pbs(tmp_path, monkeypatch):
    """Make a fake PBS print ids and records; return its commands. No real PBS was available."""

    def install(ids, records):
        put_programs(
            tmp_path,
            {
                name: f"echo \"{name} $*\" >> {tmp_path}/asked\ncat <<'END'\n{text}\nEND"
                for name, text in (("qselect", "\n".join(ids)), ("qstat", records))
            },
        )
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return lambda: (tmp_path / "asked").read_text().splitlines()

    return install


def test_past_runs_of_pbs_reads_the_servers_history(pbs):
    requests = pbs(PBS, json.dumps({"timestamp": 1, "Jobs": PBS}))
    assert past_runs(SYSTEMS["pbs"], "photos", "me") == [3605.0, 360_000.0]
    assert requests() == [
        "qselect -x -N photos -u me",
        "qstat -x -f -F json 17.pbs 18.pbs 19.pbs 20.pbs 21.pbs 22.pbs",
    ]


def test_past_runs_of_pbs_stops_without_history(pbs):
    requests = pbs([], "")
    assert past_runs(SYSTEMS["pbs"], "photos", "me") == []
    assert len(requests()) == 1


@pytest.mark.parametrize(
    "message",
    [
        "qstat: PBS is not configured to maintain job history",
        '{"Jobs": [17]}',
        '{"Jobs": {"17.pbs": {}}}',
    ],
)
def test_past_runs_quotes_an_unknown_format_of_pbs(pbs, message):
    pbs(["17.pbs"], message)
    with refused(InputError, "qstat", message[:20]):
        past_runs(SYSTEMS["pbs"], "photos", "me")


def test_past_runs_of_lsf_reads_its_history(tmp_path, monkeypatch):
    """The output of LSF follows its manual; no real LSF was available."""
    put_programs(
        tmp_path,
        {
            "bjobs": 'printf \'%s\\n\' "$@" > "$0.asked"\n'
            "printf '%s second(s)\\n' '31|DONE|300' '32|EXIT|40' '33|RUN|7' '34|DONE|20'"
        },
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert past_runs(SYSTEMS["lsf"], "photos", "me") == [300.0, 20.0]
    assert (tmp_path / "bjobs.asked").read_text().splitlines() == [
        "-a",
        "-noheader",
        "-J",
        "photos",
        "-u",
        "me",
        "-o",
        "jobid stat run_time delimiter='|'",
    ]


def test_past_runs_refuses_a_system_without_records():
    with refused(InputError, "local", "past jobs"):
        past_runs(SYSTEMS["local"], "photos", "me")
