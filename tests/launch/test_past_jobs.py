"""How long past jobs took, by the accounting of a batch system."""

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


def test_a_system_that_nobody_can_ask_says_so():
    with pytest.raises(InputError, match="pbs is not asked for past jobs"):
        past_runs(SYSTEMS["pbs"], "photos", "me")
