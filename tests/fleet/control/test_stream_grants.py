"""Grants of stream epochs to groups, and orders of preprocessors."""

import math

import pytest

from fleet.comm.messages import NO_LIMIT, Prepared, Produce, Throughput
from fleet.control.history import InvalidTransition
from fleet.control.stream_grants import StreamGrants
from scheduler.base import Network, RateTable
from tests.fleet.control.driver import layout
from tests.fleet.histories import record
from tests.refusals import refused

RATES = RateTable(60, 4, (Network("a", (10.0, 19.0)), Network("b", (30.0, 45.0))))


def choose_producers(grants, *samples_per_s, chooses=True, time_scale=1.0):
    """Report the throughputs of preprocessors; return the event that starts the stream."""
    for rank, rate in enumerate(samples_per_s):
        grants.record_throughput(Throughput(rank, rate))
    return grants.choose_producers(RATES, time_scale, chooses, "global")


# ---- the kind of stream ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "pace", "in_step", "lockstep", "inside"),
    [
        (None, "free", False, False, True),
        (layout(6), "free", True, False, True),
        (layout(3), "lockstep", True, True, True),
        (layout(3, is_ring=True), "ring:50.00%", False, False, False),
        (layout(6, is_ring=True), "free", False, False, False),
    ],
    ids=["own", "whole", "window", "ring", "whole ring"],
)
def test_pace_follows_from_the_layout(stream, pace, in_step, lockstep, inside):
    grants = StreamGrants(stream, (0,))
    assert (
        grants.pace,
        grants.is_in_step,
        grants.is_lockstep,
        grants.changes_inside,
    ) == (pace, in_step, lockstep, inside)


# ---- epochs ------------------------------------------------------------------------------------


def test_grants_in_step_start_at_an_ungranted_epoch():
    grants = StreamGrants(layout(3), (0,), first=4)
    assert grants.next_epoch([]) == 4
    grants.grant(6)
    assert (grants.next_epoch([]), grants.first_ungranted) == (7, 7)
    grants.grant(5)
    assert grants.first_ungranted == 7


def test_grants_in_step_count_only_granted_epochs():
    grants = StreamGrants(layout(3), (0,))
    assert grants.epoch_after(6, [record(1, stream_epoch=6)]) == 7
    assert grants.epoch_after(6, [record(1, stream_epoch=2)]) == 6


def test_grants_otherwise_follow_the_epochs_of_each_network():
    grants = StreamGrants(None, ())
    assert grants.next_epoch([]) == 0
    assert grants.next_epoch([record(1, stream_epoch=4)]) == 5
    assert grants.epoch_after(0, [record(1, stream_epoch=4), record(2, stream_epoch=2)]) == 5


def test_grants_count_the_epochs_of_a_replay():
    grants = StreamGrants(None, (), replayed=(0, 2, 5))
    assert grants.next_epoch([record(1), record(2, stream_epoch=2)]) == 2
    assert [grants.stream_epoch(number) for number in range(4)] == [0, 2, 5, 3]


# ---- producing ---------------------------------------------------------------------------------


def test_producers_are_the_fewest_that_meet_the_demand():
    grants = StreamGrants(layout(3), (0, 1, 2))
    started = choose_producers(grants, 25.0, 25.0, 25.0)
    assert (grants.producers, started.preprocessors, started.of) == ((0, 1), 2, 3)
    assert (started.supply_samples_per_s, started.demand_samples_per_s, started.bottleneck) == (
        50.0,
        45.0,
        "training",
    )


def test_producers_are_counted_in_the_order_of_turns():
    """Rank 2 is the fastest and reports first; rank 0, whose turn is first, does not suffice."""
    grants = StreamGrants(layout(3), (0, 1, 2))
    for rank, rate in [(2, 100.0), (0, 1.0), (1, 10.0)]:
        grants.record_throughput(Throughput(rank, rate))
    started = grants.choose_producers(RATES, 1.0, True, "global")
    assert (grants.producers, started.supply_samples_per_s) == ((0, 1, 2), 111.0)


def test_producers_are_all_for_a_fixed_number_or_stored_samples():
    assert (
        choose_producers(StreamGrants(layout(3), (0, 1)), 99.0, 1.0, chooses=False).preprocessors
        == 2
    )
    stored = choose_producers(StreamGrants(None, (0, 1)), 99.0, 1.0)
    assert (stored.preprocessors, stored.kept, stored.pace) == (2, True, "own")


def test_demand_is_scaled_in_emulated_training():
    started = choose_producers(StreamGrants(layout(3), (0,)), 100.0, time_scale=0.1)
    assert (started.demand_samples_per_s, started.bottleneck) == (450.0, "input")


def test_production_begins_when_all_have_reported_rates():
    grants = StreamGrants(layout(3), (0, 1))
    grants.record_throughput(Throughput(1, 10.0))
    assert not grants.has_throughputs(set())
    assert grants.has_throughputs({0})
    grants.record_throughput(Throughput(0, 10.0))
    assert grants.has_throughputs(set())


@pytest.mark.parametrize("rank", [0, 7])
def test_throughput_is_accepted_once_per_preprocessor(rank):
    grants = StreamGrants(layout(3), (0,))
    grants.record_throughput(Throughput(0, 10.0))
    with refused(InvalidTransition, f"Throughput(rank={rank},"):
        grants.record_throughput(Throughput(rank, 10.0))


def test_supply_follows_the_slowest_producer():
    grants = StreamGrants(layout(3), (0, 1, 2))
    choose_producers(grants, 25.0, 25.0, 25.0)
    assert grants.supply(set()) == 50.0  # by two of them
    grants.record_prepared(Prepared(0, 90, 3.0))
    assert grants.supply(set()) == 50.0  # the other one has not reported yet
    grants.record_prepared(Prepared(1, 20, 2.0))
    assert grants.supply(set()) == 20.0
    with refused(InvalidTransition, "Prepared(rank=2,"):
        grants.record_prepared(Prepared(2, 20, 2.0))


def test_producers_drop_one_that_slows_the_others():
    grants = StreamGrants(layout(3), (0, 1, 2))
    choose_producers(grants, 25.0, 25.0, 25.0, chooses=False)
    grants.grant(0)
    limit = grants.next_order([]).limit
    changes = [
        grants.record_prepared(Prepared(rank, samples, 1.0))
        for rank, samples in ((1, 30), (2, 25), (0, 12))
    ]
    assert changes[:2] == [None, None]  # not before all have reported
    assert (changes[2].preprocessors, changes[2].supply_samples_per_s) == (2, 50.0)  # and not 36
    order = grants.next_order([])
    assert (order.turns, order.since, order.limit) == ((1, 2), limit, limit)
    assert grants.record_prepared(Prepared(0, 14, 1.0)) is None  # chunks that it had begun
    assert grants.record_prepared(Prepared(2, 10, 1.0)) is None  # rank 1 is hardly faster alone


def test_supply_is_infinite_with_stored_samples_or_a_death():
    stored, dying = StreamGrants(None, (0,)), StreamGrants(layout(3), (0, 1))
    for grants in (stored, dying):
        choose_producers(grants, *(10.0 for _ in grants._preprocessors))
    assert (stored.supply(set()), dying.supply(set()), dying.supply({1})) == (
        math.inf,
        20.0,
        math.inf,
    )


def test_order_of_preprocessors_is_sent_when_it_changes():
    grants = StreamGrants(layout(3), (0,), first=2)
    assert grants.next_order([]) is None
    choose_producers(grants, 100.0)
    grants.grant(2)
    assert grants.next_order([2]) == Produce(limit=4 * 6, hold=2 * 6, first=2 * 6, turns=(0,))
    assert grants.next_order([2]) is None
    assert grants.next_order([]) == Produce(limit=4 * 6, hold=3 * 6, first=2 * 6, turns=(0,))


def test_order_has_no_limit_in_a_ring():
    grants = StreamGrants(layout(3, is_ring=True), (0,))
    choose_producers(grants, 100.0)
    assert grants.next_order([0]) == Produce(NO_LIMIT, NO_LIMIT, first=0, turns=(0,))
