"""Groups of ranks with their own communicators: :class:`fleet.comm.protocols.Group` over MPI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from fleet.comm.node_sum import NodeSum, make_node_sum
from fleet.comm.protocols import Broadcast, Group, World, tree

T = TypeVar("T")

_SMALL = 20_000  # bytes
_PIECE = 16_000_000  # bytes that are summed between two runs of this rank's background tasks
_SPINS = 200  # polls before the first sleep: some tenths of a millisecond where cores are free


class MPIGroup(Group):
    """A group of ranks that `mpirun` ends together: if one dies, all are ended.

    Args:
        world: the launch; the group waits by its methods.
        comm: the communicator, which this object owns and frees.
        ranks: the world's numbers of the ranks, in the group's order.
        shares_node: whether all ranks are on one node.
    """

    def __init__(
        self, world: World, comm: MPI.Intracomm, ranks: Sequence[int], shares_node: bool = False
    ) -> None:
        self.comm = comm
        self.ranks = tuple(ranks)
        self._shares_node = shares_node
        self._node_sum: NodeSum | None = None
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._world = world
        self._broadcast_count = 0  # buffers broadcast so far; equal on all ranks

    # ---- collectives ----

    def sum(self, buffer: np.ndarray) -> None:
        """Sum an array over the group; see :meth:`fleet.comm.protocols.Group.sum`.

        Large arrays are summed piece by piece, so that rank 0 can run its background tasks.
        """
        if self.size == 1:
            return
        assert buffer.flags.forc  # otherwise ravel would copy
        flat = buffer.ravel(order="K")
        piece = _PIECE // flat.itemsize
        for start in range(0, len(flat), piece):
            # Before the sum: once this rank has arrived, the others wait for it.
            self._world.run_background_tasks()
            self._sum_piece(flat[start : start + piece])

    def _sum_piece(self, part: np.ndarray) -> None:
        """Sum small arrays without blocking, large ones in the node's shared memory if possible.

        Between nodes, MPI's blocking call takes as little as a seventh of the time of the
        non-blocking one, but it burns a core until all ranks have arrived. So it follows a
        non-blocking barrier.
        """
        if part.nbytes < _SMALL:
            self._complete(self.comm.Iallreduce(MPI.IN_PLACE, part, op=MPI.SUM))
        elif (shared := self._shared_sum()) is not None:
            shared.add(part, self._until)
        else:
            self.barrier()
            with self.raising_group_failed():
                self.comm.Allreduce(MPI.IN_PLACE, part, op=MPI.SUM)

    def _shared_sum(self) -> NodeSum | None:
        if self._shares_node:
            self._shares_node = False  # once
            self._node_sum = make_node_sum(self)
        return self._node_sum

    def _until(self, is_done: Callable[[], bool]) -> None:
        def poll() -> bool | None:
            if is_done():
                return True
            self.comm.Iprobe()  # lets MPI make progress with sends and notice deaths
            return None

        self._await(poll)

    def _await(self, ready: Callable[[], T | None]) -> T:
        """Wait for ranks that arrive at nearly the same time: spin first, then sleep."""

        def is_ready() -> T | None:
            result = ready()
            if result is None:
                self.check()
            return result

        with self.raising_group_failed():
            for _ in range(_SPINS):
                result = ready()
                if result is not None:
                    return result
                os.sched_yield()
            return self._world.wait(is_ready)

    def barrier(self) -> None:  # noqa: D102
        if self.size > 1:
            self._complete(self.comm.Ibarrier())

    def allgather(self, value: T) -> list[T]:  # noqa: D102
        if self.size == 1:
            return [value]
        self.barrier()  # so that no rank blocks long below
        with self.raising_group_failed():
            return self.comm.allgather(value)

    def broadcast_value(self, value: T | None) -> T:  # noqa: D102
        if self.size == 1:
            return value  # type: ignore[return-value]
        self.barrier()
        with self.raising_group_failed():
            return self.comm.bcast(value, root=0)

    def broadcast(self, buffers: Sequence[np.ndarray]) -> None:  # noqa: D102
        self._complete(*(self.comm.Ibcast(_as_bytes(buffer), root=0) for buffer in buffers))

    def start_broadcast(self, buffers: Sequence[np.ndarray], root: int) -> MPIBroadcast:  # noqa: D102
        self._broadcast_count += len(buffers)
        return MPIBroadcast(
            self.comm, [_as_bytes(buffer) for buffer in buffers], root, self._broadcast_count
        )

    def _complete(self, *requests: MPI.Request) -> None:
        self._await(lambda: _are_done(requests) or None)

    # ---- deaths: see fleet.comm.ulfm ----

    def blocking(self) -> AbstractContextManager[None]:
        """Return a context for calls that block inside MPI until all ranks have arrived."""
        return nullcontext()

    # ---- this rank's part ----

    def sleep(self, seconds: float) -> None:  # noqa: D102
        self._world.sleep(seconds)

    def free(self) -> None:  # noqa: D102
        self._node_sum = None
        self.comm.Free()


class MPIBroadcast(Broadcast):
    """A :class:`fleet.comm.protocols.Broadcast` of buffers down a binary tree of ranks.

    For large buffers Open MPI uses a chain of all ranks and small pieces, and each piece waits at
    each rank until that rank polls. Here a rank forwards whole buffers.

    Args:
        comm: a communicator that carries nothing but broadcasts.
        number: the tag of the first buffer; no other broadcast in progress uses these tags.
    """

    def __init__(
        self, comm: MPI.Intracomm, buffers: Sequence[np.ndarray], root: int, number: int
    ) -> None:
        self._comm = comm
        self._buffers = buffers
        self._tags = [(number + index) % 32000 for index in range(len(buffers))]
        parent, children = tree(comm.rank, comm.size, root)
        self._children: Sequence[int] = children
        if parent is None:
            self._requests = []
        else:
            self._requests = [
                comm.Irecv(buffer, source=parent, tag=tag)
                for buffer, tag in zip(buffers, self._tags, strict=True)
            ]
        self.is_done()

    def is_done(self) -> bool:  # noqa: D102 - see Broadcast
        if not _are_done(self._requests):
            return False
        if not self._children:
            return True
        self._requests = [
            self._comm.Isend(buffer, dest=child, tag=tag)
            for child in self._children
            for buffer, tag in zip(self._buffers, self._tags, strict=True)
        ]
        self._children = ()
        return _are_done(self._requests)


def _are_done(requests: Sequence[MPI.Request]) -> bool:
    """Test requests one by one, because Testall does not report the kind of an error."""
    return all(request.Test() for request in requests)


def _as_bytes(buffer: np.ndarray) -> np.ndarray:
    """View a buffer as bytes, because MPI does not know all NumPy types."""
    assert buffer.flags.c_contiguous  # otherwise reshape would copy
    return buffer.reshape(-1).view(np.uint8)


@contextmanager
def communicator_for_library(group: Group) -> Iterator[Any]:
    """Duplicate the group's communicator for a library such as Horovod; collective.

    The library must be initialized inside the ``with``.

    Raises:
        GroupMemberDied: a rank of the group has died.
    """
    # A library that calls MPI itself needs ranks that MPI has started.
    assert isinstance(group, MPIGroup)
    group.barrier()  # the collective calls below cannot be interrupted
    with group.blocking(), group.raising_group_failed():
        yield group.comm.Dup()
