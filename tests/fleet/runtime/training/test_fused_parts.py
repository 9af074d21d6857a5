"""Where trainers of a rank meet to train their networks as one, with an engine of the test."""

import threading

import numpy as np
import pytest

from fleet.comm import messages as m
from fleet.comm.roles import assign
from fleet.comm.single_rank import SingleRankGroup
from fleet.comm.trainer_threads import TrainerThreads
from fleet.domain.network import TrainingState
from fleet.engines.base import StepTotals
from fleet.engines.fusing import CannotFuse, FusedResult
from fleet.engines.steps import StepCapabilities
from fleet.runtime.training.agreement import TrainingFailed
from fleet.runtime.training.energy import NoMeter
from fleet.runtime.training.fused_parts import FusedParts, Part, Request
from fleet.runtime.training.network import Training
from fleet.spec import parse
from fleet.stream.batch import Batch
from fleet.stream.order import Epoch
from tests.fleet.comm.test_trainer_threads import World

NETWORKS = parse(
    {
        "models": [{"family": "mlp", "args": {"hidden": [4]}, "repeats": 3}],
        "resources": {"engine": "torch", "fuse": 3},
        "train": {"batch": {"size": 2}},
    }
).networks
ROLES = assign([0, 0], 1, None, fused=3)
SAMPLES = 6


class Source:
    """Batches of two samples."""

    def batches(self, epoch, start, batch, group, consumed=()):
        for first in range(start, SAMPLES, batch):
            last = min(first + batch, SAMPLES)
            rows = np.zeros(last - first)
            yield Batch(rows, rows, last - first, last, last == SAMPLES, epoch)


class Engine:
    """Records which networks train together; the loss of network i in step j is a table's."""

    def __init__(self, losses=None, refuses=False):
        self.losses = losses or {}
        self.refuses = refuses
        self.calls = []

    def enter_thread(self):
        pass

    def fuse(self, trainables, key):
        if self.refuses:
            raise CannotFuse("it branches")
        return Fused(self, trainables)


class Fused:
    def __init__(self, engine, trainables):
        self.engine = engine
        self.trainables = trainables
        self.capabilities = StepCapabilities()

    def begin_steps(self, batches):
        self.engine.calls.append(tuple(self.trainables))
        step = len(self.engine.calls)
        rows = [
            StepTotals(self.engine.losses.get((name, step), 1.0), 0.0, 2.0).pack()
            for name in self.trainables
        ]
        return lambda: FusedResult(np.array([rows]), 0.0)

    def synchronize(self):
        pass

    def release(self):
        pass


class Loop:
    """The training loop of a trainer; its network pauses at a position."""

    save_every = None

    def __init__(self, world, pauses_at=None):
        self.world = world
        self.pauses_at = pauses_at
        self.sent = []
        self.send = self.sent.append
        self.is_leaving = False
        self.alone = []
        self.meter = NoMeter()

    active_slots = type("ActiveSlots", (), {"count": lambda self, networks=1: networks})()
    sources = type(
        "Sources", (), {"of": lambda self, network: type("Source", (), {"validation": None})}
    )()

    def poll_pause(self):
        return False

    def begin_part(self, training, state):
        pass

    def should_leave(self, training, state):
        self.is_leaving = self.is_leaving or state.position == self.pauses_at
        return self.is_leaving

    def train_alone(self, training, state, source, epoch):
        self.alone.append(state.position)
        return Part(state, True)


def meet(engine, pauses=(None, None, None), position=0):
    """Let three trainers meet; return their loops, and their parts or failures."""
    threads = TrainerThreads(World(), ROLES)
    parts = FusedParts(threads, lambda: engine)
    loops, results = {}, {}

    def run(world):
        index = ROLES.trainers_of(1).index(world.rank)
        parts.end_wait(world.rank)
        loop = loops[index] = Loop(world, pauses[index])
        training = Training(NETWORKS[index], 0)
        training.group = SingleRankGroup()
        training.trainable = index
        state = TrainingState({}, "", position=position, batch=2)
        try:
            results[index] = parts.train(Request(loop, training, state, Source(), Epoch(0), 2))
        except TrainingFailed as failure:
            results[index] = failure
        parts.begin_wait(world.rank, has_network=False)

    threads.run(run)
    return loops, results


def test_trainers_train_as_one():
    engine = Engine()
    _, results = meet(engine)
    assert engine.calls == [(0, 1, 2)] * 3
    assert all(part.is_over and part.state.position == SAMPLES for part in results.values())
    assert all(part.state.sums[0] == 3.0 for part in results.values())


def test_network_that_diverges_fails_alone():
    engine = Engine({(1, 1): np.nan})
    _, results = meet(engine)
    assert isinstance(results[1], TrainingFailed)
    assert "diverged" in results[1].reason
    assert engine.calls[-1] == (0, 2)
    assert results[0].state.position == results[2].state.position == SAMPLES


def test_network_that_pauses_leaves_at_its_sample():
    engine = Engine()
    _, results = meet(engine, pauses=(None, 2, None))
    assert not results[1].is_over
    assert 2 <= results[1].state.position < SAMPLES
    assert results[0].is_over
    assert results[2].is_over


def test_last_network_of_a_part_continues_alone():
    loops, results = meet(Engine(), pauses=(2, 2, None))
    assert not results[0].is_over
    assert not results[1].is_over
    assert loops[2].alone == [results[0].state.position]


def test_networks_that_cannot_be_fused_take_turns():
    loops, results = meet(Engine(refuses=True))
    assert all(loop.alone == [0] for loop in loops.values())
    sent = [message for loop in loops.values() for message in loop.sent]
    assert [type(message) for message in sent] == [m.NotFused]
    assert sent[0].reason == "it branches"
    assert len(results) == 3


def test_epoch_without_samples_is_over():
    _, results = meet(Engine(), position=SAMPLES)
    assert all(part.is_over for part in results.values())


@pytest.mark.parametrize("count", range(3))
def test_repeated_meetings_end(count):
    before = threading.active_count()
    meet(Engine({(count, 2): np.inf}))
    assert threading.active_count() <= before
