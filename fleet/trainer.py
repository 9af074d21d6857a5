"""The trainer rank: get, step, tell.

:meth:`Trainer._train` is the training loop; everything else is what it stands on.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from fleet.checkpoint import (
    CheckpointWriter,
    EpochRecord,
    Found,
    State,
    best_state,
    newest,
    settle,
    standing,
    write_state,
)
from fleet.engine import Engine, InputSpec, PeerFailed, StepResult, Trainable
from fleet.errors import FleetError, GroupStruck, InfrastructureError, ModelError, may_pass
from fleet.families import one_line
from fleet.identity import identity
from fleet.messages import (
    Converged,
    EpochDone,
    Exit,
    Failed,
    FellBack,
    GoOn,
    Interrupt,
    Joined,
    Measure,
    Measured,
    Message,
    Pace,
    Ready,
    Start,
    Stop,
    Stopped,
    Tag,
)
from fleet.order import Epoch, read_path, write_path
from fleet.paths import RunPaths, storing
from fleet.quota import Quota
from fleet.spec import NetworkSpec, Spec
from fleet.stream import OwnStream, Stream, Validation

if TYPE_CHECKING:  # MPI starts when it is imported
    from fleet.mpi import Group, World

log = logging.getLogger("fleet.trainer")

T = TypeVar("T")

_PACE_EVERY_S = 1.0


class NetworkFailed(ModelError):
    """The network of this group failed; every rank of the group raises it, with the same reason.

    Attributes:
        reason: in one line.
        detail: a traceback, where there is one.
        may_pass: whether trying again may help.
    """

    def __init__(self, reason: str, detail: str = "", may_pass: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.detail, self.may_pass = reason, detail, may_pass


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


class Trainer:
    """One GPU (or CPU slot), in one training group after another."""

    def __init__(self, world: World, spec: Spec, paths: RunPaths, engine: Engine, inputs: InputSpec,
                 sources: Sources) -> None:
        self._world, self._spec, self._paths = world, spec, paths
        self._engine, self._inputs, self._sources = engine, inputs, sources
        self._writer = CheckpointWriter(paths, spec.checkpoint)
        self._quota = Quota(paths, spec.checkpoint)

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
            elif isinstance(order, GoOn | Stop | Interrupt):
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
        """Train one network in its group until it is final, fails, its GPUs go to others, or a rank of them dies."""
        network = self._spec.by_name[order.network]
        self._sources.stream.join(order.stream_epoch)
        try:
            group = self._world.group(order.ranks, order.group)
            group.exchange(None)  # all ranks of the group have joined the stream
            if group.is_master:
                self._tell(Joined(network.name))
            log.info("%s: training on ranks %s from stream epoch %d, gradients by %s", network.name, order.ranks,
                     order.stream_epoch, self._engine.exchange_name if group.size > 1 else "nobody: one rank")
            with self._built(network, group) as trainable:
                state = self._resume(network, group, trainable)
                log.info("%s: goes on after epoch %d, sample %d", network.name, state.epoch, state.position)
                over = standing(state.history, network.train.converge).reason if not state.position else ""
                if over:
                    self._hand_in(network, group, trainable, over)
                else:
                    self._train(network, group, trainable, state, order.stream_epoch)
        except NetworkFailed as failure:
            log.error("%s failed: %s\n%s", network.name, failure.reason, failure.detail)
            if group.is_master:
                self._tell(Failed(network.name, failure.reason, failure.detail, failure.may_pass))
        except GroupStruck as strike:
            log.warning("%s: %s; it goes back to its last checkpoint", network.name, strike)
            self._writer.flush()  # which is then what the coordinator reads
            return
        finally:
            self._sources.stream.leave()
        group.free()

    @contextmanager
    def _built(self, network: NetworkSpec, group: Group) -> Iterator[Trainable]:
        trainable = together(group, lambda: self._engine.build(network, group))
        try:
            yield trainable
        finally:
            trainable.close()

    def _resume(self, network: NetworkSpec, group: Group, trainable: Trainable) -> State:
        """The master's state, on every rank: from the last checkpoint, or from the start."""
        state = State(arrays={}, identity=identity(network, self._spec, self._inputs))
        found = together(group, lambda: self._load(network, trainable) if group.is_master else Found(None))
        if found.state is not None:
            state = found.state
        if found.damage:
            log.warning("%s goes on after epoch %d, sample %d: %s", network.name, state.epoch, state.position,
                        found.damage)
            settle(self._paths, network.name, found)
            self._tell(FellBack(network.name, found.damage, state.history, state.position))
        if group.size > 1:
            arrays = trainable.state()  # of the same names, shapes and types on every rank
            for array in arrays.values():
                group.broadcast(array)
            trainable.load(arrays)
            state = group.from_master(dataclasses.replace(state, arrays={}))
        return dataclasses.replace(state, arrays={})

    def _load(self, network: NetworkSpec, trainable: Trainable) -> Found:
        found = newest(self._paths, network.name)
        if found.state is not None:
            trainable.load(found.state.arrays)
        return found

    def _hand_in(self, network: NetworkSpec, group: Group, trainable: Trainable, reason: str) -> None:
        """Export a network that had converged in a launch that was killed before it came to that."""
        if group.is_master:
            self._tell(Converged(network.name, reason))
        self._next_order(group)
        self._finish(network, group, trainable, final=True)

    # ---- the loop ----

    def _train(self, network: NetworkSpec, group: Group, trainable: Trainable, state: State, stream_epoch: int
               ) -> None:
        converge, stream = network.train.converge, self._sources.stream
        batch_size = network.global_batch(group.size)
        while True:
            # An epoch that was interrupted is finished on its own stream epoch, prepared by this rank itself.
            epoch = Epoch(state.stream_epoch, state.path) if state.position else Epoch(stream_epoch)
            source: Stream = self._sources.own if state.position else stream
            taken = {chunk for record in state.history for chunk in read_path(record.path)}
            loss, correct, count = state.sums
            began, waited, blocked = time.perf_counter(), source.waited_s, self._writer.blocked_s
            pace = _Pace(network.name, state.position)
            saved = began

            for batch in source.batches(epoch, state.position, batch_size, group, taken):
                result = self._step(group, trainable, batch.images, batch.labels, batch.size, self._is_interrupted())
                loss, correct, count = loss + result.loss, correct + result.correct, count + result.count
                if not math.isfinite(result.loss):
                    raise NetworkFailed(f"the loss became {result.loss} in epoch {state.epoch + 1}, "
                                        f"within the first {batch.position} samples")
                epoch = batch.epoch
                here = dataclasses.replace(state, stream_epoch=epoch.number, path=epoch.path, position=batch.position,
                                           sums=(loss, correct, count))
                if result.stop and not batch.is_last:
                    self._interrupt(network, group, trainable, here)
                    return
                if group.is_master:
                    pace.tell(self._tell, batch.position)
                    if self._spec.checkpoint.every and time.perf_counter() - saved > self._spec.checkpoint.every:
                        saved = time.perf_counter()
                        self._save(network, trainable, here)

            # What each rank gathered by itself must be one thing before it is judged, or saved.
            trainable.average_statistics()
            judged = self._evaluate(network, group, trainable)
            record = EpochRecord(
                epoch=state.epoch + 1, stream_epoch=epoch.number,
                loss=loss / max(count, 1), accuracy=correct / max(count, 1),
                val_loss=judged.loss / judged.count if judged.count else math.nan,
                val_accuracy=judged.correct / judged.count if judged.count else math.nan,
                learning_rate=trainable.learning_rate(), samples=int(count), gpus=group.size,
                seconds=time.perf_counter() - began, waited_s=source.waited_s - waited,
                path=write_path(epoch.path))
            history = (*state.history, record)
            verdict = standing(history, converge)
            state = State(arrays={}, identity=state.identity, history=history, final=verdict.reason)
            if group.is_master:
                self._save(network, trainable, state, is_best=verdict.best_epoch == record.epoch)
                self._tell(EpochDone(network.name, record, self._writer.blocked_s - blocked, verdict.reason))

            order = self._next_order(group)
            if isinstance(order, Stop):
                self._finish(network, group, trainable, final=order.final)
                return
            stream_epoch = order.stream_epoch

    def _step(self, group: Group, trainable: Trainable, images: np.ndarray, labels: np.ndarray, size: int,
              stop: bool = False) -> StepResult:
        try:
            return trainable.step(images, labels, size, stop)
        except Exception as error:
            # An engine raises on all ranks of the group or on none: so all of them are here.
            raise agree(group, error) from error

    def _evaluate(self, network: NetworkSpec, group: Group, trainable: Trainable) -> StepResult:
        """Sums over all validation samples, shared among the group's ranks."""
        validation = self._sources.validation
        if validation is None:
            return StepResult(0, 0, 0)

        def mine() -> np.ndarray:
            total = np.zeros(3)
            for images, labels in validation.batches(network.train.batch.size, group.rank, group.size):
                result = trainable.evaluate(images, labels)
                total += (result.loss, result.correct, result.count)
            return total

        total = together(group, mine)
        group.sum(total)
        loss, correct, count = map(float, total)
        return StepResult(loss, correct, count)

    def _next_order(self, group: Group) -> GoOn | Stop:
        def hear() -> Message | None:
            group.check()  # of a group that was struck the coordinator takes no epoch, and answers nothing
            return self._world.hear(Tag.TRAINER)

        heard = None
        while group.is_master and not isinstance(heard, GoOn | Stop):  # an Interrupt comes too late: Stop will follow
            heard = self._world.wait(hear)
        order = group.from_master(heard)
        if not isinstance(order, GoOn | Stop):
            raise InfrastructureError(f"rank {self._world.rank} did not expect {order}")
        return order

    def _is_interrupted(self) -> bool:
        """Whether this rank has been told to stop inside an epoch; nothing else is said there."""
        return self._world.hear(Tag.TRAINER) is not None

    # ---- saving ----

    def _save(self, network: NetworkSpec, trainable: Trainable, state: State, is_best: bool = False) -> None:
        began = time.perf_counter()
        arrays = trainable.state()
        self._writer.blocked_s += time.perf_counter() - began
        self._writer.save(network.name, dataclasses.replace(state, arrays=arrays), is_best)

    def _interrupt(self, network: NetworkSpec, group: Group, trainable: Trainable, state: State) -> None:
        """Save in the middle of an epoch, and let go.

        Averaging the ranks' statistics here, and again at the epoch's end, comes to what averaging once would:
        they are running means, hence linear.
        """
        trainable.average_statistics()
        if group.is_master:
            self._save(network, trainable, state)
        self._finish(network, group, trainable, final=False)

    def _finish(self, network: NetworkSpec, group: Group, trainable: Trainable, final: bool) -> None:
        """Put everything on disk before the coordinator hears that the ranks are free."""
        def close() -> str:
            if not group.is_master:
                return ""
            self._writer.flush()
            return self._export(network, trainable) if final else ""

        began = time.perf_counter()
        damage = together(group, close)
        if group.is_master:
            self._tell(Stopped(network.name, time.perf_counter() - began, damage))

    def _export(self, network: NetworkSpec, trainable: Trainable) -> str:
        """Write the best network for use without FLEET; returns why it is not the best, where it is not."""
        with storing(self._paths.previous(network.name)):  # nobody goes on from there any more
            self._paths.previous(network.name).unlink(missing_ok=True)
        found = best_state(self._paths, network.name, network.train.converge, self._spec.checkpoint.keep)
        assert found.state is not None
        if found.damage:
            log.warning("%s: %s", network.name, found.damage)
            write_state(self._paths.best(network.name), found.state)
        self._quota.make_room(self._paths.exported(network.name), found.state.size)
        trainable.export(found.state.arrays, self._paths.exported(network.name))
        return found.damage

    # ---- measuring ----

    def _measure(self, order: Measure) -> None:
        """Measure samples/s of a network on a group, on samples made up: the stream has its own measure."""
        network, profile = self._spec.by_name[order.network], self._spec.profile
        began = time.perf_counter()
        rate, reason, passing = 0.0, "", False
        try:
            group = self._world.group(order.ranks, order.group)
            with self._built(network, group) as trainable:
                rate = self._time_steps(network, group, trainable, profile.batches, profile.timed)
        except NetworkFailed as failure:
            reason, passing = failure.reason, failure.may_pass
            log.error("%s could not be measured: %s\n%s", network.name, failure.reason, failure.detail)
        except GroupStruck as strike:
            log.warning("%s is not measured on %d ranks: %s", network.name, len(order.ranks), strike)
            return
        if group.is_master:
            self._tell(Measured(network.name, group.size, rate, time.perf_counter() - began, reason, passing))
        group.free()

    def _time_steps(self, network: NetworkSpec, group: Group, trainable: Trainable, batches: int, timed: int
                    ) -> float:
        size = network.global_batch(group.size)
        rows = len(range(group.rank, size, group.size))
        random = np.random.default_rng(0)
        shape = (rows, *self._inputs.shape)
        if np.issubdtype(self._inputs.dtype, np.integer):
            images = random.integers(0, 256, shape).astype(self._inputs.dtype)
        else:
            images = random.random(shape, np.float32)
        labels = random.integers(0, self._inputs.classes, rows)
        for batch in range(batches):
            if batch == batches - timed:
                began = time.perf_counter()
            self._step(group, trainable, images, labels, size)
        return timed * size / (time.perf_counter() - began)


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


def together(group: Group, action: Callable[[], T]) -> T:
    """Do something on every rank of a group; when it fails on one, it fails on all.

    Raises:
        NetworkFailed: on every rank, with the reason of the first that failed.
        InfrastructureError: this is no fault of the network, and ends the run.
    """
    error: Exception | None = None
    try:
        result = action()
    except InfrastructureError:
        raise
    except Exception as caught:
        error = caught
    if (failure := _agreed(group, error)) is not None:
        raise failure from error
    return result


def agree(group: Group, error: Exception) -> NetworkFailed:
    """What all ranks of a group say after a step that raised on all of them."""
    if isinstance(error, InfrastructureError):
        raise error
    failure = _agreed(group, error)
    assert failure is not None  # this rank failed, so there is one
    return failure


def _agreed(group: Group, error: Exception | None) -> NetworkFailed | None:
    said = None
    if error is not None:
        detail = "".join(traceback.format_exception(error))
        said = (isinstance(error, PeerFailed), reason_of(error), detail, may_pass(error))
    failures = sorted((failure for failure in group.exchange(said) if failure is not None), key=lambda f: f[0])
    return NetworkFailed(*failures[0][1:]) if failures else None


def reason_of(error: Exception) -> str:
    """An exception in one line, in words that a user of the network understands."""
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return "out of memory: " + one_line(error)[:300]
    if isinstance(error, FleetError):
        return str(error)
    return f"{type(error).__name__}: {_without_frames(str(error))}".removesuffix(": ")[:500]


def _without_frames(text: str) -> str:
    """An error's own words in one line: those that TensorFlow and Keras repeat from the traceback are in the log."""
    kept, skips = [], 0
    for line in text.partition("Arguments received by")[0].splitlines():
        if line.lstrip().startswith("File "):
            skips = 2  # the frame, and the code that stands under it
        if skips:
            skips -= 1
        elif line.strip() and line.strip() != "in user code:":
            kept.append(line.strip())
    return " ".join(kept)
