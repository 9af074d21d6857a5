"""Plans know what the input gives: what an ensemble makes of what preprocessors say."""

import math

import pytest

from fleet.comm.messages import Prepared, Ready, Start, Stop, Stopped, Throughput
from fleet.control.effects import RanksDied
from fleet.control.launch_state import PolicyAnswer
from fleet.domain.events import SupplyChanged
from fleet.domain.network import StepRate
from scheduler.base import Network, Options, RateTable
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import POLICIES
from tests.fleet.control.told import Told, layout

TOGETHER = {"a": [0], "b": [1]}  # rates of each: 10 samples/s on one device, 19 on two


def begun(*samples_per_s, stream=None, **options):
    """Two networks in training, on a stream whose preprocessor has said how fast it is."""
    told = Told(TOGETHER, stream=layout(6) if stream is None else stream, **options)
    told.hear(*(Throughput(rank, speed) for rank, speed in enumerate(samples_per_s)))
    return told.begin()


class Planning(Told):
    """An ensemble of four networks on two devices, one of them much faster than the others, that asks a policy."""

    def __init__(self, policy, supply):
        self.policy = POLICIES[policy]
        super().__init__({}, networks="abcd", trainers=2, stream=layout(6))
        self.hear(Throughput(0, supply))
        self.begin()

    def make(self):
        self.rates = RateTable(
            60,
            2,
            (Network("a", (3000.0, 5000.0)), *(Network(name, (500.0, 900.0)) for name in "bcd")),
        )
        return super().make()

    def ask(self, rates, progress, cluster, least):
        super().ask(rates, progress, cluster, least)
        return PolicyAnswer(plan(self.policy, rates, progress, cluster, Options()))

    @property
    def groups(self):
        """What the policy wanted last."""
        return {member.name: member.gpus for member in self.of("PlanChanged")[-1].members}


def test_supply_limits_rates_and_is_updated_at_epoch_ends():
    told = begun(100.0)
    before = len(told.asked)
    told.hear(
        Prepared(0, samples=10, busy_s=1.0), after=20.0
    )  # it has waited for long, which says nothing
    assert len(told.asked) == before
    told.end_epoch("a")
    assert [asked.rates_changed for asked in told.asked[before - 1 :]] == [False, True]
    assert [table.supply for table in told.tables[before - 1 :]] == [100.0, 10.0]
    assert told.of("SupplyChanged") == [SupplyChanged(10.0, 38.0)]  # on four devices


def test_a_supply_that_differs_by_less_stays_as_it_was_told():
    told = begun(10.0)
    for samples in (9, 8, 11, 12):
        told.hear(Prepared(0, samples, 1.0))
        told.end_epoch("a")
    assert {table.supply for table in told.tables} == {10.0}
    assert not told.of("SupplyChanged")
    assert not any(asked.rates_changed for asked in told.asked)


def test_what_the_input_gives_beyond_all_demand_is_no_news():
    told = begun(1e6)
    told.hear(Prepared(0, 500, 1.0))
    told.end_epoch("a")
    assert not told.asked[-1].rates_changed


def test_it_is_what_was_prepared_of_late_that_counts():
    told = begun(100.0)
    told.hear(Prepared(0, 4, 1.0))
    told.end_epoch("a")
    told.hear(*(Prepared(0, 16, 1.0) for _ in range(6)))
    told.end_epoch("a")
    assert told.tables[-1].supply == pytest.approx(16.0, rel=0.02)
    assert [found.supply_samples_per_s for found in told.of("SupplyChanged")] == pytest.approx(
        [4.0, 16.0], rel=0.02
    )


def test_supply_is_infinite_if_trainers_prepare_samples():
    assert Told(TOGETHER).begin().tables[-1].supply == math.inf


def test_supply_is_infinite_after_a_preprocessor_dies():
    told = begun(5.0, outlives=True)
    assert told.tables[-1].supply == 5.0
    told.hear(RanksDied((0,)))
    assert (told.tables[-1].supply, told.asked[-1].rates_changed) == (math.inf, True)


def test_supply_is_not_compared_with_guesses():
    told = begun(5.0, learns={})
    assert told.tables[-1].supply == math.inf
    told.end_epoch("a", rate=StepRate(40.0, 0.05, 100))
    assert told.tables[-1].supply == 5.0
    assert told.of("SupplyChanged")[-1].supply_samples_per_s == 5.0


def test_supply_ends_a_round_that_the_input_cannot_feed():
    told = Planning("global", supply=1e6)
    assert told.groups == {"a": 2}
    told.hear(Prepared(0, 200, 0.5))
    told.end_epoch("a", gpus=2)
    assert told.read()[1] == [Stop(final=False)]
    told.hear(Stopped("a", 0.0), Ready(1), Ready(2))
    started = [
        message.network.name
        for messages in told.read().values()
        for message in messages
        if isinstance(message, Start)
    ]
    assert len(set(started)) == len(told.groups) == 2
    assert set(told.groups.values()) == {1}


def test_slow_supply_gives_no_network_two_devices():
    assert set(Planning("global", supply=400.0).groups.values()) == {1}
