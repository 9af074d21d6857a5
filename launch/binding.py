"""Find out which cores ranks may use, and detect a wrong binding to cores."""

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
    """The cores that a process may use, and the number of cores of its node."""

    usable: frozenset[int]
    of_node: int


def process_cores() -> Cores:
    """Return the cores of this process; the hardware threads of a core count as one."""
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


def _count_usable(cores: Sequence[Cores]) -> int:
    """Return the number of cores that ranks may use together."""
    return len(frozenset().union(*(rank_cores.usable for rank_cores in cores)))


def binding_problem(cores: Sequence[Cores], node_of: Sequence[int]) -> str:
    """Describe a wrong binding of ranks to cores; "" if the binding is fine.

    A rank with a single core is fine beside ranks with more: a job script places preprocessors so.
    The binding is wrong if every rank of a node has one core while other cores are idle, as after
    ``mpirun -n 2``, or if ranks share the only core that each of them has.

    Args:
        cores: the cores of each rank.
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
            if len(ranks) == 1:
                subject = f"rank {ranks[0]} has one core"
            return f"{subject}, and node {node} has {node_cores}"
        shared = Counter(core for rank in bound for core in cores[rank].usable)
        core, count = max(shared.items(), key=lambda item: item[1], default=(0, 0))
        if count > 1:
            return f"{count} ranks of node {node} have one core only, and share it (core {core})"
    return ""


def ranks_per_core(cores: Sequence[Cores], node_of: Sequence[int]) -> float:
    """Return the number of ranks per core, on the node where it is largest.

    Args:
        cores: the cores of each rank.
        node_of: the node of each rank.

    >>> first, second = Cores(frozenset({0, 1}), 8), Cores(frozenset({2}), 8)
    >>> ranks_per_core([first, first, second], [0, 0, 0])
    1.0
    """
    return max(len(of_node) / _count_usable(of_node) for of_node in by_node(cores, node_of))


def cores_per_node(cores: Sequence[Cores], node_of: Sequence[int]) -> int:
    """Return the number of cores that a node's ranks may use, on the node where it is largest.

    Args:
        cores: the cores of each rank.
        node_of: the node of each rank.

    >>> first, second = Cores(frozenset({0, 1}), 8), Cores(frozenset({1, 2}), 8)
    >>> cores_per_node([first, second, Cores(frozenset({2}), 8)], [0, 0, 1])
    3
    """
    return max(map(_count_usable, by_node(cores, node_of)))


BINDING_REMEDY = (
    "start them unbound: mpirun --bind-to none, srun --cpu-bind=none, mpiexec --cpu-bind none"
)
