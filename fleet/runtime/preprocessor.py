"""The preprocessor rank: read, transform, write.

A preprocessor never blocks: :meth:`Preprocessor.step` does a bounded amount of work, so that rank 0
can coordinate in between. It imports neither an engine nor models.
"""

from __future__ import annotations

import time
from contextlib import suppress

from fleet.comm.messages import (
    Demand,
    Exit,
    LeaveLaunch,
    Message,
    Produce,
    ReleaseReaders,
    Tag,
    Throughput,
)
from fleet.comm.protocols import World
from fleet.comm.roles import Roles
from fleet.errors import GroupMemberDied
from fleet.stream.compose import NodeMemory
from fleet.stream.filler import SetFiller, WindowFiller
from fleet.stream.order import Order
from preprocess.record_pipeline import AnyPipeline

_MEASURED_SAMPLES = 64


class Preprocessor:
    """Fills the shared memory of its node.

    Args:
        shared: the memory of this node.
        order: the order of the training samples.
        training, evaluation: prepare training and validation samples.

    Attributes:
        is_done: whether the coordinator has ended the run.
    """

    def __init__(
        self,
        world: World,
        roles: Roles,
        shared: NodeMemory,
        order: Order,
        training: AnyPipeline,
        evaluation: AnyPipeline | None,
    ) -> None:
        self._world = world
        self._training = training
        self._turns = roles.preprocessors
        if shared.window:
            self._window: WindowFiller | None = WindowFiller(
                world, roles, shared.window, order, training
            )
        else:
            self._window = None
        self._sets: list[SetFiller] = []
        if shared.validation is not None and evaluation is not None:
            self._sets.append(
                SetFiller(
                    world,
                    roles,
                    shared.validation,
                    False,
                    lambda rows, inputs, targets: evaluation.load(
                        rows, 0, inputs, targets, training=False
                    ),
                )
            )
        self._decoded_filler: SetFiller | None = None
        if shared.decoded is not None:
            stored_order = training.order(0)
            self._decoded_filler = SetFiller(
                world,
                roles,
                shared.decoded,
                True,
                lambda rows, inputs, targets: training.load_stored(
                    stored_order[rows.start : rows.stop], inputs, targets
                ),
            )
        self.is_done = False

    # ---- start, step, stop ----

    def start(self) -> None:
        """Report to the coordinator how fast this rank prepares samples."""
        self._world.send(0, Tag.COORDINATOR, Throughput(self._world.rank, self._measure()))

    def step(self) -> bool:
        """Do a bounded amount of work; returns whether there was any."""
        message = self._world.receive(Tag.PREPROCESSOR)
        if isinstance(message, Exit):
            self.is_done = True
            return False
        if isinstance(message, LeaveLaunch):
            self._world.end_rank()
        if self._world.dead_ranks.intersection(self._turns):
            return message is not None  # trainers prepare their samples themselves now
        try:
            self._handle(message)
            worked = self._window is not None and self._window.step()
            for filler in self._sets:
                worked |= filler.step()
        except GroupMemberDied:  # a leader has died; `dead_ranks` will show it on all ranks
            return message is not None
        return worked | (message is not None)

    def _handle(self, message: Message | None) -> None:
        """Handle a message of the coordinator or of another node's preprocessor."""
        if isinstance(message, Produce):
            if self._window is not None:
                self._window.apply_order(message)
            if self._decoded_filler is not None and self._decoded_filler not in self._sets:
                self._sets.append(self._decoded_filler)
        elif isinstance(message, Demand) and self._window is not None:
            self._window.note_demand(message)
        elif isinstance(message, ReleaseReaders) and self._window is not None:
            self._window.release_readers(message.ranks)

    def stop(self) -> None:
        """Finish the fillers in order; collective over the leaders."""
        if self._world.dead_ranks.intersection(self._turns):
            return
        with suppress(GroupMemberDied):
            for filler in (self._window, *self._sets):
                if filler is not None:
                    filler.stop()

    def _measure(self) -> float:
        """Measure samples/s of this rank on the first samples of the data set."""
        count = min(_MEASURED_SAMPLES, len(self._training.source))
        inputs, targets = self._training.empty(count)
        began = time.perf_counter()
        self._training.load(range(count), 0, inputs, targets)
        return count / (time.perf_counter() - began)
