"""Noticing that what others write will not come."""

import threading

import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.errors import InfrastructureError
from fleet.stream.local_batches import LocalBatches
from fleet.stream.order import Epoch, StrictOrder
from fleet.stream.stall import StallClock, Waiting, WriterDied
from fleet.stream.store import NodeStore
from fleet.stream.validation import NodeValidation
from tests.fakes import Clock, World
from tests.fleet.stream.streams import alone_in_the_world, pipeline, set_of


@pytest.mark.parametrize("what", ["training", "validation"])
def test_samples_that_should_stay_and_come_no_more_are_an_error(what):
    alone = pipeline(20)
    shared = set_of(20, 6)
    shared.publish(0)

    def use(world):
        if what == "validation":
            return NodeValidation(shared, Waiting(world, 0.05)).wait_until_complete()
        stream = LocalBatches(
            NodeStore(alone, shared, 0.05), StrictOrder(alone, 20), Waiting(world), pytest.fail
        )
        return list(stream.batches(Epoch(0), 0, 8, SingleRankGroup()))

    with pytest.raises(
        InfrastructureError,
        match=rf"no further {what} samples .* \(data.data_timeout\): 1 of 4 chunks",
    ):
        alone_in_the_world(use)


def test_a_wait_may_last_as_long_as_something_comes():
    time, shared = Clock(), set_of(20, 6)
    stall = StallClock(1.0, lambda: "nothing comes", shared.ready, time)
    for chunk in range(3):
        stall.check()
        time.now += 0.9
        stall.check()
        shared.publish(chunk)
    stall.check()
    time.now += 1.1
    with pytest.raises(InfrastructureError, match="nothing comes"):
        stall.check()


def test_time_counts_from_the_first_time_that_somebody_waits():
    time = Clock()
    stall = StallClock(1.0, lambda: "nothing comes", clock=time)
    time.now += 5
    stall.check()
    time.now += 0.9
    stall.check()
    time.now += 0.2
    with pytest.raises(InfrastructureError):
        stall.check()


def test_each_wait_for_kept_samples_is_measured_by_itself():
    alone, shared = pipeline(20), set_of(20, 6)
    samples = NodeStore(alone, shared, stall_s=0.3)
    first = alone.order(0)[:6]
    for _ in range(3):  # a wait that is broken off leaves nothing behind
        stop = threading.Event()
        threading.Timer(0.15, stop.set).start()
        samples.await_all(first, stop)
    shared.publish(0)
    samples.await_all(first, threading.Event())


def test_a_writer_that_has_died_is_named():
    with pytest.raises(WriterDied, match="rank 2, which prepared samples, has died"):
        Waiting(World(dead_ranks=frozenset({2})), writers=(1, 2)).check_writers()
    Waiting(World(dead_ranks=frozenset({2})), writers=(0, 1)).check_writers()
