"""A group of one rank without MPI, for testing a network outside of a launch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class SingleRankGroup:
    """A :class:`fleet.comm.protocols.Group` of this process alone."""

    rank = 0
    size = 1
    ranks: tuple[int, ...] = (0,)
    is_master = True

    def sum(self, buffer: np.ndarray) -> None:
        """Do nothing: the sum of one array is the array."""

    def barrier(self) -> None:
        """Do nothing: there is no other rank."""

    def allgather(self, value: T) -> list[T]:  # noqa: D102 - see Group
        return [value]

    def broadcast_value(self, value: T | None) -> T:  # noqa: D102
        assert value is not None
        return value

    def broadcast(self, buffers: Sequence[np.ndarray]) -> None:
        """Do nothing: there is no other rank."""

    def start_broadcast(self, buffers: Sequence[np.ndarray], root: int) -> SingleRankGroup:  # noqa: D102
        return self

    def is_done(self) -> bool:  # noqa: D102 - see Broadcast
        return True

    def check(self) -> None:
        """Do nothing: there is no other rank that could die."""

    def raising_group_failed(self) -> contextlib.nullcontext[None]:  # noqa: D102
        return contextlib.nullcontext()

    def sleep(self, seconds: float) -> None:  # noqa: D102
        time.sleep(max(0.0, seconds))

    def free(self) -> None:
        """Do nothing: there is nothing to free."""
