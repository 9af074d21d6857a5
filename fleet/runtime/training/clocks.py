"""What an epoch takes, and how fast it goes on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from fleet.comm.messages import Message, Pace
from fleet.runtime.training.sources import Sources
from fleet.storage.state import State
from fleet.storage.writer import CheckpointWriter

_PACE_EVERY_S = 1.0


class EpochClock:
    """The seconds of an epoch on this rank, over all the pieces in which it is trained.

    Args:
        sources: know what this rank has waited for data.
        writer: knows what training has waited for checkpoints.
    """

    def __init__(self, sources: Sources, writer: CheckpointWriter) -> None:
        self._sources, self._writer = sources, writer
        self.restart()

    def restart(self) -> None:
        """From now on it is another epoch."""
        self._noted, self._waited_s = time.perf_counter(), self._sources.waited_s
        self._blocked_s = self._writer.blocked_s

    def note(self, state: State) -> State:
        """A state with what has passed of its epoch since this was last asked."""
        now, waited_s = time.perf_counter(), self._sources.waited_s
        state = dataclasses.replace(state, seconds=state.seconds + now - self._noted,
                                    waited_s=state.waited_s + waited_s - self._waited_s)
        self._noted, self._waited_s = now, waited_s
        return state

    @property
    def blocked_s(self) -> float:
        """What training has waited for checkpoints since the epoch began."""
        return self._writer.blocked_s - self._blocked_s


class PaceReport:
    """Tells the coordinator about once a second how far an epoch is.

    Args:
        position: samples of the epoch that are consumed already.
    """

    def __init__(self, network: str, position: int) -> None:
        self._network, self._position = network, position
        self._time = time.perf_counter()

    def tell(self, tell: Callable[[Message], None], position: int) -> None:
        """Tell it, if a second has passed."""
        now = time.perf_counter()
        if now - self._time >= _PACE_EVERY_S:
            tell(Pace(self._network, position, (position - self._position) / (now - self._time)))
            self._position, self._time = position, now
