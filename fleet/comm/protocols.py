"""The seam between what ranks do and how they speak: protocols of the launch, of a group, and of a broadcast.

Everything that talks to other ranks is typed against these. :mod:`fleet.comm.world` and :mod:`fleet.comm.group` keep
them by MPI, :mod:`fleet.comm.ulfm` by MPI in a launch that outlives its ranks; in tests all ranks are threads of one
process. This module imports no MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol, TypeVar

import numpy as np

from fleet.comm.messages import Message, Tag

T = TypeVar("T")


class Broadcast(Protocol):
    """Buffers under way to all ranks of a group; what is sent must not change before it is done."""

    def is_done(self) -> bool:
        """Whether this rank's part is done; never waits."""


class Group(Protocol):
    """Some ranks, and this rank among them: those that train one network together, or relay the stream.

    All methods but ``check``, ``rest`` and ``raising_group_failed`` are collective: every rank of the group calls them, in one
    order. While a rank waits for the others it does its duties (:attr:`World.background_tasks`). When a rank of the group has
    died, all others raise :class:`fleet.errors.GroupFailed`.

    Attributes:
        rank: of this one in the group.
        size: how many ranks the group has.
        ranks: of the launch, in the order that they have in the group.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]

    @property
    def is_master(self) -> bool:
        """Whether this rank speaks for the group: its first."""

    def sum(self, buffer: np.ndarray) -> None:
        """Replace an array of any shape, on every rank, by the sum of all ranks' arrays."""

    def barrier(self) -> None:
        """Wait until all ranks of the group are here."""

    def allgather(self, value: T) -> list[T]:
        """Give every rank the values of all, in order of rank; small ones."""

    def broadcast_value(self, value: T | None) -> T:
        """Give every rank the master's value, a small one; what others bring is dropped."""

    def broadcast(self, buffers: Sequence[np.ndarray]) -> None:
        """Overwrite every rank's arrays by the master's, which are of the same shapes and types."""

    def start_broadcast(self, buffers: Sequence[np.ndarray], root: int) -> Broadcast:
        """Begin to overwrite every rank's arrays by those of one rank of the group; returns at once.

        Args:
            buffers: each is one contiguous piece of memory.
            root: the rank, in the group, whose arrays all get.
        """

    def check(self) -> None:
        """Raise GroupFailed when a rank of the group has died; for one that waits for something else than the group."""

    def raising_group_failed(self) -> AbstractContextManager[None]:
        """Around collectives that are begun by hand: whatever MPI raises when a rank has died becomes GroupFailed."""

    def sleep(self, seconds: float) -> None:
        """Let time pass on this rank; see :meth:`World.sleep`."""

    def free(self) -> None:
        """Give back what the group holds; nobody uses it any more."""


class World(Protocol):
    """All ranks of the launch, and this rank among them.

    Attributes:
        rank: of this one.
        size: how many ranks were started.
        host: the name of this rank's machine.
        duties: functions that this rank owes the run whenever it waits (rank 0 coordinates, even while it trains);
            each does a bounded piece of work and says whether it did any.
        outlives: whether the launch outlives its ranks: ``mpirun --with-ft ulfm``.
        hosts: what the nodes are called, in the order of their numbers, once :meth:`node_of` has asked.
        before_end: is called before this rank ends all ranks at once.
    """

    rank: int
    size: int
    host: str
    background_tasks: list[Callable[[], bool]]
    is_fault_tolerant: bool
    hosts: tuple[str, ...]
    before_end: Callable[[], object]

    # ---- messages ----

    def send(self, rank: int, tag: Tag, message: Message) -> None:
        """Send a message to a rank, perhaps this one; returns at once.

        Messages of one sender under one tag come in the order in which they were sent. What is told to a rank that
        has died is lost.
        """

    def receive(self, tag: Tag) -> Message | None:
        """The next message under a tag, if one has come; never waits."""

    def wait_for_message(self, tag: Tag) -> Message:
        """Wait for the next message under a tag."""

    # ---- waiting ----

    def wait(self, ready: Callable[[], T | None], patience: float = 1.0) -> T:
        """Poll until ``ready`` gives something else than None, doing this rank's duties meanwhile.

        They are done once at least: a rank that is never kept waiting owes them as well. Deaths are heeded
        (:meth:`check_for_deaths`) as long as there is nothing.

        Args:
            patience: how much longer than otherwise to sleep between two looks, at most.
        """

    def run_background_tasks(self) -> bool:
        """Do each of this rank's duties once, for a rank that works long without waiting; says whether any did work."""

    def sleep(self, seconds: float) -> None:
        """Let time pass, doing this rank's duties meanwhile; a rank that has none sleeps in one piece."""

    # ---- which ranks are alive ----

    @property
    def dead_ranks(self) -> frozenset[int]:
        """The ranks that are known to have died, as of the last time that this rank waited or sent something.

        A rank may be struck in a group before it knows who has died: another one knew it first.
        """

    def check_for_deaths(self) -> None:
        """Find out which ranks have died, and end this process if the launch is to end.

        Raises:
            CoordinatorDied: rank 0 has died; without it no rank can go on.
        """

    # ---- all ranks together ----

    def node_of(self) -> tuple[int, ...]:
        """The node of each rank, numbered from 0 in order of first appearance; collective, for the start of a run."""

    def broadcast_value(self, value: T | None, root: int = 0) -> T:
        """Give all ranks the root's value; collective, for the start of a run only."""

    def allgather(self, value: T) -> list[T]:
        """Give all ranks everybody's value, in order of rank; collective, for the start of a run only."""

    def finish(self) -> None:
        """Leave together with all other ranks that are left; collective, the last thing that a rank does."""

    def end_all_ranks(self, status: int) -> NoReturn:
        """End all ranks at once, also those that do not listen."""

    def end_rank(self) -> NoReturn:
        """End this rank alone; the others hear of it as of a death.

        Raises:
            InfrastructureError: the launch does not outlive its ranks.
        """

    # ---- some of them ----

    def group(self, ranks: Sequence[int], number: int) -> Group:
        """A group of some ranks, in this order; collective over them only.

        Args:
            number: of this group, which no other of the run has.

        Raises:
            GroupFailed: one of them has died.
        """

    def library_name(self) -> str:
        """What carries messages, in a line for logs."""


def tree(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """From which rank one gets what is broadcast, None for the root, and to which it passes that on.

    >>> [tree(rank, size=6, root=1) for rank in range(6)]
    [(3, []), (None, [2, 3]), (1, [4, 5]), (1, [0]), (2, []), (2, [])]
    """
    position = (rank - root) % size
    children = [
        (child + root) % size for child in (2 * position + 1, 2 * position + 2) if child < size
    ]
    return ((position - 1) // 2 + root) % size if position else None, children
