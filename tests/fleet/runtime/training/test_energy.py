"""Each network gets its share of what counters count."""

import random

import numpy as np
import pytest

from fleet.runtime.training.energy import EnergyMeter, NoMeter
from launch.energy import Counter


class Node:
    """Ranks that share made-up counters, on a made-up clock; each has a network at first.

    Args:
        watts: of each counter.
        sharers: the trainers that share each.
    """

    def __init__(self, watts, sharers, trainers, range_j=None):
        self.now = 0.0
        self.joules = [0.0] * len(watts)
        self._watts = watts
        self._range_j = range_j
        counters = [
            Counter(str(index), "", lambda index=index: self._value(index), range_j)
            for index in range(len(watts))
        ]
        busy = np.zeros(trainers)
        self.ranks = []
        for trainer in range(trainers):
            counted = [index for index, indices in enumerate(sharers) if trainer in indices]
            self.ranks.append(
                EnergyMeter(
                    [counters[index] for index in counted],
                    [sharers[index] for index in counted],
                    busy,
                    trainer,
                    lambda: self.now,
                )
            )
        self.meters = [self.add_network(rank) for rank in range(trainers)]

    def add_network(self, rank=0):
        """Let a network begin on a rank; return its meter."""
        meter = self.ranks[rank].make_network_meter()
        meter.begin()
        return meter

    def _value(self, index):
        return self.joules[index] % self._range_j if self._range_j else self.joules[index]

    def pass_time(self, seconds):
        self.now += seconds
        self.joules = [
            value + watts * seconds for value, watts in zip(self.joules, self._watts, strict=True)
        ]


def train(node, seconds, draw, periods):
    """Let trainers step, each with the given duration of a step; return what each has used."""
    due = [draw.random() * period for period in periods]
    used = [0.0] * len(periods)
    while node.now < seconds:
        trainer = min(range(len(periods)), key=due.__getitem__)
        node.pass_time(max(0.0, due[trainer] - node.now))
        node.meters[trainer].add_step(periods[trainer])
        if draw.random() < 0.01:
            used[trainer] += node.meters[trainer].take()
        due[trainer] += periods[trainer]
    return [
        so_far + meter.take(is_end=True) for so_far, meter in zip(used, node.meters, strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("range_j", [None, 900.0])
def test_shares_add_up_to_the_counters(seed, range_j):
    draw = random.Random(seed)
    trainers = draw.randint(1, 4)
    # a GPU of the first two trainers, one of the others, and the processors
    sharers = [[*range(min(2, trainers))], [*range(2, trainers)], [*range(trainers)]]
    node = Node([300.0, 200.0, 150.0], sharers, trainers, range_j)
    periods = [draw.uniform(0.005, 0.3) for _ in range(trainers)]
    used = train(node, 120.0, draw, periods)
    counted = sum(joules for joules, indices in zip(node.joules, sharers, strict=True) if indices)
    assert sum(used) == pytest.approx(counted, rel=0.05)


def test_shares_are_by_step_time():
    node = Node([100.0], [[0, 1]], 2)
    for _ in range(200):
        node.pass_time(0.1)
        node.meters[0].add_step(0.09)
        node.meters[1].add_step(0.03)
    first, second = (meter.take() for meter in node.meters)
    assert first == pytest.approx(1500.0, rel=0.02)
    assert second == pytest.approx(500.0, rel=0.02)


def test_a_network_alone_gets_all_and_idle_trainers_nothing():
    node = Node([100.0], [[0, 1]], 2)
    node.pass_time(50.0)  # no trainer trains
    node.meters[0].begin()
    for _ in range(20):
        node.pass_time(1.0)
        node.meters[0].add_step(0.5)
    node.pass_time(10.0)  # an evaluation
    node.meters[0].add_step(0.5)
    assert node.meters[0].take() == pytest.approx(3000.0)
    assert node.meters[1].take() == 0.0


def test_the_end_of_a_network_has_the_time_since_its_last_step():
    node = Node([100.0], [[0]], 1)
    node.pass_time(1.0)
    node.meters[0].add_step(1.0)
    node.pass_time(4.0)
    assert node.meters[0].take(is_end=True) == pytest.approx(500.0)


def test_a_counter_that_fails_for_a_while_is_left_out():
    values = iter([10.0, OSError(), 30.0, 50.0])

    def read():
        value = next(values)
        if isinstance(value, Exception):
            raise value
        return value

    rank = EnergyMeter([Counter("", "", read)], [[0]], np.zeros(1), 0, lambda: 0.0)
    meter = rank.make_network_meter()
    meter.begin()
    joules = []
    for _ in range(3):
        meter.add_step(1.0)
        joules.append(meter.take())
    assert joules == [0.0, 0.0, 20.0]


def test_networks_of_a_rank_share_by_step_time():
    node = Node([100.0], [[0]], 1)
    first, second = node.meters[0], node.add_network()
    for _ in range(200):
        node.pass_time(0.09)
        first.add_step(0.09)
        node.pass_time(0.03)
        second.add_step(0.03)
    used = [first.take(), second.take()]
    assert used == pytest.approx([1800.0, 600.0], rel=0.01)
    assert sum(used) == pytest.approx(2400.0)


def test_each_network_reports_only_what_it_has_used():
    node = Node([100.0], [[0]], 1)
    meters = [node.meters[0], node.add_network()]
    used = [0.0, 0.0]
    for step in range(40):
        node.pass_time(0.3)
        for meter in meters:
            meter.add_step(0.15)
        used[step % 2] += meters[step % 2].take()
    used = [so_far + meter.take() for so_far, meter in zip(used, meters, strict=True)]
    assert used == [pytest.approx(600.0), pytest.approx(600.0)]


def test_steps_longer_than_a_reading_are_shared_evenly():
    node = Node([100.0], [[0]], 1)
    meters = [node.meters[0], node.add_network()]
    node.pass_time(5.0)
    for meter in meters:
        meter.add_step(2.5)
    assert [meter.take() for meter in meters] == [pytest.approx(250.0)] * 2


def test_a_network_that_joins_gets_nothing_of_earlier_steps():
    node = Node([100.0], [[0]], 1)
    first = node.meters[0]
    node.pass_time(0.5)
    first.add_step(0.5)
    node.pass_time(4.0)  # an evaluation
    late = node.add_network()
    node.pass_time(0.5)
    first.add_step(0.3)
    late.add_step(0.2)
    assert [first.take(), late.take()] == [pytest.approx(480.0), pytest.approx(20.0)]


def test_a_network_that_ends_early_leaves_the_rest_to_others():
    node = Node([100.0], [[0]], 1)
    first, second = node.meters[0], node.add_network()
    node.pass_time(1.0)
    first.add_step(0.6)
    second.add_step(0.4)
    used = [first.take(), second.take()]
    node.pass_time(3.0)  # both are evaluated
    used[0] += first.take(is_end=True)
    node.pass_time(2.0)
    used[1] += second.take(is_end=True)
    assert used == [pytest.approx(60.0 + 150.0), pytest.approx(40.0 + 150.0 + 200.0)]


@pytest.mark.parametrize("seed", range(5))
def test_networks_of_a_rank_add_up_to_the_counter(seed):
    draw = random.Random(seed)
    node = Node([100.0], [[0]], 1)
    trainers = [node.meters[0]] + [node.ranks[0].make_network_meter() for _ in range(7)]
    training = [trainers[0]]  # one always trains
    used = 0.0
    for _ in range(1000):
        node.pass_time(draw.uniform(0.0, 0.5))
        meter = draw.choice(trainers)
        if meter not in training:
            meter.begin()
            training.append(meter)
        elif draw.random() < 0.1 and len(training) > 1:
            used += meter.take(is_end=True)
            training.remove(meter)
        elif draw.random() < 0.2:
            used += meter.take()
        else:
            meter.add_step(draw.uniform(0.0, 0.5))
    used += sum(meter.take(is_end=True) for meter in training)
    assert used == pytest.approx(node.joules[0], rel=1e-9)


def test_reports_within_epochs_are_due_after_a_minute():
    node = Node([100.0], [[0]], 1)
    assert not node.meters[0].is_due()
    node.pass_time(61.0)
    assert node.meters[0].is_due()
    node.meters[0].take()
    assert not node.meters[0].is_due()


def test_nothing_is_measured_without_counters():
    meter = NoMeter()
    meter.begin()
    meter.add_step(1.0)
    assert not meter.is_due()
    assert meter.take(is_end=True) == 0.0
