"""Roles of ranks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.roles import assign, assign_roles, describe_missing_slots, describe_unfused
from fleet.errors import UserError
from tests.examples import examples
from tests.fleet.histories import spec
from tests.refusals import refused


@st.composite
def launches(draw):
    """The node of each rank, numbered in order of first appearance, in any distribution."""
    nodes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=14))
    numbers = {}
    return tuple(numbers.setdefault(node, len(numbers)) for node in nodes)


preprocessors = st.one_of(st.none(), st.integers(0, 6))
gpus = st.one_of(st.none(), st.integers(1, 5))


def assigned(*arguments):
    try:
        return assign(*arguments)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017 - any readable refusal is correct
        return None


def on(roles, node, ranks):
    return [rank for rank in ranks if roles.node_of[rank] == node]


@settings(max_examples=examples(300))
@given(launches(), preprocessors, gpus, st.booleans())
def test_assign_gives_ranks_one_role_and_has_trainers(node_of, count, gpus, own_preprocessing):
    roles = assigned(node_of, count, gpus, own_preprocessing)
    if roles:
        ranks = [*roles.preprocessors, *roles.trainers]
        assert len(set(ranks)) == len(ranks)
        assert set(ranks) <= set(range(len(node_of)))
        assert roles.trainers
        is_shared = len(node_of) > 1 and not own_preprocessing
        assert roles.shared == bool(roles.preprocessors) == is_shared


@settings(max_examples=examples(300))
@given(launches(), preprocessors, gpus)
def test_assign_leaves_no_rank_idle_and_every_node_a_trainer(node_of, count, gpus):
    roles = assigned(node_of, count, gpus)
    if roles and roles.shared:
        assert sorted([*roles.preprocessors, *roles.trainers]) == list(range(len(node_of)))
        assert 0 in roles.preprocessors
        assert count in (None, len(roles.preprocessors))
        first_round = [roles.node_of[rank] for rank in roles.preprocessors[: roles.nodes]]
        assert sorted(first_round) == list(range(roles.nodes))  # they take turns over the nodes
        for node in range(roles.nodes):
            assert roles.leader(node) == min(on(roles, node, range(len(node_of))))
            assert roles.leader(node) in roles.preprocessors
            assert on(roles, node, roles.trainers)
            of_node = on(roles, node, roles.preprocessors)
            assert of_node == sorted(of_node)


@settings(max_examples=examples(300))
@given(launches(), preprocessors, gpus, st.booleans())
def test_assign_numbers_devices_as_policies_expect(node_of, count, gpus, own_preprocessing):
    roles = assigned(node_of, count, gpus, own_preprocessing)
    if roles:
        maximum = [len(on(roles, node, roles.trainers)) for node in range(roles.nodes)]
        assert roles.gpus_per_node == max(maximum) <= (gpus or len(node_of))
        assert sorted(roles.rank_of.values()) == sorted(roles.trainers)
        for device, rank in roles.rank_of.items():
            assert device // roles.gpus_per_node == roles.node_of[rank]
            assert roles.device_of[rank] == device


def test_assign_single_rank_trains_and_prepares_its_samples():
    roles = assign([0], None, None)
    assert (roles.preprocessors, roles.trainers, roles.shared) == ((), (0,), False)


def test_assign_makes_one_rank_in_eight_a_preprocessor():
    assert assign([0] * 17, None, None).preprocessors == (0, 1)


def test_assign_makes_ranks_beyond_known_gpus_preprocessors():
    roles = assign([0] * 6 + [1] * 6, None, 4)
    assert (roles.preprocessors, roles.trainers) == ((0, 6, 1, 7), (2, 3, 4, 5, 8, 9, 10, 11))


def test_assign_own_preprocessing_trains_on_all_but_rank_0():
    assert assign([0, 1, 0, 1, 0, 1], None, None, own_preprocessing=True).trainers == (
        2,
        4,
        1,
        3,
        5,
    )
    assert assign([0, 1, 0, 1, 0, 1], None, 1, own_preprocessing=True).trainers == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (([0, 0], 0, None), ["resources.preprocessors: 0"]),
        (([0, 0, 1, 1], 1, None), ["resources.preprocessors: 1", "at least 2"]),
        (([0, 0], 2, None), ["node 0", "2 ranks", "2 preprocessors", "start at least 3 ranks"]),
        (([0, 0, 1], None, None), ["node 1", "1 rank,", "1 preprocessor", "mpirun -n 4"]),
        (([0] * 5, 1, 2), ["node 0", "4 trainers", "2 GPUs", "1 preprocessor", "start 3 ranks"]),
    ],
)
def test_assign_refusal_names_the_needed_ranks(arguments, names):
    with refused(UserError, *names):
        assign(*arguments)


@pytest.mark.parametrize(
    ("parts", "preprocessors", "trainers"),
    [
        ({}, (0,), (1, 2, 3)),  # three GPUs are visible
        ({"resources": {"engine": "numpy", "preprocessors": 2}}, (0, 1), (2, 3)),
        # the spec overrides the number of visible GPUs
        ({"resources": {"engine": "numpy", "gpus_per_node": 2}}, (0, 1), (2, 3)),
        ({"schedule": {"policy": "baseline"}}, (), (1, 2, 3)),
    ],
)
def test_assign_roles_follows_the_spec(parts, preprocessors, trainers):
    roles = assign_roles(spec(**parts), [0, 0, 0, 0], gpus_per_node=3)
    assert (roles.preprocessors, roles.trainers) == (preprocessors, trainers)


def test_assign_roles_of_replay_uses_own_preprocessing():
    assert assign_roles(spec(), [0, 0], None, own_preprocessing=True).preprocessors == ()


# --- ranks that share a GPU ---------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(
    launches(),
    preprocessors,
    gpus,
    st.booleans(),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 8),
)
def test_assign_spreads_slots_evenly_over_the_gpus_of_a_node(
    node_of, count, gpus, own_preprocessing, slots, cores
):
    try:
        roles = assign(node_of, count, gpus, own_preprocessing, slots, cores)
    except UserError:
        return
    assert sorted(roles.rank_of.values()) == sorted(roles.trainers)
    assert roles.gpus_per_node == roles.physical_gpus_per_node * roles.slots
    if slots is not None:
        assert roles.slots <= slots
    if gpus is not None and len(node_of) > 1:
        assert roles.physical_gpus_per_node <= gpus
    for node in range(roles.nodes):
        existing = [
            roles.cluster.gpu(roles.device_of[rank]) for rank in on(roles, node, roles.trainers)
        ]
        assert all(gpu // roles.physical_gpus_per_node == node for gpu in existing)
        shares = [existing.count(gpu) for gpu in set(existing)]
        assert max(shares, default=1) <= roles.slots
        # each GPU has a trainer before any GPU is shared
        assert max(shares, default=1) - min(shares, default=1) <= 1


@pytest.mark.parametrize(
    ("ranks", "gpus", "slots", "cores", "physical", "slots_each"),
    [
        (7, None, 1, 2, 6, 1),
        (7, None, None, 2, 2, 3),
        (7, None, 2, 2, 3, 2),
        (7, None, 8, 2, 2, 3),
        (3, None, None, 8, 2, 1),
        (7, None, None, None, 6, 1),
        (7, None, 3, None, 2, 3),
        (7, 2, 3, 16, 2, 3),
        (7, 2, None, 16, 2, 3),
    ],
)
def test_assign_shares_gpus_or_cores_among_more_ranks(
    ranks, gpus, slots, cores, physical, slots_each
):
    roles = assign([0] * ranks, 1, gpus, slots=slots, cores=cores)
    assert (roles.physical_gpus_per_node, roles.slots) == (physical, slots_each)


def test_assign_counts_cores_for_largest_minimum_group():
    content = spec(
        {"family": "softmax", "name": "a", "gpus": [3, 4]},
        resources={"engine": "numpy", "networks_per_gpu": "auto"},
    )
    on_cores, on_gpus = (assign_roles(content, [0] * 6, gpus, cores=1) for gpus in (None, 5))
    assert (on_cores.physical_gpus_per_node, on_cores.slots, on_cores.device) == (3, 2, "core")
    assert (on_gpus.physical_gpus_per_node, on_gpus.slots, on_gpus.device) == (5, 1, "GPU")


def test_assign_with_slots_has_fewer_preprocessors():
    assert len(assign([0] * 10, None, 4).preprocessors) == 6
    assert len(assign([0] * 10, None, 4, slots=2).preprocessors) == 2
    assert len(assign([0] * 10, None, 4, slots=None).preprocessors) == 1


def test_assign_refuses_more_ranks_than_slots():
    with refused(UserError, "6 trainers", "2 GPUs", "5 ranks", "resources.networks_per_gpu"):
        assign([0] * 7, 1, 2, slots=2)


def missing(networks_per_gpu, available, ranks, slots):
    """The message of describe_missing_slots."""
    return (
        f"resources.networks_per_gpu is {networks_per_gpu}, but there are ranks for only "
        f"{available}: start {ranks} more for {slots}"
    )


@pytest.mark.parametrize(
    ("networks_per_gpu", "ranks", "gpus", "message"),
    [
        (1, 3, 2, ""),
        (4, 3, 2, missing(4, "1 network per GPU", 6, 4)),
        (9, 5, 2, missing(9, "2 networks per GPU", 6, 5)),
        (2, 5, 2, ""),
        ("auto", 3, 2, missing("auto", "1 network per GPU", 2, 2)),
        ("auto", 5, 2, ""),
        ("auto", 3, None, ""),  # cores are not shared
        (2, 3, None, missing(2, "1 network per core", 2, 2)),
    ],
)
def test_describe_missing_slots_names_ranks_to_add(networks_per_gpu, ranks, gpus, message):
    ten = spec(
        *({"family": "softmax", "name": f"n{number}"} for number in range(10)),
        resources={"engine": "numpy", "networks_per_gpu": networks_per_gpu, "preprocessors": 1},
    )
    assert describe_missing_slots(ten, assign_roles(ten, [0] * ranks, gpus, cores=2)) == message


@pytest.mark.parametrize(("order", "fused"), [("strict", 2), ("ring", 1)])
def test_networks_on_a_ring_are_not_fused_and_are_told_why(order, fused):
    two = spec(
        *({"name": name, "build": "tests.sources:zeros"} for name in "ab"),
        resources={"engine": "torch", "fuse": 2},
        data={"path": ".", "order": order},
    )
    assert assign_roles(two, [0, 0], None, cores=2).fused == fused
    assert describe_unfused(two).startswith("resources.fuse: no networks") == (fused == 1)


def test_describe_missing_slots_ignores_slots_that_stay_empty():
    two = spec(
        *({"family": "softmax", "name": name} for name in "ab"),
        resources={"engine": "numpy", "networks_per_gpu": "auto"},
    )
    assert describe_missing_slots(two, assign_roles(two, [0] * 3, 2)) == ""


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"max_trials": 9}, missing(4, "1 network per GPU", 6, 4)),
        ({"max_trials": 9, "max_concurrent": 5}, missing(4, "1 network per GPU", 4, 3)),
        ({"max_trials": 9, "max_concurrent": 1}, ""),
        ({"sampler": "grid"}, ""),
    ],
)
def test_describe_missing_slots_counts_trials_of_searches(search, message):
    space = {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.1}}
    if "sampler" in search:
        space = {"train.batch.size": [4, 8]}
    searching = spec(
        {"family": "softmax", "space": space, "search": search},
        resources={"engine": "numpy", "networks_per_gpu": 4, "preprocessors": 1},
    )
    assert describe_missing_slots(searching, assign_roles(searching, [0] * 3, 2)) == message


def test_relays_only_the_leaders_of_several_nodes():
    several, single = assign((0, 0, 1, 1), 2, None), assign((0, 0), 1, None)
    assert [rank for rank in range(4) if several.relays(rank)] == [0, 2]
    assert not single.relays(0)
