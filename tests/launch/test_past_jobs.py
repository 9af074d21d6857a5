"""How long past jobs took, by the accounting of a batch system."""

import os

import pytest

from launch.base import InputError
from launch.past_jobs import past_runs
from launch.systems import SYSTEMS


def test_completed_jobs_count_with_all_their_runs_and_what_is_no_job_is_passed_over(made_up):
    made_up.set(past=["17|REQUEUED|600", "17|COMPLETED|300", "18|TIMEOUT|60", "19|COMPLETED|500", "20|COMPLETED|0",
                      "a wrapper's word", "21|COMPLETED|soon"])
    assert past_runs(SYSTEMS["slurm"], "photos", "me") == [900.0, 500.0]


def test_accounting_that_is_switched_off_is_quoted(made_up):
    made_up.set(says={"sacct": "Slurm accounting storage is disabled"})
    with pytest.raises(InputError, match="sacct failed: Slurm accounting storage is disabled"):
        past_runs(SYSTEMS["slurm"], "photos", "me")


def test_lsf_is_asked_for_what_it_remembers(tmp_path, monkeypatch):
    """Its words as they are remembered; no LSF was to be had."""
    bjobs = tmp_path / "bjobs"
    bjobs.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" > \"$0.asked\"\n"
                     "printf '31|DONE|300 second(s)\\n32|EXIT|40 second(s)\\n33|RUN|7 second(s)\\n'\n"
                     "printf '34|DONE|20 second(s)\\n'\n")
    bjobs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert past_runs(SYSTEMS["lsf"], "photos", "me") == [300.0, 20.0]
    assert (tmp_path / "bjobs.asked").read_text().splitlines() == [
        "-a", "-noheader", "-J", "photos", "-u", "me", "-o", "jobid stat run_time delimiter='|'"]


def test_a_system_that_nobody_can_ask_says_so():
    with pytest.raises(InputError, match="pbs is not asked for past jobs"):
        past_runs(SYSTEMS["pbs"], "photos", "me")
