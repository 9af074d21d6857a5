"""The training loop: get a batch, step, report.

:meth:`TrainingLoop.run` trains a network epoch after epoch; :meth:`TrainingLoop._train_part` trains
on one epoch or a part of it.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from functools import partial
from pathlib import Path
from typing import TypeAlias

from fleet.comm import messages as m
from fleet.comm.protocols import Group, World
from fleet.domain.network import (
    LARGEST_LOSS,
    EpochRecord,
    EvaluationResult,
    StepRate,
    TrainingState,
    check_convergence,
    check_divergence,
)
from fleet.engines.base import (
    Arrays,
    EpochProgress,
    StepTotals,
    SupportsEpochs,
    SupportsMetrics,
)
from fleet.errors import InfrastructureError
from fleet.prediction.saved_predictions import save_outputs
from fleet.runtime.training.agreement import TrainingFailed, all_or_none
from fleet.runtime.training.clocks import EpochClock, PaceReport
from fleet.runtime.training.energy import Meter, NoMeter
from fleet.runtime.training.evaluation import can_predict, evaluate, predict
from fleet.runtime.training.fused_parts import FusedParts, Part, Request
from fleet.runtime.training.network import Training
from fleet.runtime.training.sources import Sources
from fleet.runtime.training.steps import Steps, strides
from fleet.storage.paths import PARTS, RunPaths
from fleet.storage.writer import CheckpointWriter
from fleet.stream.active_slots import ActiveSlots
from fleet.stream.compose import Stream
from fleet.stream.local_batches import LocalBatches
from fleet.stream.order import Epoch, format_path, parse_path

log = logging.getLogger("fleet.runtime.training.loop")

_WAIT_SHARE = 0.1  # of an epoch; if waits for data take more, they distort the rate of a group

# The orders for which a group waits, between two epochs or inside one.
Order: TypeAlias = m.Continue | m.Regroup | m.Stop


@dataclasses.dataclass(eq=False)
class TrainingLoop:
    """Trains one network after another, as the coordinator orders.

    Attributes:
        writer: writes the checkpoints.
        save_every: seconds between two checkpoints inside an epoch; None for none.
        active_slots: the networks on this rank's GPU.
        meter: measures the energy of the network.
        parts: where the trainers of this rank meet; None if it has one trainer.
    """

    world: World
    sources: Sources
    paths: RunPaths
    writer: CheckpointWriter
    save_every: float | None
    active_slots: ActiveSlots
    meter: Meter = dataclasses.field(default_factory=NoMeter)
    parts: FusedParts | None = None

    def __post_init__(self) -> None:
        self._pauses = False  # whether the coordinator has asked this master's group to pause
        self._cuts = False  # whether this master's network has reached its time limit
        self._clock = EpochClock(self.sources, self.writer)
        self.send = partial(self.world.send, 0, m.Tag.COORDINATOR)

    def run(self, training: Training, state: TrainingState, first: m.Start | m.Regroup) -> None:
        """Train a network, marked as active on its GPU; see :meth:`_run`."""
        self.meter.begin()
        with self.active_slots.present():
            try:
                self._run(training, state, first)
            except BaseException:
                self.report_energy(training, is_end=True)
                raise

    def report_energy(self, training: Training, is_end: bool = False) -> None:
        """Report the energy that this rank has used, if it is counted."""
        joules = self.meter.take(is_end)
        if joules:
            self.send(m.EnergyUsed(training.network.name, joules))

    def _run(self, training: Training, state: TrainingState, first: m.Start | m.Regroup) -> None:
        """Train epoch after epoch until the coordinator stops the group or removes this rank.

        Args:
            state: the network's state, equal on all ranks of the group.
            first: says which stream epoch to train on next, and with which batch.
        """
        stream_epoch = first.stream_epoch
        chosen = first.batch
        sources = self.sources.of(training.network)
        # For the remaining epoch that another group or launch began.
        source: Stream | LocalBatches = sources.stream.local
        self._clock.restart()
        while True:
            epoch = Epoch(state.stream_epoch, state.path)
            if not state.position:
                epoch = Epoch(stream_epoch)
                state = dataclasses.replace(state, batch=chosen or 0)
                if stream_epoch >= training.reads_stream_from:
                    source = sources.stream
                else:
                    source = sources.stream.local
                self._clock.restart()
            part = self._train_part(training, state, source, epoch)
            self.report_energy(training)  # before the report of the epoch, which ranks wait for
            state = part.state
            is_over = part.is_over
            is_group = training.group.size > 1
            is_cut = False
            if not is_over:
                pauses, is_cut = training.group.broadcast_value((self._pauses, self._cuts))
                if is_group and not (pauses or is_cut):
                    state = self._save_together(training, state)
                    continue
            # Each rank's statistics must be averaged before the network is evaluated, saved or
            # moved. They are running means, hence linear: averaging them within an epoch and again
            # at its end is equal to averaging once.
            training.trainable.average_statistics()
            totals = None
            if is_over or is_cut:
                totals = part.totals
                if totals is None:
                    totals = evaluate(training, sources.validation, self._should_end)
            if totals is None:
                state = self._pause(training, state)
            else:
                state = self._end_epoch(training, state, totals, part.missed, is_cut)

            paused = time.perf_counter()
            order = self.next_order(training.group)
            if isinstance(order, m.Stop):
                if training.group.is_master and state.position and order.saves:
                    self._save(training, state)
                self.report_energy(training, is_end=True)
                self.finish(training, order.final)
                return
            if isinstance(order, m.Regroup):
                state = self._hand_over(training.group, order, state)
                if self.world.rank not in order.ranks:
                    self.report_energy(training, is_end=True)
                    return
                self.change_group(training, order, state)
                if training.group.is_master:
                    self.send(
                        m.Regrouped(
                            training.network.name, state.position, time.perf_counter() - paused
                        )
                    )
            stream_epoch = order.stream_epoch
            chosen = order.batch

    def _train_part(
        self,
        training: Training,
        state: TrainingState,
        source: Stream | LocalBatches,
        epoch: Epoch,
    ) -> Part:
        """Train on the remaining epoch, or until the group has to pause."""
        if self.parts is None:
            return self.train_alone(training, state, source, epoch)
        size = training.set_batch(state.batch)
        state = dataclasses.replace(state, batch=size)
        self._pauses = self._cuts = False
        request = Request(self, training, state, source, epoch, size)
        return self.parts.train(request)

    # ---- a part with networks of other trainers: see fleet.runtime.training.fused_parts ----

    def poll_pause(self) -> bool:
        """Return True if the coordinator has ordered to pause, before a part has begun."""
        self._pauses = self._pauses or self._should_pause()
        return self._pauses

    def begin_part(self, training: Training, state: TrainingState) -> None:
        """Prepare to train on the remaining epoch."""
        self._pauses = self._cuts = False
        if not state.position:
            self._clock.restart()  # without the wait for networks of other trainers
        if isinstance(training.trainable, SupportsEpochs):
            samples = self.sources.of(training.network).samples
            training.trainable.begin_epoch(_progress(training, state, samples))

    def should_leave(self, training: Training, state: TrainingState) -> bool:
        """Return True if the network pauses, or has reached its time limit."""
        if not self.is_leaving:
            limit_s = training.network.train.stopping.max_time
            self._pauses = self._should_pause()
            is_late = limit_s is not None and self._clock.total_s(state) >= limit_s
            self._cuts = is_late and not self._pauses
        return self.is_leaving

    @property
    def is_leaving(self) -> bool:
        """Whether the network leaves the part in which it trains."""
        return self._pauses or self._cuts

    def save_inside(self, training: Training, state: TrainingState) -> None:
        """Save a network within an epoch."""
        self._save(training, self._clock.with_elapsed(state))

    # ---- a part of one network ----

    def train_alone(
        self,
        training: Training,
        state: TrainingState,
        source: Stream | LocalBatches,
        epoch: Epoch,
    ) -> Part:
        """Train one network on the remaining epoch, or until its group has to pause."""
        network = training.network
        group = training.group
        limit_s = network.train.stopping.max_time
        consumed = {chunk for record in state.history for chunk in parse_path(record.path)}
        size = training.set_batch(state.batch)
        state = dataclasses.replace(state, batch=size)
        self.begin_part(training, state)
        pace = PaceReport(network.name, state.position, training.steps, self.world.size)
        saved = time.perf_counter()
        # The epoch may have no samples left: the earlier launch ended during the evaluation.
        is_over = True
        missed = 0

        def is_due() -> bool:
            return bool(
                group.is_master
                and self.save_every
                and time.perf_counter() - saved > self.save_every
            )

        def should_stop() -> bool:
            """Return True if the group stops here to pause, to end, or to save together."""
            if group.is_master:
                self._pauses = self._should_pause()
                is_late = limit_s is not None and self._clock.total_s(state) >= limit_s
                self._cuts = is_late and not self._pauses
            return self._pauses or self._cuts or (group.size > 1 and is_due())

        steps = Steps(training, should_stop, is_due if group.size == 1 else lambda: False)
        batches = training.transform_batches(
            partial(source.batches, epoch, state.position, size, consumed=consumed),
            state.epoch,
            size,
        )
        if network.train.step is not None:
            stream = self.sources.of(network).stream
            batches = stream.number(batches, group, consumed)
        if training.cuts_batches:
            is_rounded = training.capabilities.lengths == "few"
            batches = self.sources.of(network).stream.cut(batches, is_rounded, consumed)
        for finished in steps.run(strides(training, batches)):
            self.meter.add_step(finished.seconds * len(finished.batches))
            if self.meter.is_due():
                self.report_energy(training)
            for batch, sums in zip(finished.batches, finished.sums, strict=True):
                if batch.size == size:
                    training.steps.add(size, finished.seconds)
                    training.steps.set_networks_on_gpu(self.active_slots.count())
                loss = sums.loss / max(sums.count, 1)
                if not abs(loss) <= LARGEST_LOSS:
                    raise TrainingFailed(
                        f"diverged: the loss became {loss:.4g} in epoch {state.epoch + 1}, within "
                        f"the first {batch.position} samples"
                    )
                state = dataclasses.replace(
                    state,
                    stream_epoch=batch.epoch.number,
                    path=batch.epoch.path,
                    position=batch.position,
                    sums=(StepTotals.from_tuple(state.sums) + sums).as_tuple,
                )
                is_over = batch.is_last
                missed = batch.missed
            if group.is_master and not (is_over or finished.stops):
                # The time of a group's step includes waits for ranks that lack samples.
                is_slowed = group.size > 1 and self._clock.wait_share > _WAIT_SHARE
                pace.send_if_due(self.send, batch.position, is_slowed)
                if group.size == 1 and finished.is_idle and is_due():
                    saved = time.perf_counter()
                    state = self._clock.add_elapsed(state)
                    self._save(training, state)
        return Part(state, is_over, missed)

    # ---- receiving orders ----

    def _should_pause(self) -> bool:
        """Return True if the coordinator has ordered the group to pause."""
        return self.world.receive(m.Tag.TRAINER) is not None

    def _should_end(self) -> bool:
        """Return True if the run ends; other pauses are too late here."""
        self.world.run_background_tasks()  # this may be rank 0
        message = self.world.receive(m.Tag.TRAINER)
        return isinstance(message, m.Pause) and message.run_ends

    def next_order(self, group: Group) -> Order:
        """Wait, as a group, for the coordinator's next order."""

        def receive() -> m.Message | None:
            group.check()  # the coordinator sends no orders to a failed group
            return self.world.receive(m.Tag.TRAINER)

        message = None
        if self.parts is not None:
            self.parts.begin_wait(self.world.rank, has_network=True)
        while group.is_master and not isinstance(message, Order):  # a Pause is too late
            message = self.world.wait(receive)
        if self.parts is not None:
            self.parts.end_wait(self.world.rank)
        order = group.broadcast_value(message)
        if not isinstance(order, Order):
            raise InfrastructureError(f"rank {self.world.rank} did not expect {order}")
        return order

    # ---- the end of an epoch, or a pause inside it ----

    def _pause(self, training: Training, state: TrainingState) -> TrainingState:
        """Report that the group pauses inside an epoch; returns its state there."""
        state = self._clock.add_elapsed(state)
        if training.group.is_master:
            self.send(m.Paused(training.network.name, state.stream_epoch))
        return state

    def _end_epoch(
        self,
        training: Training,
        state: TrainingState,
        totals: StepTotals,
        missed: int,
        is_cut: bool,
    ) -> TrainingState:
        """Save the network and report the epoch; returns the state before the next."""
        state = self._clock.add_elapsed(state)
        record = _record(training, state, totals)
        if is_cut:
            record = dataclasses.replace(record, cut_at=state.position)
        history = (*state.history, record)
        divergence = check_divergence(history, totals.count > 0)
        if divergence:
            raise TrainingFailed(divergence)
        verdict = check_convergence(history, training.network.train.stopping)
        state = state.next_epoch(record, verdict.reason)
        if training.group.is_master:
            self._save(training, state, is_best=verdict.best_epoch == record.epoch)
            self.send(
                m.EpochDone(
                    training.network.name,
                    record,
                    self._clock.blocked_s,
                    verdict.reason,
                    missed,
                    _rate(training, record),
                )
            )
        return state

    # ---- changing the group ----

    def _hand_over(self, group: Group, order: m.Regroup, state: TrainingState) -> TrainingState:
        """Return the master's state for the next master."""
        # The next master will write to the same files.
        if group.is_master and order.ranks[0] != self.world.rank:
            self.writer.flush()
        return group.broadcast_value(state)

    def change_group(
        self,
        training: Training,
        order: m.Regroup,
        state: TrainingState | None,
        failure: Exception | None = None,
    ) -> TrainingState:
        """Move to the group of an order; see :meth:`Training.change_group`."""
        group = self.world.group(order.ranks, order.group)
        state = training.change_group(group, order.stay_count, state, failure)
        log.info(
            "%s: continues on ranks %s after epoch %d, sample %d",
            training.network.name,
            order.ranks,
            state.epoch,
            state.position,
        )
        return state

    # ---- saving ----

    def _save_together(self, training: Training, state: TrainingState) -> TrainingState:
        """Save a group's network within an epoch with averaged statistics; collective.

        Afterwards each rank restores its own statistics, so that training does not depend on when
        it is saved.
        """
        trainable = training.trainable
        state = self._clock.add_elapsed(state)
        local_state = trainable.state()
        trainable.average_statistics()
        if training.group.is_master:
            self._save(training, state)
        trainable.load(local_state)
        return state

    def _save(self, training: Training, state: TrainingState, is_best: bool = False) -> None:
        began = time.perf_counter()
        arrays = training.trainable.state()
        self.writer.blocked_s += time.perf_counter() - began
        self.writer.save(training.network.name, dataclasses.replace(state, arrays=arrays), is_best)

    def finish(self, training: Training, final: bool) -> None:
        """Write everything to disk before reporting that the ranks are free.

        Args:
            final: whether to export the network and evaluate it on the test data.
        """
        network = training.network
        group = training.group

        def write(arrays: Arrays, path: Path) -> None:
            training.trainable.export(arrays, path)
            training.trainable.load(arrays)

        def export() -> str:
            return self.writer.export(network.name, network.train.stopping, write)

        began = time.perf_counter()
        all_or_none(group, lambda: self.writer.flush() if group.is_master else None)
        saved = time.perf_counter()
        damage = all_or_none(group, lambda: export() if group.is_master and final else "")
        exported = time.perf_counter()
        tested = self._test(training) if final else None
        if group.is_master:
            self.send(
                m.Stopped(
                    network.name,
                    saved - began,
                    exported - saved,
                    damage,
                    tested,
                    time.perf_counter() - exported,
                )
            )

    def _test(self, training: Training) -> EvaluationResult | None:
        """Save predictions of the exported network and test it; collective."""
        training.broadcast(None)
        sources = self.sources.of(training.network)
        test = sources.test
        samples_of = dict(zip(PARTS, (sources.validation, test), strict=True))
        totals = None
        for split, samples in samples_of.items():
            if samples is not None and can_predict(training, samples):
                totals, outputs = predict(training, samples)
                if training.group.is_master:
                    save_outputs(
                        self.writer,
                        self.paths.predictions(training.network.name, split),
                        outputs,
                        sources.rows[split],
                    )
            elif samples is not None and samples is test:
                totals = evaluate(training, samples, lambda: False)
        if test is None:
            return None
        assert totals is not None
        return EvaluationResult(
            *_means(totals, training), int(totals.count), _metrics(totals, training)
        )


def _progress(training: Training, state: TrainingState, samples: int) -> EpochProgress:
    """Return where a network is before the remaining steps of an epoch of some samples."""
    monitor = training.network.train.stopping.metric
    return EpochProgress(
        state.epoch,
        -(-state.position // state.batch),
        max(1, -(-samples // state.batch)),
        tuple(record.value(monitor) for record in state.history),
    )


def _record(training: Training, state: TrainingState, totals: StepTotals) -> EpochRecord:
    """Make the history record of a finished epoch."""
    sums = StepTotals.from_tuple(state.sums)
    # 0 if no sample could be read
    loss, accuracy = _means(sums if sums.count else StepTotals(count=1), training)
    val_loss, val_accuracy = _means(totals, training)
    metrics = {**_metrics(sums, training), **_metrics(totals, training, "val_")}
    parent = ""
    parent_epoch = 0
    if not state.epoch:
        parent = training.network.parent
        parent_epoch = training.network.parent_epoch
    return EpochRecord(
        start="" if state.epoch else state.start,
        epoch=state.epoch + 1,
        stream_epoch=state.stream_epoch,
        loss=loss,
        accuracy=accuracy,
        val_loss=val_loss,
        val_accuracy=val_accuracy,
        metrics=metrics,
        learning_rate=training.learning_rate(),
        samples=int(sums.count),
        gpus=training.group.size,
        seconds=state.seconds,
        waited_s=state.waited_s,
        path=format_path(state.path),
        accepted=state.accepted,
        parent=parent,
        parent_epoch=parent_epoch,
        batch=state.batch,
    )


def _rate(training: Training, record: EpochRecord) -> StepRate:
    """Return the group's rate; empty if waits for samples distort it."""
    if training.group.size > 1 and record.waited_s > _WAIT_SHARE * record.seconds:
        return StepRate()
    return training.steps.rate


def _means(totals: StepTotals, training: Training) -> tuple[float, float]:
    """Return loss and accuracy; NaN without samples or without classes."""
    if not totals.count:
        return math.nan, math.nan
    accuracy = math.nan
    if training.has_accuracy:
        accuracy = totals.correct / totals.count
    return totals.loss / totals.count, accuracy


def _metrics(sums: StepTotals, training: Training, prefix: str = "") -> dict[str, float | None]:
    """Return the metrics of some samples; empty if none could be read."""
    if not (sums.count and sums.metric_totals and isinstance(training.trainable, SupportsMetrics)):
        return {}
    return {
        f"{prefix}{name}": value
        for name, value in training.trainable.scores(sums.metric_totals).items()
    }
