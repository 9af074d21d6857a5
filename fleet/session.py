"""One rank's part in a run: take up the roles, do them, end together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fleet.coordinator import Coordinator, Observer
from fleet.engine import Engine, make_engine
from fleet.errors import ExitStatus
from fleet.eventlog import EventLog, logged_epochs
from fleet.identity import speed_identity
from fleet.interrupt import Interruption
from fleet.messages import Bad, Tag
from fleet.prepare import Prepared
from fleet.preprocessor import Preprocessor
from fleet.replay import compare
from fleet.results import Results, leaderboard, recover
from fleet.segment import ValidationSet, Window
from fleet.show import print_table
from fleet.stream import OwnStream, OwnValidation, SharedStream, SharedValidation, Validation
from fleet.survey import Survey, cache_path, hardware, read_cache, write_cache
from fleet.tensorboard import TensorBoardObserver
from fleet.trainer import Sources, Trainer
from fleet.view import make_view
from preprocess.base import BadSample
from preprocess.decode import decoder_name

if TYPE_CHECKING:  # MPI starts when it is imported
    from fleet.mpi import World

log = logging.getLogger("fleet.session")


class Session:
    """This rank's roles in one run.

    Args:
        prepared: what rank 0 has read and checked.
        interruption: says when to stop before the end.
    """

    def __init__(self, world: World, prepared: Prepared, interruption: Interruption) -> None:
        self._world, self._prepared, self._interruption = world, prepared, interruption
        self._roles = prepared.roles
        self._window: Window | None = None
        self._validation: ValidationSet | None = None

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
        assert prepared.layout is not None
        name = f"{prepared.paths.segment_name}-{node}"
        for create in (True, False):
            if leads == create:
                self._window = Window(prepared.layout, f"{name}-train", create, is_relayed=roles.nodes > 1)
                if evaluation is not None:
                    self._validation = ValidationSet(prepared.inputs.shape, prepared.inputs.dtype, len(evaluation),
                                                     prepared.layout.chunk, f"{name}-validation", create)
            self._world.gather(None)  # the leader first, then all others
        if leads and self._window is not None:
            self._window.segment.unlink()
            if self._validation is not None:
                self._validation.segment.unlink()

    def _preprocessor(self) -> Preprocessor:
        assert self._window is not None
        return Preprocessor(self._world, self._roles, self._window, self._validation, self._prepared.training(),
                            self._prepared.evaluation())

    def _local_index(self) -> int:
        """The place of this trainer among those of its node."""
        node = self._roles.node_of[self._world.rank]
        return [rank for rank in self._roles.trainers if self._roles.node_of[rank] == node].index(self._world.rank)

    def _engine(self) -> Engine:
        return make_engine(self._prepared.spec, self._prepared.inputs, self._prepared.rates, self._local_index(),
                           self._roles.gpus_per_node)

    def _sources(self) -> Sources:
        training = self._prepared.training()
        own = OwnStream(training, self._world, lambda bad: self._report(bad, training=True))
        if self._window is not None:
            validation: Validation | None = (SharedValidation(self._validation, self._world)
                                             if self._validation is not None else None)
            return Sources(SharedStream(self._window, self._local_index(), self._world), own, validation)
        evaluation = self._prepared.evaluation()
        return Sources(own, own, None if evaluation is None else OwnValidation(
            evaluation, lambda bad: self._report(bad, training=False)))

    def _report(self, bad: BadSample, training: bool) -> None:
        self._world.tell(0, Tag.COORDINATOR, Bad(bad.name, bad.reason, training))


class _Board:
    """What rank 0 has beside its roles: the coordinator and everything that watches it."""

    def __init__(self, world: World, prepared: Prepared, interruption: Interruption) -> None:
        spec, paths, roles = prepared.spec, prepared.paths, prepared.roles
        self._prepared = prepared
        self.results = Results(spec, paths, len(prepared.data.train), _parameters(prepared))
        states = recover(self.results)
        self._view = make_view(spec, prepared.plain)
        self._tensorboard = TensorBoardObserver(paths)
        observers: list[Observer] = [self._view, self._tensorboard]
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
            replayed=[record.stream_epoch for record in prepared.replayed], unlogged=unlogged)
        self.results.write()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._view.close()

    def end(self) -> int:
        """Write and print what came out; returns the exit status."""
        write_cache(self._cache, self._survey.known)
        self.coordinator.stop()
        self.results.write()
        rows = self.results.rows()
        print_table(*leaderboard(rows), title=f"{self._prepared.spec.document.name}: the best network first")
        print(self.coordinator.summary())
        replayed = self.results.histories.get(rows[0].name, ())
        if self._prepared.replayed and len(replayed) == len(self._prepared.replayed):  # otherwise it failed
            print(compare(self._prepared.replayed, replayed))
        if self.results.bad:
            print(f"{len(self.results.bad)} samples could not be read: {self._prepared.paths.bad_samples}")
        print(f"Everything is in {self._prepared.paths.root}.", flush=True)
        self._events.close()
        self._tensorboard.close()
        return int(self.coordinator.status or 0)


def _parameters(prepared: Prepared) -> dict[str, int]:
    """The parameter counts that are known without building a network."""
    from fleet.families import count_parameters

    inputs = prepared.inputs
    return {network.name: count_parameters(network.architecture.settings, inputs.shape, inputs.classes)
            for network in prepared.spec.networks if network.architecture.kind == "family"}
