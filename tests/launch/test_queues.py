"""Queues of batch systems: parsing the output of their commands, and unexpected output."""

import pytest

from launch.errors import InputError
from launch.queues import QUEUES, lsf, pbs
from tests.fakes import put_programs
from tests.refusals import refused


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lsf.parse_jobs, "17 RUN fleet-1a"),
        (pbs.parse_jobs, "17 R fleet-1a"),
        (pbs.parse_jobs, '{"Jobs": {"17": {"Job_Name": "a"}}}'),
        (pbs.parse_jobs, "[]"),
        (pbs.parse_idle, "no"),
    ],
)
def test_parsers_quote_an_unexpected_format(read, text):
    with refused(InputError, "printed", text):
        read(text)


def test_own_jobs_lists_waiting_running_and_suspended_jobs(made_up):
    states = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "COMPLETED", "CONFIGURING")
    made_up.set({str(number): {"state": state} for number, state in enumerate(states, 1)})
    assert [(job.id, job.runs) for job in QUEUES["squeue"].own_jobs(["job"])] == [
        ("1", False),
        ("2", True),
        ("3", True),
        ("6", False),
    ]
    assert [
        (job.id, job.runs)
        for job in lsf.parse_jobs("1|PEND|a\n2|RUN|a\n3|SSUSP|a\n4|DONE|a\n5|EXIT|a\n")
    ] == [("1", False), ("2", True), ("3", True)]
    states = {"1": "Q", "2": "R", "3": "S", "4": "F", "5": "H"}
    jobs = ", ".join(
        f'"{id_}": {{"Job_Name": "a", "job_state": "{state}"}}' for id_, state in states.items()
    )
    assert [(job.id, job.runs) for job in pbs.parse_jobs(f'{{"Jobs": {{{jobs}}}}}')] == [
        ("1", False),
        ("2", True),
        ("3", True),
        ("5", False),
    ]


@pytest.mark.parametrize("name", QUEUES)
def test_queue_names_a_missing_batch_system(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (
        lambda: QUEUES[name].own_jobs(["a"]),
        lambda: QUEUES[name].idle_nodes(None),
        lambda: QUEUES[name].cancel("1"),
    ):
        with pytest.raises(InputError, match="is not on the PATH"):
            ask()


def test_cancel_ignores_a_job_that_has_ended(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    put_programs(
        tmp_path,
        {
            "bkill": "echo 'Job <17>: Job has already finished' >&2; exit 1",
            "qdel": "echo 'qdel: Job has finished 17.pbs' >&2; exit 1",
        },
    )
    for name in ("bjobs", "qstat"):
        QUEUES[name].cancel("17")
