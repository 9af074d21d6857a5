"""The GPUs that a rank may use."""

import pytest

from launch.devices import VARIABLES, gpus_per_node, visible_gpus

FOUR = ["nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_visible_gpus_follow_the_launchers_choice(variable):
    assert visible_gpus({variable: "2, 3"}, FOUR) == ("2", "3")


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("", ()),
        ("-1", ()),
        ("1,-1,2", ("1",)),
        ("0,,2", ("0",)),
        ("GPU-8a,MIG-b", ("GPU-8a", "MIG-b")),
    ],
)
def test_visible_gpus_stop_at_an_invalid_name_as_in_cuda(value, visible):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, FOUR) == visible


def test_visible_gpus_are_all_of_the_node_by_default():
    assert visible_gpus({}, FOUR) == ("0", "1", "2", "3")
    assert visible_gpus({}, [f"nvidia{number}" for number in range(12)]) == tuple(
        map(str, range(12))
    )
    assert visible_gpus({}, ["nvidiactl", "null"]) == ()


@pytest.mark.parametrize(
    ("visible", "node_of", "count"),
    [
        ([["0", "1"], ["0", "1"]], [0, 0], 2),  # each rank sees all
        ([["0"], ["1"], ["2"]], [0, 0, 0], 3),  # each rank sees a different one
        ([["0"], [], ["0"], ["1"]], [0, 0, 1, 1], 2),  # the node with most GPUs
        ([[], []], [0, 1], None),
    ],
)
def test_gpus_per_node_unites_the_gpus_of_its_ranks(visible, node_of, count):
    assert gpus_per_node(visible, node_of) == count
