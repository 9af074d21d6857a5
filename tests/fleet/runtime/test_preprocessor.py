"""The preprocessor, step by step."""

import numpy as np
import pytest

from fleet.comm.messages import NO_LIMIT, Exit, Produce, SampleUnreadable, Tag, Throughput
from fleet.comm.roles import assign
from fleet.errors import GroupMemberDied
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


class SinglePreprocessor:
    """A preprocessor on a single rank, with its messages to the coordinator."""

    def __init__(self, world, memory, training=None, evaluation=None, roles=PAIR):
        training = training or pipeline(SAMPLES)
        self.world = world
        self.role = Preprocessor(
            world, roles, memory, StrictOrder(training, LAYOUT.chunk), training, evaluation
        )

    def send(self, message):
        """Send it a message of the coordinator."""
        self.world.send(0, Tag.PREPROCESSOR, message)
        return self

    def until_idle(self):
        """Run steps until one does nothing; return their number."""
        steps = 0
        while self.role.step():
            steps += 1
        return steps

    def messages(self):
        """Return its messages to the coordinator."""
        return list(iter(lambda: self.world.receive(Tag.COORDINATOR), None))


def test_preprocessor_first_reports_its_throughput():
    def use(world):
        preprocessor = SinglePreprocessor(world, NodeMemory(window_of(LAYOUT)))
        preprocessor.role.start()
        return preprocessor.messages()

    (output,) = alone_in_the_world(use)
    assert isinstance(output, Throughput)
    assert output.samples_per_s > 0


def filled(window):
    """Return the complete chunks, oldest first."""
    return [stamp - 1 for stamp in sorted(window.stamps.tolist()) if stamp]


def test_preprocessor_fills_its_turns_up_to_the_limit():
    window = window_of(LAYOUT)

    def use(world):
        preprocessor = SinglePreprocessor(world, NodeMemory(window))
        assert preprocessor.until_idle() == 0  # without an order
        preprocessor.send(Produce(4, NO_LIMIT, 0, turns=(0, 1))).until_idle()
        assert filled(window) == [0, 2]
        preprocessor.send(Produce(7, NO_LIMIT, 0, turns=(0, 1))).until_idle()
        return filled(window)

    assert alone_in_the_world(use) == [0, 2, 4, 6]


def test_preprocessor_fills_chunks_by_the_order():
    window, alone = window_of(LAYOUT), pipeline(SAMPLES)
    alone_in_the_world(
        lambda world: SinglePreprocessor(world, NodeMemory(window))
        .send(Produce(1, NO_LIMIT, 0, (0,)))
        .until_idle()
    )
    images, labels = alone.empty(LAYOUT.chunk)
    alone.load(alone.order(0)[: LAYOUT.chunk], 0, images, labels)
    np.testing.assert_array_equal(window.inputs[window.rows(0)], images)
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
        preprocessor = SinglePreprocessor(world, memory, complete, complete, ALONE).send(
            Produce(6, NO_LIMIT, 0, (0,))
        )
        before, maximum = source.reads, 0
        while preprocessor.role.step():
            maximum, before = max(maximum, source.reads - before), source.reads
        return maximum, preprocessor.messages()

    assert alone_in_the_world(use) == (
        8,
        [SampleUnreadable("sample 5", "torn file", training=kind != "validation")],
    )
    assert source.reads == SAMPLES


def test_preprocessor_ends_on_request():
    def use(world):
        preprocessor = SinglePreprocessor(world, NodeMemory(window_of(LAYOUT))).send(Exit())
        preprocessor.until_idle()
        return preprocessor.role.is_done

    assert alone_in_the_world(use)


def test_preprocessor_stops_when_another_one_has_died():
    window = window_of(LAYOUT)

    def use(world):
        preprocessor = SinglePreprocessor(world, NodeMemory(window)).send(
            Produce(6, NO_LIMIT, 0, (0, 1))
        )
        world.dead_ranks = frozenset({1})
        preprocessor.until_idle()
        preprocessor.role.stop()

    alone_in_the_world(use)
    assert filled(window) == []


def test_preprocessor_survives_death_of_remote_leader():
    def use(world):
        def make_failed_group(ranks, number):
            world.dead_ranks = frozenset({2})
            raise GroupMemberDied("died: rank 2")

        world.group = make_failed_group
        preprocessor = SinglePreprocessor(
            world,
            NodeMemory(window_of(LAYOUT, is_relayed=True)),
            roles=assign((0, 0, 1, 1), 2, None),
        )
        steps = preprocessor.send(Produce(6, NO_LIMIT, 0, (0, 2))).until_idle()
        preprocessor.role.stop()
        return steps

    assert alone_in_the_world(use) == 1
