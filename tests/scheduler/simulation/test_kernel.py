"""The event kernel."""

import pytest

from scheduler.simulation.kernel import Simulator


@pytest.fixture
def sim():
    return Simulator()


def test_events_of_one_moment_are_ordered_by_kind(sim):
    log = []
    for name, kind in [("plan", 2), ("leave", 0), ("join", 1), ("leave again", 0)]:
        sim.at(5.0, kind, lambda name=name: log.append(name))
    sim.run()
    assert log == ["leave", "leave again", "join", "plan"]


def test_cancelled_event_does_not_move_the_clock(sim):
    event = sim.after(3.0, 0, lambda: pytest.fail("it was cancelled"))
    sim.after(1.0, 0, event.cancel)
    sim.run()
    assert sim.now == 1.0


def test_simulator_event_may_schedule_another_at_the_same_moment(sim):
    log = []
    sim.after(1.0, 5, lambda: sim.after(0.0, 0, lambda: log.append(sim.now)))
    sim.run()
    assert log == [1.0]


def test_soon_runs_once_after_all_others_and_again_on_request(
    sim,
):
    log = []

    def act():
        log.append(sim.now)
        if len(log) == 1:
            sim.soon(1, act)

    for moment in (1.0, 1.0, 2.0):
        sim.at(moment, 0, lambda: sim.soon(1, act))
    sim.run()
    assert log == [1.0, 1.0, 2.0]


def test_run_until_leaves_later_events_in_the_queue(sim):
    log = []
    for time in (1.0, 2.0, 3.0):
        sim.at(time, 0, lambda: log.append(sim.now))
    sim.run(until=2.0)
    assert (log, sim.now, sim.peek()) == ([1.0], 2.0, 2.0)
    sim.run()
    assert log == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("time", [-1.0, float("nan"), float("inf")])
def test_simulator_moment_that_cannot_come_is_refused(sim, time):
    with pytest.raises(ValueError, match="the clock shows 0"):
        sim.at(time, 0, lambda: None)


def test_equal_seeds_give_equal_randomness():
    assert Simulator(seed=3).rng.random() == Simulator(seed=3).rng.random()
