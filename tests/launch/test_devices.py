"""Which GPUs a rank is shown."""

import pytest

from launch.devices import VARIABLES, gpus_per_node, visible_gpus

FOUR = ["nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_launchers_choice_is_taken(variable):
    assert visible_gpus({variable: "2, 3"}, FOUR) == ("2", "3")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", ()),
        ("-1", ()),
        ("1,-1,2", ("1",)),
        ("0,,2", ("0",)),
        ("GPU-8a,MIG-b", ("GPU-8a", "MIG-b")),
    ],
)
def test_names_after_one_that_is_none_are_hidden_as_cuda_hides_them(value, shown):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, FOUR) == shown


def test_without_a_choice_all_gpus_of_the_system_are_shown_in_the_order_of_their_numbers():
    assert visible_gpus({}, FOUR) == ("0", "1", "2", "3")
    assert visible_gpus({}, [f"nvidia{number}" for number in range(12)]) == tuple(
        map(str, range(12))
    )
    assert visible_gpus({}, ["nvidiactl", "null"]) == ()


@pytest.mark.parametrize(
    ("shown", "node_of", "count"),
    [
        ([["0", "1"], ["0", "1"]], [0, 0], 2),  # each rank sees all
        ([["0"], ["1"], ["2"]], [0, 0, 0], 3),  # each its own
        ([["0"], [], ["0"], ["1"]], [0, 0, 1, 1], 2),  # the node with most
        ([[], []], [0, 1], None),
    ],
)
def test_the_gpus_of_a_node_are_those_that_its_ranks_are_shown_together(shown, node_of, count):
    assert gpus_per_node(shown, node_of) == count
