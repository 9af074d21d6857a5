"""Networks that are added or paused while others train; with any policy, all finish."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.messages import Ready, Start, Stopped
from fleet.comm.roles import assign
from fleet.control.controller import Controller
from fleet.control.effects import NetworkAdmitted, NetworkCommand
from fleet.control.launch_state import LaunchConfig
from fleet.domain.events import NetworkAdded
from fleet.search.controller import make_controller
from fleet.search.searcher import Verdict
from scheduler.base import Network, RateTable
from scheduler.ensemble.policies import POLICIES
from tests.examples import examples
from tests.fleet.control.driver import ControllerDriver, make_idle_search, make_prior_rates, traits
from tests.fleet.control.test_random_launches import SAMPLES, layout
from tests.fleet.control.trainers import Behavior, Ranks, begin_run
from tests.fleet.histories import spec

FIRST, LATE = 2, 5


class ChangingRanks(Ranks):
    """Ranks of a run whose networks are added, paused and resumed at random times.

    Args:
        late: inputs that add networks.
        commands: (network, verdict), in order; in the end all networks are resumed.
    """

    def __init__(self, *args, late, commands, **more):
        super().__init__(*args, **more)
        self.late = list(late)
        self.commands = [*commands, *((name, Verdict.GO_ON) for name in self.behaviors)]

    def possible_inputs(self):
        yield from super().possible_inputs()
        if self.late:
            yield lambda: self.handle(self.late.pop(0))
        elif self.commands:
            yield lambda: self.send_command(*self.commands.pop(0))

    def send_command(self, name, verdict):
        if name not in self.outcomes():
            self.handle(NetworkCommand(name, verdict))


def launch(policy, seed, learns, kind, commands=()):
    """Return the ranks of a run of two networks to which five others are added."""
    roles = assign((0,) * 4, None if policy == "baseline" else 1, None, policy == "baseline")
    everyone = spec(*({"family": "softmax", "name": f"n{index}"} for index in range(FIRST + LATE)))
    content = spec(
        *({"family": "softmax", "name": f"n{index}"} for index in range(FIRST)), keep_open=100
    )
    setup = LaunchConfig(
        content, roles, None if policy == "baseline" else layout(kind), SAMPLES, outlives=False
    )
    rates = None
    if not learns:
        rates = RateTable(
            SAMPLES,
            roles.gpus_per_node,
            tuple(Network(network.name, (10.0, 17.0)) for network in content.networks),
        )

    def make():
        run = begin_run(setup, {})
        return Controller(
            setup,
            run,
            make_prior_rates(setup, rates, learns),
            make_idle_search(content, run),
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
    behaviors = {network.name: Behavior(2, []) for network in everyone.networks}
    return ChangingRanks(
        make,
        setup,
        seed,
        behaviors,
        policy=POLICIES[policy],
        late=late,
        commands=commands,
    )


NAMES = st.sampled_from([f"n{number}" for number in range(FIRST + LATE)])


@pytest.mark.long_but_first
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(20))
@given(
    seed=st.integers(0, 10**6),
    learns=st.booleans(),
    kind=st.sampled_from(["whole", "lockstep", "ring"]),
    commands=st.just([])
    | st.lists(
        st.tuples(NAMES, st.sampled_from([Verdict.PAUSE, Verdict.GO_ON])), min_size=6, max_size=24
    ),
)
def test_late_networks_that_pause_and_resume_train_to_the_end(policy, seed, learns, kind, commands):
    ranks = launch(policy, seed, learns and policy != "baseline", kind, commands)
    ranks.run()
    ranks.check_end()
    ranks.check_histories()
    ranks.repeat()


class PrunedDriver(ControllerDriver):
    """A controller with the pruner of the spec."""

    def make_search(self, run):
        return make_controller(
            self.setup.spec, replace(self.setup.spec, networks=()), run, {}, trainers=2
        )


def test_resumed_network_trains_after_the_run_stops_waiting():
    driver = PrunedDriver(
        {"a": [0], "b": [1]},
        trainers=2,
        parts={
            "keep_open": 50,
            "prune": {"rule": "asha", "synchronous": True, "min_epochs": 1, "factor": 2},
        },
    ).begin()
    for network, rank in (("a", 1), ("b", 2)):
        driver.end_epoch(network)
        driver.handle(Stopped(network, 0.0), Ready(rank))
    driver.read_mail()
    driver.handle(None)
    driver.handle(None, after=50.0)
    assert [
        (event.network, event.verdict) for event in driver.events_of("NetworkVerdict")[-2:]
    ] == [
        ("b", "stop"),
        ("a", "go_on"),
    ]
    assert [type(order) for order in driver.read_mail()[1]] == [Start]
