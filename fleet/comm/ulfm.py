"""A fault-tolerant launch: ``mpirun --with-ft ulfm`` (User-Level Failure Mitigation).

Each rank knows within milliseconds which others have died (:attr:`ULFMWorld.dead_ranks`), and the
collectives of a group with a dead rank raise :class:`fleet.errors.GroupMemberDied` on all others.
Limits of Open MPI 5.0.11 explain the details: it cannot create a group from a communicator with a
dead rank, MPI_Finalize waits for dead ranks, and MPI_Abort does not reach all ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from fleet.comm.group import MPIGroup
from fleet.comm.protocols import LONGEST_S
from fleet.comm.world import MPIWorld
from fleet.errors import CoordinatorDied, GroupMemberDied, InfrastructureError
from launch.processes import end_with_parent

# Tags in addition to those of roles: a rank is ready to make a group; is done and may exit; has
# failed, so that all ranks end.
_READY_TAG = 101
_DONE_TAG = 102
_FAILED_TAG = 103
# How long an uninterruptible call may wait for a rank that has died.
_PATIENCE_S = 3.0
# Collectives that a death has interrupted, and their buffers. MPI may still write into them, so
# they are never freed.
_ABANDONED: list[MPI.Request | np.ndarray] = []


class ULFMWorld(MPIWorld):
    """A launch in which each rank decides how it reacts to a death."""

    is_fault_tolerant = True

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        super().__init__(comm)
        end_with_parent()  # under ULFM mpirun may end without this rank
        self._ignored: frozenset[int] = frozenset()
        # number of a group -> ranks that are ready to make it
        self._ready: defaultdict[int, set[int]] = defaultdict(set)

    # ---- which ranks are alive ----

    def check_for_deaths(self) -> None:  # noqa: D102 - see World
        status = self._update_dead_ranks()
        if status is not None:
            self._end(status, is_known_to_all=True)
        if 0 in self.dead_ranks:
            raise CoordinatorDied("rank 0, the coordinator, has died")

    def _update_dead_ranks(self) -> int | None:
        """Update the dead ranks; returns the exit status if all ranks are to end."""
        # MPI notices deaths only during such a call.
        status: int | None = self.receive(_FAILED_TAG)
        failed = self.comm.Get_failed()
        if failed.size > len(self.dead_ranks):
            self.dead_ranks = frozenset(
                MPI.Group.Translate_ranks(failed, range(failed.size), self.comm.group)
            )
        failed.Free()
        return status

    def check(self, ranks: Sequence[int]) -> None:
        """Raise GroupMemberDied when one of some ranks has died."""
        self.check_for_deaths()
        dead = self.dead_ranks.intersection(ranks)
        if dead:
            raise GroupMemberDied(f"died: rank {', '.join(map(str, sorted(dead)))}")

    # ---- messages ----

    def send(self, rank: int, tag: int, message: Any) -> None:  # noqa: D102
        self.check_for_deaths()
        if rank not in self.dead_ranks:
            super().send(rank, tag, message)

    def receive(self, tag: int) -> Any:  # noqa: D102
        status = MPI.Status()
        try:
            while (matched := self._probe(tag, status)) is not None:
                message = matched.recv()
                if status.Get_source() not in self._ignored:
                    return message
            return None
        except MPI.Exception as error:
            if not _is_death(error):
                raise
            # Without it MPI refuses to receive from any source after a death.
            self.comm.Ack_failed()
            return None

    def ignore(self, ranks: AbstractSet[int]) -> None:  # noqa: D102 - see World
        self._ignored |= ranks

    def _is_delivered(self, request: MPI.Request) -> bool:
        try:
            return super()._is_delivered(request)
        except MPI.Exception as error:
            if not _is_death(error):
                raise
            return True

    # ---- groups ----

    def group(self, ranks: Sequence[int], number: int) -> ULFMGroup:  # noqa: D102
        members = self.comm.group.Incl(list(ranks))
        # MPI cannot make a group from a communicator that has a dead rank, but it can without one.
        self._wait_until_ready(ranks, number)
        with self.blocking(ranks):
            comm = MPI.Intracomm.Create_from_group(
                members, f"fleet-{number}", MPI.INFO_NULL, MPI.ERRORS_RETURN
            )
        members.Free()
        return ULFMGroup(self, comm, ranks, self._share_node(ranks))

    def _wait_until_ready(self, ranks: Sequence[int], number: int) -> None:
        """Wait until all ranks of a group are about to make it: making it cannot be interrupted."""
        peers = set(ranks) - {self.rank}
        for rank in peers:
            self.send(rank, _READY_TAG, (self.rank, number))

        def are_ready() -> bool | None:
            self.check(ranks)
            while message := self.receive(_READY_TAG):
                rank, ready_number = message
                self._ready[ready_number].add(rank)
            return peers <= self._ready[number] or None

        self.wait(are_ready)
        del self._ready[number]

    @contextmanager
    def blocking(self, ranks: Sequence[int]) -> Iterator[None]:
        """Guard calls that block inside MPI until all of some ranks have arrived.

        When one of them dies meanwhile, nothing can interrupt the others' calls. Such a rank kills
        itself after some seconds; the other ranks of the launch continue.
        """
        returned = threading.Event()
        if len(ranks) > 1:
            threading.Thread(
                target=self._watch, args=(ranks, returned), name="watch", daemon=True
            ).start()
        try:
            yield
        finally:
            returned.set()

    def _watch(self, ranks: Sequence[int], returned: threading.Event) -> None:
        while not returned.wait(_PATIENCE_S):
            try:
                self.comm.iprobe(tag=_READY_TAG)  # lets MPI notice
                self.check(ranks)
            except (MPI.Exception, InfrastructureError):
                if not returned.wait(_PATIENCE_S):
                    _kill_this_rank()

    # ---- how this process ends ----

    def finish(self) -> None:
        """Wait for all living ranks; rank 0 exits last."""
        self.wait(self._delivers_last)
        if self.rank:
            self.send(0, _DONE_TAG, self.rank)
            self.wait(lambda: self._delivers_last() and self.receive(_DONE_TAG))
            self.send(0, _DONE_TAG, self.rank)
        else:
            self._receive_from_all(_DONE_TAG)
            for rank in range(1, self.size):
                self.send(rank, _DONE_TAG, True)
            self._receive_from_all(_DONE_TAG)
        self.wait(self._delivers_last)

    def _receive_from_all(self, tag: int) -> None:
        received = {self.rank}

        def all_received() -> bool | None:
            self._delivers_last()
            rank = self.receive(tag)
            if rank is not None:
                received.add(rank)
            return len(received | self.dead_ranks) == self.size or None

        self.wait(all_received)

    def exit(self, status: int) -> NoReturn:
        """Exit after :meth:`finish` without MPI_Finalize, which would wait for dead ranks."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def abort(self, error: BaseException, status: int = 1) -> NoReturn:
        """Report rank, host and cause once, then end all ranks."""
        if isinstance(error, CoordinatorDied) and self.rank != self._first_alive:
            self._end(status, is_known_to_all=True)
        super().abort(error, status)

    def end_all_ranks(self, status: int) -> NoReturn:
        """End all ranks.

        MPI_Abort does not reach all ranks, and MPI does not notice a rank that exits normally. So
        rank 0, or the first living rank, sends a message to all others; they kill themselves, which
        is noticed even inside a library.
        """
        self._end(status, is_known_to_all=False)

    def end_rank(self) -> NoReturn:
        """End this rank alone by SIGKILL, once its messages are delivered."""
        deadline = time.monotonic() + _PATIENCE_S
        self.wait(lambda: self._all_delivered() or time.monotonic() > deadline or None)
        _kill_this_rank()

    @property
    def _first_alive(self) -> int:
        """Rank 0, or the first living rank if it has died."""
        return min(set(range(self.size)) - self.dead_ranks)

    def _end(self, status: int, is_known_to_all: bool) -> NoReturn:
        """End all ranks; see :meth:`end_all_ranks`.

        Args:
            is_known_to_all: whether the first living rank knows without a message that all end.
        """
        self.before_end()
        targets = set() if is_known_to_all else {self._first_alive}
        if self.rank == self._first_alive:
            targets = set(range(self.size)) - {self.rank}
        self._pending += [
            self.comm.isend(status, dest=rank, tag=_FAILED_TAG)
            for rank in targets - self.dead_ranks
        ]
        deadline = time.monotonic() + _PATIENCE_S
        while not targets <= self.dead_ranks and time.monotonic() < deadline:
            if self._update_dead_ranks() is not None and self.rank != self._first_alive:
                break
            time.sleep(LONGEST_S)
        if self.rank == self._first_alive:
            self.exit(status)
        _kill_this_rank()


class ULFMGroup(MPIGroup):
    """A group whose ranks may die; any use of it then raises GroupMemberDied on the others."""

    def __init__(
        self, world: ULFMWorld, comm: MPI.Intracomm, ranks: Sequence[int], shares_node: bool
    ) -> None:
        super().__init__(world, comm, ranks, shares_node)
        self._launch = world

    def check(self) -> None:  # noqa: D102 - see Group
        self._launch.check(self.ranks)

    @contextmanager
    def raising_group_failed(self) -> Iterator[None]:
        """Turn MPI errors caused by a death into GroupMemberDied, and revoke the communicator."""
        try:
            yield
        except (MPI.Exception, GroupMemberDied) as error:
            if isinstance(error, MPI.Exception) and not _is_death(error):
                raise
            self.comm.Revoke()
            raise GroupMemberDied(
                f"one of the ranks {self.ranks} of this group has died"
            ) from error

    def blocking(self) -> AbstractContextManager[None]:
        """Guard calls that block inside MPI; see :meth:`ULFMWorld.blocking`."""
        return self._launch.blocking(self.ranks)

    def sum(self, buffer: np.ndarray) -> None:  # noqa: D102
        try:
            super().sum(buffer)
        except GroupMemberDied:
            _ABANDONED.append(buffer)
            raise

    def _complete(self, *requests: MPI.Request) -> None:
        try:
            super()._complete(*requests)
        except GroupMemberDied:
            _ABANDONED.extend(requests)
            raise


def _kill_this_rank() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this rank survived its own SIGKILL")


def _is_death(error: MPI.Exception) -> bool:
    return error.Get_error_class() in (
        MPI.ERR_PROC_FAILED,
        MPI.ERR_PROC_FAILED_PENDING,
        MPI.ERR_REVOKED,
    )
