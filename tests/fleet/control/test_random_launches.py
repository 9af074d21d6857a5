"""Random launches, with hypothesis: any networks, ranks and events, in any order."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.roles import assign
from fleet.control.controller import Controller
from fleet.control.launch_state import LaunchConfig
from fleet.control.node_release import NodeRelease
from fleet.errors import ExitStatus
from fleet.stream.layout import Layout
from preprocess.sample import ArraySpec
from scheduler.base import Member, Network, Options, RateTable, Round
from scheduler.ensemble.policies import POLICIES, Policy
from tests.examples import examples
from tests.fleet.control.driver import make_idle_search, make_prior_rates
from tests.fleet.control.trainers import Behavior, Ranks, begin_run
from tests.fleet.histories import record, spec

SAMPLES = 60


def restless(rates, progress, cluster, options, seed=0):
    """Plan at random after every epoch: groups grow, shrink, move, stop and start."""
    random = Random(
        repr(
            (seed, sorted(progress.epochs_done.items()), sorted(progress.finished), cluster.devices)
        )
    )
    devices, members = random.sample(cluster.devices, cluster.gpus), []
    waiting = [network for network in rates.models if network.name not in progress.finished]
    for network in random.sample(waiting, len(waiting)):
        maximum = min(network.max_gpus or len(devices), len(devices))
        if network.min_gpus <= maximum:
            count = random.randint(network.min_gpus, maximum)
            members.append(Member(network.name, tuple(devices[:count])))
            del devices[:count]
    return Round(tuple(members))


TESTED_POLICIES = {**POLICIES, "restless": Policy("restless", restless)}


def layout(kind):
    """Return the layout of a kind of stream: lockstep, whole, ring or none."""
    if kind == "none":
        return None
    chunks = {"lockstep": 3, "whole": 6, "ring": 3}[kind]
    return Layout(ArraySpec((4, 4, 1), "uint8"), SAMPLES, 10, chunks, 1, 4, is_ring=kind == "ring")


@st.composite
def launches(
    draw,
    policy,
    deaths=st.just(0),
    end_request_step=st.none(),
    ends_s=st.just(math.inf),
    histories=st.just(False),
    node_requests=st.none(),
    outlives=st.just(False),
    nodes=st.integers(1, 2),
    delays_answers=False,
    make_node_release=NodeRelease,
):
    """Draw the ranks of a launch, and what will happen."""
    nodes = draw(nodes)
    on_each = draw(st.sampled_from([3, 5, 4, 2]))
    node_of = tuple(node for node in range(nodes) for _ in range(on_each))
    private = policy == "baseline" or draw(st.integers(0, 5)) == 0
    roles = assign(
        node_of,
        None if private else nodes * draw(st.sampled_from([1, 1, 1, on_each - 1])),
        None,
        private,
    )
    trainers = len(roles.trainers)
    models, behaviors, remaining = [], {}, {}
    for index in range(draw(st.sampled_from([3, 4, 2, 1]))):
        minimum = min(draw(st.sampled_from([1, 1, 2])), trainers)
        maximum = draw(st.sampled_from([trainers, trainers, minimum]))
        models.append(
            {
                "family": "softmax",
                "name": f"n{index}",
                "gpus": [minimum, maximum],
                "train": {
                    "batch": {
                        "size": 4,
                        "when_scaled": draw(
                            st.sampled_from(["fixed", "fixed", "fixed", "per_gpu"])
                        ),
                    }
                },
            }
        )
        behaviors[f"n{index}"] = Behavior(
            draw(st.sampled_from([3, 6, 1])),
            draw(st.sampled_from([[], [], [True], [False], [True, False]])),
        )
        if draw(histories):
            remaining[f"n{index}"] = tuple(
                record(epoch, stream_epoch=epoch - 1)
                for epoch in range(1, draw(st.integers(1, behaviors[f"n{index}"].epochs)) + 1)
            )
    content = spec(*models, retries=draw(st.integers(0, 2)))
    kind = "none"
    if not private:
        kind = draw(st.sampled_from(["lockstep", "lockstep", "whole", "ring", "none"]))
    curves = {
        network.name: [draw(st.floats(1, 50)) * gpus**0.9 for gpus in range(1, trainers + 1)]
        for network in content.networks
    }
    rates, learns, prior = None, False, {}
    if policy == "baseline" or draw(st.booleans()):
        rates = RateTable(
            SAMPLES,
            roles.gpus_per_node,
            tuple(
                Network(
                    network.name,
                    tuple(curves[network.name]),
                    min_gpus=network.min_gpus,
                    max_gpus=network.max_gpus,
                )
                for network in content.networks
            ),
        )
    elif draw(st.booleans()):
        learns = True
        prior = {
            name: dict(enumerate(rates, 1)) for name, rates in curves.items() if draw(st.booleans())
        }
    dying = draw(deaths)
    setup = LaunchConfig(
        content,
        roles,
        layout(kind),
        SAMPLES,
        outlives=dying > 0 or draw(outlives),
        ends_s=draw(ends_s),
        first_epoch=max(map(len, remaining.values()), default=0),
    )
    options = Options(seed=draw(st.integers(0, 3)))

    def make():
        run = begin_run(setup, remaining)
        return Controller(
            setup,
            run,
            make_prior_rates(setup, rates, learns, prior),
            make_idle_search(content, run),
            make_node_release=make_node_release,
        )

    return Ranks(
        make,
        setup,
        draw(st.integers(0, 10**6)),
        behaviors,
        remaining,
        dying,
        draw(end_request_step),
        node_requests=draw(node_requests),
        policy=TESTED_POLICIES[policy],
        options=options,
        delays_answers=delays_answers,
    )


def check_status(status, ranks):
    """Check that the status says whether something is left to train."""
    assert (status is ExitStatus.RESUMABLE) == (set(ranks.outcomes()) < set(ranks.behaviors))


all_policies = pytest.mark.parametrize("policy", TESTED_POLICIES)


@all_policies
@settings(max_examples=examples(40))
@given(st.data())
def test_random_launch_ends_all_networks_and_ranks(policy, data):
    ranks = data.draw(launches(policy, histories=st.booleans()))
    ranks.run()
    ranks.check_end()
    ranks.check_histories()
    ranks.repeat()


@pytest.mark.long_but_first
@all_policies
@pytest.mark.parametrize(
    "happens",
    [
        {"end_request_step": st.integers(1, 150)},
        {"ends_s": st.floats(0, 6)},
        {"deaths": st.integers(1, 3), "end_request_step": st.none() | st.integers(1, 150)},
    ],
    ids=["end request", "walltime", "deaths"],
)
@settings(max_examples=examples(40))
@given(st.data())
def test_random_launch_survives_end_requests_and_deaths(policy, happens, data):
    ranks = data.draw(launches(policy, **happens))
    check_status(ranks.run(), ranks)
    ranks.check_histories()
    ranks.repeat()


@all_policies
@settings(max_examples=examples(40))
@given(st.data())
def test_random_launch_survives_late_answers_of_the_policy(policy, data):
    end_request_step = data.draw(st.none() | st.integers(1, 150))
    ranks = data.draw(
        launches(
            policy,
            deaths=st.integers(0, 2),
            end_request_step=st.just(end_request_step),
            delays_answers=True,
        )
    )
    check_status(ranks.run(), ranks)
    ranks.check_histories()
    ranks.repeat()
