"""Networks that come, or pause, while others train: whatever the policy, they are trained to their end."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.messages import Ready, Start, Stopped
from fleet.comm.roles import assign
from fleet.control.controller import Controller
from fleet.control.effects import NetworkAdmitted, NetworkCommand
from fleet.control.launch_state import LaunchConfig, PolicyAnswer
from fleet.domain.events import NetworkAdded
from fleet.search.controller import make_controller
from fleet.search.searcher import Verdict
from scheduler.base import Network, Options, RateTable
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import POLICIES
from tests.examples import examples
from tests.fleet.control.driver import ControllerDriver, no_search, speeds, traits
from tests.fleet.control.test_random_launches import SAMPLES, layout
from tests.fleet.control.trainers import Fate, Ranks
from tests.fleet.histories import spec

FIRST, LATE = 2, 5


class Joined(Ranks):
    """Ranks of a run to which networks come, and whose networks somebody pauses and lets go on, each at any time.

    Args:
        late: what the ensemble is told of those that come.
        ruled: network and verdict, one after another; in the end all go on.
    """

    def __init__(self, *args, late, ruled):
        super().__init__(*args)
        self.late, self.ruled = (
            list(late),
            [*ruled, *((name, Verdict.GO_ON) for name in self.fates)],
        )

    def words(self):
        yield from super().words()
        if self.late:
            yield lambda: self.hear(self.late.pop(0))
        elif self.ruled:
            yield lambda: self.rule(*self.ruled.pop(0))

    def rule(self, name, verdict):
        if name not in self.over():
            self.hear(NetworkCommand(name, verdict))


def launch(policy, seed, learns, kind, ruled=()):
    """A run of two networks, to which five others come."""
    roles = assign((0,) * 4, None if policy == "baseline" else 1, None, policy == "baseline")
    everyone = spec(*({"family": "softmax", "name": f"n{index}"} for index in range(FIRST + LATE)))
    content = spec(
        *({"family": "softmax", "name": f"n{index}"} for index in range(FIRST)), keep_open=100
    )
    setup = LaunchConfig(
        content, roles, None if policy == "baseline" else layout(kind), SAMPLES, outlives=False
    )
    rates = (
        None
        if learns
        else RateTable(
            SAMPLES,
            roles.gpus_per_node,
            tuple(Network(network.name, (10.0, 17.0)) for network in content.networks),
        )
    )

    def make():
        return Controller(
            setup,
            {},
            speeds(setup, rates, learns),
            lambda table, progress, cluster, least: PolicyAnswer(
                plan(POLICIES[policy], table, progress, cluster, Options())
            ),
            no_search(content),
        )

    late = [
        NetworkAdmitted(
            network,
            NetworkAdded(network.name, "", -1, {}, (1, None), 1),
            network.name,
            traits(network) if learns else None,
        )
        for network in everyone.networks[FIRST:]
    ]
    fates = {network.name: Fate(2, []) for network in everyone.networks}
    return Joined(make, setup, seed, fates, late=late, ruled=ruled)


NAMES = st.sampled_from([f"n{number}" for number in range(FIRST + LATE)])


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(20))
@given(
    seed=st.integers(0, 10**6),
    learns=st.booleans(),
    kind=st.sampled_from(["whole", "lockstep", "ring"]),
    ruled=st.just([])
    | st.lists(
        st.tuples(NAMES, st.sampled_from([Verdict.PAUSE, Verdict.GO_ON])), min_size=6, max_size=24
    ),
)
def test_late_networks_that_pause_and_resume_train_to_the_end(policy, seed, learns, kind, ruled):
    ranks = launch(policy, seed, learns and policy != "baseline", kind, ruled)
    ranks.run()
    ranks.check_end()
    ranks.check_histories()
    ranks.repeat()


class Judged(ControllerDriver):
    """A run that judges its networks after each epoch, the best half of those that wait."""

    def mind(self):
        return make_controller(
            self.setup.spec, replace(self.setup.spec, networks=()), {}, trainers=2
        )


def test_resumed_network_trains_after_the_run_stops_waiting():
    driver = Judged(
        {"a": [0], "b": [1]},
        trainers=2,
        parts={
            "keep_open": 50,
            "prune": {"rule": "asha", "synchronous": True, "min_epochs": 1, "factor": 2},
        },
    ).begin()
    for network, rank in (("a", 1), ("b", 2)):
        driver.end_epoch(network)
        driver.hear(Stopped(network, 0.0), Ready(rank))
    driver.read()
    driver.hear(None)
    driver.hear(None, after=50.0)
    assert [(event.network, event.verdict) for event in driver.of("NetworkVerdict")[-2:]] == [
        ("b", "stop"),
        ("a", "go_on"),
    ]
    assert [type(order) for order in driver.read()[1]] == [Start]
