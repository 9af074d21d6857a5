"""A launch warns once if no network is better than chance after a third of its epochs."""

from types import SimpleNamespace

import pytest

from fleet.control.chance import ChanceWarning
from fleet.control.effects import Outbox
from fleet.control.networks import Networks, WaitingNetworks
from fleet.domain.network import NetworkStatus, Outcome
from fleet.domain.run import RunState
from tests.fleet.histories import record, spec


class Launch:
    """Networks of at most 9 epochs, the chance of their data, and the outbox of effects."""

    def __init__(self, networks, chance=0.5):
        content = spec(
            *({"family": "softmax", "name": name} for name in networks),
            train={"stopping": {"max_epochs": 9}},
        )
        self.run = RunState(content)
        self.outbox = Outbox(self.run)
        self.networks = Networks(self.run, content.networks, WaitingNetworks())
        [key] = {network.pipeline for network in content.networks}
        self.config = SimpleNamespace(chance={} if chance is None else {key: chance})
        self.warning = ChanceWarning(self)

    def train(self, network, *accuracies, outcome=None):
        records = tuple(
            record(epoch, accuracy=accuracy, val_accuracy=accuracy)
            for epoch, accuracy in enumerate(accuracies, 1)
        )
        self.run.restore({network: NetworkStatus(records, outcome)})

    def check(self):
        """Return the warnings that follow from the epochs so far."""
        self.warning.check()
        effects = self.outbox.drain()
        return [effect.event.warning for effect in effects]


def test_warns_once_after_a_third_of_the_epochs():
    launch = Launch("a")
    launch.train("a", 0.5, 0.4)
    assert launch.check() == []
    launch.train("a", 0.5, 0.4, 0.5)
    [warning] = launch.check()
    assert "no network is better than chance (the best accuracy is 50.0%)" in warning
    launch.train("a", 0.5, 0.4, 0.5, 0.5)
    assert launch.check() == []


def test_later_launch_does_not_repeat_the_warning():
    launch = Launch("a")
    launch.train("a", 0.5, 0.5, 0.5)
    [warning] = launch.check()
    launch.warning = ChanceWarning(launch)
    assert warning in launch.run.warnings
    assert launch.check() == []


def test_one_network_above_chance_ends_the_comparison():
    launch = Launch("ab")
    launch.train("a", 0.6)
    assert launch.check() == []
    launch.train("a", 0.1, 0.1, 0.1)
    launch.train("b", 0.1, 0.1, 0.1)
    assert launch.check() == []


@pytest.mark.parametrize(("begun", "warns"), [("ab", False), ("abc", True)])
def test_three_networks_are_enough_of_many(begun, warns):
    launch = Launch("abcde")
    for network in begun:
        launch.train(network, 0.1, 0.1, 0.1)
    assert bool(launch.check()) == warns


def test_networks_that_have_just_begun_are_awaited():
    launch = Launch("abcd")
    for network in "abc":
        launch.train(network, 0.1, 0.1, 0.1)
    launch.train("d", 0.1)
    assert launch.check() == []


def test_network_that_is_over_has_trained_enough():
    launch = Launch("a")
    launch.train("a", 0.1, outcome=Outcome("pruned"))
    assert len(launch.check()) == 1


@pytest.mark.parametrize(("chance", "accuracy"), [(None, 0.1), (0.5, float("nan"))])
def test_unknown_numbers_are_never_warned_of(chance, accuracy):
    launch = Launch("a", chance)
    launch.train("a", accuracy, accuracy, accuracy)
    assert launch.check() == []
