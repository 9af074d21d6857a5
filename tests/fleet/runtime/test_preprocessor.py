"""The preprocessor's life, one step after another."""

import numpy as np
import pytest

from fleet.comm.messages import NO_LIMIT, Exit, Produce, SampleUnreadable, Tag, Throughput
from fleet.comm.roles import assign
from fleet.errors import GroupFailed
from fleet.runtime.preprocessor import Preprocessor
from fleet.stream.compose import NodeMemory
from fleet.stream.layout import Layout
from fleet.stream.order import StrictOrder
from preprocess.base import UnreadableSample
from preprocess.pipeline import Pipeline
from tests.fleet.stream.streams import GREY, SEED, alone_in_the_world, pipeline, set_of, window_of
from tests.sources import Numbered

SAMPLES = 60
LAYOUT = Layout(GREY, SAMPLES, chunk=10, slots=12, lookahead=12, readers=2)
PAIR, ALONE = assign((0, 0, 0, 0), 2, None), assign((0, 0, 0), 1, None)


class Asked:
    """A preprocessor on a rank that nobody else speaks to, and what it says to the coordinator."""

    def __init__(self, world, memory, training=None, evaluation=None, roles=PAIR):
        training = training or pipeline(SAMPLES)
        self.world = world
        self.role = Preprocessor(
            world, roles, memory, StrictOrder(training, LAYOUT.chunk), training, evaluation
        )

    def told(self, message):
        """Hand it a message of the coordinator's."""
        self.world.send(0, Tag.PREPROCESSOR, message)
        return self

    def until_idle(self):
        """Steps that did something, until one did nothing."""
        steps = 0
        while self.role.step():
            steps += 1
        return steps

    def said(self):
        """What the coordinator has been told."""
        return list(iter(lambda: self.world.receive(Tag.COORDINATOR), None))


def test_it_says_how_fast_it_is_before_anything_else():
    def use(world):
        request = Asked(world, NodeMemory(window_of(LAYOUT)))
        request.role.start()
        return request.said()

    (output,) = alone_in_the_world(use)
    assert isinstance(output, Throughput)
    assert output.samples_per_s > 0


def filled(window):
    """The chunks that are complete, oldest first."""
    return [stamp - 1 for stamp in sorted(window.stamps.tolist()) if stamp]


def test_it_fills_its_own_turns_up_to_the_limit():
    window = window_of(LAYOUT)

    def use(world):
        requested = Asked(world, NodeMemory(window))
        assert requested.until_idle() == 0  # it has not been told to
        requested.told(Produce(4, NO_LIMIT, 0, turns=(0, 1))).until_idle()
        assert filled(window) == [0, 2]
        requested.told(Produce(7, NO_LIMIT, 0, turns=(0, 1))).until_idle()
        return filled(window)

    assert alone_in_the_world(use) == [0, 2, 4, 6]


def test_what_it_fills_is_what_the_order_says():
    window, alone = window_of(LAYOUT), pipeline(SAMPLES)
    alone_in_the_world(
        lambda world: Asked(world, NodeMemory(window))
        .told(Produce(1, NO_LIMIT, 0, (0,)))
        .until_idle()
    )
    images, labels = alone.empty(LAYOUT.chunk)
    alone.load(alone.order(0)[: LAYOUT.chunk], 0, images, labels)
    np.testing.assert_array_equal(window.images[window.rows(0)], images)
    np.testing.assert_array_equal(window.targets[window.rows(0)], labels)


class Counting(Numbered):
    """A source that counts its reads, and has a sample that cannot be read."""

    reads = 0

    def read(self, index):
        self.reads += 1
        if index == 5:
            raise UnreadableSample("sample 5", "torn file")
        return super().read(index)


@pytest.mark.parametrize("kind", ["window", "kept", "validation"])
def test_preprocessor_step_is_small_and_reports_unreadable(kind):
    source = Counting(SAMPLES, seed=1)
    complete = Pipeline(source, [], SEED, pipeline(SAMPLES).sample)
    memory = {
        "window": lambda: NodeMemory(window_of(LAYOUT)),
        "kept": lambda: NodeMemory(decoded=set_of(SAMPLES, 10)),
        "validation": lambda: NodeMemory(validation=set_of(SAMPLES, 10)),
    }[kind]()

    def use(world):
        request = Asked(world, memory, complete, complete, ALONE).told(
            Produce(6, NO_LIMIT, 0, (0,))
        )
        before, maximum = source.reads, 0
        while request.role.step():
            maximum, before = max(maximum, source.reads - before), source.reads
        return maximum, request.said()

    assert alone_in_the_world(use) == (
        8,
        [SampleUnreadable("sample 5", "torn file", training=kind != "validation")],
    )
    assert source.reads == SAMPLES


def test_it_ends_when_it_is_told_to():
    def use(world):
        request = Asked(world, NodeMemory(window_of(LAYOUT))).told(Exit())
        request.until_idle()
        return request.role.is_done

    assert alone_in_the_world(use)


def test_it_prepares_no_more_when_another_preprocessor_has_died():
    window = window_of(LAYOUT)

    def use(world):
        request = Asked(world, NodeMemory(window)).told(Produce(6, NO_LIMIT, 0, (0, 1)))
        world.dead_ranks = frozenset({1})
        request.until_idle()
        request.role.stop()

    alone_in_the_world(use)
    assert filled(window) == []


def test_preprocessor_survives_death_of_remote_leader():
    def use(world):
        def struck(ranks, number):
            world.dead_ranks = frozenset({2})
            raise GroupFailed("died: rank 2")

        world.group = struck
        request = Asked(
            world,
            NodeMemory(window_of(LAYOUT, is_relayed=True)),
            roles=assign((0, 0, 1, 1), 2, None),
        )
        steps = request.told(Produce(6, NO_LIMIT, 0, (0, 2))).until_idle()
        request.role.stop()
        return steps

    assert alone_in_the_world(use) == 1
