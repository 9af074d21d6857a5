"""Ranks that are bound to too few cores."""

import pytest

from launch.binding import Cores, binding_problem, process_cores


def cores(*sets, of_node=8):
    return [Cores(frozenset(entry), of_node) for entry in sets]


@pytest.mark.parametrize(
    ("ranks", "node_of", "message"),
    [
        (cores(range(8), range(8)), [0, 0], ""),
        (cores({0}), [0], "rank 0 has one core, and node 0 has 8"),
        (cores({0}, {1}, {2}), [0, 0, 0], "ranks 0-2 have one core each, and node 0 has 8"),
        (
            cores(range(8), {0}, range(8), {1}),
            [0, 1, 0, 1],
            "ranks 1, 3 have one core each, and node 1 has 8",
        ),
        (
            cores({0}, {1}, {2}, range(8), {3}),
            [0, 0, 0, 1, 0],
            "ranks 0-2, 4 have one core each, and node 0 has 8",
        ),
        (cores({0}, {1}, of_node=2), [0, 0], ""),  # a core for each rank, and a rank for each core
        (cores({7}, {6}, {0, 1, 2}, {3, 4, 5}), [0] * 4, ""),  # preprocessors have one core each
        (
            cores({7}, {7}, {0, 1, 2}, {3, 4, 5}),
            [0] * 4,
            "2 ranks of node 0 have one core only, and share it (core 7)",
        ),
        (cores({0}, {0}, of_node=1), [0, 0], ""),
        (cores({0, 1}, {2, 3}), [0, 0], ""),
    ],
    ids=str,
)
def test_binding_problem_describes_a_wrong_binding(ranks, node_of, message):
    assert binding_problem(ranks, node_of) == message


def test_process_cores_are_cores_of_the_node():
    cores_here = process_cores()
    assert 1 <= len(cores_here.usable) <= cores_here.of_node
