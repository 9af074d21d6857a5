"""When a run should stop before it is done."""

import signal

import pytest

from fleet.runtime.interrupt import SIGNALS, Interruption
from tests.fakes import Clock


@pytest.fixture
def clock():
    return Clock()


def test_without_a_walltime_and_a_signal_a_run_goes_on(clock):
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
def test_a_signal_is_named(clock, number):
    before = {per_rank: signal.getsignal(per_rank) for per_rank in SIGNALS}
    try:
        interruption = Interruption(None, clock)
        interruption.watch()
        signal.raise_signal(number)
        assert interruption.reason() == f"received {signal.Signals(number).name}"
    finally:
        for per_rank, handler in before.items():
            signal.signal(per_rank, handler)


def test_signal_is_read_by_thread_without_handler(clock):
    interruption = Interruption(None, clock)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    interruption.watch()
    try:
        for number in SIGNALS:
            signal.signal(
                number, lambda *_: None
            )  # as if Python were deaf: it is the pipe that tells
        signal.raise_signal(signal.SIGUSR2)
        assert interruption.reason() == "received SIGUSR2"
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
