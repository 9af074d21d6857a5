"""Durations of epochs and rates of training steps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from fleet.comm.messages import Message, Pace
from fleet.domain.network import StepRate, TrainingState, training_time
from fleet.runtime.training.sources import Sources
from fleet.storage.writer import CheckpointWriter

_PACE_EVERY_S = 1.0
_MAX_PACES_PER_S = 1000  # that rank 0 receives, each of which takes about 50 microseconds
_REPORT_FACTOR = 4  # a rate is reported again after this many times as many steps
_SHARED_S = 0.25  # on a shared GPU, shorter timings may lie within one time slice of this process


class EpochClock:
    """The time of an epoch on this rank, over all parts in which it is trained.

    Args:
        sources: know for how long this rank has waited for data.
        writer: knows for how long training has waited for checkpoints.
    """

    def __init__(self, sources: Sources, writer: CheckpointWriter) -> None:
        self._sources = sources
        self._writer = writer
        self.restart()

    def restart(self) -> None:
        """Start a new epoch."""
        self._noted = time.perf_counter()
        self._waited_s = self._sources.waited_s
        self._blocked_s = self._writer.blocked_s

    def add_elapsed(self, state: TrainingState) -> TrainingState:
        """Return the state with the time and waits since the last call added."""
        now = time.perf_counter()
        waited_s = self._sources.waited_s
        state = dataclasses.replace(
            state,
            seconds=state.seconds + now - self._noted,
            waited_s=state.waited_s + waited_s - self._waited_s,
        )
        self._noted = now
        self._waited_s = waited_s
        return state

    def with_elapsed(self, state: TrainingState) -> TrainingState:
        """Return the state with the time since the last :meth:`add_elapsed`, which goes on."""
        noted, waited_s = self._noted, self._waited_s
        state = self.add_elapsed(state)
        self._noted, self._waited_s = noted, waited_s
        return state

    def total_s(self, state: TrainingState) -> float:
        """Return the seconds for which a network has trained, over all epochs, until now."""
        return training_time(state.history) + state.seconds + time.perf_counter() - self._noted

    @property
    def wait_share(self) -> float:
        """Share of the time since the last call that was spent waiting for data."""
        return (self._sources.waited_s - self._waited_s) / max(
            time.perf_counter() - self._noted, 1e-9
        )

    @property
    def blocked_s(self) -> float:
        """Seconds that training has waited for checkpoints in this epoch."""
        return self._writer.blocked_s - self._blocked_s


class StepClock:
    """The rate of a group's training steps, without waits, validation and checkpoints.

    It restarts whenever the number of networks on the GPU changes.

    Args:
        warm_up: number of first steps that are not timed, because they trace and compile.
        min_steps: smallest number of steps that give a rate.

    Attributes:
        steps_per_call: number of steps of the group's next call, equal on all ranks.
    """

    def __init__(self, warm_up: int = 3, min_steps: int = 1) -> None:
        self._warm_up = warm_up
        self._min_steps = min_steps
        self._is_new = True
        self._latest = 0.0
        self.steps_per_call = 1
        self._networks_on_gpu = 0
        self.set_networks_on_gpu(1)

    def set_networks_on_gpu(self, networks_on_gpu: int) -> None:
        """Set the number of networks on the GPU; a new number resets the timing."""
        if networks_on_gpu != self._networks_on_gpu:
            self._networks_on_gpu = networks_on_gpu
            self._report_at = self._min_steps
            self._steps = 0
            self._samples = 0
            self._seconds = 0.0
            self._squares = 0.0

    def add(self, samples: int, seconds: float) -> None:
        """Add the duration of a step on a full batch."""
        if self._warm_up > 0:
            self._warm_up -= 1
            return
        self._steps += 1
        self._samples += samples
        self._seconds += seconds
        self._latest = seconds
        self._squares += seconds**2

    def end_warm_up(self) -> None:
        """Time every step from now on."""
        self._warm_up = 0

    def count_fitting(self, seconds: float) -> int:
        """Return how many steps fit into some seconds; 1 if none has been timed."""
        if not self._steps:
            return 1
        return max(1, int(seconds / max(self._seconds / self._steps, self._latest, 1e-9)))

    def pop_is_new(self) -> bool:
        """Return True on the first call only."""
        is_new = self._is_new
        self._is_new = False
        return is_new

    def pop_rate(self) -> StepRate:
        """Return the rate if it is based on many more steps than the last one returned."""
        if self._steps < self._report_at:
            return StepRate()
        rate = self.rate
        if rate.rate:
            self._report_at = _REPORT_FACTOR * self._steps
        return rate

    @property
    def rate(self) -> StepRate:
        """Rate of all steps so far; empty if there are too few."""
        if self._steps < self._min_steps or (
            self._networks_on_gpu > 1 and self._seconds < _SHARED_S
        ):
            return StepRate()
        mean = max(self._seconds / self._steps, 1e-9)
        deviation = math.sqrt(max(0.0, self._squares / self._steps - mean**2))
        return StepRate(
            self._samples / self._steps / mean, deviation / mean, self._steps, self._networks_on_gpu
        )


class PaceReport:
    """Reports the progress of an epoch about once a second.

    Args:
        position: number of samples of the epoch that are already consumed.
        steps: the clock of the group, whose first step is reported immediately.
        ranks: number of ranks of the launch.
    """

    def __init__(self, network: str, position: int, steps: StepClock, ranks: int = 1) -> None:
        self._network = network
        self._position = position
        self._steps = steps
        self._every_s = max(_PACE_EVERY_S, ranks / _MAX_PACES_PER_S)
        self._time = time.perf_counter()

    def send_if_due(self, send: Callable[[Message], None], position: int, is_slowed: bool) -> None:
        """Send a report if one is due.

        Args:
            send: sends a message to the coordinator.
            position: number of samples of the epoch that are consumed.
            is_slowed: whether waits for data make steps longer.
        """
        now = time.perf_counter()
        if self._steps.pop_is_new() or now - self._time >= self._every_s:
            rate = StepRate() if is_slowed else self._steps.pop_rate()
            send(
                Pace(
                    self._network,
                    position,
                    (position - self._position) / max(now - self._time, 1e-9),
                    rate,
                )
            )
            self._position = position
            self._time = now
