"""Startup times of groups, and whether it is too late to start another one."""

import math

import pytest

from fleet.control.effects import LogEvent, Outbox
from fleet.control.group_startup import StartupTimes
from fleet.domain.events import FirstStep
from fleet.domain.run import RunState


@pytest.fixture
def outbox():
    return Outbox(RunState())


@pytest.fixture
def starts(outbox):
    """Return the startup times of a launch that has to stop after 90 seconds."""
    return StartupTimes(90.0, outbox)


def test_startup_is_never_too_late_before_any_training(starts, outbox):
    """The next launch has no more time than this one, so no launch would ever start a group."""
    starts.begin_group("a")
    outbox.now_s = 89.0
    assert not starts.is_too_late


def test_startup_is_too_late_below_the_longest_start(starts, outbox):
    for network, began, trained in [("a", 0.0, 20.0), ("b", 20.0, 25.0)]:
        outbox.now_s = began
        starts.begin_group(network)
        outbox.now_s = trained
        starts.record_training(network)
    outbox.now_s = 70.0
    assert not starts.is_too_late
    outbox.now_s = 71.0
    assert starts.is_too_late
    assert starts.time_left_s == 19.0


def test_startup_ends_with_the_first_message_of_training(starts, outbox):
    starts.begin_group("a")
    assert starts.is_awaited("a")
    outbox.now_s = 3.0
    starts.record_training("a")
    assert not starts.is_awaited("a")
    outbox.now_s = 60.0
    starts.record_training("a")
    assert starts.longest_s == 3.0


def test_startup_logs_the_build_time_of_the_first_group(outbox):
    starts = StartupTimes(math.inf, outbox)
    outbox.now_s = 2.0
    starts.begin_group("a")
    outbox.now_s = 3.5
    starts.record_build("a")
    starts.record_build("b")  # it is being measured, in no group
    outbox.now_s = 4.0
    starts.record_step("a")
    outbox.now_s = 9.0
    starts.record_step("a")
    assert outbox.drain() == [LogEvent(FirstStep("a", 1.5), 4.0)]


def test_startup_is_never_too_late_without_a_walltime(outbox):
    starts = StartupTimes(math.inf, outbox)
    starts.begin_group("a")
    outbox.now_s = 1e6
    starts.record_training("a")
    outbox.now_s = 1e9
    assert not starts.is_too_late
    assert starts.time_left_s == math.inf


def test_time_left_is_zero_after_the_walltime(starts, outbox):
    outbox.now_s = 1000.0
    assert starts.time_left_s == 0.0
