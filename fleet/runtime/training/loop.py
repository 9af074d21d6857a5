"""The training loop: get a batch, step, report.

:meth:`TrainingLoop.run` trains a network epoch after epoch; :meth:`TrainingLoop._train_part` is
what it does with one.
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
from fleet.engines.base import Arrays, StepTotals, SupportsMetrics
from fleet.errors import InfrastructureError
from fleet.prediction.saved_predictions import save_outputs
from fleet.runtime.training.agreement import TrainingFailed, all_or_none
from fleet.runtime.training.clocks import EpochClock, PaceReport
from fleet.runtime.training.evaluation import can_predict, evaluate, predict
from fleet.runtime.training.network import Training
from fleet.runtime.training.sources import Sources
from fleet.runtime.training.steps import Steps, strides
from fleet.storage.paths import PARTS, RunPaths
from fleet.storage.writer import CheckpointWriter
from fleet.stream.active_slots import ActiveSlots
from fleet.stream.batch import Batches
from fleet.stream.order import Epoch, format_path, parse_path

log = logging.getLogger("fleet.runtime.training.loop")

_WAITING = 0.1  # of an epoch: then the steps of a group are no measure of its rate

Order: TypeAlias = (
    m.Continue | m.Regroup | m.Stop
)  # what a group waits for, between two epochs or inside one


class TrainingLoop:
    """Trains one network after another, as the coordinator orders.

    Args:
        save_every: seconds between two checkpoints inside an epoch; None for none.
        active_slots: of this rank's GPU.
    """

    def __init__(
        self,
        world: World,
        sources: Sources,
        paths: RunPaths,
        writer: CheckpointWriter,
        save_every: float | None,
        active_slots: ActiveSlots,
    ) -> None:
        self._world = world
        self._sources = sources
        self._paths = paths
        self._tenants = active_slots
        self._writer = writer
        self._save_every = save_every
        self._pauses = False  # whether the coordinator has asked this master's group to pause
        self._clock = EpochClock(sources, writer)
        self._tell = partial(world.send, 0, m.Tag.COORDINATOR)

    def run(self, training: Training, state: TrainingState, first: m.Start | m.Regroup) -> None:
        """Train a network, marked as active on its GPU; see :meth:`_run`."""
        with self._tenants.present():
            self._run(training, state, first)

    def _run(self, training: Training, state: TrainingState, first: m.Start | m.Regroup) -> None:
        """Train epoch after epoch until the coordinator stops or regroups the group.

        Args:
            state: of the network, the same on all ranks of the group.
            first: says which stream epoch to train on next, and with which batch.
        """
        stream_epoch = first.stream_epoch
        chosen = first.batch
        sources = self._sources.of(training.network)
        source: Batches = (
            sources.stream.local
        )  # of the rest of an epoch that this rank has not begun
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
            state, is_over, missed = self._train_part(training, state, source, epoch)
            is_group = training.group.size > 1
            if not is_over and is_group and not training.group.broadcast_value(self._pauses):
                state = self._save_together(training, state)
                continue
            # What each rank gathered by itself must be one thing before it is judged, handed on, or
            # saved. It is running means, hence linear: to average them within an epoch and again at
            # its end is to do it once.
            training.trainable.average_statistics()
            if is_over:
                judged = evaluate(training, sources.validation, self._should_end)
            else:
                judged = None
            if judged is None:
                state = self._pause(training, state)
            else:
                state = self._end_epoch(training, state, judged, missed)

            paused = time.perf_counter()
            order = self.next_order(training.group)
            if isinstance(order, m.Stop):
                if training.group.is_master and state.position and order.saves:
                    self._save(training, state)
                self.finish(training, order.final)
                return
            if isinstance(order, m.Regroup):
                state = self._hand_over(training.group, order, state)
                if self._world.rank not in order.ranks:
                    return
                self.change_group(training, order, state)
                if training.group.is_master:
                    self._tell(
                        m.Regrouped(
                            training.network.name, state.position, time.perf_counter() - paused
                        )
                    )
            stream_epoch = order.stream_epoch
            chosen = order.batch

    def _train_part(
        self, training: Training, state: TrainingState, source: Batches, epoch: Epoch
    ) -> tuple[TrainingState, bool, int]:
        """Train on the rest of an epoch, or until the group is asked to pause.

        Returns:
            The state of the network there; whether the epoch is over, or else the group pauses; and
            how many chunks of a ring were missed, as in :class:`fleet.stream.batch.Batch`.
        """
        network = training.network
        group = training.group
        self._pauses = False
        taken_before = {chunk for record in state.history for chunk in parse_path(record.path)}
        size = training.set_batch(state.batch)
        state = dataclasses.replace(state, batch=size)
        pace = PaceReport(network.name, state.position, training.steps, self._world.size)
        saved = time.perf_counter()
        # nothing may be left: the launch before ended while the network was judged
        is_over = True
        missed = 0

        def is_due() -> bool:
            return bool(
                group.is_master
                and self._save_every
                and time.perf_counter() - saved > self._save_every
            )

        def is_asked() -> bool:
            """Return True if the group stops here to pause or to save together."""
            self._pauses = group.is_master and self._should_pause()
            return self._pauses or (group.size > 1 and is_due())

        steps = Steps(training, is_asked, is_due if group.size == 1 else lambda: False)
        for finished in steps.run(
            strides(training, source.batches(epoch, state.position, size, group, taken_before))
        ):
            for batch, sums in zip(finished.batches, finished.sums, strict=True):
                if batch.size == size:
                    training.steps.add(size, finished.seconds)
                    training.steps.set_networks_on_gpu(self._tenants.count())
                if not abs(loss := sums.loss / max(sums.count, 1)) <= LARGEST_LOSS:
                    raise TrainingFailed(
                        f"diverged: the loss became {loss:.4g} in epoch {state.epoch + 1}, within the "
                        f"first {batch.position} samples"
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
                # It is unknown where in steps ranks waited for others that lacked samples.
                pace.send_if_due(
                    self._tell, batch.position, group.size > 1 and self._clock.wait_share > _WAITING
                )
                if group.size == 1 and finished.is_idle and is_due():
                    saved = time.perf_counter()
                    state = self._clock.add_elapsed(state)
                    self._save(training, state)
        return state, is_over, missed

    # ---- receiving orders ----

    def _should_pause(self) -> bool:
        """Return True if the coordinator asked the group to pause."""
        return self._world.receive(m.Tag.TRAINER) is not None

    def _should_end(self) -> bool:
        """Return True if the run ends; other pauses come too late here."""
        self._world.run_background_tasks()  # this may be the rank that coordinates
        message = self._world.receive(m.Tag.TRAINER)
        return isinstance(message, m.Pause) and message.run_ends

    def next_order(self, group: Group) -> Order:
        """Wait, as a group, for the coordinator's next order."""

        def hear() -> m.Message | None:
            # of a group that was struck the coordinator takes no epoch, and answers nothing
            group.check()
            return self._world.receive(m.Tag.TRAINER)

        message = None
        while group.is_master and not isinstance(message, Order):  # a Pause comes too late
            message = self._world.wait(hear)
        order = group.broadcast_value(message)
        if not isinstance(order, Order):
            raise InfrastructureError(f"rank {self._world.rank} did not expect {order}")
        return order

    # ---- where an epoch stops ----

    def _pause(self, training: Training, state: TrainingState) -> TrainingState:
        """Report that the group pauses inside an epoch; returns its state there."""
        state = self._clock.add_elapsed(state)
        if training.group.is_master:
            self._tell(m.Paused(training.network.name, state.stream_epoch))
        return state

    def _end_epoch(
        self, training: Training, state: TrainingState, judged: StepTotals, missed: int
    ) -> TrainingState:
        """Save the network and report the epoch; returns the state before the next."""
        state = self._clock.add_elapsed(state)
        record = _record(training, state, judged)
        history = (*state.history, record)
        diverged = check_divergence(history, judged.count > 0)
        if diverged:
            raise TrainingFailed(diverged)
        verdict = check_convergence(history, training.network.train.stopping)
        state = state.next_epoch(record, verdict.reason)
        if training.group.is_master:
            self._save(training, state, is_best=verdict.best_epoch == record.epoch)
            self._tell(
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
        if (
            group.is_master and order.ranks[0] != self._world.rank
        ):  # the next one will write to the same files
            self._writer.flush()
        return group.broadcast_value(state)

    def change_group(
        self,
        training: Training,
        order: m.Regroup,
        state: TrainingState | None,
        failure: Exception | None = None,
    ) -> TrainingState:
        """Move to the group of an order; see :meth:`Training.change_group`."""
        group = self._world.group(order.ranks, order.group)
        state = training.change_group(group, order.stay_count, state, failure)
        log.info(
            "%s: goes on with ranks %s after epoch %d, sample %d",
            training.network.name,
            order.ranks,
            state.epoch,
            state.position,
        )
        return state

    # ---- saving ----

    def _save_together(self, training: Training, state: TrainingState) -> TrainingState:
        """Save a group's network within an epoch with averaged statistics; collective.

        They go on with what each has, so that training does not depend on when it is saved.
        Collective.
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
        self._writer.blocked_s += time.perf_counter() - began
        self._writer.save(training.network.name, dataclasses.replace(state, arrays=arrays), is_best)

    def finish(self, training: Training, final: bool) -> None:
        """Write everything to disk before reporting that the ranks are free.

        Args:
            final: export the network, too, and judge what is exported on the test data.
        """
        network = training.network
        group = training.group

        def write(arrays: Arrays, path: Path) -> None:
            training.trainable.export(arrays, path)
            training.trainable.load(arrays)

        def export() -> str:
            return self._writer.export(network.name, network.train.stopping, write)

        began = time.perf_counter()
        all_or_none(group, lambda: self._writer.flush() if group.is_master else None)
        saved = time.perf_counter()
        damage = all_or_none(group, lambda: export() if group.is_master and final else "")
        exported = time.perf_counter()
        tested = self._test(training) if final else None
        if group.is_master:
            self._tell(
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
        """Keep predictions of the exported network and test it; collective."""
        training.broadcast(None)
        sources = self._sources.of(training.network)
        test = sources.test
        parts = dict(zip(PARTS, (sources.validation, test), strict=True))
        judged = None
        for part, samples in parts.items():
            if samples is not None and can_predict(training, samples):
                judged, outputs = predict(training, samples)
                if training.group.is_master:
                    save_outputs(
                        self._writer,
                        self._paths.predictions(training.network.name, part),
                        outputs,
                        sources.rows[part],
                    )
            elif samples is not None and samples is test:
                judged = evaluate(training, samples, lambda: False)
        if test is None:
            return None
        assert judged is not None  # nothing ends it
        return EvaluationResult(
            *_means(judged, training), int(judged.count), _metrics(judged, training)
        )


def _record(training: Training, state: TrainingState, judged: StepTotals) -> EpochRecord:
    """Make the history record of a finished epoch."""
    sums = StepTotals.from_tuple(state.sums)
    loss, accuracy = _means(
        sums if sums.count else StepTotals(count=1), training
    )  # 0 where no sample could be read
    val_loss, val_accuracy = _means(judged, training)
    metrics = {**_metrics(sums, training), **_metrics(judged, training, "val_")}
    parent, parent_epoch = (
        (training.network.parent, training.network.parent_epoch) if not state.epoch else ("", 0)
    )
    return EpochRecord(
        start="" if state.epoch else state.start,
        epoch=state.epoch + 1,
        stream_epoch=state.stream_epoch,
        loss=loss,
        accuracy=accuracy,
        val_loss=val_loss,
        val_accuracy=val_accuracy,
        metrics=metrics,
        learning_rate=training.trainable.learning_rate(),
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
    waits = training.group.size > 1 and record.waited_s > _WAITING * record.seconds
    if waits:
        return StepRate()
    return training.steps.rate


def _means(judged: StepTotals, training: Training) -> tuple[float, float]:
    """Return loss and accuracy; NaN without samples or without classes."""
    if not judged.count:
        return math.nan, math.nan
    has_accuracy = training.target.kind != "value"
    return judged.loss / judged.count, judged.correct / judged.count if has_accuracy else math.nan


def _metrics(sums: StepTotals, training: Training, prefix: str = "") -> dict[str, float | None]:
    """Return the metrics of some samples; empty if none could be read."""
    if not (sums.count and sums.metric_totals and isinstance(training.trainable, SupportsMetrics)):
        return {}
    return {
        f"{prefix}{name}": value
        for name, value in training.trainable.scores(sums.metric_totals).items()
    }
