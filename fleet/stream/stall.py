"""Waits for other ranks, which end with an error if the other ranks have stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TypeVar

from fleet.comm.protocols import World
from fleet.errors import InfrastructureError
from fleet.stream.sample_set import SampleSet
from launch.errors import pluralize

T = TypeVar("T")


# A rank that waits for samples may poll rarely: preprocessing is the bottleneck and needs the core.
_PATIENCE = 4.0


class WriterDied(InfrastructureError):
    """A rank that fills shared memory has died, so awaited samples will not arrive."""


class Stalled(InfrastructureError):
    """A wait has taken too long: the rank that should write or read has stopped."""


class StallClock:
    """Measures one wait and raises an error when it takes too long.

    Args:
        stall_s: longest time without progress, in seconds.
        explain: returns the message of the error.
        progress: returns a number that grows with each arrival; by default only the end of the wait
            counts as progress.
        clock: returns seconds from any origin.
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
            Stalled: there was no progress for longer than ``stall_s``.
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
            f"no further {split} samples have arrived for {stall_s:.0f} s (data.data_timeout): "
            f"{shared.ready()} of {pluralize(shared.chunks, 'chunk')} are complete, and the "
            "preprocessors that should write the others do not"
        )

    return StallClock(stall_s, explain, shared.ready)


@dataclass(frozen=True)
class Waiting:
    """Waits for samples that other ranks write.

    Attributes:
        world: the launch; provides the wait and the dead ranks.
        stall_s: seconds after which a wait is an error: the other rank has stopped.
        writers: the ranks that write.
    """

    world: World
    stall_s: float = math.inf
    writers: Container[int] = ()

    def until(self, ready: Callable[[], T | None], clock: StallClock) -> T:
        """Wait until ``ready`` returns something.

        Raises:
            WriterDied: a rank that writes has died.
            Stalled: the wait has taken too long by ``clock``.
        """

        def poll() -> T | None:
            result = ready()
            if result is None:
                self.check_writers()
                clock.check()
            return result

        return self.world.wait(poll, _PATIENCE)

    def check_writers(self) -> None:
        """Raise WriterDied if a rank that writes has died."""
        dead = [rank for rank in self.world.dead_ranks if rank in self.writers]
        if dead:
            raise WriterDied(f"rank {dead[0]}, which prepared samples, has died")
