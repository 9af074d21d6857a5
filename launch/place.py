"""Bind a rank to its CPUs, then replace this process by its program; job scripts start it.

    srun ... python -m launch.place 60:61:48-59:32-47 python -m fleet.run spec.yaml

Launchers differ in how they bind ranks to CPUs (jsrun and PALS cannot give a preprocessor one core
and a trainer twelve), so job scripts switch their binding off. The list has the CPUs of a node's
ranks in order, in the syntax of PALS: CPU numbers with commas and dashes, and colons between ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from launch.environment import local_rank
from launch.errors import InputError

_MAX_CPUS = 2**16  # of a node; no Linux has more


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse CPU numbers from a list, in which ``/`` gives the step of a range.

    Raises:
        InputError: the text has another format.

    >>> parse_cpus("0-2,9"), parse_cpus("88-112/8")
    ((0, 1, 2, 9), (88, 96, 104, 112))
    """
    numbers: list[int] = []
    try:
        for part in text.split(","):
            span, _, step = part.partition("/")
            first, _, last = span.partition("-")
            numbers += range(int(first), min(int(last or first), _MAX_CPUS) + 1, int(step or 1))
    except ValueError:
        numbers = []
    if (
        not numbers
        or min(numbers) < 0
        or max(numbers) >= _MAX_CPUS
        or len(numbers) > len(set(numbers))
    ):
        raise InputError(
            f"{text!r} is not a list of CPUs; it should be written like 0-7,64-71 or 0-24/4"
        )
    return tuple(numbers)


def format_numbers(numbers: Sequence[int], separator: str = ",") -> str:
    """Format numbers of CPUs or ranks, with a dash for consecutive ones.

    >>> format_numbers([0, 1, 2, 9])
    '0-2,9'
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return separator.join(
        f"{first}" if first == last else f"{first}-{last}" for first, last in spans
    )


def main(arguments: Sequence[str]) -> None:
    """Bind this process if the launcher reports its rank, and replace it by the program."""
    lists, *command = arguments
    ranks = lists.split(":")
    rank = local_rank(os.environ)
    if rank is not None and rank < len(ranks):
        # A job that has only a part of the node may lack these CPUs; then its binding stays.
        allowed = os.sched_getaffinity(0) & set(parse_cpus(ranks[rank]))
        if allowed:
            os.sched_setaffinity(0, allowed)
    os.execvp(command[0], command)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m launch.place CPUS PROGRAM ...")
    main(sys.argv[1:])
