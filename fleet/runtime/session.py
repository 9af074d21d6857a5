"""A rank's part in a run: set up the roles, run them, end together."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fleet.comm.messages import Tag, Warned
from fleet.comm.protocols import World
from fleet.comm.segment import Segment, unlink_all
from fleet.comm.trainer_threads import TrainerThreads
from fleet.engines.base import Engine, Slot
from fleet.engines.fusing import SupportsFusing
from fleet.engines.registry import make_engine
from fleet.errors import ExitStatus
from fleet.runtime.death_detector import DeathDetector
from fleet.runtime.interrupt import INTERRUPTED, Interruption
from fleet.runtime.preprocessor import Preprocessor
from fleet.runtime.startup.engine_import import EngineImport
from fleet.runtime.startup.launch import Launch, PreparedLaunch
from fleet.runtime.startup.request import StartupTimer
from fleet.runtime.training.energy import EnergyMeter, Meter, NoMeter
from fleet.runtime.training.fused_parts import FusedParts
from fleet.runtime.training.shared_gpus import SharedGpus
from fleet.runtime.training.sources import Sources, make_sources
from fleet.runtime.training.trainer import Trainer
from fleet.storage.lease import Lease
from fleet.storage.rank_deaths import Marker, SharedMarker
from fleet.stream.active_slots import ActiveSlots
from fleet.stream.augment import NodeEpochs
from fleet.stream.compose import NodeMemory
from fleet.stream.layout import chunk_size
from fleet.stream.sample_set import SampleSet
from fleet.stream.window import Window
from launch.devices import find_maker, memory_mib, visible_gpus
from launch.energy import find_counters
from launch.gpus import NVIDIA, Maker
from launch.numa import bind, find_gpu_nodes, on_gpu_node
from launch.pinned_memory import Pinning
from preprocess.decode import decoder_name
from preprocess.sample import InputSpec
from preprocess.target import TargetSpec

if TYPE_CHECKING:
    from fleet.runtime.rank_zero import RankZero

log = logging.getLogger("fleet.runtime.session")


class Session:
    """This rank's roles in one run.

    Args:
        launch: the launch that rank 0 has prepared.
        interruption: says when to stop early.
        lease: rank 0's lease, if several launches share the run.
        loading: the import of the engine, which may be in progress.
        timer: durations of the start-up, on rank 0.
    """

    def __init__(
        self,
        world: World,
        launch: Launch,
        interruption: Interruption,
        lease: Lease | None = None,
        loading: EngineImport | None = None,
        timer: StartupTimer | None = None,
    ) -> None:
        self._world = world
        self._launch = launch
        self._interruption = interruption
        self._lease = lease
        self._loading = loading or EngineImport()
        self._timer = timer or StartupTimer()
        self._roles = launch.roles
        self._shared = NodeMemory()
        self._make_meter: Callable[[], Meter] = NoMeter
        self._first_epoch = 0  # the stream's first epoch in this launch
        self._memory_mib: int | None = None  # of this trainer's GPU, if GPUs are shared

    def run(self) -> int:
        """Run this rank's roles; returns its exit status."""
        log.info("%s; JPEG by %s", self._world.library_name(), decoder_name())
        self._death_detector = DeathDetector(self._world, self._launch.paths)
        self._interruption.on_signal = self._death_detector.on_signal
        self._interruption.end_at_once = lambda: self._world.end_all_ranks(INTERRUPTED)
        self._world.before_end = self._death_detector.prepare_end
        if self._roles.shared or self._roles.slots > 1 or self._launch.counts_energy:
            self._map_memory()
        gpu = self._gpu()  # before MPS renames it
        maker = find_maker(os.environ, self._launch.spec.resources.device)
        if self._launch.counts_energy:
            self._make_meter = self._find_counters(gpu, maker)
        if gpu is not None:
            bind(find_gpu_nodes([gpu], maker))
        shared = gpu if self._shares_gpus else None
        if shared is not None and maker is not None:
            self._memory_mib = memory_mib(shared, maker, os.environ)
        if self._shares_gpus:
            served = shared if maker is NVIDIA else None
            gpus = SharedGpus(self._world, self._roles, served, os.environ)
        else:
            gpus = None
        rank_zero = self._make_rank_zero() if self._world.rank == 0 else None
        plan: tuple[frozenset[int], int] | None = None
        if rank_zero is not None:
            plan = frozenset(rank_zero.busy_trainers), rank_zero.first_epoch
        busy_trainers, self._first_epoch = self._world.broadcast_value(plan)
        try:
            if self._world.rank in self._roles.trainers:
                self._train(rank_zero, self._world.rank in busy_trainers)
            else:
                self._run_without_training(rank_zero)
        finally:
            if rank_zero is not None:
                rank_zero.close()
        self._world.finish()
        if gpus is not None:
            gpus.stop()
        if rank_zero is not None:
            return rank_zero.end()
        return int(ExitStatus.OK)

    def _make_rank_zero(self) -> RankZero:
        # Imported on rank 0 only, because it takes a tenth of a second.
        from fleet.runtime.rank_zero import RankZero

        assert isinstance(self._launch, PreparedLaunch)
        return RankZero(self._world, self._launch, self._interruption, self._lease, self._timer)

    def _train(self, rank_zero: RankZero | None, is_busy: bool) -> None:
        """Run a trainer; a single rank also coordinates while it waits.

        Args:
            is_busy: whether this rank is expected to train.
        """
        if rank_zero is not None:
            self._world.background_tasks.append(rank_zero.step)
            rank_zero.start()
        self._loading.finish()  # before this thread imports anything else
        if self._roles.fused == 1:
            self._run_trainer(self._world, self._make_sources(self._world), is_busy)
        else:
            self._run_trainers(is_busy)

    def _run_trainers(self, is_busy: bool) -> None:
        """Run several trainers, which share this rank's engine."""
        threads = TrainerThreads(self._world, self._roles)
        engines: list[Engine] = []

        def engine_of(active_slots: ActiveSlots) -> Engine:
            if not engines:
                engines.append(self._engine(active_slots))
            engine = engines[0]
            assert isinstance(engine, SupportsFusing)
            engine.enter_thread()
            return engine

        active_slots = ActiveSlots(self._world, self._roles, self._shared.active_slots)
        parts = FusedParts(threads, partial(engine_of, active_slots))
        marker = SharedMarker(self._death_detector.marker)
        shared_sources: list[Sources] = []  # without a window each reads what it needs

        def run_trainer(world: World) -> None:
            if self._launch.layout is not None or not shared_sources:
                shared_sources.append(self._make_sources(world))
            sources = shared_sources[-1]
            self._run_trainer(world, sources, is_busy, parts, engine_of, marker.of_trainer())

        threads.run(run_trainer)

    def _run_trainer(
        self,
        world: World,
        sources: Sources,
        is_busy: bool,
        parts: FusedParts | None = None,
        make_engine: Callable[[ActiveSlots], Engine] | None = None,
        marker: Marker | None = None,
    ) -> None:
        """Run a trainer.

        Args:
            world: the launch, as the trainer sees it.
            sources: its sources of samples.
            is_busy: whether it is expected to train.
            parts: where the trainers of this rank meet; None if it has one.
            make_engine: returns the engine that they share.
            marker: their marker.
        """
        active_slots = ActiveSlots(world, self._roles, self._shared.active_slots)
        trainer = Trainer(
            world,
            self._launch.spec,
            self._launch.paths,
            partial(make_engine or self._engine, active_slots),
            self._launch.sample,
            sources,
            self._launch.codes,
            self._launch.fence,
            active_slots,
            marker or self._death_detector.marker,
            self._make_meter(),
            parts,
        )
        trainer.start(is_busy)
        trainer.run()
        trainer.stop()

    def _make_sources(self, world: World) -> Sources:
        return make_sources(world, self._launch, self._shared, self._first_epoch)

    def _run_without_training(self, rank_zero: RankZero | None) -> None:
        """Run a preprocessor, the coordinator, or both."""
        if self._world.rank in self._roles.preprocessors:
            preprocessor = self._preprocessor()
        else:
            preprocessor = None
        if preprocessor is not None:
            preprocessor.start()
        if rank_zero is not None:
            self._death_detector.marker.set()
            rank_zero.start()
            self._world.background_tasks.append(rank_zero.step)
        if preprocessor is not None:
            self._world.background_tasks.append(preprocessor.step)
        self._world.wait(
            lambda: (
                (preprocessor is None or preprocessor.is_done)
                and (rank_zero is None or rank_zero.coordinator.status is not None)
            )
            or None
        )
        self._world.background_tasks.clear()
        self._death_detector.marker.clear()
        if preprocessor is not None:
            preprocessor.stop()

    # ---- memory, engine and GPUs ----

    def _map_memory(self) -> None:
        """Create and map this node's shared memory; collective over all ranks."""
        launch = self._launch
        roles = self._roles
        rank = self._world.rank
        node = roles.node_of[rank]
        leads = rank == roles.leader(node)
        evaluation = launch.inputs.data.validation
        name = f"{launch.paths.segment_name}-{node}"
        shares = roles.shared  # whether ranks share samples

        def mapped(create: bool) -> NodeMemory:
            memory: dict[str, Any] = {}
            if launch.layout is not None:
                memory["window"] = Window(
                    launch.layout, f"{name}-train", create, is_relayed=roles.nodes > 1
                )
            if launch.stored_input is not None and shares:
                memory["decoded"] = _sample_set(
                    launch.stored_input,
                    launch.sample.stored_target,
                    len(launch.inputs.data.train),
                    f"{name}-decoded",
                    create,
                )
            if evaluation is not None and shares:
                memory["validation"] = _sample_set(
                    launch.sample.wire,
                    launch.sample.target,
                    len(evaluation),
                    f"{name}-validation",
                    create,
                )
            if roles.slots > 1:
                memory["active_slots"] = Segment(f"{name}-slots", roles.gpus_per_node, create)
            if launch.counts_energy:
                memory["busy"] = Segment(f"{name}-busy", 8 * roles.gpus_per_node, create)
            if launch.augmented_epochs:
                memory["augmented"] = NodeEpochs(
                    launch.sample.wire,
                    launch.sample.target.wire,
                    len(launch.inputs.data.train),
                    launch.augmented_epochs,
                    roles.gpus_per_node,
                    f"{name}-augmented",
                    create,
                )
            return NodeMemory(**memory)

        for create in (True, False):
            if leads == create:
                # The kernel allocates memory on the NUMA node of the process that creates it.
                maker = find_maker(os.environ, launch.spec.resources.device)
                with on_gpu_node(find_gpu_nodes(self._gpus(), maker)):
                    self._shared = mapped(create)
            self._world.allgather(None)  # the leader first, then all others
        if leads:
            unlink_all(name)

    def _find_counters(self, gpu: str | None, maker: Maker | None) -> Callable[[], Meter]:
        """Return a function that makes the meter of a trainer; collective over all ranks.

        Args:
            gpu: this trainer's GPU.
            maker: its maker.
        """
        roles = self._roles
        rank = self._world.rank
        counters = []
        if rank in roles.trainers:
            names = () if gpu is None else (gpu,)
            counters = find_counters(names, maker, os.environ)
        keys = self._world.allgather([counter.key for counter in counters])
        if not counters or self._shared.busy is None:
            return NoMeter
        node = roles.node_of[rank]
        mates = [mate for mate in roles.trainer_ranks if roles.node_of[mate] == node]
        sharers = [
            [roles.local_index(mate) for mate in mates if counter.key in keys[mate]]
            for counter in counters
        ]
        busy = np.frombuffer(self._shared.busy.memory, np.float64, roles.gpus_per_node)
        meter = EnergyMeter(counters, sharers, busy, roles.local_index(rank))
        return meter.make_network_meter

    def _preprocessor(self) -> Preprocessor:
        training = self._launch.pipeline("train")
        assert training is not None
        return Preprocessor(
            self._world,
            self._roles,
            self._shared,
            self._launch.order(training),
            training,
            self._launch.pipeline("validation"),
        )

    def _engine(self, active_slots: ActiveSlots) -> Engine:
        roles = self._roles
        slot, index = divmod(roles.local_index(self._world.rank), roles.physical_gpus_per_node)
        slot //= roles.fused
        spec = self._launch.spec
        gpus = self._gpus()
        device = index if len(gpus) > 1 else 0
        warn = self._warn_of_slow_copies
        pin = Pinning(device, warn) if spec.uses_gpus else lambda memory: None
        engine = make_engine(
            spec,
            self._launch.sample,
            self._launch.engine_rates,
            index,
            roles.gpus_per_node // roles.fused,
            Slot(slot, roles.slots // roles.fused, active_slots.count, self._memory_mib),
            pin,
            roles.span_of,
        )
        # After the engine has loaded the driver's library.
        for segment in self._shared.sample_segments():
            pin(segment.memory)
        return engine

    @property
    def _shares_gpus(self) -> bool:
        return self._roles.slots > self._roles.fused and self._launch.spec.uses_gpus

    def _gpu(self) -> str | None:
        """Return this trainer's GPU; None for other ranks and without GPUs."""
        names = self._gpus()
        if not names or self._world.rank not in self._roles.trainers:
            return None
        # The launcher may show each rank only its own GPU.
        index = self._roles.local_index(self._world.rank) % self._roles.physical_gpus_per_node
        return names[min(index, len(names) - 1)]

    def _gpus(self) -> tuple[str, ...]:
        """Return the GPUs that this rank sees; empty if the engine uses none."""
        spec = self._launch.spec
        if spec.engine.uses_gpus:
            return visible_gpus(os.environ, spec.resources.device)
        return ()

    def _warn_of_slow_copies(self, reason: str) -> None:
        """Warn that copies to GPUs use unregistered memory."""
        log.warning("memory cannot be registered with the GPU driver: %s", reason)
        if self._gpus():
            self._world.send(
                0,
                Tag.COORDINATOR,
                Warned(self._world.host, f"copying samples to GPUs is slower: {reason}"),
            )


def _sample_set(
    array: InputSpec, target: TargetSpec, samples: int, name: str, create: bool
) -> SampleSet:
    return SampleSet(array, samples, chunk_size(array, target.wire), name, create, target.wire)
