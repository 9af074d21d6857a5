"""Steps whose sums are read when the next has begun: an engine that can computes while this rank makes the next batch.

What is computed is the same as step by step. What follows from the sums of a step comes one step later: the pause that
a rank of the group asks for, and the failure of a network whose loss is no number. All ranks read the same sums at the
same place, so they still stop after the same step. A rank alone knows at once that it is to stop.

A checkpoint inside an epoch is of a network that stands still. So where one is due, sums are read before the next step
has begun, with its batch at hand: what the ranks of a group do together keeps its order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fleet.engines.base import Sums
from fleet.runtime.training.network import Training
from fleet.runtime.training.strides import Stride
from fleet.stream.batch import Batch


@dataclass(frozen=True)
class Taken:
    """Steps that are over.

    Attributes:
        batches: of each; their inputs and targets are valid no longer.
        sums: over each.
        seconds: that each took by itself.
        stops: whether a rank of the group has asked to stop after them.
        rests: whether no later one has begun.
    """

    batches: Sequence[Batch]
    sums: Sequence[Sums]
    seconds: float
    stops: bool
    rests: bool


class Steps:
    """The steps of a pass over some of an epoch; see the module. Collective over the group.

    Args:
        is_asked: whether this rank asks the group to stop.
        is_due: whether this rank wants the network to stand still for a moment (:attr:`Taken.rests`).
    """

    def __init__(self, training: Training, is_asked: Callable[[], bool], is_due: Callable[[], bool]) -> None:
        self._training, self._is_asked, self._is_due = training, is_asked, is_due
        self._ended = -math.inf  # the last one that is over

    def take(self, strides: Iterable[Stride]) -> Iterator[Taken]:
        """Train on strides, up to the last, or until a rank of the group asks to stop.

        Raises:
            NetworkFailed: on all ranks, when a step failed on one.
        """
        begun: Callable[[bool], Taken] | None = None
        is_alone = self._training.group.size == 1
        asks = stops = False
        for stride in strides:
            if begun is not None and self._is_due():
                yield (taken := begun(True))
                begun, stops = None, taken.stops  # others of the group hear of it when they have begun with this one
            asks = asks or self._is_asked()
            before, begun = begun, self._begin(stride, asks)
            if before is not None:
                yield (taken := before(False))
                stops = taken.stops
            if not self._training.goes_ahead:
                yield (taken := begun(True))
                begun, stops = None, taken.stops
            if stops or (asks and is_alone):
                break
        if begun is not None:
            yield begun(True)

    def _begin(self, stride: Stride, stop: bool) -> Callable[[bool], Taken]:
        """Begin with a stride; gives what waits for its end, and is told whether no other has begun meanwhile."""
        began, wait = time.perf_counter(), stride.begin(self._training, stop)

        def end(rests: bool) -> Taken:
            sums, at = wait()
            seconds = at - max(began, self._ended)
            self._ended = at
            self._training.steps.at_once = max(1, sums[-1].steps)
            stops = any(one.stop for one in sums) or (stop and self._training.group.size == 1)
            return Taken(stride.batches, sums, seconds / len(sums), stops, rests)

        return end
