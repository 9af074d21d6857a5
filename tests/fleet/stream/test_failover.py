"""Trainers that prepare samples themselves after the death of a preprocessor."""

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.stream.compose import NodeMemory, compose
from fleet.stream.layout import Layout
from fleet.stream.local_batches import LocalBatches
from fleet.stream.order import Epoch, StrictOrder
from fleet.stream.stall import Waiting
from fleet.stream.store import NodeStore
from fleet.stream.validation import NodeValidation, Validation
from fleet.stream.window import NOT_READING
from tests.fleet.stream.streams import (
    GREY,
    alone_in_the_world,
    expected,
    pipeline,
    set_of,
    window_of,
)

SAMPLES, WRITER = 20, 7
LAYOUT = Layout(GREY, SAMPLES, chunk=5, slots=8, lookahead=8, readers=1)


def check_epoch(batches, alone, start=0):
    """Check that batches contain all of an epoch from a position on, bit for bit."""
    position = start
    for batch in batches:
        images, labels = expected(
            alone, StrictOrder(alone, 5).plan_epoch(Epoch(0)), position, position + batch.size
        )
        np.testing.assert_array_equal(batch.inputs, images)
        np.testing.assert_array_equal(batch.targets, labels)
        position += batch.size
        assert batch.position == position
    assert position == SAMPLES


def test_failover_trainer_prepares_rest_of_epoch():
    alone, window = pipeline(SAMPLES), window_of(LAYOUT)
    order = StrictOrder(alone, LAYOUT.chunk)

    def use(world):
        waiting = Waiting(world, writers=(WRITER,))
        stream = compose(order, alone, NodeMemory(window), 0, waiting, pytest.fail)(None)
        stream.join(0)
        for chunk in range(2):  # and then the writer dies
            rows = window.rows(chunk)
            alone.load(order.chunk(chunk)[1], 0, window.inputs[rows], window.targets[rows])
            window.publish(chunk)
        world.dead_ranks = frozenset({WRITER})
        check_epoch(stream.batches(Epoch(0), 0, 4, SingleRankGroup()), alone)

    alone_in_the_world(use)
    assert window.cursors[0] == NOT_READING


def test_failover_trainer_decodes_missing_stored_samples():
    alone, stored = pipeline(SAMPLES), set_of(SAMPLES, 5)
    first = alone.order(0)[:5]
    alone.load_stored(first, stored.inputs[:5], stored.targets[:5])
    stored.publish(0)

    def use(world):
        waiting = Waiting(world, writers=(WRITER,))
        stream = LocalBatches(NodeStore(alone, stored), StrictOrder(alone, 5), waiting, pytest.fail)
        world.dead_ranks = frozenset({WRITER})
        check_epoch(stream.batches(Epoch(0), 0, 5, SingleRankGroup()), alone)

    alone_in_the_world(use)


def test_failover_trainer_prepares_validation_samples():
    alone, shared = pipeline(SAMPLES), set_of(SAMPLES, 5)
    shared.publish(0)

    def use(world):
        saved = NodeValidation(shared, Waiting(world, writers=(WRITER,)))
        validation = Validation(alone, pytest.fail, shared=saved)
        world.dead_ranks = frozenset({WRITER})
        return [labels for _, labels in validation.batches(6, 0, 1)]

    np.testing.assert_array_equal(np.concatenate(alone_in_the_world(use)), alone.source.labels)
