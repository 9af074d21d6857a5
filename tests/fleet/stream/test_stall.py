"""Detecting that other ranks have stopped writing samples."""

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
from tests.refusals import refused


@pytest.mark.parametrize("split", ["training", "validation"])
def test_stall_of_a_sample_set_is_an_error(split):
    alone = pipeline(20)
    shared = set_of(20, 6)
    shared.publish(0)

    def use(world):
        if split == "validation":
            return NodeValidation(shared, Waiting(world, 0.05)).wait_until_complete()
        stream = LocalBatches(
            NodeStore(alone, shared, 0.05), StrictOrder(alone, 20), Waiting(world), pytest.fail
        )
        return list(stream.batches(Epoch(0), 0, 8, SingleRankGroup()))

    with refused(InfrastructureError, f"no further {split}", "data.data_timeout", "1 of 4 chunks"):
        alone_in_the_world(use)


def test_stall_clock_restarts_with_each_arrival():
    time, shared = Clock(), set_of(20, 6)
    stall = StallClock(1.0, lambda: "no progress", shared.ready, time)
    for chunk in range(3):
        stall.check()
        time.now += 0.9
        stall.check()
        shared.publish(chunk)
    stall.check()
    time.now += 1.1
    with refused(InfrastructureError, "no progress"):
        stall.check()


def test_stall_clock_starts_with_the_first_check():
    time = Clock()
    stall = StallClock(1.0, lambda: "no progress", clock=time)
    time.now += 5
    stall.check()
    time.now += 0.9
    stall.check()
    time.now += 0.2
    with pytest.raises(InfrastructureError):
        stall.check()


def test_stall_of_stored_samples_is_measured_for_each_wait():
    alone, shared = pipeline(20), set_of(20, 6)
    samples = NodeStore(alone, shared, stall_s=0.3)
    first = alone.order(0)[:6]
    for _ in range(3):  # an interrupted wait has no effect on the next one
        stop = threading.Event()
        threading.Timer(0.15, stop.set).start()
        samples.await_all(first, stop)
    shared.publish(0)
    samples.await_all(first, threading.Event())


def test_waiting_names_a_dead_writer():
    with refused(WriterDied, "rank 2", "has died"):
        Waiting(World(dead_ranks=frozenset({2})), writers=(1, 2)).check_writers()
    Waiting(World(dead_ranks=frozenset({2})), writers=(0, 1)).check_writers()
