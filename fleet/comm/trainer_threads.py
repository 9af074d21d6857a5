"""Several trainers in one rank, each in its own thread, of which one runs at a time.

A trainer is straight-line code that waits in :meth:`fleet.comm.protocols.World.wait`. There, and
nowhere else, another trainer of the rank continues. So trainers share the rank's engine, its GPU
and its MPI without locks, and the coordinator sees trainers like any others: messages to one are
sent to its rank, in an envelope with its number.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, cast

from fleet.comm.messages import ForTrainer, Message, Tag
from fleet.comm.protocols import Group, World
from fleet.comm.roles import Roles
from fleet.errors import InfrastructureError

T = TypeVar("T")

_JOIN_S = 0.05


class Turns:
    """Lets one thread run at a time, in the order in which they ask."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._is_taken = False

    def begin(self) -> None:
        """Wait for this thread's turn."""
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def end(self) -> None:
        """Let another thread run."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False

    def offer(self) -> None:
        """Let the threads run that wait for their turn."""
        if self._waiting:
            self.end()
            self.begin()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let other threads run inside the context."""
        self.end()
        try:
            yield
        finally:
            self.begin()


class TrainerThreads:
    """The trainers of a rank.

    Args:
        world: the launch, as the rank sees it.
        roles: roles of all ranks.
    """

    def __init__(self, world: World, roles: Roles) -> None:
        self.world = world
        self.roles = roles
        self.turns = Turns()
        self.error: BaseException | None = None
        self._inboxes: dict[int, deque[Message]] = {
            trainer: deque() for trainer in roles.trainers_of(world.rank)
        }
        self._jobs: deque[tuple[Callable[[], Any], list[Any], threading.Event]] = deque()
        self._has_job = threading.Event()

    def run(self, run_trainer: Callable[[World], None]) -> None:
        """Run all trainers until they end.

        Args:
            run_trainer: runs a trainer, by the launch as the trainer sees it.

        Raises:
            BaseException: the first error of a trainer; the other threads end with the process.
        """
        threads = [
            threading.Thread(
                target=self._run_one,
                args=(run_trainer, trainer),
                name=f"trainer-{trainer}",
                daemon=True,
            )
            for trainer in self._inboxes
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._has_job.wait(_JOIN_S)
            self._has_job.clear()
            while self._jobs:
                self._do(*self._jobs.popleft())
            if self.error is not None:
                break
        if self.error is not None:
            raise self.error

    def _run_one(self, run_trainer: Callable[[World], None], trainer: int) -> None:
        self.turns.begin()
        try:
            run_trainer(TrainerWorld(self, trainer))
        except BaseException as error:
            self.error = self.error or error
            self._has_job.set()
        finally:
            self.turns.end()

    def on_main_thread(self, action: Callable[[], T]) -> T:
        """Run an action on the main thread, which alone gets signals, during this one's turn."""
        outcome: list[Any] = []
        is_done = threading.Event()
        self._jobs.append((action, outcome, is_done))
        self._has_job.set()
        is_done.wait()
        result, error = outcome
        if error is not None:
            raise error
        return cast("T", result)

    @staticmethod
    def _do(action: Callable[[], Any], outcome: list[Any], is_done: threading.Event) -> None:
        try:
            outcome += [action(), None]
        except BaseException as error:
            outcome += [None, error]
        is_done.set()

    def receive(self, trainer: int) -> Message | None:
        """Return the next message to a trainer of this rank, or None."""
        inbox = self._inboxes[trainer]
        if not inbox:
            self._receive_all()
        return inbox.popleft() if inbox else None

    def has_message(self, trainer: int) -> bool:
        """Return True if a message to a trainer of this rank waits."""
        self._receive_all()
        return bool(self._inboxes[trainer])

    def _receive_all(self) -> None:
        while (message := self.world.receive(Tag.TRAINER)) is not None:
            if isinstance(message, ForTrainer):
                self._inboxes[message.trainer].append(message.message)
            else:
                self._inboxes[self.world.rank].append(message)


class TrainerWorld(World):
    """The launch as one of several trainers of a rank sees it.

    Args:
        threads: the trainers of the rank.
        trainer: number of the trainer, which takes the place of a rank.
    """

    def __init__(self, threads: TrainerThreads, trainer: int) -> None:
        self.threads = threads
        self._world = threads.world
        self._roles = threads.roles
        self.rank = trainer
        self.size = self._world.size
        self.host = self._world.host
        self.hosts = self._world.hosts
        self.is_fault_tolerant = self._world.is_fault_tolerant
        self.background_tasks = self._world.background_tasks
        self.before_end = self._world.before_end
        self._tasks_lock = self._world._tasks_lock
        self._longest_pause = self._world._longest_pause

    @property
    def dead_ranks(self) -> frozenset[int]:  # type: ignore[override]
        """The ranks known to be dead, with their trainers."""
        return self._roles.with_trainers(self._world.dead_ranks)

    def send(self, rank: int, tag: Tag, message: Message) -> None:  # noqa: D102 - see World
        self._world.send(rank, tag, message)

    def receive(self, tag: Tag) -> Message | None:  # noqa: D102
        if tag is Tag.TRAINER:
            return self.threads.receive(self.rank)
        return self._world.receive(tag)

    def ignore(self, ranks: AbstractSet[int]) -> None:  # noqa: D102
        self._world.ignore(ranks)

    def _pause(self, seconds: float) -> None:
        """Let other trainers of this rank run, at least for some seconds."""
        if seconds:
            with self.threads.turns.paused():
                time.sleep(seconds)
        else:
            self.threads.turns.offer()

    def sleep(self, seconds: float) -> None:  # noqa: D102
        end = time.perf_counter() + seconds
        self.wait(lambda: time.perf_counter() >= end or None)

    def run_background_tasks(self) -> bool:  # noqa: D102
        return self._world.run_background_tasks()

    def check_for_deaths(self) -> None:  # noqa: D102
        self._world.check_for_deaths()

    def end_all_ranks(self, status: int) -> NoReturn:  # noqa: D102
        self._world.end_all_ranks(status)

    def end_rank(self) -> NoReturn:  # noqa: D102
        self._world.end_rank()

    # ---- all ranks together: before and after there are trainers ----

    def node_of(self) -> tuple[int, ...]:  # noqa: D102
        return self._world.node_of()

    def broadcast_value(self, value: T | None, root: int = 0) -> T:  # noqa: D102
        return self._world.broadcast_value(value, root)

    def allgather(self, value: T) -> list[T]:  # noqa: D102
        return self._world.allgather(value)

    def finish(self) -> None:  # noqa: D102
        self._world.finish()

    # ---- groups ----

    def group(self, ranks: Sequence[int], number: int) -> Group:
        """Make a group of trainers, of which no two are in one rank."""
        if len(ranks) == 1:
            return TrainerGroup(self)
        processes = [self._roles.process(rank) for rank in ranks]
        if len(set(processes)) < len(processes):
            raise InfrastructureError(f"trainers {ranks} are not in ranks of their own")
        group = self._world.group(processes, number)
        group.ranks = tuple(ranks)
        return group

    def library_name(self) -> str:  # noqa: D102
        return self._world.library_name()


class TrainerGroup(Group):
    """A trainer alone."""

    rank = 0
    size = 1

    def __init__(self, world: World) -> None:
        self.ranks = (world.rank,)
        self._world = world

    def broadcast_value(self, value: T | None) -> T:  # noqa: D102
        return cast("T", value)

    def sleep(self, seconds: float) -> None:  # noqa: D102
        self._world.sleep(seconds)


def address(roles: Roles, rank: int, message: Message) -> tuple[int, Message]:
    """Return the rank to which a message to a rank or a trainer is sent, and what is sent."""
    process = roles.process(rank)
    return process, message if process == rank else ForTrainer(rank, message)
