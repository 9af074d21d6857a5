"""Waiting for other ranks, and detecting that they have stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TypeVar

from fleet.comm.protocols import World
from fleet.errors import InfrastructureError
from fleet.stream.sample_set import SampleSet
from fleet.units import pluralize

T = TypeVar("T")


# Who waits for samples has time: the preprocessor is the bottleneck, and wants the core that a look
# costs.
_PATIENCE = 4.0


class WriterDied(InfrastructureError):
    """A rank that fills shared memory has died, so what was waited for will not come."""


class Stalled(InfrastructureError):
    """A wait has taken too long: the rank that should write or read has stopped."""


class StallClock:
    """Measures one wait and ends the run when it takes too long.

    Args:
        stall_s: seconds without progress that are too long.
        explain: what to say then.
        progress: a number that grows whenever something comes; by default only the end of the wait
            counts.
        clock: seconds, from any origin; a test may give its own.
    """

    def __init__(
        self,
        stall_s: float,
        explain: Callable[[], str],
        progress: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stall_s = stall_s
        self._explain = explain
        self._progress = progress
        self._clock = clock
        self._seen: int | None = None
        self._since = 0.0

    def check(self) -> None:
        """Check the wait; called repeatedly, the first call starts the clock.

        Raises:
            Stalled: nothing has come for so long that the rank that should write has stopped.
        """
        progress = self._progress()
        now = self._clock()
        if progress != self._seen:
            self._seen = progress
            self._since = now
        elif now - self._since > self._stall_s:
            raise Stalled(self._explain())


def make_set_clock(shared: SampleSet, split: str, stall_s: float) -> StallClock:
    """Make a clock for a wait for a stored sample set; ``split`` names it in the message."""

    def explain() -> str:
        return (
            f"no further {split} samples have arrived for {stall_s:.0f} s (data.data_timeout): {shared.ready()} of "
            f"{pluralize(shared.chunks, 'chunk')} there, and the preprocessors that should write the others do not"
        )

    return StallClock(stall_s, explain, shared.ready)


@dataclass(frozen=True)
class Waiting:
    """The way in which a rank waits for what other ranks write.

    Attributes:
        world: to wait with.
        stall_s: seconds after which a wait is an error: the other rank has stopped.
        writers: the ranks that write.
    """

    world: World
    stall_s: float = math.inf
    writers: Container[int] = ()

    def until(self, ready: Callable[[], T | None], clock: StallClock) -> T:
        """Wait until ``ready`` returns something.

        Raises:
            WriterDied: a rank that writes has died, so that it may never come.
            Stalled: the clock says that it will not come.
        """

        def look() -> T | None:
            result = ready()
            if result is None:
                self.check_writers()
                clock.check()
            return result

        return self.world.wait(look, _PATIENCE)

    def check_writers(self) -> None:
        """Raise WriterDied if a rank that writes has died."""
        dead = [rank for rank in self.world.dead_ranks if rank in self.writers]
        if dead:
            raise WriterDied(f"rank {dead[0]}, which prepared samples, has died")
