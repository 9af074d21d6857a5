"""One rank's part in a run: take up the roles, do them, end together."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from fleet.comm.messages import Tag, Warned
from fleet.comm.protocols import World
from fleet.comm.segment import Segment
from fleet.engines.base import Engine, Slot
from fleet.engines.registry import make_engine
from fleet.errors import ExitStatus
from fleet.runtime.engine_import import EngineImport
from fleet.runtime.interrupt import INTERRUPTED, Interruption
from fleet.runtime.launch import Launch
from fleet.runtime.preprocessor import Preprocessor
from fleet.runtime.startup import StartupTimer
from fleet.runtime.training.shared_gpus import SharedGpus
from fleet.runtime.training.sources import sources_of
from fleet.runtime.training.trainer import Trainer
from fleet.runtime.watchdog import Watchdog
from fleet.runtime.witness import Witness
from fleet.storage.lease import Lease
from fleet.stream.augment import NodeEpochs
from fleet.stream.compose import NodeMemory
from fleet.stream.layout import chunk_size
from fleet.stream.sample_set import SampleSet
from fleet.stream.tenants import Tenants
from fleet.stream.window import Window
from launch.devices import memory_mib, visible_gpus
from launch.numa import bind, find_gpu_nodes, on_gpu_node
from launch.pinned_memory import Pinning
from preprocess.decode import decoder_name
from preprocess.sample import ImageSpec
from preprocess.target import TargetSpec

if TYPE_CHECKING:
    from fleet.runtime.rank_zero import RankZero

log = logging.getLogger("fleet.runtime.session")


class Session:
    """This rank's roles in one run.

    Args:
        launch: what rank 0 has read and checked.
        interruption: says when to stop before the end.
        lease: of rank 0, where several launches work on the networks of the run.
        loading: of the engine, which may have begun.
        laps: of this start-up, on rank 0.
    """

    def __init__(
        self,
        world: World,
        launch: Launch,
        interruption: Interruption,
        lease: Lease | None = None,
        loading: EngineImport | None = None,
        laps: StartupTimer | None = None,
    ) -> None:
        self._world = world
        self._launch = launch
        self._interruption = interruption
        self._lease = lease
        self._loading = loading or EngineImport()
        self._laps = laps or StartupTimer()
        self._roles = launch.roles
        self._shared = NodeMemory()
        self._first_epoch = 0  # of the stream, in this launch
        self._memory_mib: int | None = None  # of this trainer's GPU, where GPUs are shared

    def run(self) -> int:
        """Do this rank's part; returns the exit status that this rank should end with."""
        log.info("%s; JPEG by %s", self._world.library(), decoder_name())
        witness = self._witness = Witness(self._world, self._launch.paths)
        self._interruption.on_signal = self._on_signal
        self._interruption.end_at_once = lambda: self._world.end(INTERRUPTED)
        self._world.before_end = witness.leave
        if self._roles.shared or self._roles.slots > 1:
            self._map_memory()
        gpu = self._gpu()  # by the name it has without MPS
        if gpu is not None:
            bind(find_gpu_nodes([gpu]))
        shared = gpu if self._shares_gpus else None
        self._memory_mib = None if shared is None else memory_mib(shared)
        if self._shares_gpus:
            gpus = SharedGpus(self._world, self._roles, shared, os.environ)
        else:
            gpus = None
        board = self._board() if self._world.rank == 0 else None
        watchdog = None
        if board is not None and self._interruption.is_watched:
            watchdog = self._watchdog(board)
        busy, self._first_epoch = self._world.share(
            None if board is None else (frozenset(board.busy), board.first_epoch)
        )
        try:
            if self._world.rank in self._roles.trainers:
                self._train(board, self._world.rank in busy)
            else:
                self._serve(board)
        finally:
            if board is not None:
                board.close()
        self._world.finish()
        if watchdog is not None:
            watchdog.stop()
        if gpus is not None:
            gpus.stop()
        if board is not None:
            return board.end()
        return int(ExitStatus.OK)

    def _on_signal(self, number: int) -> None:
        lost = self._witness.on_signal(number)
        if lost:
            self._interruption.cause = lost

    def _board(self) -> RankZero:
        from fleet.runtime.rank_zero import (
            RankZero,
        )  # what only rank 0 needs takes a tenth of a second to import

        return RankZero(self._world, self._launch, self._interruption, self._lease, self._laps)

    def _watchdog(self, board: RankZero) -> Watchdog:
        """What ends the launch in time, whatever this rank or another is stuck in."""

        def cut(why: str) -> None:
            board.close()
            self._world.end(board.cut(why))

        watchdog = Watchdog(self._world, self._interruption, lambda: board.coordinator.status, cut)
        self._world.duties.append(watchdog.see_duty)
        watchdog.start()
        return watchdog

    def _train(self, board: RankZero | None, is_busy: bool) -> None:
        """A trainer; on a launch of one rank it coordinates while it waits.

        Args:
            is_busy: whether there will be something to train here.
        """
        if board is not None:
            self._world.duties.append(partial(self._coordinate, board))
            board.coordinator.start()
        self._loading.finish()  # before anything else is imported here
        tenants = Tenants(self._world, self._roles, self._shared.tenants)
        sources = sources_of(self._world, self._launch, self._shared, self._first_epoch)
        trainer = Trainer(
            self._world,
            self._launch.spec,
            self._launch.paths,
            partial(self._engine, tenants),
            self._launch.sample,
            sources,
            self._launch.codes,
            self._launch.fence,
            tenants,
            self._witness.mark,
        )
        trainer.start(is_busy)
        trainer.run()
        trainer.stop()

    def _serve(self, board: RankZero | None) -> None:
        """A preprocessor, or rank 0 that coordinates, or both."""
        if self._world.rank in self._roles.preprocessors:
            preprocessor = self._preprocessor()
        else:
            preprocessor = None
        if preprocessor is not None:
            preprocessor.start()
        if board is not None:
            board.coordinator.start()
            self._world.duties.append(partial(self._coordinate, board))
        if preprocessor is not None:
            self._world.duties.append(preprocessor.step)
        self._world.wait(
            lambda: (
                (preprocessor is None or preprocessor.is_done)
                and (board is None or board.coordinator.status is not None)
            )
            or None
        )
        self._world.duties.clear()
        if preprocessor is not None:
            preprocessor.stop()

    def _coordinate(self, board: RankZero) -> bool:
        """The duty of rank 0. Where ranks are left in the end that do not listen, it ends them with all others."""
        worked = board.coordinator.step()
        if board.coordinator.is_cut:
            board.close()
            self._world.end(board.end())
        return worked

    # ---- what the roles stand on ----

    def _map_memory(self) -> None:
        """Make and map this node's shared memory; collective over all ranks."""
        launch = self._launch
        roles = self._roles
        rank = self._world.rank
        node = roles.node_of[rank]
        leads = rank == roles.leader(node)
        evaluation = launch.inputs.data.validation
        name = f"{launch.paths.segment_name}-{node}"
        shares = roles.shared  # samples, too

        def mapped(create: bool) -> NodeMemory:
            return NodeMemory(
                None
                if launch.layout is None
                else Window(launch.layout, f"{name}-train", create, is_relayed=roles.nodes > 1),
                None
                if launch.kept is None or not shares
                else _sample_set(
                    launch.kept,
                    launch.sample.stored_target,
                    len(launch.inputs.data.train),
                    f"{name}-kept",
                    create,
                ),
                None
                if evaluation is None or not shares
                else _sample_set(
                    launch.sample.wire,
                    launch.sample.target,
                    len(evaluation),
                    f"{name}-validation",
                    create,
                ),
                None
                if roles.slots == 1
                else Segment(f"{name}-tenants", roles.gpus_per_node, create),
                None
                if not launch.finished_epochs
                else NodeEpochs(
                    launch.sample.wire,
                    launch.sample.target.wire,
                    len(launch.inputs.data.train),
                    launch.finished_epochs,
                    roles.gpus_per_node,
                    f"{name}-finished",
                    create,
                ),
            )

        for create in (True, False):
            if leads == create:
                with on_gpu_node(
                    find_gpu_nodes(self._gpus())
                ):  # the kernel takes memory of the node where it is made
                    self._shared = mapped(create)
            self._world.gather(None)  # the leader first, then all others
        if leads:
            self._shared.unlink()

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

    def _engine(self, tenants: Tenants) -> Engine:
        roles = self._roles
        slot, index = divmod(roles.place(self._world.rank), roles.whole_per_node)
        spec = self._launch.spec
        shown = self._gpus()
        pin = (
            Pinning(index if len(shown) > 1 else 0, self._is_slow)
            if spec.engine.uses_gpus
            else lambda memory: None
        )
        engine = make_engine(
            spec,
            self._launch.sample,
            self._launch.engine_rates,
            index,
            roles.gpus_per_node,
            Slot(slot, roles.slots, tenants.count, self._memory_mib),
            pin,
        )
        for segment in (
            self._shared.of_samples()
        ):  # once the engine has loaded what the driver is spoken to with
            pin(segment.memory)
        return engine

    @property
    def _shares_gpus(self) -> bool:
        return self._roles.slots > 1 and self._launch.spec.engine.uses_gpus

    def _gpu(self) -> str | None:
        """The name of this trainer's GPU; None for other ranks, and without GPUs."""
        names = self._gpus()
        if not names or self._world.rank not in self._roles.trainers:
            return None
        # A launcher that shows each rank its own GPU alone has chosen already.
        return names[
            min(self._roles.place(self._world.rank) % self._roles.whole_per_node, len(names) - 1)
        ]

    def _gpus(self) -> tuple[str, ...]:
        """What this rank is shown, by the names that the system gives them; nothing where the engine uses none."""
        if self._launch.spec.engine.uses_gpus:
            return visible_gpus(os.environ, os.listdir("/dev"))
        return ()

    def _is_slow(self, why: str) -> None:
        """Say once in a run that inputs go to GPUs from memory that their driver does not know of."""
        log.warning("memory cannot be registered with the driver of the GPU: %s", why)
        if self._gpus():
            self._world.tell(
                0,
                Tag.COORDINATOR,
                Warned(self._world.host, f"samples go to GPUs more slowly: {why}"),
            )


def _sample_set(
    image: ImageSpec, target: TargetSpec, samples: int, name: str, create: bool
) -> SampleSet:
    return SampleSet(image, samples, chunk_size(image, target.wire), name, create, target.wire)
