"""The interfaces of the launch, of a group and of a broadcast, independent of MPI.

Everything that talks to other ranks is typed against these. :mod:`fleet.comm.world` and
:mod:`fleet.comm.group` implement them with MPI, :mod:`fleet.comm.ulfm` with fault-tolerant MPI; in
tests all ranks are threads of one process. This module does not import MPI. The methods of
:class:`Group` do what a rank alone has to do: mostly nothing.

A waiting rank polls and sleeps up to a millisecond, longer if many ranks share a core. A rank that
blocks inside an MPI call would burn a core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NoReturn, Protocol, TypeVar, cast

import numpy as np

from fleet.comm.messages import Message, Tag
from fleet.errors import InfrastructureError

T = TypeVar("T")

SHORTEST_S = 20e-6
LONGEST_S = 1e-3


class Broadcast:
    """A broadcast in progress; its buffers must not change before it is done."""

    def is_done(self) -> bool:
        """Return True once this rank has sent and received everything; never waits."""
        return True


class Group:
    """Some ranks including this one, which train one network or relay the stream.

    All methods except ``check``, ``sleep`` and ``raising_group_failed`` are collective: every rank
    of the group calls them, in the same order. While a rank waits for the others it runs its
    background tasks (:attr:`World.background_tasks`). When a rank of the group has died, all others
    raise :class:`fleet.errors.GroupMemberDied`.

    Attributes:
        rank: this process's rank in the group.
        size: number of ranks in the group.
        ranks: the launch's numbers of the ranks, in the group's order.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]

    @property
    def is_master(self) -> bool:
        """True for the first rank, which sends messages for the group."""
        return self.rank == 0

    def sum(self, buffer: np.ndarray) -> None:
        """Replace an array of any shape, on every rank, by the sum over all ranks."""

    def barrier(self) -> None:
        """Wait until all ranks of the group have arrived."""

    def allgather(self, value: T) -> list[T]:
        """Return the small values of all ranks, in order of rank."""
        return [value]

    def broadcast_value(self, value: T | None) -> T:
        """Return the master's small value on every rank; values of other ranks are ignored."""
        assert value is not None
        return value

    def broadcast(self, buffers: Sequence[np.ndarray]) -> None:
        """Overwrite every rank's arrays with the master's, which have equal shapes and dtypes."""

    def start_broadcast(self, buffers: Sequence[np.ndarray], root: int) -> Broadcast:
        """Start to overwrite all ranks' arrays with those of one rank; does not wait.

        Args:
            buffers: contiguous arrays.
            root: the rank in the group whose arrays are sent.
        """
        return Broadcast()

    def check(self) -> None:
        """Raise GroupMemberDied if a rank of the group has died; for waits outside the group."""

    def raising_group_failed(self) -> AbstractContextManager[None]:
        """Turn MPI errors caused by a death into GroupMemberDied."""
        return nullcontext()

    def sleep(self, seconds: float) -> None:
        """Sleep on this rank; see :meth:`World.sleep`."""
        time.sleep(max(0.0, seconds))

    def free(self) -> None:
        """Free the group's resources; the group must not be used afterwards."""


class World(Protocol):
    """All ranks of the launch, and this rank among them.

    Its methods, as far as they do anything here, are those of a launch without deaths.

    Attributes:
        rank: this process's rank.
        size: number of ranks that were started.
        host: the name of this rank's machine.
        background_tasks: functions that this rank calls whenever it waits (rank 0 coordinates, even
            while it trains); each does a bounded amount of work and returns whether it did any.
        is_fault_tolerant: whether the launch survives deaths of its ranks: ``mpirun --with-ft
            ulfm``.
        dead_ranks: the ranks known to be dead when this rank last waited or sent a message. A rank
            may get GroupMemberDied from a rank that knows which rank has died, before it does.
        hosts: names of the nodes in the order of their numbers; empty before :meth:`node_of`.
        before_end: is called before this rank ends all ranks.
    """

    rank: int
    size: int
    host: str
    background_tasks: list[Callable[[], bool]]
    is_fault_tolerant: bool = False
    dead_ranks: frozenset[int] = frozenset()
    hosts: tuple[str, ...] = ()
    before_end: Callable[[], object]
    _tasks_lock: threading.Lock
    _longest_pause: float = LONGEST_S

    # ---- messages ----

    def send(self, rank: int, tag: Tag, message: Message) -> None:
        """Send a message to a rank, perhaps this one; does not wait.

        Messages of one sender under one tag arrive in the order in which they were sent. Messages
        to a dead rank are lost.
        """

    def receive(self, tag: Tag) -> Message | None:
        """Return the next message of a tag, or None; never waits."""

    def ignore(self, ranks: AbstractSet[int]) -> None:
        """Discard messages of dead ranks, which may still arrive, from now on."""

    def wait_for_message(self, tag: Tag) -> Message:
        """Wait for the next message under a tag."""
        return cast("Message", self.wait(partial(self.receive, tag)))

    # ---- waiting ----

    def wait(self, ready: Callable[[], T | None], patience: float = 1.0) -> T:
        """Poll until ``ready`` returns something other than None, running background tasks.

        Background tasks run at least once, even if there is nothing to wait for. While waiting,
        deaths are checked (:meth:`check_for_deaths`).

        Args:
            patience: factor on the longest sleep between two polls.
        """
        pause_s = SHORTEST_S
        while True:
            worked = self.run_background_tasks()
            value = ready()
            if value is not None:
                return value
            self.check_for_deaths()
            if worked:
                pause_s = SHORTEST_S
                self._pause(0.0)
            else:
                self._pause(pause_s)
                pause_s = min(2 * pause_s, self._longest_pause * patience)

    def _pause(self, seconds: float) -> None:
        """Sleep between two polls; 0 if this rank has just worked."""
        if seconds:
            time.sleep(seconds)

    def run_background_tasks(self) -> bool:
        """Run each background task once; returns whether any did work."""
        # Another thread may run them while this one builds a network.
        if not self._tasks_lock.acquire(blocking=False):
            return False
        try:
            # All of them, even after one has done something.
            return sum(task() for task in self.background_tasks) > 0
        finally:
            self._tasks_lock.release()

    def sleep(self, seconds: float) -> None:
        """Sleep while running this rank's background tasks."""
        if self.background_tasks:
            end = time.perf_counter() + seconds
            self.wait(lambda: time.perf_counter() >= end or None)
        elif seconds > 0:
            time.sleep(seconds)

    # ---- which ranks are alive ----

    def check_for_deaths(self) -> None:
        """Detect dead ranks, and end this process if the launch is to end.

        Raises:
            CoordinatorDied: rank 0 has died; without it no rank can continue.
        """

    # ---- all ranks together ----

    def node_of(self) -> tuple[int, ...]:
        """Return the node of each rank, numbered by first appearance; collective."""

    def broadcast_value(self, value: T | None, root: int = 0) -> T:
        """Return the root's value on all ranks; collective, only at the start of a run."""

    def allgather(self, value: T) -> list[T]:
        """Return the values of all ranks, in order; collective, only at the start of a run."""

    def finish(self) -> None:
        """Wait for all living ranks before the exit; collective, the last call of a rank."""

    def end_all_ranks(self, status: int) -> NoReturn:
        """End all ranks immediately, even unresponsive ones."""

    def end_rank(self) -> NoReturn:
        """End this rank alone; the others see it as dead.

        Raises:
            InfrastructureError: the launch is not fault-tolerant.
        """
        raise InfrastructureError(f"rank {self.rank} cannot end before the others do")

    # ---- groups ----

    def group(self, ranks: Sequence[int], number: int) -> Group:
        """Make a group of ranks in this order; collective over these ranks only.

        Args:
            number: the group's number, unique in the run.

        Raises:
            GroupMemberDied: one of the ranks has died.
        """

    def library_name(self) -> str:
        """Describe the MPI library in one line for logs."""


def tree(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """Return the parent (None for the root) and the children of a rank in a broadcast tree.

    >>> [tree(rank, size=6, root=1) for rank in range(6)]
    [(3, []), (None, [2, 3]), (1, [4, 5]), (1, [0]), (2, []), (2, [])]
    """
    position = (rank - root) % size
    children = [
        (child + root) % size for child in (2 * position + 1, 2 * position + 2) if child < size
    ]
    return ((position - 1) // 2 + root) % size if position else None, children
