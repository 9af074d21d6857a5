"""One rank's part in a run: take up the roles, do them, end together."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from fleet.comm.messages import Bad, Tag
from fleet.engines.base import Engine
from fleet.engines.registry import make_engine
from fleet.errors import ExitStatus, UserError
from fleet.monitor.report import read_report, write_report
from fleet.monitor.tensorboard import TensorBoardObserver
from fleet.monitor.view import make_view
from fleet.runtime.coordinator import Coordinator, Observer
from fleet.runtime.interrupt import Interruption
from fleet.runtime.prepare import Prepared
from fleet.runtime.preprocessor import Preprocessor, Shared
from fleet.runtime.replay import compare
from fleet.runtime.survey import Survey, cache_path, hardware, read_cache, write_cache
from fleet.runtime.trainer import Sources, Trainer
from fleet.storage.events import EventLog, logged_epochs
from fleet.storage.files import STDOUT, storing
from fleet.storage.identity import speed_identity, trial_identity
from fleet.storage.results import Results, leaderboard, recover
from fleet.stream.failover import OutlivingStream, OutlivingValidation
from fleet.stream.layout import SampleSet, Window, chunk_size
from fleet.stream.order import RingOrder
from fleet.stream.reader import (
    FromKept,
    FromSource,
    OwnStream,
    OwnValidation,
    RingStream,
    SharedStream,
    SharedValidation,
    Stream,
    Validation,
)
from fleet.terminal import print_table
from preprocess.base import BadSample
from preprocess.decode import decoder_name

if TYPE_CHECKING:  # MPI starts when it is imported
    from fleet.comm.world import World

log = logging.getLogger("fleet.runtime.session")


class Session:
    """This rank's roles in one run.

    Args:
        prepared: what rank 0 has read and checked.
        interruption: says when to stop before the end.
    """

    def __init__(self, world: World, prepared: Prepared, interruption: Interruption) -> None:
        self._world, self._prepared, self._interruption = world, prepared, interruption
        self._roles = prepared.roles
        self._shared = Shared()

    def run(self) -> int:
        """Do this rank's part; returns the exit status that this rank should end with."""
        log.info("%s; JPEG by %s", self._world.library(), decoder_name())
        if self._roles.shared:
            self._map_memory()
        board = _Board(self._world, self._prepared, self._interruption) if self._world.rank == 0 else None
        try:
            if self._world.rank in self._roles.trainers:
                self._train(board)
            else:
                self._serve(board)
        finally:
            if board is not None:
                board.close()
        self._world.finish()
        return board.end() if board is not None else int(ExitStatus.OK)

    def _train(self, board: _Board | None) -> None:
        """A trainer; on a launch of one rank it coordinates while it waits."""
        if board is not None:
            self._world.duties.append(board.coordinator.step)
            board.coordinator.start()
        trainer = Trainer(self._world, self._prepared.spec, self._prepared.paths, self._engine(),
                          self._prepared.inputs, self._sources())
        trainer.start()
        trainer.run()
        trainer.stop()

    def _serve(self, board: _Board | None) -> None:
        """A preprocessor, or rank 0 that coordinates, or both."""
        preprocessor = self._preprocessor() if self._world.rank in self._roles.preprocessors else None
        if preprocessor is not None:
            preprocessor.start()
        if board is not None:
            board.coordinator.start()
            self._world.duties.append(board.coordinator.step)
        if preprocessor is not None:
            self._world.duties.append(preprocessor.step)
        self._world.wait(lambda: ((preprocessor is None or preprocessor.is_done) and (
            board is None or board.coordinator.status is not None)) or None)
        self._world.duties.clear()
        if preprocessor is not None:
            preprocessor.stop()

    # ---- what the roles stand on ----

    def _map_memory(self) -> None:
        """Make and map this node's shared memory; collective over all ranks."""
        prepared, roles, rank = self._prepared, self._roles, self._world.rank
        node = roles.node_of[rank]
        leads = rank == roles.leader(node)
        evaluation = prepared.data.validation
        name = f"{prepared.paths.segment_name}-{node}"
        for create in (True, False):
            if leads == create:
                self._shared = Shared(
                    None if prepared.layout is None else Window(prepared.layout, f"{name}-train", create,
                                                                is_relayed=roles.nodes > 1),
                    None if prepared.kept is None else _sample_set(prepared.kept, "uint8", len(prepared.data.train),
                                                                   f"{name}-kept", create),
                    None if evaluation is None else _sample_set(prepared.inputs.shape, prepared.inputs.dtype,
                                                                len(evaluation), f"{name}-validation", create))
            self._world.gather(None)  # the leader first, then all others
        if leads:
            for shared in (self._shared.window, self._shared.kept, self._shared.validation):
                if shared is not None:
                    shared.segment.unlink()

    def _preprocessor(self) -> Preprocessor:
        training = self._prepared.training()
        return Preprocessor(self._world, self._roles, self._shared, self._prepared.order(training), training,
                            self._prepared.evaluation())

    def _engine(self) -> Engine:
        return make_engine(self._prepared.spec, self._prepared.inputs, self._prepared.rates,
                           self._roles.place(self._world.rank),
                           self._roles.gpus_per_node)

    def _sources(self) -> Sources:
        training, shared = self._prepared.training(), self._shared
        order = self._prepared.order(training)
        writers, stall_s = self._roles.preprocessors, self._prepared.spec.data.stall
        samples = FromSource(training) if shared.kept is None else FromKept(training, shared.kept, stall_s)
        own = OwnStream(samples, order, self._world, lambda bad: self._report(bad, training=True), writers)
        stream: Stream = own
        if shared.window is not None:
            reader = self._roles.place(self._world.rank)
            window = (RingStream(shared.window, reader, self._world, order, stall_s, writers)
                      if isinstance(order, RingOrder)
                      else SharedStream(shared.window, reader, self._world, stall_s, writers))
            stream = OutlivingStream(window, own)
        return Sources(stream, own, self._validation())

    def _validation(self) -> Validation | None:
        evaluation = self._prepared.evaluation()
        if evaluation is None:
            return None
        own = OwnValidation(evaluation, lambda bad: self._report(bad, training=False))
        if self._shared.validation is None:
            return own
        shared = SharedValidation(self._shared.validation, self._world, self._prepared.spec.data.stall,
                                  self._roles.preprocessors)
        return OutlivingValidation(shared, own)

    def _report(self, bad: BadSample, training: bool) -> None:
        self._world.tell(0, Tag.COORDINATOR, Bad(bad.name, bad.reason, training))


def _sample_set(shape: tuple[int, ...], dtype: str, samples: int, name: str, create: bool) -> SampleSet:
    sample_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return SampleSet(shape, dtype, samples, chunk_size(sample_bytes), name, create)


class _Board:
    """What rank 0 has beside its roles: the coordinator and everything that watches it."""

    def __init__(self, world: World, prepared: Prepared, interruption: Interruption) -> None:
        spec, paths, roles = prepared.spec, prepared.paths, prepared.roles
        self._prepared = prepared
        self.results = Results(spec, paths, len(prepared.data.train), _parameters(prepared),
                               lambda network: trial_identity(network, spec, prepared.inputs))
        states = recover(self.results)
        self._view = make_view(spec, prepared.plain,
                               {name: len(history) for name, history in self.results.histories.items()})
        observers: list[Observer] = [self._view, TensorBoardObserver(paths), self]
        self._cache = cache_path()
        machine = hardware()
        unfinished = [network for network in spec.networks if network.name not in self.results.finished()]
        self._survey = Survey(
            unfinished, {network.name: speed_identity(network, spec.resources, prepared.inputs, machine)
                         for network in unfinished},
            spec.profile, len(roles.trainers), roles.gpus_per_node, read_cache(self._cache))
        consumed = [record.stream_epoch for history in self.results.histories.values() for record in history]
        consumed += [state.stream_epoch for state in states.values()]
        logged = logged_epochs(paths.events)
        unlogged = [(name, record) for name, history in self.results.histories.items() for record in history
                    if (name, record.epoch, record.stream_epoch) not in logged]
        self._events = EventLog(paths.events)
        self.coordinator = Coordinator(
            world, spec, roles, prepared.layout, self._survey, prepared.rates, self.results, self._events,
            paths.profile, observers, interruption, first_epoch=1 + max(consumed, default=-1),
            replayed=prepared.replayed_epochs(), unlogged=unlogged)
        for sample in prepared.left_out:
            self.results.add_bad(sample.name, sample.reason)
        self.results.write()

    def on_event(self, event: str, fields: dict) -> None:
        """Keep what was measured as soon as it is, whatever becomes of this launch."""
        if event == "profiled":
            write_cache(self._cache, self._survey.known)

    def on_pace(self, network: str, samples: int, samples_per_s: float) -> None:
        """Nothing is kept of that."""

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._view.close()

    def end(self) -> int:
        """Write and print what came out; returns the exit status."""
        write_cache(self._cache, self._survey.known)
        self.coordinator.stop()
        self.results.write()
        self._events.close()
        with storing(STDOUT):
            self._print()
        return int(self.coordinator.status or 0)

    def _print(self) -> None:
        rows = self.results.rows()
        print_table(*leaderboard(rows), title=f"{self._prepared.spec.document.name}: the best network first")
        print(self.coordinator.summary())
        replayed = self.results.histories.get(rows[0].name, ())
        if self._prepared.replayed and len(replayed) == len(self._prepared.replayed):  # otherwise it failed
            print(compare(self._prepared.replayed, replayed))
        if self.results.bad:
            print(f"{len(self.results.bad)} samples could not be read: {self._prepared.paths.bad_samples}")
        shown = "report.html shows it"
        try:
            write_report(self._prepared.paths, read_report(self._prepared.paths))
        except UserError as error:  # a log that was damaged is no reason to fail after all else went well
            shown = f"without a report, for {error}"
        print(f"Everything is in {self._prepared.paths.root}; {shown}.", flush=True)


def _parameters(prepared: Prepared) -> dict[str, int]:
    """The parameter counts that are known without building a network; those of emulated ones are not asked for."""
    from fleet.spec.model import count_parameters

    if prepared.spec.resources.engine == "emulated":
        return {}  # their images may be too small for them
    inputs = prepared.inputs
    return {network.name: count_parameters(network.architecture.settings, inputs.shape, inputs.classes)
            for network in prepared.spec.networks if network.architecture.kind == "family"}
