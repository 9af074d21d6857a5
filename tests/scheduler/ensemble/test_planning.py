"""Policies on shared GPUs, and with a slow input."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.base import Cluster, Member, Network, Options, Progress, RateTable, Round
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import LOCKSTEP, Ring, Stream
from scheduler.ensemble.planning import limit_to_supply, networks_per_gpu, plan, separate_slots
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates import rate
from scheduler.simulation.ensemble import simulate
from scheduler.simulation.learning import Learning
from tests.examples import examples
from tests.scheduler.strategies import ensembles

SHARING = (1.0, 1.6, 2.1, 2.4)


def table(*rates, samples=100, epochs=3, **more):
    return RateTable(
        samples,
        4,
        tuple(
            Network(f"n{i}", tuple(map(float, network)), epochs=epochs)
            for i, network in enumerate(rates)
        ),
        **more,
    )


@st.composite
def shared(draw):
    """Draw an ensemble, a cluster with slots and dead devices, and a sharing curve."""
    rates, cluster = draw(ensembles(most_networks=12, most_gpus=6))
    curve = (1.0, *draw(st.lists(st.floats(0.8, 4.0), max_size=3)))
    supply = draw(st.just(math.inf) | st.floats(1.0, 100.0))
    gpus_ = Cluster.of(
        cluster.gpus, cluster.gpus_per_node, draw(st.integers(1, 4)), draw(st.booleans())
    )
    return replace(rates, sharing=curve, supply=supply), gpus_


def check(answer, rates, cluster):
    """Check that an answer can be carried out."""
    devices = [device for member in answer.members for device in member.devices]
    assert len(devices) == len(set(devices))
    assert set(devices) <= set(cluster.devices)
    for member in answer.members:
        network = next(model for model in rates.models if model.name == member.name)
        assert network.min_gpus <= member.gpus <= (network.max_gpus or member.gpus)
        assert len({cluster.gpu(device) for device in member.devices}) == member.gpus


@given(shared(), st.sampled_from(sorted(POLICIES)), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_no_group_has_two_slots_of_a_gpu_whatever_ends_or_dies(drawn, name, data):
    rates, cluster = drawn
    policy, progress = POLICIES[name], Progress()
    for _ in range(4):
        answer = plan(policy, rates, progress, cluster, Options())
        check(answer, rates, cluster)
        if policy.rearranges:
            on_gpu = Counter(
                cluster.gpu(device) for member in answer.members for device in member.devices
            )
            assert max(on_gpu.values(), default=0) <= networks_per_gpu(rates, progress, cluster)
        over = data.draw(st.sets(st.sampled_from([network.name for network in rates.models])))
        dead = data.draw(
            st.sets(st.sampled_from(cluster.devices), max_size=len(cluster.devices) - 1)
        )
        cluster = cluster.without(dead)
        unfinished = tuple(member for member in answer.members if member.name not in over)
        progress = Progress(
            unfinished, finished=progress.finished | over, target=answer, rates_changed=bool(dead)
        )


@given(shared(), st.sampled_from(sorted(POLICIES)), st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_planning_trains_all_epochs_on_shared_gpus(drawn, name, learns):
    rates, cluster = drawn
    answer = simulate(
        rates,
        cluster,
        POLICIES[name],
        Options(),
        Costs(),
        learning=Learning(after_s=1.0) if learns else None,
    )
    done = Counter()
    for stint in answer.stints:
        done[stint.name] += stint.epochs
    assert done == pytest.approx({network.name: network.epochs for network in rates.models})
    assert answer.makespan_s >= answer.lower_bound_s * (1 - 1e-9)
    assert answer.waiting_s_per_gpu >= -1e-6 * answer.makespan_s


def test_plan_shares_gpus_only_while_networks_outnumber_them():
    rates, cluster = table(*[(10, 19, 27, 34)] * 8, sharing=SHARING), Cluster.of(4, 4, slots=4)
    adaptive = POLICIES["adaptive"]
    first = plan(adaptive, rates, Progress(), cluster, Options())
    assert sorted(
        cluster.gpu(device) for member in first.members for device in member.devices
    ) == sorted(2 * list(range(4)))
    # The remaining ones are all on one GPU, and each gets two whole GPUs.
    unfinished = tuple(member for member in first.members if cluster.gpu(member.devices[0]) == 0)
    over = frozenset(member.name for member in first.members if member not in unfinished)
    last = plan(
        adaptive, rates, Progress(unfinished, finished=over, target=first), cluster, Options()
    )
    assert [member.gpus for member in last.members] == [2, 2]
    assert len({cluster.gpu(device) for member in last.members for device in member.devices}) == 4


@pytest.mark.parametrize(
    ("sharing", "fills", "count"),
    [
        (SHARING, False, 3),
        ((1.0, 1.6, 1.61), False, 2),
        ((1.0, 1.0), False, 1),
        ((1.0, 1.0), True, 3),
        ((), False, 1),
        ((1.0,), False, 2),
    ],
)
def test_plan_fills_slots_only_if_it_pays_or_is_requested(sharing, fills, count):
    rates, cluster = table(*[(10,)] * 6, sharing=sharing), Cluster.of(2, 2, 4, fills)
    assert networks_per_gpu(rates, Progress(), cluster) == count
    assert (
        len(plan(POLICIES["adaptive"], rates, Progress(), cluster, Options()).members) == 2 * count
    )


def test_plan_keeps_sharing_for_policies_that_move_no_group():
    rates, cluster = table((10,), (10,), sharing=SHARING), Cluster.of(2, 2, slots=2)
    running = (Member("n0", (0,)), Member("n1", (2,)))
    progress = Progress(running, target=Round(running), rates_changed=True)
    assert plan(POLICIES["local"], rates, progress, cluster, Options()) == Round(running)
    moved = plan(POLICIES["adaptive"], rates, progress, cluster, Options())
    assert [cluster.gpu(member.devices[0]) for member in moved.members] == [0, 1]


def test_plan_gives_exclusive_networks_unshared_gpus():
    rates, cluster = table(*[(10,)] * 4, sharing=SHARING), Cluster.of(1, 1, slots=4)
    adaptive = POLICIES["adaptive"]
    together = plan(adaptive, rates, Progress(exclusive=frozenset({"n0"})), cluster, Options())
    assert {member.name for member in together.members} == {"n1", "n2", "n3"}
    over = frozenset({"n1", "n2", "n3"})
    last = plan(
        adaptive, rates, Progress(finished=over, exclusive=frozenset({"n0"})), cluster, Options()
    )
    assert last.counts == {"n0": 1}


def test_devices_of_a_group_are_exchanged_rather_with_free_ones():
    cluster = Cluster.of(gpus=3, gpus_per_node=3, slots=2)
    members = [Member("a", (0, 3, 1)), Member("b", (2,)), Member("c", (4,))]
    assert [member.devices for member in separate_slots(members, cluster, {2})] == [
        (0, 5, 1),
        (2,),
        (4,),
    ]


# --- an input that is slow ----------------------------------------------------------------------


@given(ensembles(), st.floats(0.5, 300.0))
@settings(max_examples=examples(80), deadline=None)
def test_limit_to_supply_caps_rates_and_gpus(drawn, supply):
    rates, cluster = drawn
    answer = limit_to_supply(replace(rates, supply=supply), cluster.gpus)
    for before, now in zip(rates.models, answer.models, strict=True):
        limit = now.max_gpus or cluster.gpus
        reached = [rate(now, gpus) for gpus in range(now.min_gpus, limit + 1)]
        true = [min(supply, rate(before, gpus)) for gpus in range(now.min_gpus, limit + 1)]
        assert reached == pytest.approx(true) or max(reached) < supply
        assert all(network < supply for network in reached[:-1])


@pytest.mark.parametrize("name", ["adaptive", "global", "local"])
def test_slow_stream_prefers_many_networks_to_wide_groups(name):
    # The first takes 6,936 samples/s of an input of 1,190.
    fast = table((6936, 13000), (1500, 2900), (1400, 2700), (900, 1700), (800, 1500), (700, 1300))
    alone, shared = (
        plan(POLICIES[name], replace(fast, supply=supply), Progress(), Cluster.of(2, 2), Options())
        for supply in (math.inf, 1190.0)
    )
    assert len(shared.members) == 2
    if name == "global":
        assert len(alone.members) == 1


@pytest.mark.parametrize(
    "stream",
    [
        Stream(rate=100.0),
        replace(LOCKSTEP, rate=100.0),
        Stream(rate=100.0, ring=Ring(shards=10, window=0.5, surplus=100.0)),
    ],
)
def test_simulation_on_slow_input_plans_with_the_supply(stream):
    rates = table(*[(400, 750, 1000, 1200)] * 4, samples=1000, sharing=(1.0, 1.0, 1.0, 1.0))
    spans = {}
    for slots in (1, 2):
        answer = simulate(
            rates, Cluster.of(2, 2, slots), POLICIES["adaptive"], Options(), Costs(), stream
        )
        spans[slots] = answer.makespan_s
    assert spans[1] == pytest.approx(60.0, rel=0.1)  # two after two, at the pace of the input
    # Four at the same time: a GPU is fast enough for two of them.
    assert spans[2] == pytest.approx(30.0, rel=0.1)


def test_planning_literal_algorithm_ignores_the_input():
    rates = table((400, 750), (390, 740), supply=100.0)
    (wide,) = plan(
        POLICIES["global"],
        replace(rates, models=rates.models[:1]),
        Progress(),
        Cluster.of(2, 2),
        Options(peak_limited=False),
    ).members
    assert wide.gpus == 2


@pytest.mark.parametrize(("gpus_per_node", "slots"), [(3, 2), (2, 0)])
def test_planning_counts_devices_by_slots(gpus_per_node, slots):
    with pytest.raises(InputError, match="must be a multiple"):
        Cluster((0,), gpus_per_node, slots)
