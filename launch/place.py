"""Put a rank on its CPUs, then become its program: what job scripts start under the launcher.

    srun ... python -m launch.place 60:61:48-59:32-47 python -m fleet.run spec.yaml

Launchers differ in how they are told which CPUs a rank gets (and jsrun and PALS are not told at all
that a preprocessor wants one core and a trainer twelve), so they are told to bind nothing. The list
is that of the ranks of a node, in order, as PALS writes it: CPU numbers with commas and dashes,
colons between the ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from launch.base import InputError
from launch.environment import local_rank

_MOST = 2**16  # CPUs of a node; no Linux has more


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPU numbers from a list, where ``/`` gives the step of a range.

    Raises:
        InputError: it is no such list.

    >>> parse_cpus("0-2,9"), parse_cpus("88-112/8")
    ((0, 1, 2, 9), (88, 96, 104, 112))
    """
    numbers: list[int] = []
    try:
        for part in text.split(","):
            span, _, step = part.partition("/")
            first, _, last = span.partition("-")
            numbers += range(int(first), min(int(last or first), _MOST) + 1, int(step or 1))
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or max(numbers) >= _MOST or len(numbers) > len(set(numbers)):
        raise InputError(
            f"{text!r} is not a list of CPUs; it should be written like 0-7,64-71 or 0-24/4"
        )
    return tuple(numbers)


def format_numbers(numbers: Sequence[int], separator: str = ",") -> str:
    """Numbers of CPUs, or of ranks, with dashes where they follow one another.

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
    """Bind this process, where the launcher says which rank it is, and start the program in its place."""
    lists, *command = arguments
    ranks = lists.split(":")
    rank = local_rank(os.environ)
    if rank is not None and rank < len(ranks):
        # A job that was given a part of a node only may not have these CPUs; then it stays where it
        # is.
        allowed = os.sched_getaffinity(0) & set(parse_cpus(ranks[rank]))
        if allowed:
            os.sched_setaffinity(0, allowed)
    os.execvp(command[0], command)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m launch.place CPUS PROGRAM ...")
    main(sys.argv[1:])
