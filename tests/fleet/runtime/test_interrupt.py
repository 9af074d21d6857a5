"""Reasons to stop a run early."""

import signal

import pytest

from fleet.runtime.interrupt import SIGNALS, Interruption
from tests.fakes import Clock


@pytest.fixture
def clock():
    return Clock()


def test_interruption_has_no_reason_without_walltime_and_signal(clock):
    interruption = Interruption(None, clock)
    clock.now = 1e9
    assert (interruption.reason(), interruption.seconds_left()) == ("", None)


@pytest.mark.parametrize(("walltime", "stops_at"), [(7200, 7140), (100, 90)])
def test_walltime_reserve_is_a_minute_or_a_tenth(clock, walltime, stops_at):
    interruption = Interruption(walltime, clock)
    clock.now = stops_at - 1
    assert (interruption.reason(), interruption.seconds_left()) == ("", 1.0)
    clock.now = stops_at
    assert "walltime" in interruption.reason()


def test_walltime_counts_from_start_of_launch(clock):
    interruption = Interruption(None, clock)
    clock.now = 50
    interruption.limit(100)
    assert interruption.seconds_left() == 40


@pytest.mark.parametrize("number", SIGNALS)
def test_interruption_names_the_signal(clock, number):
    before = {handled: signal.getsignal(handled) for handled in SIGNALS}
    try:
        interruption = Interruption(None, clock)
        interruption.watch()
        signal.raise_signal(number)
        assert interruption.reason() == f"received {signal.Signals(number).name}"
    finally:
        for handled, handler in before.items():
            signal.signal(handled, handler)


def test_signal_is_read_by_thread_without_handler(clock):
    interruption = Interruption(None, clock)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    interruption.watch()
    try:
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # only the pipe reports the signal
        signal.raise_signal(signal.SIGUSR2)
        assert interruption.reason() == "received SIGUSR2"
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
