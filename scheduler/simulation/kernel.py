"""Run simulations on one event kernel.

An event is a time, a kind and a function to call. Events happen in order of time; at one time in
order of kind (an integer of the simulation's own enum, so that "a node leaves" can come before
"plan anew"); events of one time and kind in the order in which they were scheduled. So a run is a
function of its inputs. The clock, the queue and the random generator belong to one
:class:`Simulator`, never to the module: two runs can be in one process.

    >>> sim = Simulator()
    >>> log = []
    >>> _ = sim.at(2.0, 0, lambda: log.append(("b", sim.now)))
    >>> _ = sim.after(1.0, 0, lambda: log.append(("a", sim.now)))
    >>> sim.run()
    >>> log
    [('a', 1.0), ('b', 2.0)]
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(order=True, slots=True)
class Event:
    """An event; compares by (time, kind, sequence)."""

    time: float
    kind: int
    sequence: int
    action: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """Cancel the event; has no effect if it was cancelled or has happened."""
        self.cancelled = True


class Simulator:
    """A clock, a queue of events and a random generator.

    Args:
        start: the time at which the clock starts, in the unit of the simulation.
        seed: the seed of ``rng``, a :class:`numpy.random.Generator`.
    """

    def __init__(self, start: float = 0.0, seed: int = 0) -> None:
        self.now = float(start)
        self.rng = np.random.default_rng(seed)
        self._queue: list[Event] = []
        self._sequence = 0
        self._soon: set[int] = set()

    def at(self, time: float, kind: int, action: Callable[[], None]) -> Event:
        """Schedule ``action`` at a moment; at the current time it runs after what happens now.

        Raises:
            ValueError: the moment has passed, or is not a finite number.
        """
        if not (math.isfinite(time) and time >= self.now):
            raise ValueError(f"an event at {time} cannot happen: the clock shows {self.now}")
        event = Event(float(time), kind, self._sequence, action)
        self._sequence += 1
        heapq.heappush(self._queue, event)
        return event

    def after(self, delay: float, kind: int, action: Callable[[], None]) -> Event:
        """Schedule ``action`` after a delay."""
        return self.at(self.now + delay, kind, action)

    def soon(self, kind: int, action: Callable[[], None]) -> None:
        """Schedule ``action`` at this moment, only once per kind until it happens."""

        def act() -> None:
            self._soon.remove(kind)
            action()

        if kind not in self._soon:
            self._soon.add(kind)
            self.at(self.now, kind, act)

    def peek(self) -> float:
        """Return the time of the next event; infinity if there is none."""
        while self._queue and self._queue[0].cancelled:
            heapq.heappop(self._queue)
        if self._queue:
            return self._queue[0].time
        return math.inf

    def step(self) -> None:
        """Run the next event.

        Raises:
            IndexError: there is none.
        """
        self.peek()
        event = heapq.heappop(self._queue)
        self.now = event.time
        event.action()

    def run(self, until: float = math.inf) -> None:
        """Run events while their time is before ``until``; then set the clock to ``until``.

        Without ``until`` the run ends with the last event, and the clock shows its time.
        """
        while self.peek() < until:
            self.step()
        if math.isfinite(until):
            self.now = max(self.now, until)
