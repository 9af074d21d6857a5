"""Which rank does what."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.roles import assign, assign_roles, describe_missing_slots
from fleet.errors import UserError
from tests.examples import examples
from tests.fleet.histories import spec


@st.composite
def launches(draw):
    """The node of each rank, numbered in order of first appearance, however a launcher spreads them."""
    nodes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=14))
    numbers = {}
    return tuple(numbers.setdefault(node, len(numbers)) for node in nodes)


preprocessors = st.one_of(st.none(), st.integers(0, 6))
gpus = st.one_of(st.none(), st.integers(1, 5))


def assigned(*arguments):
    try:
        return assign(*arguments)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017 - that it is readable is all that is asked of it
        return None


def on(roles, node, ranks):
    return [rank for rank in ranks if roles.node_of[rank] == node]


@settings(max_examples=examples(300))
@given(launches(), preprocessors, gpus, st.booleans())
def test_every_rank_has_at_most_one_role_and_somebody_trains(node_of, wanted, gpus, own):
    if roles := assigned(node_of, wanted, gpus, own):
        both = [*roles.preprocessors, *roles.trainers]
        assert len(set(both)) == len(both)
        assert set(both) <= set(range(len(node_of)))
        assert roles.trainers
        assert roles.shared == bool(roles.preprocessors) == (len(node_of) > 1 and not own)


@settings(max_examples=examples(300))
@given(launches(), preprocessors, gpus)
def test_assign_leaves_no_rank_idle_and_every_node_a_trainer(node_of, wanted, gpus):
    roles = assigned(node_of, wanted, gpus)
    if roles and roles.shared:
        assert sorted([*roles.preprocessors, *roles.trainers]) == list(range(len(node_of)))
        assert 0 in roles.preprocessors
        assert wanted in (None, len(roles.preprocessors))
        first_round = [roles.node_of[rank] for rank in roles.preprocessors[: roles.nodes]]
        assert sorted(first_round) == list(range(roles.nodes))  # they take turns over the nodes
        for node in range(roles.nodes):
            assert roles.leader(node) == min(on(roles, node, range(len(node_of))))
            assert roles.leader(node) in roles.preprocessors
            assert on(roles, node, roles.trainers)
            own_rows = on(roles, node, roles.preprocessors)
            assert own_rows == sorted(own_rows)


@settings(max_examples=examples(300))
@given(launches(), preprocessors, gpus, st.booleans())
def test_assign_numbers_devices_as_policies_expect(node_of, wanted, gpus, own):
    if roles := assigned(node_of, wanted, gpus, own):
        maximum = [len(on(roles, node, roles.trainers)) for node in range(roles.nodes)]
        assert roles.gpus_per_node == max(maximum) <= (gpus or len(node_of))
        assert sorted(roles.rank_of.values()) == sorted(roles.trainers)
        for device, rank in roles.rank_of.items():
            assert device // roles.gpus_per_node == roles.node_of[rank]
            assert roles.device_of[rank] == device


def test_one_rank_coordinates_trains_and_prepares_its_samples():
    roles = assign([0], None, None)
    assert (roles.preprocessors, roles.trainers, roles.shared) == ((), (0,), False)


def test_by_default_one_rank_in_eight_prepares_samples():
    assert assign([0] * 17, None, None).preprocessors == (0, 1)


def test_where_gpus_are_known_all_other_ranks_prepare_samples():
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
    ("arguments", "words"),
    [
        (([0, 0], 0, None), "preprocessors: 0 is possible with one rank only"),
        (([0, 0, 1, 1], 1, None), "1 should be at least 2, one on each node"),
        (
            ([0, 0], 2, None),
            r"node 0 has 2 ranks, and 2 preprocessors would leave no trainer there: start at least 3",
        ),
        (
            ([0, 0, 1], None, None),
            r"node 1 has 1 rank, and 1 preprocessor would leave no trainer there.*mpirun -n 4",
        ),
        (
            ([0] * 5, 1, 2),
            "has 4 ranks for 2 GPUs beside 1 preprocessor: start 3 ranks there or raise",
        ),
    ],
)
def test_too_few_ranks_are_an_error_that_says_how_many_would_do(arguments, words):
    with pytest.raises(UserError, match=words):
        assign(*arguments)


@pytest.mark.parametrize(
    ("parts", "preprocessors", "trainers"),
    [
        ({}, (0,), (1, 2, 3)),  # three GPUs are shown
        ({"resources": {"engine": "numpy", "preprocessors": 2}}, (0, 1), (2, 3)),
        (
            {"resources": {"engine": "numpy", "gpus_per_node": 2}},
            (0, 1),
            (2, 3),
        ),  # the spec's word counts
        ({"schedule": {"policy": "baseline"}}, (), (1, 2, 3)),
    ],
)
def test_a_spec_says_how_ranks_are_split(parts, preprocessors, trainers):
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
def test_slots_go_round_by_round_over_the_gpus_of_a_node(node_of, wanted, gpus, own, slots, cores):
    try:
        roles = assign(node_of, wanted, gpus, own, slots, cores)
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
        assert (
            max(shares, default=1) - min(shares, default=1) <= 1
        )  # before a GPU is shared, each has a trainer


@pytest.mark.parametrize(
    ("ranks", "gpus", "slots", "cores", "whole", "each"),
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
def test_ranks_beyond_the_gpus_or_else_the_cores_share_them(ranks, gpus, slots, cores, whole, each):
    roles = assign([0] * ranks, 1, gpus, slots=slots, cores=cores)
    assert (roles.physical_gpus_per_node, roles.slots) == (whole, each)


def test_assign_counts_cores_for_largest_minimum_group():
    content = spec(
        {"family": "softmax", "name": "a", "gpus": [3, 4]},
        resources={"engine": "numpy", "networks_per_gpu": "auto"},
    )
    roles = [assign_roles(content, [0] * 6, gpus, cores=1) for gpus in (None, 5)]
    assert [(entry.physical_gpus_per_node, entry.slots, entry.device) for entry in roles] == [
        (3, 2, "core"),
        (5, 1, "GPU"),
    ]


def test_with_slots_fewer_ranks_are_left_to_prepare_samples():
    assert len(assign([0] * 10, None, 4).preprocessors) == 6
    assert len(assign([0] * 10, None, 4, slots=2).preprocessors) == 2
    assert len(assign([0] * 10, None, 4, slots=None).preprocessors) == 1


def test_assign_refuses_more_ranks_than_slots():
    with pytest.raises(
        UserError,
        match=r"6 ranks for 2 GPUs.*start 5 ranks there or raise.*resources.networks_per_gpu",
    ):
        assign([0] * 7, 1, 2, slots=2)


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus", "said"),
    [
        (1, 3, 2, ""),
        (
            4,
            3,
            2,
            "resources.networks_per_gpu is 4, but ranks were started for one network on a GPU: start 6 more for 4",
        ),
        (
            9,
            5,
            2,
            "resources.networks_per_gpu is 9, but ranks were started for 2 networks on a GPU: start 6 more for 5",
        ),
        (2, 5, 2, ""),
        (
            "auto",
            3,
            2,
            "resources.networks_per_gpu is auto, but ranks were started for one network on a GPU: start 2 more for 2",
        ),
        ("auto", 5, 2, ""),
        ("auto", 3, None, ""),  # a core has nothing to spare
        (
            2,
            3,
            None,
            "resources.networks_per_gpu is 2, but ranks were started for one network on a core: start 2 more for 2",
        ),
    ],
)
def test_describe_missing_slots_says_how_many_ranks_to_add(asked, ranks, gpus, said):
    ten = spec(
        *({"family": "softmax", "name": f"n{number}"} for number in range(10)),
        resources={"engine": "numpy", "networks_per_gpu": asked, "preprocessors": 1},
    )
    assert describe_missing_slots(ten, assign_roles(ten, [0] * ranks, gpus, cores=2)) == said


def test_slots_that_would_stay_empty_are_not_missed():
    two = spec(
        *({"family": "softmax", "name": name} for name in "ab"),
        resources={"engine": "numpy", "networks_per_gpu": "auto"},
    )
    assert describe_missing_slots(two, assign_roles(two, [0] * 3, 2)) == ""


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (
            {"max_trials": 9},
            "resources.networks_per_gpu is 4, but ranks were started for one network on a GPU: start 6 more for 4",
        ),
        (
            {"max_trials": 9, "max_concurrent": 5},
            "resources.networks_per_gpu is 4, but ranks were started for one network on a GPU: start 4 more for 3",
        ),
        ({"max_trials": 9, "max_concurrent": 1}, ""),
        ({"sampler": "grid"}, ""),
    ],
)
def test_networks_that_are_asked_for_use_slots_too(search, said):
    asking = spec(
        {
            "family": "softmax",
            "space": {"train.batch.size": [4, 8]}
            if "sampler" in search
            else {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.1}},
            "search": search,
        },
        resources={"engine": "numpy", "networks_per_gpu": 4, "preprocessors": 1},
    )
    assert describe_missing_slots(asking, assign_roles(asking, [0] * 3, 2)) == said
