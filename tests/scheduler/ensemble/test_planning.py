"""Policies on GPUs that networks share, and on an input that is slow."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import Cluster, InputError, Member, Network, Options, Progress, RateTable, Round
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
            Network(f"n{i}", tuple(map(float, one)), epochs=epochs) for i, one in enumerate(rates)
        ),
        **more,
    )


@st.composite
def shared(draw):
    """An ensemble, a cluster whose GPUs have slots and some devices of which may be dead, and a curve of sharing."""
    rates, cluster = draw(ensembles(most_networks=12, most_gpus=6))
    curve = (1.0, *draw(st.lists(st.floats(0.8, 4.0), max_size=3)))
    supply = draw(st.just(math.inf) | st.floats(1.0, 100.0))
    whole = Cluster.of(
        cluster.gpus, cluster.gpus_per_node, draw(st.integers(1, 4)), draw(st.booleans())
    )
    return replace(rates, sharing=curve, supply=supply), whole


def check(answer, rates, cluster):
    """That an answer can be carried out."""
    devices = [device for member in answer.members for device in member.devices]
    assert len(devices) == len(set(devices))
    assert set(devices) <= set(cluster.devices)
    for member in answer.members:
        network = next(one for one in rates.models if one.name == member.name)
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
            there = Counter(
                cluster.gpu(device) for member in answer.members for device in member.devices
            )
            assert max(there.values(), default=0) <= networks_per_gpu(rates, progress, cluster)
        over = data.draw(st.sets(st.sampled_from([network.name for network in rates.models])))
        gone = data.draw(
            st.sets(st.sampled_from(cluster.devices), max_size=len(cluster.devices) - 1)
        )
        cluster = cluster.without(gone)
        left = tuple(member for member in answer.members if member.name not in over)
        progress = Progress(
            left, finished=progress.finished | over, target=answer, rates_changed=bool(gone)
        )


@given(shared(), st.sampled_from(sorted(POLICIES)), st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_every_network_trains_its_epochs_on_gpus_that_are_shared(drawn, name, learns):
    rates, cluster = drawn
    found = simulate(
        rates,
        cluster,
        POLICIES[name],
        Options(),
        Costs(),
        learning=Learning(after_s=1.0) if learns else None,
    )
    done = Counter()
    for stint in found.stints:
        done[stint.name] += stint.epochs
    assert done == pytest.approx({network.name: network.epochs for network in rates.models})
    assert found.makespan_s >= found.lower_bound_s * (1 - 1e-9)
    assert found.waiting_s_per_gpu >= -1e-6 * found.makespan_s


def test_networks_share_gpus_while_they_outnumber_them_and_the_last_ones_have_whole_gpus():
    rates, cluster = table(*[(10, 19, 27, 34)] * 8, sharing=SHARING), Cluster.of(4, 4, slots=4)
    adaptive = POLICIES["adaptive"]
    first = plan(adaptive, rates, Progress(), cluster, Options())
    assert sorted(
        cluster.gpu(device) for member in first.members for device in member.devices
    ) == sorted(2 * list(range(4)))
    # Those that are left are all on one GPU, and each gets two whole ones.
    left = tuple(member for member in first.members if cluster.gpu(member.devices[0]) == 0)
    over = frozenset(member.name for member in first.members if member not in left)
    last = plan(adaptive, rates, Progress(left, finished=over, target=first), cluster, Options())
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
def test_slots_are_filled_only_where_that_pays_unless_that_is_asked_for(sharing, fills, count):
    rates, cluster = table(*[(10,)] * 6, sharing=sharing), Cluster.of(2, 2, 4, fills)
    assert networks_per_gpu(rates, Progress(), cluster) == count
    assert (
        len(plan(POLICIES["adaptive"], rates, Progress(), cluster, Options()).members) == 2 * count
    )


def test_a_policy_that_moves_no_group_leaves_two_on_a_gpu_that_need_not_share_it_any_more():
    rates, cluster = table((10,), (10,), sharing=SHARING), Cluster.of(2, 2, slots=2)
    running = (Member("n0", (0,)), Member("n1", (2,)))
    progress = Progress(running, target=Round(running), rates_changed=True)
    assert plan(POLICIES["local"], rates, progress, cluster, Options()) == Round(running)
    moved = plan(POLICIES["adaptive"], rates, progress, cluster, Options())
    assert [cluster.gpu(member.devices[0]) for member in moved.members] == [0, 1]


def test_what_has_run_out_of_memory_beside_others_waits_until_it_can_be_alone():
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
def test_no_rate_is_above_what_the_input_gives_and_no_gpu_is_given_for_nothing(drawn, supply):
    rates, cluster = drawn
    found = limit_to_supply(replace(rates, supply=supply), cluster.gpus)
    for before, now in zip(rates.models, found.models, strict=True):
        most = now.max_gpus or cluster.gpus
        reached = [rate(now, gpus) for gpus in range(now.min_gpus, most + 1)]
        true = [min(supply, rate(before, gpus)) for gpus in range(now.min_gpus, most + 1)]
        assert reached == pytest.approx(true) or max(reached) < supply
        assert all(one < supply for one in reached[:-1])


@pytest.mark.parametrize("name", ["adaptive", "global", "local"])
def test_many_networks_on_one_slow_stream_are_preferred_to_few_wide_groups(name):
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
def test_an_ensemble_on_a_slow_input_is_simulated_by_plans_that_know_it(stream):
    rates = table(*[(400, 750, 1000, 1200)] * 4, samples=1000, sharing=(1.0, 1.0, 1.0, 1.0))
    spans = {}
    for slots in (1, 2):
        found = simulate(
            rates, Cluster.of(2, 2, slots), POLICIES["adaptive"], Options(), Costs(), stream
        )
        spans[slots] = found.makespan_s
    assert spans[1] == pytest.approx(60.0, rel=0.1)  # two after two, at the pace of the input
    assert spans[2] == pytest.approx(
        30.0, rel=0.1
    )  # four at once: a GPU is fast enough for two of them


def test_an_algorithm_to_the_letter_does_not_look_at_the_input():
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
def test_a_node_has_as_many_devices_as_all_its_gpus_have_slots(gpus_per_node, slots):
    with pytest.raises(InputError, match="must be a multiple"):
        Cluster((0,), gpus_per_node, slots)
