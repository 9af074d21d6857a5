"""Which cores a rank may use, and whether that is fewer than there are (pure, but for looking at this process)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from launch.place import format_numbers

T = TypeVar("T")

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True)
class Cores:
    """The cores of a process: those it may use, and how many its node has."""

    usable: frozenset[int]
    of_node: int


def process_cores() -> Cores:
    """Of this process; the hardware threads of a core count as one."""
    return Cores(
        frozenset(map(_core, os.sched_getaffinity(0))),
        len(set(map(_core, range(os.cpu_count() or 1)))),
    )


def _core(cpu: int) -> int:
    """Return the number of a core: that of its first hardware thread."""
    try:
        text = Path(_SIBLINGS.format(cpu)).read_text()
    except OSError:
        return cpu
    return int(text.replace("-", ",").split(",")[0])


def by_node(values: Sequence[T], node_of: Sequence[int]) -> list[list[T]]:
    """Group the values of ranks by node.

    >>> by_node(["a", "b", "c"], [0, 1, 0])
    [['a', 'c'], ['b']]
    """
    return [
        [value for value, value_node in zip(values, node_of, strict=True) if value_node == node]
        for node in sorted(set(node_of))
    ]


def _together(cores: Sequence[Cores]) -> int:
    """Return how many cores some ranks may use together."""
    return len(frozenset().union(*(rank_cores.usable for rank_cores in cores)))


def binding_problem(cores: Sequence[Cores], node_of: Sequence[int]) -> str:
    """Describe what is wrong with the binding of ranks to cores; "" if nothing is.

    A rank with one core of its own is fine beside others that have more: so a job script places
    those that prepare samples. It is not where every rank of a node has one core and others lie
    idle, as after ``mpirun -n 2``, nor where ranks have to share the one core that each of them
    has.

    Args:
        cores: of each rank.
        node_of: the node of each rank.

    >>> binding_problem([Cores(frozenset({0}), 64), Cores(frozenset({1}), 64)], [0, 0])
    'ranks 0-1 have one core each, and node 0 has 64'
    """
    for node, ranks in enumerate(by_node(range(len(cores)), node_of)):
        bound = [rank for rank in ranks if len(cores[rank].usable) == 1]
        node_cores = max(cores[rank].of_node for rank in ranks)
        if node_cores == 1:
            continue
        if len(bound) == len(ranks) < node_cores:
            subject = f"ranks {format_numbers(ranks, ', ')} have one core each"
            return f"{subject if len(ranks) > 1 else f'rank {ranks[0]} has one core'}, and node {node} has {node_cores}"
        shared = Counter(core for rank in bound for core in cores[rank].usable)
        core, count = max(shared.items(), key=lambda item: item[1], default=(0, 0))
        if count > 1:
            return f"{count} ranks of node {node} have one core only, and share it (core {core})"
    return ""


def ranks_per_core(cores: Sequence[Cores], node_of: Sequence[int]) -> float:
    """Return how many ranks share a core, on the node where most do.

    Args:
        cores: of each rank.
        node_of: the node of each rank.

    >>> ranks_per_core([Cores(frozenset({0, 1}), 8), Cores(frozenset({0, 1}), 8), Cores(frozenset({2}), 8)], [0, 0, 0])
    1.0
    """
    return max(len(of_node) / _together(of_node) for of_node in by_node(cores, node_of))


def cores_per_node(cores: Sequence[Cores], node_of: Sequence[int]) -> int:
    """Return how many cores the ranks of a node may use together, on the node where they are most.

    Args:
        cores: of each rank.
        node_of: the node of each rank.

    >>> cores_per_node([Cores(frozenset({0, 1}), 8), Cores(frozenset({1, 2}), 8), Cores(frozenset({2}), 8)], [0, 0, 1])
    3
    """
    return max(map(_together, by_node(cores, node_of)))


BINDING_REMEDY = (
    "start them unbound: mpirun --bind-to none, srun --cpu-bind=none, mpiexec --cpu-bind none"
)
