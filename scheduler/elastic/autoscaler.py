"""Decide when jobs start and how many GPUs each has ([ELASTIC] section III-D).

Jobs arrive, wait, run and leave. At certain moments the autoscaler decides anew: it admits waiting
jobs one by one, in order of arrival, while every admitted job can have its minimum of GPUs, and
lets :func:`scheduler.elastic.allocate.allocate` share all GPUs among the running and the admitted
jobs. The functions here have no clock and no event queue: the simulation calls them, and a live run
could call the same ones.

Resizing a job means halting it and resuming it from a checkpoint. That takes time, so resizes must
not follow each other too fast. Decisions are ``interval_min`` apart. A job keeps its size for
``hold_min`` (by default 9 times the cost of a resize) after a start or a resize, with one
exception: if a waiting job could not start otherwise, it shrinks, but never grows. So a job loses
at most a tenth of its time to resizes of the first kind, and starting a job that needs k GPUs
causes at most k of the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from launch.errors import InputError
from scheduler.base import check_range
from scheduler.elastic.allocate import ScalingCurve, allocate

MAX_MIN = 1e5  # of a setting: ten weeks; decisions continue while a job pauses


@dataclass(frozen=True)
class Autoscaling:
    """The settings of the autoscaler.

    Args:
        gpus: the number of GPUs of the cluster, which are equal.
        interval_min: minutes between decisions; 0 decides at every arrival and departure.
        drop: reject a job that does not fit at its first try; otherwise it waits.
        rescale_cost_min: minutes for which a resized job holds its GPUs without progress.
        hold_min: minutes for which a job keeps its size after a start or a resize, unless it must
            shrink so that another job can start; 9 x the cost by default.
    """

    gpus: int
    interval_min: float = 10.0
    drop: bool = False
    rescale_cost_min: float = 0.0
    hold_min: float | None = None

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InputError(f"gpus is {self.gpus}; it must be at least 1")
        for name in ("interval_min", "rescale_cost_min", "hold_min"):
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, 0, MAX_MIN, "min")
        if 0 < self.interval_min < 1e-3:
            raise InputError(
                f"interval_min is {self.interval_min}; "
                "it must be 0 (decide at every event) or at least a thousandth of a minute"
            )

    @property
    def effective_hold_min(self) -> float:
        """The minutes for which a job keeps its size after a start or a resize."""
        if self.hold_min is None:
            return 9 * self.rescale_cost_min
        return self.hold_min


@dataclass(eq=False, slots=True, kw_only=True)
class ScaledJob:
    """The state of a job that the autoscaler reads.

    Attributes:
        curve: its throughput scaling factors.
        gpus: its current number of GPUs; 0 while it waits.
        steady_min: time since which it has been running at that size.
    """

    curve: ScalingCurve
    gpus: int = 0
    steady_min: float = 0.0


@dataclass(frozen=True)
class Decision:
    """The sizes that all jobs should have now.

    Args:
        running: GPUs of each running job, in the order given.
        started: GPUs of each waiting job, in the order given; 0 for one that is not started.
        throughput: the sum of the scaling factors of all that run.
        method: the method of the optimizer.
    """

    running: tuple[int, ...]
    started: tuple[int, ...]
    throughput: float
    method: str


def decide(
    running: Sequence[ScaledJob],
    waiting: Sequence[ScaledJob],
    now_min: float,
    settings: Autoscaling,
) -> Decision:
    """Admit waiting jobs that fit and share the GPUs.

    The paper asks the optimizer after each added job whether the set is still feasible. It is
    feasible exactly while the minimum counts sum to at most the GPUs, so the optimizer is asked
    once. A job that does not fit is skipped and the next one is tried; the caller lets it wait or
    drops it, according to ``settings.drop``.

    Args:
        running: the jobs that hold GPUs now.
        waiting: the other jobs, in order of arrival.
        now_min: the time.
        settings: the autoscaler's.

    Returns:
        The decision.
    """
    room = _Room(running, now_min, settings)
    admitted = [index for index, job in enumerate(waiting) if room.admit(job.curve.min_gpus)]
    curves = room.curves() + [waiting[index].curve for index in admitted]
    allocation = allocate(curves, settings.gpus)
    assert allocation is not None, "running jobs hold no more GPUs than there are"
    started = [0] * len(waiting)
    for index, gpus in zip(admitted, allocation.gpus[len(running) :], strict=True):
        started[index] = gpus
    return Decision(
        allocation.gpus[: len(running)], tuple(started), allocation.throughput, allocation.method
    )


class _Room:
    """The GPUs that running jobs can give up, and the sizes that those jobs may then have."""

    def __init__(self, running: Sequence[ScaledJob], now_min: float, settings: Autoscaling) -> None:
        self.running = running
        self.keeps_size = [
            now_min - job.steady_min < settings.effective_hold_min for job in running
        ]
        self.free = settings.gpus - sum(
            job.gpus if keeps else job.curve.min_gpus
            for job, keeps in zip(running, self.keeps_size, strict=True)
        )
        # Among jobs that keep their size, the one with the largest surplus is last in the list and
        # gives first, so that few are resized.
        self.givers = sorted(
            (index for index, keeps in enumerate(self.keeps_size) if keeps), key=self._surplus
        )
        self.reserve = sum(map(self._surplus, self.givers))
        self.shrinking: set[int] = set()

    def _surplus(self, index: int) -> int:
        return self.running[index].gpus - self.running[index].curve.min_gpus

    def admit(self, min_gpus: int) -> bool:
        """Admit a job if so many GPUs can be freed; return True if it was admitted."""
        if min_gpus > self.free + self.reserve:
            return False
        while self.free < min_gpus:
            index = self.givers.pop()
            self.shrinking.add(index)
            self.free += self._surplus(index)
            self.reserve -= self._surplus(index)
        self.free -= min_gpus
        return True

    def curves(self) -> list[ScalingCurve]:
        """Return the curves of the running jobs over the counts that they may have."""
        curves = []
        for index, (job, keeps) in enumerate(zip(self.running, self.keeps_size, strict=True)):
            if keeps:
                curves.append(_up_to(job.curve, job.gpus, only=index not in self.shrinking))
            else:
                curves.append(job.curve)
        return curves


@lru_cache(maxsize=4096)
def _up_to(curve: ScalingCurve, gpus: int, only: bool) -> ScalingCurve:
    """Return the curve of a job that must keep its size, or may shrink but not grow."""
    return ScalingCurve(
        (*(0.0,) * (gpus - 1), curve.factors[gpus - 1]) if only else curve.factors[:gpus]
    )


def next_decision(now_min: float, interval_min: float) -> float:
    """Return the next moment at which a decision may be made: a multiple of the interval.

    A moment that is later than such a multiple only by rounding counts as that multiple.

    >>> next_decision(10.0, 10.0), next_decision(10.1, 10.0), next_decision(0.0, 10.0)
    (10.0, 20.0, 10.0)
    >>> next_decision(10.1, 0.0)
    10.1
    """
    if interval_min == 0:
        return now_min
    return max(now_min, interval_min * max(1, math.ceil(now_min / interval_min - 1e-9)))
