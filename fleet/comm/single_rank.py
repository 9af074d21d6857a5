"""A group of one rank without MPI, for testing a network outside of a launch."""

from __future__ import annotations

from fleet.comm.protocols import Group


class SingleRankGroup(Group):
    """A group of this process alone."""

    rank = 0
    size = 1
    ranks: tuple[int, ...] = (0,)
