"""Jobs as printed by squeue."""

import pytest

from launch.base import clock_s
from launch.errors import InputError
from launch.slurm_jobs import SlurmJob, find_jobs, parse_comment, running_jobs
from tests.refusals import refused

START = "2026-11-22T10:00:00"


def commented(made_up, comment):
    """A job with a comment."""
    made_up.set({"17": {"comment": comment}})
    return find_jobs()["17"]


def test_find_jobs_reads_states_and_times(made_up):
    made_up.set(
        {
            "17": {"nodes": 4, "hosts": "n2,n1", "script": "/runs/a/job.sh"},
            "3_1": {
                "state": "COMPLETING",
                "user": "you",
                "partition": "high",
                "elapsed": "0:10",
                "hosts": "(null)",
            },
            "18": {"state": "PENDING", "nodes": "2K", "start": "N/A", "reason": "(JobHeldUser)"},
        }
    )
    jobs = find_jobs()
    assert jobs["17"] == SlurmJob(
        "17", 4, 3600, "low", "job", user="me", start=START, listed="n2,n1", script="/runs/a/job.sh"
    )
    assert jobs["3_1"] == SlurmJob(
        "3_1", 1, 10, "high", "job", user="you", state="COMPLETING", start=START
    )
    assert (jobs["18"].nodes, jobs["18"].reason, jobs["18"].is_held) == (2048, "JobHeldUser", True)
    assert [id_ for id_, job in jobs.items() if job.has_nodes] == ["17", "3_1"]
    assert [id_ for id_, job in jobs.items() if job.is_waiting] == ["18"]
    assert (jobs["17"].hosts, jobs["3_1"].hosts) == (("n2", "n1"), ())
    assert find_jobs("--jobs=3_1").keys() == {"3_1"}
    assert find_jobs("--jobs=4") == {}


def test_find_jobs_counts_a_signaled_job_as_running(made_up):
    made_up.set({"17": {"state": "SIGNALING"}})
    assert [job.id for job in running_jobs()] == ["17"]
    assert find_jobs()["17"].has_nodes


def test_running_jobs_selects_a_partition(made_up):
    made_up.set(
        {"1": {"partition": "long"}, "2": {}, "3": {"partition": "long", "state": "PENDING"}}
    )
    assert [job.id for job in running_jobs("long")] == ["1"]
    assert [job.id for job in running_jobs()] == ["1", "2"]
    made_up.set()
    assert running_jobs() == []


def test_find_jobs_quotes_a_failed_squeue(made_up, monkeypatch):
    made_up.set(
        says={
            "squeue": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
        }
    )
    with pytest.raises(
        InputError, match="squeue failed: slurm_load_jobs error: Unable to contact slurm controller"
    ):
        find_jobs()
    monkeypatch.setenv("PATH", "/")
    with pytest.raises(
        InputError, match="squeue is not on the PATH; is this machine part of the cluster"
    ):
        find_jobs()


def test_find_jobs_refuses_text_without_jobs(made_up):
    (made_up.folder / "squeue").write_text("#!/bin/sh\necho no jobs\n")
    with refused(InputError, "squeue printed 'no jobs'"):
        find_jobs()


# Whatever another user writes into a name or a comment, the operator gets a plan.

HOSTILE = "a\tb\n99\t500\t9-00:00:00\tdebug\tforged\tfleet:app_time=0\n\xff fleet:memory_gb=1"
# Print a job in the requested format, then another one with a hostile name and comment.
ANY_FORMAT = rf"""#!/usr/bin/env python3
import os, sys
option = next(word for word in sys.argv if word.startswith("--format="))
format_ = option.removeprefix("--format=").encode()
hostile = {HOSTILE!r}.encode("latin-1")
for fields in (
    (b"17", b"2", b"0:10", b"good", b"(null)"),
    (b"18", b"1K", b"INVALID", hostile, hostile),
):
    line = format_.replace(b"%T", b"RUNNING")
    for code, value in zip((b"%i", b"%D", b"%M", b"%j", b"%k"), fields):
        line = line.replace(code, value)
    os.write(1, line + b"\n")
"""


def test_find_jobs_is_safe_from_hostile_names(made_up):
    (made_up.folder / "squeue").write_text(ANY_FORMAT)
    hostile = HOSTILE.replace("\xff", "\\xff")
    assert [
        (job.id, job.nodes, job.elapsed_s, job.name, dict(job.checkpoint)) for job in running_jobs()
    ] == [("17", 2, 10, "good", {}), ("18", 1024, None, hostile, {"app_time": 0})]


@pytest.mark.parametrize("text", ["", "10", "INVALID", "1-10:00", "-1:00"])
def test_find_jobs_treats_invalid_times_as_unknown(text):
    assert clock_s(text) is None


@pytest.mark.parametrize(
    "comment",
    ["fleet:", "fleet:interval_min", "fleet:=3", "fleet:memory_gb=lots", "mine fleet:a=1,,b=2"],
)
def test_parse_comment_refuses_malformed_settings(comment):
    with pytest.raises(InputError, match="the comment of job 17 says 'fleet:.*name=number"):
        parse_comment("17", comment)


@pytest.mark.parametrize("comment", ["(null)", "", "my fleet of jobs", "notfleet:x=1"])
def test_parse_comment_ignores_other_comments(comment):
    assert parse_comment("17", comment) == ({}, None, None)


@pytest.mark.parametrize(
    ("message", "signal"),
    [
        ("fleet:signal=USR2,app_time=5", "USR2"),
        ("fleet:app_time=5,signal=B:TERM", "B:TERM"),
        ("fleet:app_time=5", None),
        ("(null)", None),
        ("fleet:signal=10", "10"),
    ],
)
def test_parse_comment_reads_the_signal(made_up, message, signal):
    job = commented(made_up, message)
    assert (job.signal, job.unread) == (signal, "")
    assert job.checkpoint == ({"app_time": 5.0} if "app_time" in message else {})


@pytest.mark.parametrize("signal", ["", "usr2", "USR2;reboot", "-9", "B:", "KILL USR2"])
def test_parse_comment_refuses_an_invalid_signal(made_up, signal):
    job = commented(made_up, f"fleet:signal={signal}")
    assert job.signal is None or signal == "KILL USR2"
    assert job.unread or signal == "KILL USR2"
