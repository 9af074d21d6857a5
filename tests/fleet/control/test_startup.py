"""Startup times of groups, and whether it is too late to start another one."""

import pytest

from fleet.control.effects import LogEvent, Outbox
from fleet.control.group_startup import StartupTimes
from fleet.domain.events import FirstStep
from fleet.domain.run import RunState


@pytest.fixture
def starts():
    """Return the startup times of a launch that has to stop after 90 seconds."""
    return StartupTimes(ends_s=90.0, outbox=Outbox(RunState()))


def test_startup_is_never_too_late_before_any_training(starts):
    """The next launch has no more time than this one, so no launch would ever start a group."""
    starts.begin_group("a", 0.0)
    assert not starts.is_too_late(89.0)


def test_startup_is_too_late_below_the_longest_start(starts):
    for network, began, trained in [("a", 0.0, 20.0), ("b", 20.0, 25.0)]:
        starts.begin_group(network, began)
        starts.record_training(network, trained)
    assert not starts.is_too_late(70.0)
    assert starts.is_too_late(71.0)
    assert starts.time_left_s(71.0) == 19.0


def test_startup_ends_with_the_first_message_of_training(starts):
    starts.begin_group("a", 0.0)
    assert starts.is_awaited("a")
    starts.record_training("a", 3.0)
    assert not starts.is_awaited("a")
    starts.record_training("a", 60.0)
    assert starts.longest_s == 3.0


def test_startup_logs_the_build_time_of_the_first_group():
    starts = StartupTimes(None, outbox := Outbox(RunState()))
    starts.begin_group("a", 2.0)
    starts.record_build("a", 3.5)
    starts.record_build("b", 3.5)  # it is being measured, in no group
    starts.record_step("a", 4.0)
    starts.record_step("a", 9.0)
    assert outbox.drain() == [LogEvent(FirstStep("a", 1.5), 0.0)]


def test_startup_is_never_too_late_without_a_walltime():
    starts = StartupTimes(None, Outbox(RunState()))
    starts.begin_group("a", 0.0)
    starts.record_training("a", 1e6)
    assert not starts.is_too_late(1e9)
    assert starts.time_left_s(1e9) is None


def test_time_left_is_zero_after_the_walltime(starts):
    assert starts.time_left_s(1000.0) == 0.0
