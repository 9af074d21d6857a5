"""Waiting for what other ranks write, and noticing when it will not come."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import TypeVar

from fleet.comm.base import World
from fleet.errors import InfrastructureError
from fleet.stream.sample_set import SampleSet

T = TypeVar("T")


# Who waits for samples has time: the preprocessor is the bottleneck, and wants the core that a look costs.
_PATIENCE = 4.0


class WriterLost(InfrastructureError):
    """A rank that fills what a node shares has died, and what was waited for will not come."""


def await_written(world: World, writers: Container[int], ready: Callable[[], T | None]) -> T:
    """Wait for what other ranks write.

    Raises:
        WriterLost: one of them has died, so that it may never come.
    """

    def look() -> T | None:
        if (found := ready()) is None and (dead := [rank for rank in world.lost if rank in writers]):
            raise WriterLost(f"rank {dead[0]}, which prepared samples, has died")
        return found

    return world.wait(look, _PATIENCE)


class Standstill:
    """Ends a run in which samples that should stay, once they have come, come no more.

    Args:
        what: the samples are, for the message.
        stall_s: a wait so long without a further chunk is an error.
        clock: seconds, from any origin; a test may give its own.
    """

    def __init__(self, shared: SampleSet, what: str, stall_s: float, clock: Callable[[], float] = time.perf_counter
                 ) -> None:
        self._shared, self._what, self._stall_s, self._clock = shared, what, stall_s, clock
        self._ready, self._since = -1, 0.0

    def look(self) -> None:
        """Somebody waits.

        Raises:
            InfrastructureError: so long that the writers must have stopped.
        """
        ready, now = self._shared.ready(), self._clock()
        if ready != self._ready:
            self._ready, self._since = ready, now
        elif now - self._since > self._stall_s:
            raise InfrastructureError(
                f"no further {self._what} samples have come for {self._stall_s:.0f} s (data.stall): {ready} of "
                f"{self._shared.chunks} chunks are there, and the preprocessors that should write the others do not")

    def rest(self) -> None:
        """Nobody waits any more."""
        self._ready = -1
