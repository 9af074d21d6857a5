"""Groups of ranks, each with a communicator of its own: :class:`fleet.comm.base.Group` by MPI."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from fleet.comm.base import Group, World

T = TypeVar("T")

_LARGE = 200_000  # bytes
_PIECE = 16_000_000  # bytes that are summed between two looks at this rank's duties
_SPIN_S = 200e-6
_SUM_TAG = 1
_LOOKS = 1000  # at a message under way, before a look at who has died


class MPIGroup:
    """Ranks that none outlives: mpirun ends all of them with the first that dies.

    Args:
        world: to wait with.
        comm: of the group, which owns it from now on.
        ranks: of the world, in the order that they have in the group.
    """

    def __init__(self, world: World, comm: MPI.Intracomm, ranks: Sequence[int]) -> None:
        self.comm, self.ranks = comm, tuple(ranks)
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._world = world
        self._room = np.empty(0)  # for what comes of another rank

    @property
    def is_master(self) -> bool:  # noqa: D102 - Group says it
        return self.rank == 0

    # ---- collectives ----

    def sum(self, buffer: np.ndarray) -> None:
        """See :meth:`fleet.comm.base.Group.sum`.

        MPI's call that does not block takes up to seven times as long as others do, so small arrays alone are left to
        it. Two ranks sum a half of a large one each. More of them call the one that blocks, a piece at a time, once all
        have come: it would burn a core until then.
        """
        if self.size == 1:
            return
        if buffer.nbytes < _LARGE or not buffer.flags.c_contiguous:
            self._complete(self.comm.Iallreduce(MPI.IN_PLACE, buffer, op=MPI.SUM))
            return
        self._world.do_duties()  # now: others wait inside MPI for a rank that has come
        flat = buffer.reshape(-1)
        if self.size == 2:
            self._sum_halves(flat)
            return
        barrier = self.comm.Ibarrier()
        self._await(lambda: barrier.Test() or None)
        piece = _PIECE // buffer.itemsize
        for start in range(0, len(flat), piece):
            if start:
                self._world.do_duties()
            with self.striking():
                self.comm.Allreduce(MPI.IN_PLACE, flat[start:start + piece], op=MPI.SUM)

    def _sum_halves(self, flat: np.ndarray) -> None:
        """Sum with one other rank: each makes the sum of a half, so both have the same."""
        halves = flat[:len(flat) // 2], flat[len(flat) // 2:]
        mine, others = halves[self.rank], halves[1 - self.rank]
        if self._room.dtype != flat.dtype or len(self._room) < len(mine):
            self._room = np.empty_like(mine)
        came = self._room[:len(mine)]
        self._swap(others, came)
        mine += came
        self._swap(mine, others)

    def _swap(self, out: np.ndarray, into: np.ndarray) -> None:
        """Exchange arrays with the one other rank."""
        with self.striking():
            sent = self.comm.Isend(out, 1 - self.rank, _SUM_TAG)
            message = self._await(lambda: self.comm.improbe(1 - self.rank, _SUM_TAG))
            received = message.Irecv(into)
            looks = 0
            while not _are_done((received, sent)):  # it is under way
                os.sched_yield()
                looks += 1
                if looks % _LOOKS == 0:
                    self.check()

    def _await(self, ready: Callable[[], T | None]) -> T:
        """Wait for ranks that mostly come at nearly the same time: sleep after a while only."""
        def is_ready() -> T | None:
            if (found := ready()) is None:
                self.check()
            return found

        until = time.perf_counter() + _SPIN_S
        with self.striking():
            while time.perf_counter() < until:
                if (found := ready()) is not None:
                    return found
                os.sched_yield()
            return self._world.wait(is_ready)

    def meet(self) -> None:  # noqa: D102
        if self.size > 1:
            self._complete(self.comm.Ibarrier())

    def exchange(self, value: T) -> list[T]:  # noqa: D102
        if self.size == 1:
            return [value]
        self.meet()  # then nobody blocks long in the next lines
        with self.striking():
            return self.comm.allgather(value)

    def from_master(self, value: T | None) -> T:  # noqa: D102
        if self.size == 1:
            return value  # type: ignore[return-value]
        self.meet()
        with self.striking():
            return self.comm.bcast(value, root=0)

    def broadcast(self, buffers: Sequence[np.ndarray]) -> None:  # noqa: D102
        self._complete(*(self.comm.Ibcast(_as_bytes(buffer), root=0) for buffer in buffers))

    def start_broadcast(self, buffers: Sequence[np.ndarray], root: int) -> MPIBroadcast:  # noqa: D102
        return MPIBroadcast([self.comm.Ibcast(_as_bytes(buffer), root=root) for buffer in buffers])

    def _complete(self, *requests: MPI.Request) -> None:
        def is_done() -> bool | None:
            if _are_done(requests):
                return True
            self.check()
            return None

        with self.striking():
            self._world.wait(is_done)

    # ---- deaths: see fleet.comm.ulfm ----

    def check(self) -> None:
        """Nothing to find out: this rank would have been ended as well."""

    def striking(self) -> AbstractContextManager[None]:
        """Nothing to translate: MPI raises at no death."""
        return nullcontext()

    def blocking(self) -> AbstractContextManager[None]:
        """Around calls that block inside MPI until all ranks of the group have come."""
        return nullcontext()

    # ---- this rank's part ----

    def rest(self, seconds: float) -> None:  # noqa: D102
        self._world.rest(seconds)

    def free(self) -> None:  # noqa: D102
        self.comm.Free()


class MPIBroadcast:
    """One or several broadcasts of MPI: :class:`fleet.comm.base.Broadcast`."""

    def __init__(self, requests: Sequence[MPI.Request]) -> None:
        self._requests = list(requests)

    def is_done(self) -> bool:  # noqa: D102 - Broadcast says it
        return _are_done(self._requests)


def _are_done(requests: Sequence[MPI.Request]) -> bool:
    """Whether all are done; one after another, because Testall does not say of which kind an error is."""
    return all(request.Test() for request in requests)


def _as_bytes(buffer: np.ndarray) -> np.ndarray:
    """The same memory, of a type that MPI knows; it does not know all of NumPy's."""
    assert buffer.flags.c_contiguous  # of any other, reshape would give a copy
    return buffer.reshape(-1).view(np.uint8)


@contextmanager
def communicator_for_library(group: Group) -> Iterator[Any]:
    """A communicator of the group's ranks that a library (Horovod) may use, and free, as its own; collective.

    The library takes it into use inside the ``with``.

    Raises:
        GroupStruck: a rank of the group has died.
    """
    assert isinstance(group, MPIGroup)  # a library that speaks MPI itself wants ranks that MPI has started
    group.meet()  # what follows cannot be interrupted
    with group.blocking(), group.striking():
        yield group.comm.Dup()
