"""When a run should stop before it is done."""

import signal

import pytest

from fleet.runtime.interrupt import SIGNALS, Interruption, StartupTimes


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_without_a_walltime_and_a_signal_a_run_goes_on(clock):
    interruption = Interruption(None, clock)
    clock.now = 1e9
    assert (interruption.reason(), interruption.seconds_left()) == ("", None)


@pytest.mark.parametrize(("walltime", "stops_at"), [(7200, 7140), (100, 90)])
def test_a_minute_of_the_walltime_is_kept_or_a_tenth_of_a_short_one(clock, walltime, stops_at):
    interruption = Interruption(walltime, clock)
    clock.now = stops_at - 1
    assert (interruption.reason(), interruption.seconds_left()) == ("", 1.0)
    clock.now = stops_at
    assert "walltime" in interruption.reason()


def test_the_walltime_counts_from_when_it_began(clock):
    clock.now = 50
    assert Interruption(100, clock, began=0).seconds_left() == 40


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_named(clock, number):
    before = {each: signal.getsignal(each) for each in SIGNALS}
    try:
        interruption = Interruption(None, clock)
        interruption.watch()
        signal.raise_signal(number)
        assert interruption.reason() == f"{signal.Signals(number).name} came"
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# ---- when to begin nothing new -----------------------------------------------------------------


@pytest.fixture
def starts(clock):
    """Of a launch of 100 seconds, of which ten are kept for the end."""
    return StartupTimes(Interruption(100, clock), clock)


def test_before_any_group_has_trained_it_is_never_too_late(clock, starts):
    """The next launch has no more time than this one: it would wait for ever."""
    starts.started("a")
    clock.now = 89
    assert not starts.is_too_late()


def test_it_is_too_late_when_less_is_left_than_the_longest_start_took(clock, starts):
    for network, began, trained in [("a", 0, 20), ("b", 20, 25)]:
        clock.now = began
        starts.started(network)
        clock.now = trained
        starts.trained(network)
    clock.now = 70
    assert not starts.is_too_late()
    clock.now = 71
    assert starts.is_too_late()


def test_only_the_first_that_is_heard_of_a_group_ends_its_start(clock, starts):
    starts.started("a")
    clock.now = 3
    starts.trained("a")
    clock.now = 60
    starts.trained("a")
    assert starts.longest_s == 3


def test_without_a_walltime_it_is_never_too_late(clock):
    starts = StartupTimes(Interruption(None, clock), clock)
    starts.started("a")
    clock.now = 1e6
    starts.trained("a")
    assert not starts.is_too_late()
