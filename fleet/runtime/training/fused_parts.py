"""Train parts of epochs of several networks of a rank as one program.

A rank with ``resources.fuse`` has several trainers (:mod:`fleet.comm.trainer_threads`). Each runs
the training loop of its network, as a trainer alone does, up to the moment when it would train on
its epoch. There it meets the others, and one of them trains all networks of equal architecture,
batch and data that have come: it reads each batch once. Then each continues with its own epoch's
end: it evaluates, saves, reports and waits for orders. So a network can end, fail, be pruned or be
moved like any other, and others come for the next epoch.

They wait for a trainer that is busy with its network, and for a moment for one that waits for the
coordinator.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from fleet.comm import messages as m
from fleet.comm.protocols import World
from fleet.comm.trainer_threads import TrainerThreads
from fleet.domain.network import LARGEST_LOSS, TrainingState
from fleet.engines.base import INDEX, StepTotals
from fleet.engines.fusing import CannotFuse, Fused, SupportsFusing
from fleet.engines.steps import StepBatches, StepCapabilities
from fleet.errors import GroupMemberDied, InfrastructureError
from fleet.runtime.training.agreement import TrainingFailed, fail_together
from fleet.runtime.training.clocks import PaceReport, StepClock
from fleet.runtime.training.energy import Meter
from fleet.runtime.training.network import MIN_STEPS, Training
from fleet.runtime.training.sources import Sources
from fleet.runtime.training.steps import Steps, Stride, strides
from fleet.spec.fusing import fuse_key, why_alone
from fleet.stream.active_slots import ActiveSlots
from fleet.stream.batch import Batch
from fleet.stream.compose import Stream
from fleet.stream.local_batches import LocalBatches
from fleet.stream.order import Epoch
from fleet.stream.stall import Stalled

log = logging.getLogger("fleet.runtime.training.fused_parts")

# How long a part waits for a trainer that waits for the coordinator: as a share of the last part,
# and the least and the most seconds. One between two epochs gets its order soon, unless its network
# is held back; one without a network perhaps gets none.
_GRACE = {True: (0.5, 0.5, 10.0), False: (0.05, 0.2, 1.0)}
_POLL_S = 0.002


class Part(NamedTuple):
    """The result of training on a part of an epoch.

    Attributes:
        state: the state of the network.
        is_over: whether the epoch is over; otherwise the network pauses, saves, or has reached its
            time limit.
        missed: number of missed chunks of a ring, see :class:`fleet.stream.batch.Batch`.
        totals: sums over the validation samples; None if the network has not been evaluated.
    """

    state: TrainingState
    is_over: bool
    missed: int = 0
    totals: StepTotals | None = None


class Loop(Protocol):
    """What a part needs of the training loop of a trainer."""

    world: World
    sources: Sources
    save_every: float | None
    active_slots: ActiveSlots
    meter: Meter

    @property
    def send(self) -> Callable[[m.Message], None]:
        """Sends a message to the coordinator."""

    def poll_pause(self) -> bool:
        """Return True if the coordinator has ordered to pause, before a part has begun."""

    def begin_part(self, training: Training, state: TrainingState) -> None:
        """Prepare to train on the remaining epoch."""

    def should_leave(self, training: Training, state: TrainingState) -> bool:
        """Return True if the network pauses, or has reached its time limit."""

    @property
    def is_leaving(self) -> bool:
        """Whether the network leaves the part in which it trains."""

    def save_inside(self, training: Training, state: TrainingState) -> None:
        """Save a network within an epoch."""

    def report_energy(self, training: Training, is_end: bool = False) -> None:
        """Report the energy of a network since the last report."""

    def train_alone(
        self,
        training: Training,
        state: TrainingState,
        source: Stream | LocalBatches,
        epoch: Epoch,
    ) -> Part:
        """Train one network on the remaining epoch, or until its group has to pause."""


@dataclasses.dataclass(eq=False)
class Request:
    """A network that is about to train on the remaining epoch.

    Attributes:
        loop: the training loop of its trainer.
        training: the network.
        state: its state.
        source: source of the remaining samples.
        epoch: the epoch.
        size: number of rows of a batch.
    """

    loop: Loop
    training: Training
    state: TrainingState
    source: Stream | LocalBatches
    epoch: Epoch
    size: int
    # filled in while it is trained
    result: Part | None = None
    error: BaseException | None = None
    is_done: threading.Event = dataclasses.field(default_factory=threading.Event)
    sums: np.ndarray | None = None
    position: int = 0
    seen: Batch | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for networks that read the same batches and may be fused."""
        network = self.training.network
        alone = "" if self.can_fuse else network.name
        is_stream = isinstance(self.source, Stream)
        return (
            alone,
            fuse_key(network),
            self.size,
            self.state.position,
            self.epoch,
            is_stream,
        )

    @property
    def can_fuse(self) -> bool:
        """Whether the network and its source can be trained with others."""
        if self.training.group.size > 1 or why_alone(self.training.network):
            return False
        return not isinstance(self.source, Stream) or self.source.can_follow

    @property
    def is_free(self) -> bool:
        """Whether it may begin another epoch of the stream instead."""
        return (
            not self.state.position
            and isinstance(self.source, Stream)
            and self.source.has_own_epochs
            and self.can_fuse
        )

    def finish(self, result: Part | None = None, error: BaseException | None = None) -> None:
        """Let its trainer continue."""
        self.result = result
        self.error = error
        self.is_done.set()


class FusedParts:
    """Where the trainers of a rank meet.

    Args:
        threads: the trainers.
        engine: returns the engine of the rank.
    """

    def __init__(self, threads: TrainerThreads, engine: Callable[[], Any]) -> None:
        self._threads = threads
        self._engine = engine
        self._requests: list[Request] = []
        self._is_running = False
        self._part_s = 0.0
        # trainer -> since when it waits for the coordinator, and whether it has a network
        self._waits: dict[int, tuple[float, bool]] = {}
        self._trainers = threads.roles.trainers_of(threads.world.rank)
        self._unfusible: dict[str, str] = {}  # key -> why
        self._fused: tuple[tuple[int, ...], Fused] | None = None
        self._fused_trainings: tuple[Training, ...] = ()
        for trainer in self._trainers:
            self._waits[trainer] = (time.perf_counter(), False)

    # ---- trainers that wait for the coordinator ----

    def begin_wait(self, trainer: int, has_network: bool) -> None:
        """Note that a trainer waits for an order."""
        self._waits[trainer] = (time.perf_counter(), has_network)

    def end_wait(self, trainer: int) -> None:
        """Note that a trainer has an order."""
        self._waits.pop(trainer, None)

    def leave(self, training: Training) -> None:
        """Give a network its own memory, because it leaves this rank or is about to change."""
        if self._fused is not None and any(member is training for member in self._fused_trainings):
            self._release()

    # ---- meeting ----

    def train(self, request: Request) -> Part:
        """Train on the remaining epoch of a network, with others if possible."""
        self._requests.append(request)
        turns = self._threads.turns
        while not request.is_done.is_set():
            if not self._is_running and self._are_all_here():
                self._is_running = True
                try:
                    self._run(self._choose())
                finally:
                    self._is_running = False
            elif self._is_running and request not in self._requests:
                with turns.paused():
                    request.is_done.wait()
            elif request.training.group.size == 1 and request.loop.poll_pause():
                self._requests.remove(request)
                return Part(request.state, False)
            else:
                with turns.paused():
                    request.is_done.wait(_POLL_S)
        error = request.error
        if isinstance(error, TrainingFailed | InfrastructureError | GroupMemberDied | Stalled):
            raise error
        if isinstance(error, Exception | SystemExit):  # of the engine, or of user code
            fail_together(request.training.group, error)
        if error is not None:
            raise error
        assert request.result is not None
        return request.result

    def _are_all_here(self) -> bool:
        """Return True if no other trainer is about to come."""
        present = {request.loop.world.rank for request in self._requests}
        return all(trainer in present or self._is_patient(trainer) for trainer in self._trainers)

    def _is_patient(self, trainer: int) -> bool:
        """Return True if a trainer has waited long enough for the coordinator."""
        if trainer not in self._waits or self._threads.has_message(trainer):
            return False
        since, has_network = self._waits[trainer]
        share, least_s, most_s = _GRACE[has_network]
        grace = min(most_s, max(least_s, share * self._part_s))
        return time.perf_counter() - since > grace

    def _choose(self) -> list[Request]:
        """Choose the networks that train next, and remove them from the waiting ones."""
        free = [request for request in self._requests if request.is_free]
        if free:
            last = max(request.epoch.number for request in free)
            for request in free:
                request.epoch = Epoch(last)
        # Those inside an epoch first, so that they can meet the others after it.
        first = min(
            self._requests,
            key=lambda request: (not request.state.position, request.epoch.number),
        )
        chosen = [request for request in self._requests if request.key == first.key]
        key = fuse_key(first.training.network)
        if key in self._unfusible:
            chosen = [first]
        self._requests = [request for request in self._requests if request not in chosen]
        return sorted(chosen, key=lambda request: request.loop.world.rank)

    # ---- training ----

    def _run(self, requests: list[Request]) -> None:
        """Train some networks on a part of their epoch; each gets its result."""
        began = time.perf_counter()
        try:
            if len(requests) == 1:
                request = requests[0]
                self.leave(request.training)
                request.finish(
                    request.loop.train_alone(
                        request.training, request.state, request.source, request.epoch
                    )
                )
            else:
                self._train_together(requests)
        except BaseException as error:
            self._release()
            for request in requests:
                if not request.is_done.is_set():
                    request.finish(error=error)
        self._part_s = time.perf_counter() - began
        log.debug(
            "trained %s for %.3f s on %s",
            ", ".join(request.training.network.name for request in requests),
            self._part_s,
            requests[0].epoch,
        )

    def _release(self) -> None:
        if self._fused is not None:
            self._fused[1].release()
        self._fused = None
        self._fused_trainings = ()

    def _fuse(self, requests: Sequence[Request]) -> Fused:
        """Return the networks as one; those of the last part are kept as they are."""
        trainings = tuple(request.training for request in requests)
        identity = tuple(id(training.trainable) for training in trainings)
        if self._fused is not None and self._fused[0] == identity:
            return self._fused[1]
        self._release()
        engine = self._engine()
        assert isinstance(engine, SupportsFusing)
        fused = engine.fuse(
            [training.trainable for training in trainings], fuse_key(trainings[0].network)
        )
        self._fused = identity, fused
        self._fused_trainings = trainings
        return fused

    def _train_together(self, requests: list[Request]) -> None:
        first = requests[0]
        key = fuse_key(first.training.network)
        for request in requests:
            request.loop.begin_part(request.training, request.state)
            request.position = request.state.position
        leader = FusedTraining(first.training, requests)
        stream = leader.strides(first)
        active = list(requests)
        try:
            while active:
                try:
                    fused = self._fuse(active)
                    leader.change(active, fused)
                    is_over = self._train_until_change(leader, stream)
                except CannotFuse as failure:
                    self._refuse(key, failure, list(map(leader.continued, active)))
                    return
                fused.synchronize()
                staying = []
                for request in active:
                    if request.error is not None:
                        request.finish(error=request.error)
                    elif is_over or leader.leaves(request):
                        continue
                    else:
                        staying.append(request)
                ended = [
                    request
                    for request in active
                    if request not in staying and not request.is_done.is_set()
                ]
                self._end(ended, fused if len(ended) == len(active) else None, leader, is_over)
                if len(staying) == 1:
                    self._requests.insert(0, leader.continued(staying[0]))
                    return
                active = staying
        finally:
            stream.close()

    def _refuse(self, key: str, failure: CannotFuse, requests: Sequence[Request]) -> None:
        """Train networks one after another, because they cannot be fused; said once."""
        self._release()
        if key not in self._unfusible:
            self._unfusible[key] = str(failure)
            name = requests[0].training.network.name
            log.warning("%s: cannot be fused: %s", name, failure)
            requests[0].loop.send(m.NotFused(name, str(failure)))
        self._requests = [*requests, *self._requests]

    def _train_until_change(self, leader: FusedTraining, stream: Iterator[Stride]) -> bool:
        """Train until the epoch is over or a network leaves; return whether it is over."""
        # The epoch may have no samples left: the earlier launch ended during the evaluation.
        is_over = True
        steps = Steps(leader.view, leader.should_stop, leader.is_due)
        for finished in steps.run(stream):
            for batch, totals in zip(finished.batches, finished.sums, strict=True):
                leader.add(batch, totals.by_network, finished.seconds)
                is_over = batch.is_last
            if not (is_over or finished.stops):
                leader.report(finished.batches[-1], finished.is_idle)
            self._threads.turns.offer()
        return is_over

    def _end(
        self,
        requests: Sequence[Request],
        fused: Fused | None,
        leader: FusedTraining,
        is_over: bool,
    ) -> None:
        """Let trainers continue whose networks have trained; evaluate them together if possible."""
        totals: Sequence[StepTotals | None] = [None] * len(requests)
        if fused is not None and is_over:
            totals = leader.evaluate(fused) or totals
        for request, total in zip(requests, totals, strict=True):
            request.finish(Part(leader.state_of(request), is_over, 0, total))


class FusedTotals(NamedTuple):
    """The totals of a step of all networks, where others have :class:`StepTotals`.

    Attributes:
        by_network: (networks, 6 + metrics) float64.
        steps: see :class:`fleet.engines.base.StepTotals`.
        stop: likewise.
    """

    by_network: np.ndarray
    steps: int = 0
    stop: bool = False


class _Result(NamedTuple):
    sums: list[FusedTotals]
    finished_at: float


class FusedTraining:
    """Several networks in training on a part of an epoch.

    Args:
        training: one of them.
        requests: all of them.

    Attributes:
        view: what the steps of a part need of a :class:`Training`.
    """

    def __init__(self, training: Training, requests: Sequence[Request]) -> None:
        self._requests = list(requests)
        self._saved = time.perf_counter()
        self._wants_stop = False
        self.view = _View(training)
        self._paces = {
            id(request): PaceReport(
                request.training.network.name,
                request.state.position,
                request.training.steps,
                request.loop.world.size,
            )
            for request in requests
        }

    def change(self, requests: Sequence[Request], fused: Fused) -> None:
        """Continue with some of the networks."""
        self._requests = list(requests)
        self.view.fused = fused
        self._wants_stop = False

    def strides(self, first: Request) -> Generator[Stride, None, None]:
        """Yield the steps of the part, read once for all networks."""
        training = first.training
        consumed: frozenset[int] = frozenset()
        batches = training.transform_batches(
            partial(
                first.source.batches,
                first.epoch,
                first.state.position,
                first.size,
                consumed=consumed,
            ),
            first.state.epoch,
            first.size,
        )
        if training.cuts_batches:
            stream = first.loop.sources.of(training.network).stream
            batches = stream.cut(batches, False, consumed)
        return strides(self.view, batches)

    # ---- stopping ----

    def should_stop(self) -> bool:
        """Return True if a network leaves."""
        for request in self._requests:
            if request.loop.should_leave(request.training, self.state_of(request)):
                self._wants_stop = True
        return self._wants_stop

    def leaves(self, request: Request) -> bool:
        """Return True if a network pauses or has reached its time limit."""
        return request.loop.is_leaving

    def is_due(self) -> bool:
        """Return True if a checkpoint inside the epoch is due."""
        every = self._requests[0].loop.save_every
        return bool(every) and time.perf_counter() - self._saved > (every or 0.0)

    # ---- progress ----

    def add(self, batch: Batch, totals: np.ndarray, seconds: float) -> None:
        """Add the totals of a step, (networks, 6 + metrics)."""
        counts = np.maximum(totals[:, INDEX["count"]], 1)
        losses = totals[:, INDEX["loss"]] / counts
        networks = self._requests[0].loop.active_slots.count(len(self._requests))
        for row, (request, loss) in enumerate(zip(self._requests, losses.tolist(), strict=True)):
            training = request.training
            if batch.size == request.size:
                training.steps.add(request.size, seconds)
                training.steps.set_networks_on_gpu(networks)
            request.loop.meter.add_step(seconds / len(self._requests))
            if request.error is None and not abs(loss) <= LARGEST_LOSS:
                request.error = TrainingFailed(
                    f"diverged: the loss became {loss:.4g} in epoch {request.state.epoch + 1}, "
                    f"within the first {batch.position} samples"
                )
                self._wants_stop = True
            request.sums = totals[row] if request.sums is None else request.sums + totals[row]
            request.position = batch.position
            request.seen = batch
            if request is not self._requests[0] and isinstance(request.source, Stream):
                request.source.follow(batch)
        if batch.size == self._requests[0].size:
            self.view.steps.add(batch.size, seconds)

    def state_of(self, request: Request) -> TrainingState:
        """Return the state of a network after the steps so far."""
        if request.seen is None or request.sums is None:
            return request.state
        sums = StepTotals.unpack(request.sums)
        return dataclasses.replace(
            request.state,
            stream_epoch=request.seen.epoch.number,
            path=request.seen.epoch.path,
            position=request.position,
            sums=(StepTotals.from_tuple(request.state.sums) + sums).as_tuple,
        )

    def continued(self, request: Request) -> Request:
        """Return a request for the remaining part of a network that trains alone from now on."""
        request.state = self.state_of(request)
        request.seen = request.sums = None
        return request

    def report(self, batch: Batch, is_idle: bool) -> None:
        """Report the pace of all networks, and save them if that is due."""
        for request in self._requests:
            self._paces[id(request)].send_if_due(request.loop.send, batch.position, False)
            if request.loop.meter.is_due():
                request.loop.report_energy(request.training)
        if is_idle and self.is_due():
            assert self.view.fused is not None
            self.view.fused.synchronize()
            self._saved = time.perf_counter()
            for request in self._requests:
                request.loop.save_inside(request.training, self.state_of(request))

    # ---- evaluation ----

    def evaluate(self, fused: Fused) -> list[StepTotals] | None:
        """Return the sums of each network over the validation samples; None if there are none."""
        first = self._requests[0]
        training = first.training
        validation = first.loop.sources.of(training.network).validation
        if validation is None:
            return None
        sums: np.ndarray | None = None
        for inputs, targets in validation.batches(training.network.train.batch.bounds[0], 0, 1):
            rows = (training.cut(inputs), *training.target.split(targets))
            try:
                totals = fused.evaluate(*rows)
            except CannotFuse as failure:
                log.info("%s: evaluated alone: %s", training.network.name, failure)
                return None
            sums = totals if sums is None else sums + totals
            first.loop.world.run_background_tasks()
        if sums is None:
            return None
        return [StepTotals.unpack(row) for row in sums]


class _View:
    """What the steps of a part read of a :class:`Training`, for several networks at once."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.group = training.group
        self.steps = StepClock(min_steps=MIN_STEPS)
        self.fused: Fused | None = None

    @property
    def capabilities(self) -> StepCapabilities:
        """How the networks take steps together."""
        if self.fused is None:
            return StepCapabilities()
        return self.fused.capabilities

    def begin(
        self, batches: StepBatches, indices: np.ndarray | None = None
    ) -> Callable[[], _Result]:
        """Begin steps of all networks."""
        assert self.fused is not None
        inputs, targets = batches.local_rows
        local_rows: tuple[np.ndarray, ...] = (inputs, targets)
        if targets.dtype.names:
            local_rows = (inputs, targets["target"], targets["weight"])
        wait = self.fused.begin_steps(batches._replace(local_rows=local_rows))
        steps = batches.flags.steps
        stop = batches.flags.stop

        def result() -> _Result:
            totals, finished_at = wait()
            return _Result([FusedTotals(row, steps, stop) for row in totals], finished_at)

        return result
