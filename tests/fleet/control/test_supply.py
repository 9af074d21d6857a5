"""The supply of samples by preprocessors, as plans use it."""

import math

import pytest

from fleet.comm.messages import Prepared, Ready, Start, Stop, Stopped, Throughput
from fleet.control.effects import PolicyAnswered, RanksDied
from fleet.domain.events import SupplyChanged
from fleet.domain.network import StepRate
from scheduler.base import Network, Options, RateTable
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import POLICIES
from tests.fleet.control.driver import ControllerDriver, layout

TOGETHER = {"a": [0], "b": [1]}  # rates of each: 10 samples/s on one device, 19 on two


def start_driver(*samples_per_s, stream=None, **options):
    """Return a driver with two networks in training, and preprocessors with these throughputs."""
    driver = ControllerDriver(TOGETHER, stream=layout(6) if stream is None else stream, **options)
    driver.handle(*(Throughput(rank, speed) for rank, speed in enumerate(samples_per_s)))
    return driver.begin()


class PolicyDriver(ControllerDriver):
    """A controller with a real policy, and four networks on two devices; a is the fastest."""

    def __init__(self, policy, supply):
        self.policy = POLICIES[policy]
        super().__init__({}, networks="abcd", trainers=2, stream=layout(6))
        self.handle(Throughput(0, supply))
        self.begin()

    def make(self):
        self.rates = RateTable(
            60,
            2,
            (Network("a", (3000.0, 5000.0)), *(Network(name, (500.0, 900.0)) for name in "bcd")),
        )
        return super().make()

    def ask(self, question):
        super().ask(question)
        return PolicyAnswered(
            plan(self.policy, question.rates, question.progress, question.cluster, Options())
        )

    @property
    def groups(self):
        """The numbers of GPUs in the latest plan."""
        return {member.name: member.gpus for member in self.events_of("PlanChanged")[-1].members}


def test_supply_limits_rates_and_is_updated_at_epoch_ends():
    driver = start_driver(100.0)
    before = len(driver.progress)
    # the time that it waited does not count
    driver.handle(Prepared(0, samples=10, busy_s=1.0), after=20.0)
    assert len(driver.progress) == before
    driver.end_epoch("a")
    assert [progress.rates_changed for progress in driver.progress[before - 1 :]] == [False, True]
    assert [table.supply for table in driver.tables[before - 1 :]] == [100.0, 10.0]
    assert driver.events_of("SupplyChanged") == [SupplyChanged(10.0, 38.0)]  # on four devices


def test_supply_is_kept_if_it_differs_little():
    driver = start_driver(10.0)
    for samples in (9, 8, 11, 12):
        driver.handle(Prepared(0, samples, 1.0))
        driver.end_epoch("a")
    assert {table.supply for table in driver.tables} == {10.0}
    assert not driver.events_of("SupplyChanged")
    assert not any(progress.rates_changed for progress in driver.progress)


def test_supply_above_all_demand_changes_nothing():
    driver = start_driver(1e6)
    driver.handle(Prepared(0, 500, 1.0))
    driver.end_epoch("a")
    assert not driver.progress[-1].rates_changed


def test_supply_follows_recent_work():
    driver = start_driver(100.0)
    driver.handle(Prepared(0, 4, 1.0))
    driver.end_epoch("a")
    driver.handle(*(Prepared(0, 16, 1.0) for _ in range(6)))
    driver.end_epoch("a")
    assert driver.tables[-1].supply == pytest.approx(16.0, rel=0.02)
    assert [
        actual.supply_samples_per_s for actual in driver.events_of("SupplyChanged")
    ] == pytest.approx([4.0, 16.0], rel=0.02)


def test_supply_is_infinite_if_trainers_prepare_samples():
    assert ControllerDriver(TOGETHER).begin().tables[-1].supply == math.inf


def test_supply_is_infinite_after_a_preprocessor_dies():
    driver = start_driver(5.0, outlives=True)
    assert driver.tables[-1].supply == 5.0
    driver.handle(RanksDied((0,)))
    assert (driver.tables[-1].supply, driver.progress[-1].rates_changed) == (math.inf, True)


def test_supply_is_not_compared_with_guesses():
    driver = start_driver(5.0, learns={})
    assert driver.tables[-1].supply == math.inf
    driver.end_epoch("a", rate=StepRate(40.0, 0.05, 100))
    assert driver.tables[-1].supply == 5.0
    assert driver.events_of("SupplyChanged")[-1].supply_samples_per_s == 5.0


def test_supply_ends_a_round_that_the_input_cannot_feed():
    driver = PolicyDriver("global", supply=1e6)
    assert driver.groups == {"a": 2}
    driver.handle(Prepared(0, 200, 0.5))
    driver.end_epoch("a", gpus=2)
    assert driver.read_mail()[1] == [Stop(final=False)]
    driver.handle(Stopped("a", 0.0), Ready(1), Ready(2))
    started = [
        message.network.name
        for messages in driver.read_mail().values()
        for message in messages
        if isinstance(message, Start)
    ]
    assert len(set(started)) == len(driver.groups) == 2
    assert set(driver.groups.values()) == {1}


def test_slow_supply_gives_no_network_two_devices():
    assert set(PolicyDriver("global", supply=400.0).groups.values()) == {1}
