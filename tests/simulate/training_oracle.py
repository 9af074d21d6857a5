"""Each sample once an epoch, and nothing trained twice but what a failure has lost.

The samples carry their numbers (:class:`tests.sources.Numbered`), so the arrays that reach a step
tell which samples it takes. A state inside an epoch has a chain: the steps since the epoch began,
whichever ranks and launches took them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.simulate import kernel as k
from tests.simulate.durability_oracle import ORDERLY


@dataclass(frozen=True)
class _Step:
    """A step of a group, whose size all its ranks know."""

    position: int
    size: int
    numbers: dict[str, tuple[int, ...]] = field(compare=False)  # rank -> numbers of its samples


@dataclass(eq=False)
class _Part:
    """What a group trains: an epoch from a position on."""

    network: str
    epoch: int
    position: int
    chain: tuple[_Step, ...] = ()
    steps: dict[int, _Step] = field(default_factory=dict)


@dataclass
class _Progress:
    """How far a launch has trained a network: the next epoch (from 1) and position."""

    epoch: int
    position: int
    members: list[k.Process]


class TrainingOracle:
    """Watches the training loops of all ranks.

    Args:
        samples: number of training samples; None if steps cannot tell which they take.
        object_to: is called with what is wrong.
    """

    def __init__(self, samples: int | None, object_to: Callable[[str], None]) -> None:
        self._samples = samples
        self._object_to = object_to
        self._parts: dict[tuple[Any, str, int], _Part] = {}  # group, network, epoch -> part
        self._chains: dict[tuple, tuple[_Step, ...]] = {}
        self._ended: Counter[tuple[str, int]] = Counter()
        self._progress: dict[str, dict[Any, _Progress]] = {}  # network -> job -> progress
        self._remaining: dict[str, tuple[int, int]] = {}  # damaged network -> what remains
        self.failed: set[str] = set()  # networks whose group has failed since they last began

    def storage_crashed(self) -> None:
        """Allow that what was trained is trained again."""
        self._progress.clear()

    def damaged(self, name: str, remaining: tuple[int, int]) -> None:
        """Allow that a network is trained again, from the checkpoint that remains."""
        self._progress.pop(name, None)
        self._remaining[name] = remaining

    def epochs(self, name: str) -> int:
        """Return the newest epoch of a network that a group has ended."""
        return max((epoch for trained, epoch in self._ended if trained == name), default=0)

    def times_ended(self, name: str, epoch: int) -> int:
        """Return how often groups have ended an epoch of a network."""
        return self._ended[name, epoch]

    # ---- what ranks report ----

    def begin(self, process: k.Process, training: Any, state: Any) -> None:
        """A rank trains an epoch from a position on."""
        name = training.network.name
        epoch = state.epoch + 1
        group = _group_key(process, training.group)
        part = self._parts.get((group, name, epoch))
        if part is None or part.position != state.position:
            part = _Part(name, epoch, state.position)
            self._parts[group, name, epoch] = part
        training.trainable.simulated = part, state.position
        if not training.group.is_master:
            return
        if state.position:
            chain = self._chains.get(_state_key(name, state))
            if chain is None:
                self._object_to(f"{name}: no rank has trained epoch {epoch} to {state.position}")
            part.chain = chain or ()
        elif epoch > 1 and (name, epoch - 1) not in self._ended:
            self._object_to(f"{name}: epoch {epoch} begins, but {epoch - 1} has not ended")
        if (state.epoch, state.position) < self._remaining.pop(name, (0, 0)):
            self._object_to(
                f"{name} goes on at {epoch, state.position}, and not where it was saved"
            )
        self._compare_progress(process, name, (epoch, state.position))
        members = [process.mpi.processes[rank] for rank in training.group.ranks]
        progress = _Progress(epoch, state.position, members)
        self._progress.setdefault(name, {})[process.mpi] = progress

    def step(self, process: k.Process, trainable: Any, inputs: np.ndarray, size: int) -> None:
        """A rank takes its part in a step."""
        if self._samples is None or not hasattr(trainable, "simulated"):
            return
        part, position = trainable.simulated
        numbers = tuple(int(image[0, 0, 0]) * 256 + int(image[0, 1, 0]) for image in inputs)
        step = part.steps.setdefault(position, _Step(position, size, {}))
        step.numbers[process.label] = numbers
        trainable.simulated = part, position + size

    def reached(self, process: k.Process, training: Any, state: Any) -> None:
        """A master has a state that may be saved or passed on."""
        if not training.group.is_master or not state.position:
            return
        name = training.network.name
        part, _ = training.trainable.simulated
        new = [step for at, step in sorted(part.steps.items()) if at < state.position]
        self._chains[_state_key(name, state)] = (*part.chain, *new)
        progress = self._progress.get(name, {}).get(process.mpi)
        if progress is not None:
            progress.position = max(progress.position, state.position)

    def end_epoch(self, process: k.Process, training: Any, state: Any) -> None:
        """A master ends an epoch."""
        if not training.group.is_master:
            return
        name = training.network.name
        epoch = state.epoch + 1
        self._ended[name, epoch] += 1
        if self._samples is None:
            return
        chain = self._chains[_state_key(name, state)]
        expected = 0
        counts: Counter[int] = Counter()
        for step in chain:
            numbers = [number for part in step.numbers.values() for number in part]
            if step.position != expected or len(numbers) != step.size:
                self._object_to(f"{name}, epoch {epoch}: steps {chain}")
                return
            expected += step.size
            counts.update(numbers)
        if counts != Counter(range(self._samples)):
            self._object_to(f"{name}, epoch {epoch}: samples were taken so often: {counts}")

    def report_epoch(self, process: k.Process, training: Any, state: Any) -> None:
        """A master reports an epoch: the checkpoint before it is on the disk."""
        progress = self._progress.get(training.network.name, {}).get(process.mpi)
        if progress is not None:
            progress.epoch, progress.position = state.epoch + 1, 0

    # ---- training again ----

    def _compare_progress(self, process: k.Process, name: str, begins: tuple[int, int]) -> None:
        """Check that a network continues where it was, but for what a failure has lost."""
        has_failed = name in self.failed
        self.failed.discard(name)
        of_jobs = self._progress.setdefault(name, {})
        for job, progress in list(of_jobs.items()):
            reached = progress.epoch, progress.position
            if begins >= reached:
                continue
            del of_jobs[job]
            if job is process.mpi:
                may_lose = has_failed or not all(member.is_alive for member in progress.members)
            else:
                may_lose = any(member.status not in ORDERLY for member in job.processes)
            if not may_lose:
                self._object_to(f"{name}: epoch {reached} was reached, but {begins} is trained")
            if progress.epoch - begins[0] > 1:
                self._object_to(f"{name}: a failure has lost epochs {begins} to {reached}")


def _group_key(process: k.Process, group: Any) -> Any:
    """Return what all ranks of a group share, and no other group has."""
    comm = getattr(group, "comm", None)
    return process if comm is None else comm._shared


def _state_key(name: str, state: Any) -> tuple:
    return name, state.epoch, state.position, state.stream_epoch, state.path
