"""Exchanges of devices: groups lie as they train fastest, and nothing else changes."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.base import (
    Cluster,
    GroupShape,
    Member,
    Network,
    Options,
    Progress,
    RateTable,
    Round,
    Span,
)
from scheduler.ensemble.exchanges import PAYS, exchange_devices
from scheduler.ensemble.placement import place_groups
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.probing import SPANS_AT_A_TIME, try_spans
from scheduler.ensemble.rates import rate
from scheduler.simulation.ensemble import simulate
from tests.examples import examples

LINEAR = tuple(10.0 * gpus for gpus in range(1, 9))
HALF = (10.0, *(5.0 * gpus for gpus in range(2, 9)))
# Faster on few nodes, faster spread, and equally fast.
KINDS = {"few": (LINEAR, HALF), "spread": (HALF, LINEAR), "any": (LINEAR, ())}


def table_of(kinds):
    return RateTable(
        100,
        4,
        tuple(
            Network(f"n{row}", KINDS[kind][0], spread_rates=KINDS[kind][1], epochs=2)
            for row, kind in enumerate(kinds)
        ),
    )


def worth(members, table, cluster):
    """Return how many GPUs that lie best would train as much."""
    total = 0.0
    for member in members:
        network = table.by_name[member.name]
        span = GroupShape.of(member.devices, cluster).span
        total += member.gpus * rate(network, member.gpus, span) / rate(network, member.gpus)
    return total


@st.composite
def placements(draw):
    """Return kinds, groups on any devices of a cluster, and which of the groups run."""
    cluster = Cluster.of(draw(st.integers(2, 4)) * 4, 4)
    sizes = []
    while len(sizes) < 6 and sum(sizes) < cluster.gpus:
        sizes.append(draw(st.integers(1, min(6, cluster.gpus - sum(sizes)))))
    devices = draw(st.permutations(cluster.devices))
    members = []
    for row, size in enumerate(sizes):
        members.append(Member(f"n{row}", tuple(devices[:size])))
        devices = devices[size:]
    kinds = [draw(st.sampled_from(sorted(KINDS))) for _ in members]
    running = [member for member in members if draw(st.booleans())]
    return kinds, cluster, members, running


@given(placements())
@settings(max_examples=examples(150), deadline=None)
def test_exchanges_keep_sizes_and_never_lose(placement):
    kinds, cluster, members, running = placement
    table = table_of(kinds)
    moved = exchange_devices(members, table, cluster, running)
    assert [(member.name, member.gpus) for member in moved] == [
        (member.name, member.gpus) for member in members
    ]
    devices = [device for member in moved for device in member.devices]
    assert len(set(devices)) == len(devices)
    assert set(devices) <= set(cluster.devices)
    changed = [
        before
        for before, after in zip(members, moved, strict=True)
        if before != after and before in running
    ]
    gain = worth(moved, table, cluster) - worth(members, table, cluster)
    assert gain >= PAYS * sum(member.gpus for member in changed) - 1e-9
    for member in changed:  # it continues without a checkpoint
        (after,) = (group for group in moved if group.name == member.name)
        assert set(after.devices) & set(member.devices)
    if "few" not in kinds and "spread" not in kinds:
        assert moved == tuple(members)


@given(placements())
@settings(max_examples=examples(60), deadline=None)
def test_fixed_devices_stay_in_their_groups(placement):
    kinds, cluster, members, running = placement
    fixed = frozenset(device for member in running for device in member.devices)
    moved = exchange_devices(members, table_of(kinds), cluster, running, fixed)
    assert all(member in moved for member in running)


@pytest.mark.parametrize("kinds", [["few", "spread"], ["spread", "spread"], ["few", "few"]])
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (4, 3), (4, 4)])
def test_two_groups_on_two_nodes_lie_best(kinds, sizes):
    """Compare with the best of all placements."""
    cluster = Cluster.of(8, 4)
    table = table_of(kinds)
    groups = {f"n{row}": size for row, size in enumerate(sizes)}
    best = max(
        worth(
            (Member("n0", order[: sizes[0]]), Member("n1", order[sizes[0] : sum(sizes)])),
            table,
            cluster,
        )
        for order in permutations(range(8), sum(sizes))
        if list(order[: sizes[0]]) == sorted(order[: sizes[0]])
    )
    placed = place_groups(groups, cluster.devices, 4)
    moved = exchange_devices(placed, table, cluster)
    assert worth(moved, table, cluster) == pytest.approx(best)


def test_running_group_moves_only_if_that_pays():
    """A gain of 4 % of two GPUs is not worth a change of the group."""
    cluster = Cluster.of(8, 4)
    members = [Member("n0", (0, 1))]
    for gain, is_moved in ((1.04, False), (1.2, True)):
        network = Network("n0", (10.0, 20.0), spread_rates=(10.0, 20.0 * gain))
        table = RateTable(100, 4, (network,))
        (moved,) = exchange_devices(members, table, cluster, running=members)
        assert (moved != members[0]) == is_moved
        (new,) = exchange_devices(members, table, cluster)
        assert new != members[0]


# --- policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["adaptive", "elastic", "global", "local"])
def test_policies_let_groups_lie_as_they_train_fastest(policy):
    kinds = ["few", "spread", "few", "spread"]
    table = table_of(kinds)
    table = RateTable(
        100,
        4,
        tuple(
            Network(network.name, network.rates, spread_rates=network.spread_rates, min_gpus=2)
            for network in table.models
        ),
    )
    cluster = Cluster.of(8, 4)
    answer = plan(POLICIES[policy], table, Progress(), cluster, Options())
    sizes = {member.name: member.gpus for member in answer.members}
    assert sizes == {f"n{row}": 2 for row in range(4)}
    assert worth(answer.members, table, cluster) == 8


@pytest.mark.parametrize("policy", ["adaptive", "elastic", "global", "local"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_plans_without_known_spans_do_not_change(policy, nodes):
    """One node has no room for spread groups, whatever a rates file says."""
    cluster = Cluster.of(4 * nodes, 4)
    spread, unknown = table_of(["spread"] * 3), table_of(["any"] * 3)
    few = RateTable(
        100, 4, tuple(Network(network.name, KINDS["spread"][0]) for network in spread.models)
    )
    answers = [
        plan(POLICIES[policy], table, Progress(), cluster, Options())
        for table in (spread, few, unknown)
    ]
    if nodes == 1:
        assert answers[0] == answers[1]
    assert all(
        len({device // 4 for device in member.devices}) == 1
        for member in answers[1].members
        if member.gpus <= 4
    )


def test_simulated_time_depends_on_how_gpus_lie():
    """Two networks on four of eight GPUs each: spread, they train twice as fast."""
    cluster = Cluster.of(8, 4)
    kinds = ["spread", "spread"]
    true = table_of(kinds)
    true = RateTable(
        100,
        4,
        tuple(
            Network(
                network.name,
                network.rates,
                spread_rates=network.spread_rates,
                epochs=2,
                min_gpus=4,
                max_gpus=4,
            )
            for network in true.models
        ),
    )
    blind = RateTable(
        100, 4, tuple(Network(n.name, n.rates, min_gpus=4, max_gpus=4) for n in true.models)
    )
    used = simulate(true, cluster, POLICIES["baseline"], Options())
    assert used.makespan_s == pytest.approx(2 * 100 / 20)  # it ignores how they lie
    costs = POLICIES["baseline"].costs
    adaptive = simulate(true, cluster, POLICIES["adaptive"], Options(), costs)
    assert adaptive.makespan_s == pytest.approx(2 * 100 / 40)
    ignored = simulate(true, cluster, POLICIES["adaptive"], Options(), costs, policy_rates=blind)
    assert ignored.makespan_s == pytest.approx(2 * 100 / 20)


# --- probes -------------------------------------------------------------------------------------


def try_on(policy, running, target=None, untried=lambda name, shape: True, cluster=None):
    cluster = cluster or Cluster.of(16, 4)
    table = table_of(["any"] * 6)
    progress = Progress(
        running=tuple(running), target=Round(tuple(running)), rates_changed=target is None
    )
    target = target or Round(tuple(running))
    return try_spans(POLICIES[policy], table, untried, progress, cluster, target), cluster


def test_few_groups_are_moved_to_learn_how_they_train():
    running = [Member(f"n{row}", (2 * row, 2 * row + 1)) for row in range(6)]
    (moved, probes), cluster = try_on("adaptive", running)
    assert len(probes) == SPANS_AT_A_TIME
    for member in moved.members:
        shape = GroupShape.of(member.devices, cluster)
        before = next(group for group in running if group.name == member.name)
        assert set(member.devices) & set(before.devices)
        if (member.name, shape) in probes:
            assert shape == (2, Span.SPREAD)
    spread = [Member("n0", (0, 4)), Member("n1", (8, 12))]
    (moved, probes), _ = try_on("adaptive", spread)
    assert probes == {(name, GroupShape(2, Span.NODE)) for name in ("n0", "n1")}


@pytest.mark.parametrize("reason", ["policy", "one node", "known", "old answer", "no span"])
def test_groups_stay_without_a_reason_to_move_them(reason):
    running = [Member(f"n{row}", (2 * row, 2 * row + 1)) for row in range(2)]
    options = {}
    policy = "adaptive"
    match reason:
        case "policy":
            policy = "local"
        case "one node":
            options["cluster"] = Cluster.of(4, 4)
        case "known":
            options["untried"] = lambda name, shape: False
        case "old answer":
            options["target"] = Round(tuple(running))
        case "no span":
            running = [Member("n0", (0,)), Member("n1", (1,))]
    (moved, probes), _ = try_on(policy, running, **options)
    assert (moved, probes) == (Round(tuple(running)), frozenset())
