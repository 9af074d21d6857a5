"""The trainer rank: it carries out the coordinator's orders.

:mod:`fleet.runtime.training.loop` has the training loop.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import cast

from fleet.comm import messages as m
from fleet.comm.protocols import Group, World
from fleet.comm.trainer_threads import TrainerWorld
from fleet.domain.network import Code, StepRate, TrainingState, finished_reason
from fleet.engines.base import (
    Engine,
    SupportsInspection,
    SupportsPretrained,
    Trainable,
    collect_warnings,
)
from fleet.errors import CheckpointError, GroupMemberDied, InfrastructureError
from fleet.runtime.training.agreement import TrainingFailed, all_or_none
from fleet.runtime.training.building import build_within
from fleet.runtime.training.energy import Meter, NoMeter
from fleet.runtime.training.fused_parts import FusedParts
from fleet.runtime.training.loop import TrainingLoop
from fleet.runtime.training.network import Training
from fleet.runtime.training.rate_measurement import measure_batches
from fleet.runtime.training.sources import Sources
from fleet.spec import NetworkSpec, Spec
from fleet.storage.checkpoint import (
    CheckpointLookup,
    find_newest,
    merge_inherited,
    promote_previous,
    read_state,
)
from fleet.storage.identity import code_of, file_checksum, training_identity
from fleet.storage.lease import Fence
from fleet.storage.paths import RunPaths
from fleet.storage.rank_deaths import Marker
from fleet.storage.writer import CheckpointWriter
from fleet.stream.active_slots import ActiveSlots
from fleet.stream.stall import Stalled
from preprocess.sample import SampleSpec
from preprocess.user_code import restoring_process
from scheduler.base import StepTime

log = logging.getLogger("fleet.runtime.training.trainer")

_PATIENCE = 4.0  # of a trainer without work, whose polls take time from other ranks


@dataclasses.dataclass(eq=False)
class Trainer:
    """A GPU, or a slot of one, that trains networks in one group after another.

    Attributes:
        spec: the run's spec.
        make_engine: makes the engine; called once, before the first network is built here.
        sample: the specification of a training sample.
        sources: the sources of samples.
        codes: import path of a ``build:`` function -> its files.
        fence: the fence of this launch's lease.
        active_slots: the networks on the GPU.
        marker: records in the run's folder which network this rank trains.
        meter: measures the energy of that network.
        parts: where the trainers of this rank meet; None if it has one trainer.
    """

    world: World
    spec: Spec
    paths: RunPaths
    make_engine: Callable[[], Engine]
    sample: SampleSpec
    sources: Sources
    codes: Mapping[str, Code]
    fence: Fence
    active_slots: ActiveSlots
    marker: Marker
    meter: Meter = dataclasses.field(default_factory=NoMeter)
    parts: FusedParts | None = None

    def __post_init__(self) -> None:
        checkpoint = self.spec.checkpoint
        self._writer = CheckpointWriter(self.paths, checkpoint, self.fence, self.spec.engine.suffix)
        self._loop = TrainingLoop(
            self.world,
            self.sources,
            self.paths,
            self._writer,
            checkpoint.every,
            self.active_slots,
            self.meter,
            self.parts,
        )
        self._send = partial(self.world.send, 0, m.Tag.COORDINATOR)

    # ---- start, run, stop ----

    def start(self, loads_engine: bool = True) -> None:
        """Report to the coordinator that this rank is ready for work.

        Args:
            loads_engine: whether to load the engine before, which may take seconds.
        """
        if loads_engine:
            self._load_engine()
        self._send(m.Ready(self.world.rank))

    def run(self) -> None:
        """Carry out orders until the run is over."""
        while not isinstance(order := self._next_order(), m.Exit):
            if isinstance(order, m.LeaveLaunch):
                self.stop()
                self.world.end_rank()
            self._load_engine()
            if isinstance(order, m.Pause | m.Continue | m.Stop):
                continue  # it arrived after the group had stopped or failed
            if not isinstance(order, m.Measure | m.Start | m.Join):
                raise InfrastructureError(f"rank {self.world.rank} did not expect {order}")
            self.marker.set(order.network.name)
            if isinstance(order, m.Measure):
                self._measure(order)
            elif isinstance(order, m.Start):
                self._train(order)
            else:
                self._join(order)
            self.marker.clear()
            self._send(m.Ready(self.world.rank))

    def _next_order(self, patience: float = _PATIENCE) -> m.Message:
        """Wait for an order to train a network; see :meth:`World.wait`."""
        if self.parts is not None:
            self.parts.begin_wait(self.world.rank, has_network=False)
        receive = partial(self.world.receive, m.Tag.TRAINER)
        order = cast("m.Message", self.world.wait(receive, patience))
        if self.parts is not None:
            self.parts.end_wait(self.world.rank)
        return order

    def stop(self) -> None:
        """Write everything that is not yet written."""
        self._writer.close()

    @cached_property
    def _engine(self) -> Engine:
        return self.make_engine()

    def _load_engine(self) -> None:
        """Load the engine now, so that its errors end the run and not one network."""
        assert self._engine is not None

    # ---- one network ----

    def _train(self, order: m.Start) -> None:
        """Train one network until it ends, fails, moves elsewhere or a rank dies."""
        network = order.network
        self._writer.set_fence(network.name, order.fence)
        self.sources.join(order.stream_epoch)
        training = self._make_training(network, order.stream_epoch)
        with self._reporting_failures(training):
            training.group = group = self.world.group(order.ranks, order.group)
            group.barrier()  # until all ranks have joined the stream
            if group.is_master:
                self._send(m.Joined(network.name))
            log.info(
                "%s: training on ranks %s from stream epoch %d; gradient exchange: %s",
                network.name,
                order.ranks,
                order.stream_epoch,
                self._engine.exchange_name if group.size > 1 else "none, one rank",
            )
            with self._building(network, group) as training.trainable:
                state = self._resume(training)
                log.info(
                    "%s: continues after epoch %d, sample %d",
                    network.name,
                    state.epoch,
                    state.position,
                )
                reason = ""
                if not state.position:
                    reason = finished_reason(state.history, state.final, network.train.stopping)
                if reason:
                    self._finish_converged(training, reason)
                else:
                    self._loop.run(training, state, order)

    def _join(self, order: m.Join) -> None:
        """Build a network that another group trains, then join that group."""
        network = order.network
        self._writer.set_fence(network.name, order.fence)
        training = self._make_training(network, 0)
        training.group = self.world.group((self.world.rank,), order.group)
        with self._reporting_failures(training), restoring_process(), ExitStack() as stack:
            failure: Exception | None = None
            try:
                training.trainable = stack.enter_context(
                    closing(self._build(network, training.group))
                )
            except Exception as error:  # raised on all ranks once they have formed the group
                failure = error
            self._send(m.Built(network.name, self.world.rank))
            message = self._next_order(patience=1.0)
            if isinstance(message, m.Stop):  # this rank is no longer needed
                return
            if not isinstance(message, m.Regroup):
                raise InfrastructureError(f"rank {self.world.rank} did not expect {message}")
            training.reads_stream_from = message.reads_stream_from
            self.sources.join(message.reads_stream_from)
            state = self._loop.change_group(training, message, None, failure)
            self._loop.run(training, state, message)

    def _make_training(self, network: NetworkSpec, reads_stream_from: int) -> Training:
        sample = self.sample.for_pipeline(network.pipeline, network.fold)
        return Training(network, reads_stream_from, sample.target, sample)

    @contextmanager
    def _reporting_failures(self, training: Training) -> Iterator[None]:
        """Report a failure; leave the stream and the group at the end."""
        try:
            yield
        except TrainingFailed as failure:
            log.error("%s failed: %s\n%s", training.network.name, failure.reason, failure.detail)
            self._writer.flush()  # a retry, perhaps on other ranks, continues from the checkpoint
            if training.group.is_master:
                self._send(
                    m.Failed(
                        training.network.name,
                        failure.reason,
                        failure.detail,
                        failure.may_pass,
                        failure.out_of_memory,
                    )
                )
        except GroupMemberDied as group_failure:
            log.warning(
                "%s: %s; it returns to its last checkpoint", training.network.name, group_failure
            )
            self._writer.flush()  # because the coordinator reads the checkpoint
            return
        except Stalled as stall:
            ranks = ", ".join(map(str, training.group.ranks))
            raise InfrastructureError(
                f"{training.network.name} on ranks {ranks}: {stall}"
            ) from stall
        finally:
            self.sources.leave()
            if self.parts is not None:
                self.parts.leave(training)
        training.group.free()

    @contextmanager
    def _building(self, network: NetworkSpec, group: Group) -> Iterator[Trainable]:
        with (
            restoring_process(),
            closing(all_or_none(group, lambda: self._build(network, group))) as trainable,
        ):
            if group.is_master:
                if isinstance(trainable, SupportsInspection):
                    parameters = trainable.count_parameters()
                else:
                    parameters = None
                self._send(m.Built(network.name, self.world.rank, parameters))
            yield trainable

    def _build(self, network: NetworkSpec, group: Group) -> Trainable:
        """Build a network within its time limit."""
        background_tasks = self.world.run_background_tasks if self.world.background_tasks else None
        build = partial(
            build_within,
            network.train.build_timeout,
            lambda: self._engine.build(network, group),
            background_tasks,
        )
        with collect_warnings() as warnings:
            if isinstance(self.world, TrainerWorld):
                trainable = self.world.threads.on_main_thread(build)
            else:
                trainable = build()
        if group.is_master:
            for warning in warnings:
                log.warning("%s: %s", network.name, warning)
                self._send(m.Warned(network.name, warning))
        return trainable

    def _resume(self, training: Training) -> TrainingState:
        """Return the master's state on every rank: from a checkpoint or from the start."""
        network = training.network
        group = training.group
        state = TrainingState(
            {},
            training_identity(network, self.spec, self.sample),
            architecture=network.architecture.key,
            code=code_of(network, self.spec, self.codes)
            or self.codes.get(network.architecture.target),
        )
        lookup = all_or_none(
            group, lambda: self._load(training) if group.is_master else CheckpointLookup(None)
        )
        if lookup.state is not None:
            # Changes were accepted before the launch.
            state = dataclasses.replace(
                lookup.state,
                identity=state.identity,
                architecture=state.architecture,
                code=state.code,
            )
        state = dataclasses.replace(state, start=state.start or lookup.start)
        if lookup.damage:
            log.warning(
                "%s: continues after epoch %d, sample %d: %s",
                network.name,
                state.epoch,
                state.position,
                lookup.damage,
            )
            promote_previous(self.paths, network.name, lookup, self._writer.fence(network.name))
            self._send(m.FellBack(network.name, lookup.damage, state.history, state.position))
        return training.broadcast(dataclasses.replace(state, arrays={}))

    def _load(self, training: Training) -> CheckpointLookup:
        lookup = find_newest(self.paths, training.network.name)
        trainable = training.trainable
        inherited = self.paths.first(training.network.name)
        start = training.network.train.initial_weights
        if lookup.state is not None:
            trainable.load(lookup.state.arrays)
        elif inherited.exists():
            arrays = read_state(inherited).arrays
            own_arrays = self.spec.engine.own_arrays
            trainable.load(merge_inherited(trainable.state(), arrays, own_arrays))
        elif training.network.parent:
            raise CheckpointError(
                f"{inherited} is missing: it had the weights of {training.network.parent}, epoch "
                f"{training.network.parent_epoch}, with which {training.network.name} begins"
            )
        elif start and isinstance(trainable, SupportsPretrained):
            trainable.load_pretrained(Path(start.file), start.skip)
            return dataclasses.replace(lookup, start=file_checksum(Path(start.file)))
        return lookup

    def _finish_converged(self, training: Training, reason: str) -> None:
        """Export a network that had converged before its launch was killed."""
        if training.group.is_master:
            self._send(m.Converged(training.network.name, reason))
        self._loop.next_order(training.group)
        self._loop.finish(training, final=True)

    # ---- measuring ----

    def _measure(self, order: m.Measure) -> None:
        """Measure samples/s of a network on a group."""
        network = order.network
        began = time.perf_counter()
        rates = [StepRate()]
        reason = ""
        may_pass = False
        parameters = 0
        training = self._make_training(network, 0)
        try:
            training.group = group = self.world.group(order.ranks, order.group)
            with self._building(network, group) as training.trainable:
                batches = order.batches or (network.global_batch(group.size),)
                rates = measure_batches(
                    training,
                    self.sample.for_pipeline(network.pipeline),
                    self.spec.profile,
                    batches,
                )
                if order.batches and isinstance(training.trainable, SupportsInspection):
                    parameters = training.trainable.count_parameters()
        except TrainingFailed as failure:
            reason = failure.reason
            may_pass = failure.may_pass
            log.error(
                "%s could not be measured: %s\n%s", network.name, failure.reason, failure.detail
            )
        except GroupMemberDied as group_failure:
            log.warning(
                "%s is not measured on %d ranks: %s", network.name, len(order.ranks), group_failure
            )
            return
        if group.is_master:
            timed = tuple(
                StepTime(size, size / rate.rate)
                for size, rate in zip(order.batches, rates, strict=False)
                if rate.rate
            )
            self._send(
                m.Measured(
                    network.name,
                    group.size,
                    rates[0],
                    time.perf_counter() - began,
                    reason,
                    may_pass,
                    timed,
                    parameters,
                )
            )
        group.free()
