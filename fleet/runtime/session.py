"""One rank's part in a run: take up the roles, do them, end together."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fleet.comm.base import World
from fleet.comm.messages import Bad, Tag
from fleet.engines.base import Engine, Slot
from fleet.engines.registry import make_engine
from fleet.errors import ExitStatus
from fleet.runtime.ahead import Loading
from fleet.runtime.feeds import Feed
from fleet.runtime.interrupt import Interruption
from fleet.runtime.laps import Laps
from fleet.runtime.prepare import Prepared
from fleet.runtime.preprocessor import Preprocessor
from fleet.runtime.training.shared_gpus import SharedGpus
from fleet.runtime.training.sources import Sources
from fleet.runtime.training.trainer import Trainer
from fleet.storage.lease import Lease
from fleet.storage.paths import PARTS
from fleet.stream.base import Stream
from fleet.stream.failover import OutlivingStream, OutlivingValidation
from fleet.stream.finishing import FinishingStream, FinishingValidation
from fleet.stream.folds import PartOrder, PartRing, PartStream
from fleet.stream.layout import chunk_size
from fleet.stream.memory import NodeMemory
from fleet.stream.order import Order, RingOrder
from fleet.stream.own import FromKept, FromOwnMemory, FromSource, OwnStream, Samples
from fleet.stream.reader import SharedStream
from fleet.stream.ring import RingStream
from fleet.stream.sample_set import SampleSet
from fleet.stream.segment import Segment
from fleet.stream.tenants import Tenants
from fleet.stream.validation import OwnValidation, PassingSamples, SharedValidation, Validation
from fleet.stream.window import Window
from launch.devices import memory_mib, visible_gpus
from preprocess.base import BadSample, row_numbers
from preprocess.decode import decoder_name
from preprocess.sample import ImageSpec
from preprocess.target import TargetSpec

if TYPE_CHECKING:
    from fleet.runtime.board import CoordinatorSide

log = logging.getLogger("fleet.runtime.session")


class Session:
    """This rank's roles in one run.

    Args:
        prepared: what rank 0 has read and checked.
        interruption: says when to stop before the end.
        lease: of rank 0, where several launches work on the networks of the run.
        loading: of the engine, which may have begun.
        laps: of this start-up, on rank 0.
    """

    def __init__(self, world: World, prepared: Prepared, interruption: Interruption, lease: Lease | None = None,
                 loading: Loading | None = None, laps: Laps | None = None) -> None:
        self._world, self._prepared, self._interruption, self._lease = world, prepared, interruption, lease
        self._loading, self._laps = loading or Loading(), laps or Laps()
        self._roles = prepared.roles
        self._shared = NodeMemory()
        self._first_epoch = 0  # of the stream, in this launch
        self._memory_mib: int | None = None  # of this trainer's GPU, where GPUs are shared

    def run(self) -> int:
        """Do this rank's part; returns the exit status that this rank should end with."""
        log.info("%s; JPEG by %s", self._world.library(), decoder_name())
        if self._roles.shared or self._roles.slots > 1:
            self._map_memory()
        gpu = self._shared_gpu()
        self._memory_mib = memory_mib(gpu) if gpu is not None else None  # of the name it has without MPS
        gpus = SharedGpus(self._world, self._roles, gpu, os.environ) if self._shares_gpus else None
        board = self._board() if self._world.rank == 0 else None
        busy, self._first_epoch = self._world.share(
            None if board is None else (frozenset(board.busy), board.first_epoch))
        try:
            if self._world.rank in self._roles.trainers:
                self._train(board, self._world.rank in busy)
            else:
                self._serve(board)
        finally:
            if board is not None:
                board.close()
        self._world.finish()
        if gpus is not None:
            gpus.stop()
        return board.end() if board is not None else int(ExitStatus.OK)

    def _board(self) -> CoordinatorSide:
        from fleet.runtime.board import CoordinatorSide  # what only rank 0 needs takes a tenth of a second to import

        return CoordinatorSide(self._world, self._prepared, self._interruption, self._lease, self._laps)

    def _train(self, board: CoordinatorSide | None, is_busy: bool) -> None:
        """A trainer; on a launch of one rank it coordinates while it waits.

        Args:
            is_busy: whether there will be something to train here.
        """
        if board is not None:
            self._world.duties.append(partial(self._coordinate, board))
            board.coordinator.start()
        self._loading.finish()  # before anything else is imported here
        tenants = Tenants(self._world, self._roles, self._shared.tenants)
        trainer = Trainer(self._world, self._prepared.spec, self._prepared.paths, partial(self._engine, tenants),
                          self._prepared.sample, self._sources(), self._prepared.codes,
                          self._prepared.fence, tenants)
        trainer.start(is_busy)
        trainer.run()
        trainer.stop()

    def _serve(self, board: CoordinatorSide | None) -> None:
        """A preprocessor, or rank 0 that coordinates, or both."""
        preprocessor = self._preprocessor() if self._world.rank in self._roles.preprocessors else None
        if preprocessor is not None:
            preprocessor.start()
        if board is not None:
            board.coordinator.start()
            self._world.duties.append(partial(self._coordinate, board))
        if preprocessor is not None:
            self._world.duties.append(preprocessor.step)
        self._world.wait(lambda: ((preprocessor is None or preprocessor.is_done) and (
            board is None or board.coordinator.status is not None)) or None)
        self._world.duties.clear()
        if preprocessor is not None:
            preprocessor.stop()

    def _coordinate(self, board: CoordinatorSide) -> bool:
        """The duty of rank 0. Where ranks are left in the end that do not listen, it ends them with all others."""
        worked = board.coordinator.step()
        if board.coordinator.is_cut:
            board.close()
            self._world.end(board.end())
        return worked

    # ---- what the roles stand on ----

    def _map_memory(self) -> None:
        """Make and map this node's shared memory; collective over all ranks."""
        prepared, roles, rank = self._prepared, self._roles, self._world.rank
        node = roles.node_of[rank]
        leads = rank == roles.leader(node)
        evaluation = prepared.data.validation
        name = f"{prepared.paths.segment_name}-{node}"
        shares = roles.shared  # samples, too
        for create in (True, False):
            if leads == create:
                self._shared = NodeMemory(
                    None if prepared.layout is None else Window(prepared.layout, f"{name}-train", create,
                                                                is_relayed=roles.nodes > 1),
                    None if prepared.kept is None or not shares else _sample_set(
                        prepared.kept, prepared.sample.kept_target, len(prepared.data.train), f"{name}-kept", create),
                    None if evaluation is None or not shares else _sample_set(
                        prepared.sample.image, prepared.sample.target, len(evaluation), f"{name}-validation", create),
                    None if roles.slots == 1 else Segment(f"{name}-tenants", roles.gpus_per_node, create))
            self._world.gather(None)  # the leader first, then all others
        if leads:
            self._shared.unlink()

    def _preprocessor(self) -> Preprocessor:
        training = self._prepared.training()
        return Preprocessor(self._world, self._roles, self._shared, self._prepared.order(training), training,
                            self._prepared.evaluation())

    def _engine(self, tenants: Tenants) -> Engine:
        roles = self._roles
        slot, index = divmod(roles.place(self._world.rank), roles.whole_per_node)
        return make_engine(self._prepared.spec, self._prepared.sample, self._prepared.engine_rates, index,
                           roles.gpus_per_node, Slot(slot, roles.slots, tenants.count, self._memory_mib))

    @property
    def _shares_gpus(self) -> bool:
        return self._roles.slots > 1 and self._prepared.spec.engine.uses_gpus

    def _shared_gpu(self) -> str | None:
        """The name of this trainer's GPU, where GPUs are shared; None for other ranks, and without GPUs."""
        rank = self._world.rank
        if not self._shares_gpus or rank not in self._roles.trainers:
            return None
        names = visible_gpus(os.environ, os.listdir("/dev"))
        # A launcher that shows each rank its own GPU alone has chosen already.
        return names[min(self._roles.place(rank) % self._roles.whole_per_node, len(names) - 1)] if names else None

    def _sources(self) -> Sources:
        feeds = {key: self._sources_of(feed) for key, feed in self._prepared.feeds.items()}
        return replace(next(iter(feeds.values())), feeds=feeds) if feeds else self._sources_of(None)

    def _sources_of(self, feed: Feed | None) -> Sources:
        """What networks of a feed read; of the only one, for None."""
        shared, folds, seed = self._shared, self._prepared.folds, self._prepared.spec.seed
        training = self._prepared.training() if feed is None else feed.pipeline("train", seed)
        assert training is not None
        order, stall_s = self._prepared.order(training), self._prepared.spec.data.stall
        if shared.kept is not None:
            samples: Samples = FromKept(training, shared.kept, stall_s)
        else:
            samples = FromSource(training) if self._prepared.kept is None else FromOwnMemory(training)
        test = self._test(feed)
        data = self._prepared.data if feed is None else feed.data
        lies = {part: row_numbers(source) for part, source in data.parts().items() if part in PARTS}

        def on_bad(bad: BadSample) -> None:
            self._report(bad, training=True)

        def read(fold: int | None) -> Sources:
            """What networks of a fold read; of all samples, for None."""
            of_fold = None if folds is None or fold is None else folds == fold
            keeps, rows = (None, None) if of_fold is None else (~of_fold, np.flatnonzero(of_fold))
            mine = order if keeps is None else PartOrder(order, keeps)
            lie = lies if rows is None else {**lies, PARTS[0]: lies[PARTS[0]][rows]}
            own = OwnStream(samples, mine, self._world, on_bad, self._roles.preprocessors)
            if shared.window is None:
                return Sources(own, own, self._validation(feed, rows), test, lie)
            window: Stream = self._window(shared.window, order, keeps)
            if feed is not None and not feed.is_carried:
                window = FinishingStream(window, mine, training, feed.is_done, on_bad)
            return Sources(OutlivingStream(window, own), own, self._validation(feed, rows), test, lie)

        whole = read(None)
        return whole if folds is None else replace(whole, folds=tuple(map(read, range(self._prepared.fold_count))))

    def _window(self, window: Window, order: Order, keeps: np.ndarray | None) -> SharedStream:
        """The stream that the ranks of this node share, or a part of it."""
        reader, stall_s = self._roles.place(self._world.rank), self._prepared.spec.data.stall
        writers = self._roles.preprocessors
        if isinstance(order, RingOrder):
            first = window.layout.sequence(self._first_epoch, 0)
            if keeps is None:
                return RingStream(window, reader, self._world, order, stall_s, writers, first)
            return PartRing(keeps, window, reader, self._world, order, stall_s, writers, first)
        if keeps is None:
            return SharedStream(window, reader, self._world, stall_s, writers)
        return PartStream(order, keeps, window, reader, self._world, stall_s, writers)

    def _validation(self, feed: Feed | None, rows: np.ndarray | None) -> Validation | None:
        evaluation = (self._prepared.evaluation() if feed is None else
                      feed.pipeline("validation", self._prepared.spec.seed))
        if evaluation is None:
            return None
        own = OwnValidation(evaluation, self._report_judging, rows)
        if self._shared.validation is None:
            return own
        shared = SharedValidation(self._shared.validation, self._world, self._prepared.spec.data.stall,
                                  self._roles.preprocessors, rows)
        if feed is None or feed.is_carried:
            return OutlivingValidation(shared, own)
        return OutlivingValidation(FinishingValidation(shared, evaluation, feed.is_done, self._report_judging, rows),
                                   own)

    def _test(self, feed: Feed | None) -> Validation | None:
        test = self._prepared.test()
        if test is not None and feed is not None:
            test = feed.pipeline("test", self._prepared.spec.seed)
        return None if test is None else PassingSamples(test, self._report_judging)

    def _report_judging(self, bad: BadSample) -> None:
        self._report(bad, training=False)

    def _report(self, bad: BadSample, training: bool) -> None:
        self._world.tell(0, Tag.COORDINATOR, Bad(bad.name, bad.reason, training))


def _sample_set(image: ImageSpec, target: TargetSpec, samples: int, name: str, create: bool) -> SampleSet:
    return SampleSet(image, samples, chunk_size(image, target.wire), name, create, target.wire)
