"""The policy `elastic`: GPUs and batches by the exact optimizer, when networks come or go."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.base import (
    Cluster,
    CommTime,
    Member,
    Network,
    Options,
    Progress,
    RateTable,
    Round,
    StepTime,
)
from scheduler.elastic.allocate import BatchRange, scaling_curve
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.elastic import curve_of, step_rate, with_best_batches
from scheduler.ensemble.policies import POLICIES, check_round
from scheduler.simulation.ensemble import simulate
from tests.examples import examples
from tests.refusals import refused

STEPS = (StepTime(16, 0.1), StepTime(32, 0.145))
COMM = (CommTime(96.0, 2, 0.03), CommTime(96.0, 4, 0.15))
POLICY = POLICIES["elastic"]


def network(name, batches=(32, 256), **more):
    return Network(name, (1.0,), params_mb=96.0, step_s=STEPS, batches=batches, **more)


def decide(models, gpus, progress=Progress()):
    return POLICY.decide(
        RateTable(1000, 4, tuple(models), COMM), progress, Cluster.of(gpus, min(gpus, 4)), Options()
    )


def grown(answer, **more):
    """Return the progress after an answer has been carried out."""
    return Progress(
        running=tuple(Member(network.name, network.devices) for network in answer.members),
        target=answer,
        **more,
    )


RANGES = st.tuples(st.integers(1, 32), st.integers(32, 512))  # a GPU fits the smallest batch


@settings(max_examples=examples(100))
@given(st.lists(RANGES, min_size=1, max_size=3), st.integers(3, 7))
def test_elastic_maximizes_sum_of_scaling_factors(ranges, gpus):
    models = [network(f"n{index}", batches) for index, batches in enumerate(ranges)]
    answer = decide(models, gpus)
    curves = {
        each_network.name: scaling_curve(
            each_network, COMM, BatchRange(*each_network.batches), gpus
        )
        for each_network in models
    }
    reached = sum(
        curves[each_network.name].factors[each_network.gpus - 1] for each_network in answer.members
    )
    best = max(
        sum(curve.factors[count - 1] for curve, count in zip(curves.values(), counts, strict=True))
        for counts in itertools.product(range(1, gpus + 1), repeat=len(models))
        if sum(counts) <= gpus
    )
    assert reached == pytest.approx(best)
    assert [each_network.batch for each_network in answer.members] == [
        curves[each_network.name].batches[each_network.gpus - 1] for each_network in answer.members
    ]
    check_round(
        answer, RateTable(1000, 4, tuple(models), COMM), Progress(), Cluster.of(gpus, min(gpus, 4))
    )


def test_elastic_changes_only_when_networks_come_or_go():
    models = [network(name) for name in "ab"]
    first = decide(models, 4)
    assert decide(models, 4, grown(first)) is first
    more = decide([*models, network("c")], 4, grown(first))
    assert sorted(member.name for member in more.members) == ["a", "b", "c"]
    less = decide(models, 4, grown(first, finished=frozenset("a")))
    assert [(member.name, member.gpus) for member in less.members] == [("b", 4)]
    assert less.members[0].batch > next(
        member.batch for member in first.members if member.name == "b"
    )


def test_elastic_never_sends_running_networks_back():
    models = [network(name) for name in "abc"]
    first = decide(models, 2)
    assert [member.name for member in first.members] == ["a", "b"]
    answer = decide([network("new"), *models], 2, grown(first))
    assert answer is first
    answer = decide([network("new"), *models], 2, grown(first, finished=frozenset("a")))
    assert [member.name for member in answer.members] == ["new", "b"]


def test_networks_with_one_batch_take_part_by_their_rates():
    fixed = Network("fixed", (10.0, 19.0, 27.0, 34.0))
    answer = decide([fixed, network("free", (32, 32))], 4)
    assert answer.counts == {"fixed": 3, "free": 1}
    assert {member.name: member.batch for member in answer.members} == {"fixed": None, "free": 32}


def test_bounds_of_groups_hold():
    answer = decide([network("few", max_gpus=1), network("many", min_gpus=3)], 8)
    assert answer.counts["few"] == 1
    assert answer.counts["many"] >= 3


def test_elastic_network_gets_the_gpus_of_its_minimum_batch():
    wide = network("wide", (100, 128))
    assert curve_of(wide, COMM, 8).min_gpus == 4
    (table_,) = with_best_batches(RateTable(1000, 4, (wide,), COMM), 8).models
    assert table_.min_gpus == 4
    assert decide([wide, network("a")], 4).counts == {"wide": 4}
    with pytest.raises(
        InputError, match="a batch of 100 does not fit on 2 GPUs of 32 samples each"
    ):
        with_best_batches(RateTable(1000, 4, (network("wide", (100, 128), max_gpus=2),), COMM), 8)


def test_elastic_best_rates_are_those_of_the_analyzer():
    each_network = network("a")
    (table_,) = with_best_batches(RateTable(1000, 4, (each_network,), COMM), 8).models
    curve = scaling_curve(each_network, COMM, BatchRange(*each_network.batches), 8)
    alone = step_rate(each_network, COMM, 1, 32)
    assert table_.rates == pytest.approx([alone * factor for factor in curve.factors])


def test_elastic_batch_is_refused_if_impossible():
    table, cluster = RateTable(1000, 4, (network("a"), Network("b", (1.0,)))), Cluster.of(2, 2)
    with refused(InputError, "a batch of 300", "32", "256"):
        check_round(Round((Member("a", (0,), 300),)), table, Progress(), cluster)
    with pytest.raises(InputError, match="gives b a batch of 32; its batch cannot change"):
        check_round(Round((Member("b", (0,), 32),)), table, Progress(), cluster)


def test_elastic_simulation_trains_each_epoch_with_one_batch():
    """a ends after an epoch on 1 of 2 GPUs; b grows after its epoch and takes a larger batch."""
    slow = Network(
        "b",
        (1.0,),
        epochs=2,
        params_mb=1.0,
        step_s=(StepTime(50, 1.0), StepTime(100, 2.0)),
        batches=(100, 200),
    )
    fast = Network(
        "a",
        (1.0,),
        epochs=1,
        params_mb=1.0,
        step_s=(StepTime(50, 0.5), StepTime(100, 1.0)),
        batches=(100, 100),
    )
    comm = (CommTime(1.0, 2, 1.0),)
    simulated = simulate(
        RateTable(1000, 2, (fast, slow), comm), Cluster.of(2, 2), POLICY, Options(), Costs()
    )
    # b: 10 s at 50/s; then the remaining 500 in steps of 100 on two GPUs, 1 s and an exchange of 1
    # s each: 50/s as before; then 1000 in steps of 200, 2 s and 1 s each.
    assert simulated.makespan_s == pytest.approx(10 + 10 + 15)
    assert sorted((stint.name, len(stint.devices)) for stint in simulated.stints) == [
        ("a", 1),
        ("b", 1),
        ("b", 2),
    ]


def test_other_policies_train_with_the_rates_of_the_file():
    table = RateTable(1000, 2, (network("a", epochs=1),), COMM)
    assert (
        simulate(table, Cluster.of(1, 1), POLICIES["adaptive"], Options(), Costs()).makespan_s
        == 1000
    )
