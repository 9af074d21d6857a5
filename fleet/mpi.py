"""The one door through which MPI comes in.

A rank that waits polls and sleeps up to a millisecond, longer where many ranks share a core: one that blocks
inside an MPI call burns a core, which on a laptop is half of the machine.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI

from fleet.messages import Message, Tag

T = TypeVar("T")

_SHORTEST_S = 20e-6
_LONGEST_S = 1e-3
_RANKS_PER_CORE = 4  # that may wake up so often: each costs a core about 2 % then


class Backoff:
    """Sleeps that grow from 20 microseconds to the longest, until something happens."""

    def __init__(self, longest: float = _LONGEST_S) -> None:
        self._pause, self._longest = _SHORTEST_S, longest

    def reset(self) -> None:
        """Something happened: be quick again."""
        self._pause = _SHORTEST_S

    def sleep(self) -> None:
        """Wait a little, the next time a little longer."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)


class World:
    """All ranks of the launch, and this rank among them.

    Attributes:
        duties: functions that this rank owes the run whenever it waits (rank 0 coordinates,
            even while it trains); each does a bounded piece of work and says whether it did any.
    """

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.comm = (comm or MPI.COMM_WORLD).Dup()
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        self.host = socket.gethostname()
        self.duties: list[Callable[[], bool]] = []
        self._pending: list[MPI.Request] = []
        self._longest_pause = _LONGEST_S

    # ---- where the ranks are ----

    def node_of(self) -> tuple[int, ...]:
        """The node of each rank, numbered in order of first appearance; collective.

        ``FLEET_RANKS_PER_NODE=2`` pretends that every two ranks are a node of their own: the paths
        between nodes can then be tried on one machine.
        """
        pretended = os.environ.get("FLEET_RANKS_PER_NODE")
        if pretended:
            return tuple(rank // int(pretended) for rank in range(self.size))
        self._meet()
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self._longest_pause = _LONGEST_S * max(1.0, node.size / (_RANKS_PER_CORE * (os.cpu_count() or 1)))
        names = self.comm.allgather(node.bcast((self.host, self.rank)))
        node.Free()
        numbers: dict[tuple[str, int], int] = {}
        return tuple(numbers.setdefault(name, len(numbers)) for name in names)

    def share(self, value: T | None, root: int = 0) -> T:
        """Give all ranks the root's value; collective, for the start of a run only."""
        self._meet()
        return self.comm.bcast(value, root=root)

    def gather(self, value: T) -> list[T]:
        """Give all ranks everybody's value; collective, for the start of a run only."""
        self._meet()
        return self.comm.allgather(value)

    def _meet(self) -> None:
        """Wait until all ranks are here: then nobody burns a core in the collective that follows."""
        barrier = self.comm.Ibarrier()
        self.wait(lambda: barrier.Test() or None)

    # ---- messages ----

    def tell(self, rank: int, tag: Tag, message: Message) -> None:
        """Send a message; returns at once."""
        self._pending = [request for request in self._pending if not request.Test()]
        self._pending.append(self.comm.isend(message, dest=rank, tag=tag))

    def hear(self, tag: Tag) -> Message | None:
        """The next message under a tag, if one has come."""
        if not self.comm.iprobe(tag=tag):
            return None
        return self.comm.recv(tag=tag)

    def wait(self, ready: Callable[[], T | None]) -> T:
        """Poll until ``ready`` gives something, doing this rank's duties meanwhile.

        They are done once at least: a rank that is never kept waiting owes them as well.
        """
        backoff = Backoff(self._longest_pause)
        while True:
            busy = sum(duty() for duty in self.duties)  # all of them, even after one has done something
            if (value := ready()) is not None:
                return value
            if busy:
                backoff.reset()
            else:
                backoff.sleep()

    def rest(self, seconds: float) -> None:
        """Let time pass, doing this rank's duties meanwhile; a rank that has none sleeps in one piece."""
        if self.duties:
            end = time.perf_counter() + seconds
            self.wait(lambda: time.perf_counter() >= end or None)
        elif seconds > 0:
            time.sleep(seconds)

    def await_message(self, tag: Tag) -> Message:
        """Wait for the next message under a tag."""
        heard: Any = self.wait(lambda: self.hear(tag))
        return heard

    # ---- groups ----

    def group(self, ranks: Sequence[int], number: int) -> Group:
        """A communicator of some ranks; collective over them only."""
        members = self.comm.group.Incl(list(ranks))
        # Tags are bounded (MPI promises 32767 at least); numbers that far apart never meet.
        comm = self.comm.Create_group(members, tag=number % 32000)
        members.Free()
        return Group(self, comm)

    def library(self) -> str:
        """The MPI library and its thread level; Horovod's background thread wants `multiple`."""
        levels = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized",
                  MPI.THREAD_MULTIPLE: "multiple"}
        name = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
        return f"{name}, threads {levels[MPI.Query_thread()]}"

    # ---- ends ----

    def finish(self) -> None:
        """Leave together with all other ranks, without burning a core on the wait; collective."""
        self.wait(lambda: MPI.Request.Testall(self._pending) or None)
        self._meet()

    def abort(self, error: BaseException, status: int = 1) -> NoReturn:
        """End all ranks at once, after one report that says who, where and why."""
        report = "".join(traceback.format_exception(error))
        print(f"\nfleet: rank {self.rank} of {self.size} on {self.host} failed; all ranks end.\n{report}",
              file=sys.stderr, flush=True)
        self.comm.Abort(status)
        raise SystemExit(status)


class Group:
    """The ranks that train one network together.

    All methods are collective over the group; waiting ranks poll and sleep.
    """

    def __init__(self, world: World, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._world = world

    @property
    def is_master(self) -> bool:
        """Whether this rank speaks for the group."""
        return self.rank == 0

    def _complete(self, request: MPI.Request) -> None:
        self._world.wait(lambda: request.Test() or None)

    def rest(self, seconds: float) -> None:
        """Let time pass on this rank; see :meth:`World.rest`."""
        self._world.rest(seconds)

    def sum(self, buffer: np.ndarray) -> None:
        """Replace a buffer, on every rank, by the sum of all ranks' buffers."""
        if self.size > 1:
            self._complete(self.comm.Iallreduce(MPI.IN_PLACE, buffer, op=MPI.SUM))

    def broadcast(self, buffer: np.ndarray) -> None:
        """Give every rank the master's buffer."""
        begun = self.start_broadcast([buffer], root=0)
        self._world.wait(lambda: begun.is_done() or None)

    def start_broadcast(self, buffers: Sequence[np.ndarray], root: int) -> Broadcast:
        """Begin to give every rank the root's buffers; returns at once.

        Buffers go as bytes, for MPI does not know all types of NumPy; each is one contiguous piece of memory.
        """
        assert all(buffer.flags.c_contiguous for buffer in buffers)  # of any other, reshape would send a copy
        return Broadcast([self.comm.Ibcast(buffer.reshape(-1).view(np.uint8), root=root) for buffer in buffers])

    def exchange(self, value: T) -> list[T]:
        """Give every rank the values of all, small ones."""
        if self.size == 1:
            return [value]
        self._complete(self.comm.Ibarrier())  # then nobody blocks long in the next line
        return self.comm.allgather(value)

    def from_master(self, value: T | None) -> T:
        """Give every rank the master's value, a small one."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        self._complete(self.comm.Ibarrier())
        return self.comm.bcast(value, root=0)

    def free(self) -> None:
        """Give the communicator back."""
        self.comm.Free()


class Broadcast:
    """Buffers under way to all ranks of a group; what is sent must not change before it is done."""

    def __init__(self, requests: Sequence[MPI.Request]) -> None:
        self._requests = list(requests)

    def is_done(self) -> bool:
        """Whether this rank's part is done; never waits."""
        return MPI.Request.Testall(self._requests)


def communicator_for_library(group: Group) -> Any:
    """A communicator of the group's ranks that a library (Horovod) may use, and free, as its own; collective."""
    return group.comm.Dup()
