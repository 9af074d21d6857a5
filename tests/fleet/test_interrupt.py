"""When a run should stop before it is done."""

import signal
import time

import pytest

from fleet.interrupt import SIGNALS, Interruption


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_without_a_walltime_and_a_signal_a_run_goes_on(clock):
    interruption = Interruption(None, {}, clock)
    clock.now = 1e9
    assert interruption.reason() == ""


@pytest.mark.parametrize(("walltime", "stops_at"), [(7200, 7140), (100, 90)])
def test_a_minute_of_the_walltime_is_kept_or_a_tenth_of_a_short_one(clock, walltime, stops_at):
    interruption = Interruption(walltime, {}, clock)
    clock.now = stops_at - 1
    assert interruption.reason() == ""
    clock.now = stops_at
    assert "walltime" in interruption.reason()


def test_slurm_says_when_the_job_ends(clock):
    interruption = Interruption(None, {"SLURM_JOB_END_TIME": str(time.time() + 1000)}, clock)
    clock.now = 930
    assert interruption.reason() == ""
    clock.now = 941
    assert "walltime" in interruption.reason()


def test_what_the_user_says_of_the_walltime_goes_before_what_slurm_says(clock):
    interruption = Interruption(5000, {"SLURM_JOB_END_TIME": str(time.time() + 10)}, clock)
    clock.now = 100
    assert interruption.reason() == ""


@pytest.mark.parametrize("end", ["soon", ""])
def test_an_end_that_is_no_time_is_no_end(clock, end):
    assert Interruption(None, {"SLURM_JOB_END_TIME": end}, clock).reason() == ""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_named(clock, number):
    before = {each: signal.getsignal(each) for each in SIGNALS}
    try:
        interruption = Interruption(None, {}, clock)
        interruption.watch()
        signal.raise_signal(number)
        assert interruption.reason() == f"{signal.Signals(number).name} came"
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
