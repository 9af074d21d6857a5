"""Several trainers of one rank, of which one runs at a time."""

import threading
import time

import pytest

from fleet.comm import messages as m
from fleet.comm.roles import assign
from fleet.comm.trainer_threads import TrainerThreads, Turns, address
from fleet.errors import InfrastructureError
from tests.refusals import refused

ROLES = assign([0, 0], 1, None, fused=3)


class World:
    """Rank 1, with messages that a test has written."""

    def __init__(self, messages=()):
        self.rank, self.size, self.host, self.hosts = 1, 2, "here", ("here",)
        self.is_fault_tolerant = False
        self.background_tasks = []
        self.dead_ranks = frozenset()
        self._longest_pause = 1e-3
        self._tasks_lock = threading.Lock()
        self.before_end = lambda: None
        self.messages = list(messages)
        self.sent = []

    def receive(self, tag):
        return self.messages.pop(0) if self.messages else None

    def send(self, rank, tag, message):
        self.sent.append((rank, message))

    def run_background_tasks(self):
        return False

    def check_for_deaths(self):
        pass


def test_turns_are_taken_in_order():
    turns, order = Turns(), []

    def run(name):
        turns.begin()
        order.append(name)
        turns.end()

    turns.begin()
    threads = []
    for name in "abc":
        threads.append(threading.Thread(target=run, args=(name,)))
        threads[-1].start()
        while len(turns._waiting) < len(threads):
            time.sleep(0.001)
    turns.end()
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c"]


def test_each_trainer_receives_its_messages():
    orders = {trainer: m.Pause(run_ends=trainer == 3) for trainer in ROLES.trainers}
    addressed = [address(ROLES, trainer, orders[trainer]) for trainer in ROLES.trainers]
    assert {rank for rank, _ in addressed} == {1}
    received = {}

    def run(world):
        received[world.rank] = world.wait_for_message(m.Tag.TRAINER)

    TrainerThreads(World([message for _, message in addressed]), ROLES).run(run)
    assert received == orders


def test_one_trainer_runs_at_a_time():
    running, counts = set(), []

    def run(world):
        for _ in range(20):
            running.add(world.rank)
            counts.append(len(running))
            running.discard(world.rank)
            world.sleep(1e-4)

    TrainerThreads(World(), ROLES).run(run)
    assert max(counts) == 1
    assert len(counts) == 60


def test_error_of_a_trainer_ends_the_rank():
    def run(world):
        if world.rank == 3:
            raise InfrastructureError("broken")
        world.sleep(60)

    with refused(InfrastructureError, "broken"):
        TrainerThreads(World(), ROLES).run(run)


def test_main_thread_runs_what_needs_signals():
    threads = TrainerThreads(World(), ROLES)
    seen = []

    def run(world):
        seen.append(world.threads.on_main_thread(threading.current_thread))

    threads.run(run)
    assert set(seen) == {threading.main_thread()}


def test_group_of_trainers_of_one_rank_is_refused():
    def run(world):
        world.group(ROLES.trainers_of(1)[:2], 1)

    with refused(InfrastructureError, "ranks of their own"):
        TrainerThreads(World(), ROLES).run(run)


@pytest.mark.parametrize("fused", [1, 2, 5])
def test_trainers_of_ranks_are_numbered_without_gaps(fused):
    roles = assign([0, 0, 0, 1, 1], 2, None, fused=fused)
    assert roles.ranks == 5
    assert sorted(roles.trainers) == sorted(
        trainer for rank in (1, 2, 4) for trainer in roles.trainers_of(rank)
    )
    assert all(
        roles.process(trainer) == rank for rank in (1, 2, 4) for trainer in roles.trainers_of(rank)
    )
    assert roles.with_trainers(frozenset({2})) == frozenset(roles.trainers_of(2))
    for rank in (1, 2, 4):
        devices = [roles.device_of[trainer] for trainer in roles.trainers_of(rank)]
        assert len({roles.cluster.gpu(device) for device in devices}) == 1
