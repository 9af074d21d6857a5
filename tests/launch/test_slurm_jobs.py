"""Running jobs as squeue tells them: what a Slurm 22.05 printed, and what it might."""

import re
from pathlib import Path

import pytest

from launch.base import InputError
from launch.slurm_jobs import SlurmJob, parse_comment, parse_elapsed, parse_squeue, running_jobs

RECORDED = Path(__file__).with_name("squeue.txt").read_text()


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Put a squeue on the PATH that writes down how it was called and does what a shell script says."""
    def write(script):
        fake = tmp_path / "squeue"
        fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\n{script}\n')
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "called"
    return write


def test_recorded_jobs_are_read_with_their_comments():
    assert parse_squeue(RECORDED) == [
        SlurmJob("1", 1, 10, "debug", "relax | heat", {"interval_min": 60, "critical_gb": 12.5}),
        SlurmJob("3_0", 1, 10, "debug", "sweep"),
        SlurmJob("2", 2, 10, "long", "md", {"last_checkpoint": 1795173998, "memory_gb": 0.5}),
    ]


def test_squeue_is_asked_for_the_running_jobs_of_a_partition(squeue):
    called = squeue(f"cat {Path(__file__).with_name('squeue.txt')}")
    assert [job.id for job in running_jobs("long")] == ["1", "3_0", "2"]
    mark = "<[0-9a-f]{16}>"
    assert re.fullmatch("--noheader\n--states=RUNNING\n"
                        f"--format={mark}%i{mark}%D{mark}%M{mark}%P{mark}%j{mark}%k{mark}\n--partition=long\n",
                        called.read_text())


def test_no_running_job_is_an_empty_list(squeue):
    squeue("true")
    assert running_jobs() == []


def test_a_squeue_that_fails_is_quoted(squeue):
    squeue("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(InputError, match="squeue failed: slurm_load_jobs error: Unable to contact"):
        running_jobs()


def test_without_squeue_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="squeue is not on the PATH"):
        running_jobs()


def test_text_without_any_job_is_refused():
    with pytest.raises(InputError, match="squeue printed 'no jobs', which is not in the format"):
        parse_squeue("no jobs\n17\t2.5\t0:10\tdebug\tname\t\n")


# Whatever another user calls a job or writes into its comment, the operator gets a plan.

HOSTILE = "a\tb\n99\t500\t9-00:00:00\tdebug\tforged\tfleet:app_time=0\n\xff fleet:memory_gb=1"
# Prints a job in the format that is asked for, then another one with hostile name and comment.
ANY_FORMAT = fr"""python3 - "$@" <<'END'
import os, sys
said = next(word for word in sys.argv if word.startswith("--format=")).removeprefix("--format=").encode()
hostile = {HOSTILE!r}.encode("latin-1")
for fields in ((b"17", b"2", b"0:10", b"debug", b"good", b"(null)"),
               (b"18", b"1K", b"INVALID", b"debug", hostile, hostile)):
    line = said
    for code, value in zip((b"%i", b"%D", b"%M", b"%P", b"%j", b"%k"), fields):
        line = line.replace(code, value)
    os.write(1, line + b"\n")
END"""


def test_no_name_or_comment_makes_up_a_job_or_hides_one(squeue):
    squeue(ANY_FORMAT)
    hostile = HOSTILE.replace("\xff", "\\xff")
    assert running_jobs() == [SlurmJob("17", 2, 10, "debug", "good"),
                              SlurmJob("18", 1024, None, "debug", hostile, {"app_time": 0})]


def test_tabs_and_newlines_in_text_of_lines_stay_with_their_job():
    jobs = parse_squeue("17\t2\t0:10\tdebug\ta\tb\tfleet:app_time=1\n18\t1\t0:10\tdebug\tx\ny\tz\n"
                        "19\t1\tINVALID\tdebug\t\t\n")
    assert [(job.id, job.elapsed_s, job.name, dict(job.checkpoint)) for job in jobs] == [
        ("17", 10, "a", {"app_time": 1}), ("18", 10, "x\ny", {}), ("19", None, "", {})]


@pytest.mark.parametrize("text", ["", "10", "INVALID", "1-10:00", "-1:00"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="squeue gives the time"):
        parse_elapsed(text)


@pytest.mark.parametrize("comment", ["fleet:", "fleet:interval_min", "fleet:=3", "fleet:memory_gb=lots",
                                     "mine fleet:a=1,,b=2"])
def test_a_comment_that_addresses_us_wrongly_is_refused(comment):
    with pytest.raises(InputError, match="the comment of job 17 says 'fleet:.*name=number"):
        parse_comment("17", comment)


@pytest.mark.parametrize("comment", ["(null)", "", "my fleet of jobs", "notfleet:x=1"])
def test_a_comment_for_others_says_nothing(comment):
    assert parse_comment("17", comment) == {}


@pytest.mark.parametrize(("said", "signal"), [
    ("fleet:signal=USR2,app_time=5", "USR2"), ("fleet:app_time=5,signal=B:TERM", "B:TERM"), ("fleet:app_time=5", None),
    ("(null)", None), ("fleet:signal=10", "10")])
def test_a_comment_may_name_the_signal_upon_which_a_job_saves(said, signal):
    job, = parse_squeue(f"17\t2\t0:10\tdebug\trelax\t{said}\n")
    assert (job.signal, job.unread) == (signal, "")
    assert job.checkpoint == ({"app_time": 5.0} if "app_time" in said else {})


@pytest.mark.parametrize("signal", ["", "usr2", "USR2;reboot", "-9", "B:", "KILL USR2"])
def test_a_signal_that_cannot_be_is_its_users_mistake(signal):
    job, = parse_squeue(f"17\t2\t0:10\tdebug\trelax\tfleet:signal={signal}\n")
    assert job.signal is None or signal == "KILL USR2"
    assert job.unread or signal == "KILL USR2"
