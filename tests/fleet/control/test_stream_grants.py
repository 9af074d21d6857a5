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


def producing(production, *samples_per_s, chooses=True, time_scale=1.0):
    """Report the throughputs of preprocessors; return the event that starts the stream."""
    for rank, rate in enumerate(samples_per_s):
        production.record_throughput(Throughput(rank, rate))
    return production.choose_producers(RATES, time_scale, chooses, "global")


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
    production = StreamGrants(stream, (0,))
    assert (
        production.pace,
        production.is_in_step,
        production.is_lockstep,
        production.changes_inside,
    ) == (pace, in_step, lockstep, inside)


# ---- epochs ------------------------------------------------------------------------------------


def test_grants_in_step_start_at_an_ungranted_epoch():
    production = StreamGrants(layout(3), (0,), first=4)
    assert production.next_epoch([]) == 4
    production.grant(6)
    assert (production.next_epoch([]), production.first_ungranted) == (7, 7)
    production.grant(5)
    assert production.first_ungranted == 7


def test_grants_in_step_count_only_granted_epochs():
    production = StreamGrants(layout(3), (0,))
    assert production.epoch_after(6, [record(1, stream_epoch=6)]) == 7
    assert production.epoch_after(6, [record(1, stream_epoch=2)]) == 6


def test_grants_otherwise_follow_the_epochs_of_each_network():
    production = StreamGrants(None, ())
    assert production.next_epoch([]) == 0
    assert production.next_epoch([record(1, stream_epoch=4)]) == 5
    assert production.epoch_after(0, [record(1, stream_epoch=4), record(2, stream_epoch=2)]) == 5


def test_grants_count_the_epochs_of_a_replay():
    production = StreamGrants(None, (), replayed=(0, 2, 5))
    assert production.next_epoch([record(1), record(2, stream_epoch=2)]) == 2
    assert [production.stream_epoch(number) for number in range(4)] == [0, 2, 5, 3]


# ---- producing ---------------------------------------------------------------------------------


def test_producers_are_the_fewest_that_meet_the_demand():
    production = StreamGrants(layout(3), (0, 1, 2))
    started = producing(production, 25.0, 25.0, 25.0)
    assert (production.producers, started.preprocessors, started.of) == ((0, 1), 2, 3)
    assert (started.supply_samples_per_s, started.demand_samples_per_s, started.bottleneck) == (
        50.0,
        45.0,
        "training",
    )


def test_producers_are_counted_in_the_order_of_turns():
    """Rank 2 is the fastest and reports first; rank 0, whose turn is first, does not suffice."""
    production = StreamGrants(layout(3), (0, 1, 2))
    for rank, rate in [(2, 100.0), (0, 1.0), (1, 10.0)]:
        production.record_throughput(Throughput(rank, rate))
    started = production.choose_producers(RATES, 1.0, True, "global")
    assert (production.producers, started.supply_samples_per_s) == ((0, 1, 2), 111.0)


def test_producers_are_all_for_a_fixed_number_or_stored_samples():
    assert producing(StreamGrants(layout(3), (0, 1)), 99.0, 1.0, chooses=False).preprocessors == 2
    stored = producing(StreamGrants(None, (0, 1)), 99.0, 1.0)
    assert (stored.preprocessors, stored.kept, stored.pace) == (2, True, "own")


def test_demand_is_scaled_in_emulated_training():
    started = producing(StreamGrants(layout(3), (0,)), 100.0, time_scale=0.1)
    assert (started.demand_samples_per_s, started.bottleneck) == (450.0, "input")


def test_production_begins_when_all_have_reported_rates():
    production = StreamGrants(layout(3), (0, 1))
    production.record_throughput(Throughput(1, 10.0))
    assert not production.has_throughputs(set())
    assert production.has_throughputs({0})
    production.record_throughput(Throughput(0, 10.0))
    assert production.has_throughputs(set())


@pytest.mark.parametrize("rank", [0, 7])
def test_throughput_is_accepted_once_per_preprocessor(rank):
    production = StreamGrants(layout(3), (0,))
    production.record_throughput(Throughput(0, 10.0))
    with refused(InvalidTransition, f"Throughput(rank={rank},"):
        production.record_throughput(Throughput(rank, 10.0))


def test_supply_follows_the_slowest_producer():
    production = StreamGrants(layout(3), (0, 1, 2))
    producing(production, 25.0, 25.0, 25.0)
    assert production.supply(set()) == 50.0  # by two of them
    production.record_prepared(Prepared(0, 90, 3.0))
    assert production.supply(set()) == 50.0  # the other one has not reported yet
    production.record_prepared(Prepared(1, 20, 2.0))
    assert production.supply(set()) == 20.0
    with refused(InvalidTransition, "Prepared(rank=2,"):
        production.record_prepared(Prepared(2, 20, 2.0))


def test_producers_drop_one_that_slows_the_others():
    production = StreamGrants(layout(3), (0, 1, 2))
    producing(production, 25.0, 25.0, 25.0, chooses=False)
    production.grant(0)
    limit = production.next_order([]).limit
    changes = [
        production.record_prepared(Prepared(rank, samples, 1.0))
        for rank, samples in ((1, 30), (2, 25), (0, 12))
    ]
    assert changes[:2] == [None, None]  # not before all have reported
    assert (changes[2].preprocessors, changes[2].supply_samples_per_s) == (2, 50.0)  # and not 36
    order = production.next_order([])
    assert (order.turns, order.since, order.limit) == ((1, 2), limit, limit)
    assert production.record_prepared(Prepared(0, 14, 1.0)) is None  # chunks that it had begun
    assert production.record_prepared(Prepared(2, 10, 1.0)) is None  # rank 1 is hardly faster alone


def test_supply_is_infinite_with_stored_samples_or_a_death():
    stored, dying = StreamGrants(None, (0,)), StreamGrants(layout(3), (0, 1))
    for production in (stored, dying):
        producing(production, *(10.0 for _ in production._preprocessors))
    assert (stored.supply(set()), dying.supply(set()), dying.supply({1})) == (
        math.inf,
        20.0,
        math.inf,
    )


def test_order_of_preprocessors_is_sent_when_it_changes():
    production = StreamGrants(layout(3), (0,), first=2)
    assert production.next_order([]) is None
    producing(production, 100.0)
    production.grant(2)
    assert production.next_order([2]) == Produce(limit=4 * 6, hold=2 * 6, first=2 * 6, turns=(0,))
    assert production.next_order([2]) is None
    assert production.next_order([]) == Produce(limit=4 * 6, hold=3 * 6, first=2 * 6, turns=(0,))


def test_order_has_no_limit_in_a_ring():
    production = StreamGrants(layout(3, is_ring=True), (0,))
    producing(production, 100.0)
    assert production.next_order([0]) == Produce(NO_LIMIT, NO_LIMIT, first=0, turns=(0,))
