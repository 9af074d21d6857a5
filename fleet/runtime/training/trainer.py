"""The trainer rank: get, step, tell.

:meth:`Trainer._train` is the training loop; everything else is what it stands on.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from fleet.comm.base import Group, World
from fleet.comm.messages import (
    Built,
    Converged,
    EpochDone,
    Exit,
    Failed,
    FellBack,
    GoOn,
    Join,
    Joined,
    Measure,
    Measured,
    Message,
    Pace,
    Pause,
    Paused,
    Ready,
    Regroup,
    Regrouped,
    Start,
    Stop,
    Stopped,
    Tag,
)
from fleet.engines.base import Engine, Sums, Trainable
from fleet.errors import GroupStruck, InfrastructureError
from fleet.runtime.all_or_none import NetworkFailed, agree, all_or_none
from fleet.spec import NetworkSpec, Spec
from fleet.storage.checkpoint import CheckpointLookup, newest, promote_previous
from fleet.storage.identity import identity
from fleet.storage.paths import RunPaths
from fleet.storage.state import EpochRecord, State, convergence
from fleet.storage.writer import CheckpointWriter
from fleet.stream.base import Stream
from fleet.stream.order import Epoch, read_path, write_path
from fleet.stream.own import OwnStream
from fleet.stream.stall import Stalled
from fleet.stream.validation import Validation
from preprocess.sample import SampleSpec

log = logging.getLogger("fleet.runtime.trainer")

T = TypeVar("T")

_PACE_EVERY_S = 1.0
_JUDGED_AT_ONCE_S = 1.0  # of validation; then a group looks whether the run ends


@dataclass(frozen=True)
class Sources:
    """Where a trainer gets its samples from.

    Attributes:
        stream: of training samples.
        own: the same samples, prepared by this rank: for the rest of an epoch that the stream has left behind.
        validation: None where there is no validation data.
    """

    stream: Stream
    own: OwnStream
    validation: Validation | None

    @property
    def waited_s(self) -> float:
        """What this rank has waited for data so far."""
        return self.stream.waited_s + (self.own.waited_s if self.own is not self.stream else 0.0)


@dataclass
class Training:
    """One network in training, on this rank.

    Attributes:
        reads_from: the epoch from which on this rank reads the stream; before it, it prepares its own rows.
        group: that this rank trains it in; it may be exchanged for another one.
    """

    network: NetworkSpec
    reads_from: int
    group: Group = field(init=False)
    trainable: Trainable = field(init=False)


class Trainer:
    """One GPU (or CPU slot), in one training group after another."""

    def __init__(self, world: World, spec: Spec, paths: RunPaths, engine: Engine, sample: SampleSpec,
                 sources: Sources) -> None:
        self._world, self._spec, self._paths = world, spec, paths
        self._engine, self._sample, self._sources = engine, sample, sources
        self._writer = CheckpointWriter(paths, spec.checkpoint)

    # ---- the four steps of a role's life ----

    def start(self) -> None:
        """Tell the coordinator that this rank can be given work."""
        self._tell(Ready(self._world.rank))

    def run(self) -> None:
        """Do what the coordinator says, until the run is over."""
        while not isinstance(order := self._world.await_message(Tag.TRAINER), Exit):
            if isinstance(order, Measure):
                self._measure(order)
            elif isinstance(order, Start):
                self._serve(order)
            elif isinstance(order, Join):
                self._join(order)
            elif isinstance(order, Pause | GoOn | Stop):
                continue  # it came when the group had stopped already, or had been struck
            else:
                raise InfrastructureError(f"rank {self._world.rank} did not expect {order}")
            self._tell(Ready(self._world.rank))

    def stop(self) -> None:
        """Leave nothing unwritten."""
        self._writer.close()

    def _tell(self, message: Message) -> None:
        self._world.tell(0, Tag.COORDINATOR, message)

    # ---- one network ----

    def _serve(self, order: Start) -> None:
        """Train one network in its group until it is final, fails, this rank goes to others, or one of them dies."""
        network = order.network
        self._sources.stream.join(order.stream_epoch)
        training = Training(network, reads_from=order.stream_epoch)
        with self._leaving(training):
            training.group = group = self._world.group(order.ranks, order.group)
            group.exchange(None)  # all ranks of the group have joined the stream
            if group.is_master:
                self._tell(Joined(network.name))
            log.info("%s: training on ranks %s from stream epoch %d, gradients by %s", network.name, order.ranks,
                     order.stream_epoch, self._engine.exchange_name if group.size > 1 else "nobody: one rank")
            with self._built(network, group) as training.trainable:
                state = self._resume(training)
                log.info("%s: goes on after epoch %d, sample %d", network.name, state.epoch, state.position)
                over = convergence(state.history, network.train.converge).reason if not state.position else ""
                if over:
                    self._hand_in(training, over)
                else:
                    self._train(training, state, order.stream_epoch)

    def _join(self, order: Join) -> None:
        """Train a network that is in training elsewhere; its group goes on until the network is built here."""
        network = order.network
        training = Training(network, reads_from=0)
        training.group = self._world.group((self._world.rank,), order.group)
        with self._leaving(training), ExitStack() as held:
            failure: Exception | None = None
            try:
                training.trainable = held.enter_context(closing(self._engine.build(network, training.group)))
            except Exception as error:  # the network fails, on all ranks, once they have met
                failure = error
            self._tell(Built(network.name, self._world.rank))
            heard = self._world.await_message(Tag.TRAINER)
            if isinstance(heard, Stop):  # it is wanted here no more
                return
            if not isinstance(heard, Regroup):
                raise InfrastructureError(f"rank {self._world.rank} did not expect {heard}")
            training.reads_from = heard.reads_from
            self._sources.stream.join(heard.reads_from)
            self._train(training, self._regroup(training, heard, None, failure), heard.stream_epoch)

    @contextmanager
    def _leaving(self, training: Training) -> Iterator[None]:
        """However training ends here: a failure is told, the stream and the group are left."""
        try:
            yield
        except NetworkFailed as failure:
            log.error("%s failed: %s\n%s", training.network.name, failure.reason, failure.detail)
            self._writer.flush()  # a retry, perhaps on other ranks, goes on from there
            if training.group.is_master:
                self._tell(Failed(training.network.name, failure.reason, failure.detail, failure.may_pass))
        except GroupStruck as strike:
            log.warning("%s: %s; it goes back to its last checkpoint", training.network.name, strike)
            self._writer.flush()  # which is then what the coordinator reads
            return
        except Stalled as stall:
            ranks = ", ".join(map(str, training.group.ranks))
            raise InfrastructureError(f"{training.network.name}, on ranks {ranks}: {stall}") from stall
        finally:
            self._sources.stream.leave()
        training.group.free()

    @contextmanager
    def _built(self, network: NetworkSpec, group: Group) -> Iterator[Trainable]:
        with closing(all_or_none(group, lambda: self._engine.build(network, group))) as trainable:
            yield trainable

    def _resume(self, training: Training) -> State:
        """The master's state, on every rank: from the last checkpoint, or from the start."""
        network, group = training.network, training.group
        state = State(arrays={}, identity=identity(network, self._spec, self._sample))
        found = all_or_none(group, lambda: self._load(training) if group.is_master else CheckpointLookup(None))
        if found.state is not None:
            state = found.state
        if found.damage:
            log.warning("%s goes on after epoch %d, sample %d: %s", network.name, state.epoch, state.position,
                        found.damage)
            promote_previous(self._paths, network.name, found)
            self._tell(FellBack(network.name, found.damage, state.history, state.position))
        return self._share(training, dataclasses.replace(state, arrays={}))

    def _load(self, training: Training) -> CheckpointLookup:
        found = newest(self._paths, training.network.name)
        if found.state is not None:
            training.trainable.load(found.state.arrays)
        return found

    def _share(self, training: Training, state: State | None) -> State:
        """Give every rank of the group the network as the master has it, and its state."""
        group, trainable = training.group, training.trainable
        if group.size > 1:
            arrays = trainable.state()  # of the same names, shapes and types on every rank
            group.broadcast(list(arrays.values()))
            trainable.load(arrays)
        return group.from_master(state)

    def _hand_in(self, training: Training, reason: str) -> None:
        """Export a network that had converged in a launch that was killed before it came to that."""
        if training.group.is_master:
            self._tell(Converged(training.network.name, reason))
        self._next_order(training.group)
        self._finish(training, final=True)

    # ---- the loop ----

    def _train(self, training: Training, state: State, stream_epoch: int) -> None:
        """Train until told otherwise: epoch after epoch, some of them in pieces, between which the group may change."""
        network, began = training.network, self._clock()
        source: Stream = self._sources.own  # of the rest of an epoch that this rank has not begun
        while True:
            group = training.group
            epoch = Epoch(state.stream_epoch, state.path)
            if not state.position:
                epoch, began = Epoch(stream_epoch), self._clock()
                source = self._sources.stream if stream_epoch >= training.reads_from else self._sources.own
            taken = {chunk for record in state.history for chunk in read_path(record.path)}
            batch_size = network.global_batch(group.size)
            pace, saved = _Pace(network.name, state.position), time.perf_counter()
            missed = 0  # of the chunks of a ring
            is_over = True  # as it is where nothing is left of the epoch: the launch before ended while it was judged

            for batch in source.batches(epoch, state.position, batch_size, group, taken):
                stop = group.is_master and self._is_asked()
                result = self._step(training, batch.images, batch.labels, batch.size, stop)
                if not math.isfinite(result.loss):
                    raise NetworkFailed(f"the loss became {result.loss} in epoch {state.epoch + 1}, "
                                        f"within the first {batch.position} samples")
                state = dataclasses.replace(state, stream_epoch=batch.epoch.number, path=batch.epoch.path,
                                            position=batch.position, sums=(Sums(*state.sums) + result).totals)
                is_over, missed = batch.is_last, batch.missed
                if is_over:
                    continue
                if result.stop:
                    break
                if group.is_master:
                    pace.tell(self._tell, batch.position)
                    if self._spec.checkpoint.every and time.perf_counter() - saved > self._spec.checkpoint.every:
                        saved = time.perf_counter()
                        state, began = self._timed(state, began)
                        self._save(training, state)

            # What each rank gathered by itself must be one thing before it is judged, handed on, or saved where all
            # stand still; a save on the way has the master's. It is running means, hence linear: to average them
            # within an epoch and again at its end is to do it once.
            training.trainable.average_statistics()
            judged = self._evaluate(training) if is_over else None
            if judged is not None:
                state = self._end_epoch(training, state, began, judged, missed)
            else:
                state, began = self._timed(state, began)
                if group.is_master:
                    self._tell(Paused(network.name, state.stream_epoch))

            paused = time.perf_counter()
            order = self._next_order(group)
            if isinstance(order, Stop):
                if group.is_master and state.position:
                    self._save(training, state)
                self._finish(training, order.final)
                return
            if isinstance(order, Regroup):
                state = self._hand_over(group, order, state)
                if self._world.rank not in order.ranks:
                    return
                self._regroup(training, order, state)
                if training.group.is_master:
                    self._tell(Regrouped(network.name, state.position, time.perf_counter() - paused))
            stream_epoch = order.stream_epoch

    def _step(self, training: Training, images: np.ndarray, labels: np.ndarray, size: int, stop: bool = False
              ) -> Sums:
        try:
            return training.trainable.step(images, labels, size, stop)
        except Exception as error:
            # An engine raises on all ranks of the group or on none: so all of them are here.
            raise agree(training.group, error) from error

    def _is_asked(self) -> bool:
        """Whether the group should pause; nothing else is said inside an epoch."""
        return self._world.hear(Tag.TRAINER) is not None

    def _end_epoch(self, training: Training, state: State, began: _Clock, judged: Sums, missed: int) -> State:
        """Save the network and tell of it; returns its state before the next epoch."""
        network, group, trainable = training.network, training.group, training.trainable
        loss, correct, count = state.sums
        state, began = self._timed(state, began)
        record = EpochRecord(
            epoch=state.epoch + 1, stream_epoch=state.stream_epoch, loss=loss / max(count, 1),
            accuracy=correct / max(count, 1),
            val_loss=judged.loss / judged.count if judged.count else math.nan,
            val_accuracy=judged.correct / judged.count if judged.count else math.nan,
            learning_rate=trainable.learning_rate(), samples=int(count), gpus=group.size,
            seconds=state.seconds, waited_s=state.waited_s, path=write_path(state.path))
        history = (*state.history, record)
        verdict = convergence(history, network.train.converge)
        state = State(arrays={}, identity=state.identity, history=history, final=verdict.reason)
        if group.is_master:
            self._save(training, state, is_best=verdict.best_epoch == record.epoch)
            self._tell(EpochDone(network.name, record, self._writer.blocked_s - began.blocked_s, verdict.reason,
                                 missed))
        return state

    def _evaluate(self, training: Training) -> Sums | None:
        """Sums over all validation samples, shared among the group's ranks; None where the run ends meanwhile."""
        validation, group, batch = self._sources.validation, training.group, training.network.train.batch.size
        if validation is None:
            return Sums()
        total, mine = np.zeros(3), validation.batches(batch, group.rank, group.size)

        def judge() -> bool:
            """Go on for a while; returns whether this rank's share is done."""
            began = time.perf_counter()
            for images, labels in mine:
                result = training.trainable.evaluate(images, labels)
                total[:] += (result.loss, result.correct, result.count)
                if time.perf_counter() - began >= _JUDGED_AT_ONCE_S:
                    return False
            return True

        while True:  # as often on each rank: those that are done wait for the others
            is_done = all_or_none(group, judge)
            ends = group.is_master and not is_done and self._is_told_of_the_end()
            seen = np.array([*total, not is_done, ends], float)
            group.sum(seen)
            loss, correct, count, busy, ending = map(float, seen)
            if not busy:
                return Sums(loss, correct, count)
            if ending:
                return None

    def _is_told_of_the_end(self) -> bool:
        """Whether the run ends: a pause of another kind comes too late, as it does at the epoch's end."""
        self._world.do_duties()  # this may be the rank that coordinates
        heard = self._world.hear(Tag.TRAINER)
        return isinstance(heard, Pause) and heard.ends

    def _next_order(self, group: Group) -> GoOn | Regroup | Stop:
        def hear() -> Message | None:
            group.check()  # of a group that was struck the coordinator takes no epoch, and answers nothing
            return self._world.hear(Tag.TRAINER)

        heard = None
        while group.is_master and not isinstance(heard, GoOn | Regroup | Stop):  # a Pause comes too late
            heard = self._world.wait(hear)
        order = group.from_master(heard)
        if not isinstance(order, GoOn | Regroup | Stop):
            raise InfrastructureError(f"rank {self._world.rank} did not expect {order}")
        return order

    # ---- changing the group ----

    def _hand_over(self, group: Group, order: Regroup, state: State) -> State:
        """The state as the master has it, for the next one."""
        if group.is_master and order.ranks[0] != self._world.rank:  # the next one will write to the same files
            self._writer.flush()
        return group.from_master(state)

    def _regroup(self, training: Training, order: Regroup, state: State | None, failure: Exception | None = None
                 ) -> State:
        """Go over to another group; returns the network's state, on the ranks that are new to it as well.

        Args:
            state: None on a rank that is new.
            failure: of a rank that is new, for all to hear now that they have met.
        """

        def check() -> None:
            if failure is not None:
                raise failure

        group = self._world.group(order.ranks, order.group)
        training.group.free()
        training.group = group
        all_or_none(group, check)
        training.trainable.regroup(group)
        if order.stay < group.size:
            state = self._share(training, state)
        assert state is not None
        log.info("%s: goes on with ranks %s after epoch %d, sample %d", training.network.name, order.ranks, state.epoch,
                 state.position)
        return state

    # ---- saving ----

    def _save(self, training: Training, state: State, is_best: bool = False) -> None:
        began = time.perf_counter()
        arrays = training.trainable.state()
        self._writer.blocked_s += time.perf_counter() - began
        self._writer.save(training.network.name, dataclasses.replace(state, arrays=arrays), is_best)

    def _finish(self, training: Training, final: bool) -> None:
        """Put everything on disk before the coordinator hears that the ranks are free."""
        name, group = training.network.name, training.group

        began = time.perf_counter()
        all_or_none(group, lambda: self._writer.flush() if group.is_master else None)
        saved = time.perf_counter()
        damage = all_or_none(group, lambda: self._export(training) if group.is_master and final else "")
        if group.is_master:
            self._tell(Stopped(name, saved - began, time.perf_counter() - saved, damage))

    def _export(self, training: Training) -> str:
        network = training.network
        return self._writer.export(network.name, network.train.converge, training.trainable.export)

    def _timed(self, state: State, began: _Clock) -> tuple[State, _Clock]:
        """A state with what has passed of its epoch since the clock was read, and the clock from which to go on."""
        now = self._clock()
        state = dataclasses.replace(state, seconds=state.seconds + now.time - began.time,
                                    waited_s=state.waited_s + now.waited_s - began.waited_s)
        return state, dataclasses.replace(now, blocked_s=began.blocked_s)  # that is told of an epoch as a whole

    def _clock(self) -> _Clock:
        return _Clock(time.perf_counter(), self._sources.waited_s, self._writer.blocked_s)

    # ---- measuring ----

    def _measure(self, order: Measure) -> None:
        """Measure samples/s of a network on a group, on samples made up: the stream has its own measure."""
        network, profile = order.network, self._spec.profile
        began = time.perf_counter()
        rate, reason, passing = 0.0, "", False
        training = Training(network, reads_from=0)
        try:
            training.group = group = self._world.group(order.ranks, order.group)
            with self._built(network, group) as training.trainable:
                rate = self._time_steps(training, profile.batches, profile.timed)
        except NetworkFailed as failure:
            reason, passing = failure.reason, failure.may_pass
            log.error("%s could not be measured: %s\n%s", network.name, failure.reason, failure.detail)
        except GroupStruck as strike:
            log.warning("%s is not measured on %d ranks: %s", network.name, len(order.ranks), strike)
            return
        if group.is_master:
            self._tell(Measured(network.name, group.size, rate, time.perf_counter() - began, reason, passing))
        group.free()

    def _time_steps(self, training: Training, batches: int, timed: int) -> float:
        group, size = training.group, training.network.global_batch(training.group.size)
        rows = len(range(group.rank, size, group.size))
        random = np.random.default_rng(0)
        shape = (rows, *self._sample.image.shape)
        if np.issubdtype(self._sample.image.dtype, np.integer):
            images = random.integers(0, 256, shape).astype(self._sample.image.dtype)
        else:
            images = random.random(shape, np.float32)
        labels = random.integers(0, self._sample.classes, rows)
        for batch in range(batches):
            if batch == batches - timed:
                began = time.perf_counter()
            self._step(training, images, labels, size)
        return timed * size / (time.perf_counter() - began)


@dataclass(frozen=True)
class _Clock:
    """Seconds of this rank: of the clock, waited for data, waited for checkpoints."""

    time: float
    waited_s: float
    blocked_s: float


class _Pace:
    """Tells the coordinator about once a second how far an epoch is."""

    def __init__(self, network: str, position: int) -> None:
        self._network, self._position = network, position
        self._time = time.perf_counter()

    def tell(self, tell: Callable[[Message], None], position: int) -> None:
        """Tell it, if a second has passed."""
        now = time.perf_counter()
        if now - self._time >= _PACE_EVERY_S:
            tell(Pace(self._network, position, (position - self._position) / (now - self._time)))
            self._position, self._time = position, now


# ---- failing together --------------------------------------------------------------------------
