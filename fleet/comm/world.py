"""All ranks of a launch: :class:`fleet.comm.protocols.World` over MPI.

A rank that waits polls and sleeps up to a millisecond, longer where many ranks share a core: one
that blocks inside an MPI call burns a core, which on a laptop is half of the machine.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from mpi4py import MPI

from fleet.comm.group import MPIGroup
from fleet.comm.messages import Message, Tag
from fleet.errors import InfrastructureError
from launch.processes import started

T = TypeVar("T")

SHORTEST_S = 20e-6
LONGEST_S = 1e-3
_RANKS_PER_CORE = 4  # that may wake up so often: each costs a core about 2 % then


_LAST_S = 5.0  # how long rank 0 waits at most for the others to end


class Backoff:
    """Sleeps that grow from 20 microseconds to the longest, until something happens."""

    def __init__(self, longest: float = LONGEST_S) -> None:
        self._pause = SHORTEST_S
        self._longest = longest

    def reset(self) -> None:
        """Start again with short sleeps."""
        self._pause = SHORTEST_S

    def sleep(self) -> None:
        """Sleep; the next sleep is longer."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)


class MPIWorld:
    """A launch that is not fault-tolerant: `mpirun` ends all ranks if one dies.

    Args:
        comm: of the ranks; all that were launched, unless a test gives some.
    """

    is_fault_tolerant = False
    dead_ranks: frozenset[int] = frozenset()

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.comm = (comm or MPI.COMM_WORLD).Dup()
        # Open MPI makes groups by messages under the tag that they are given: in here they meet
        # none of ours.
        self._group_comm = self.comm.Dup()
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        self.host = socket.gethostname()
        self.hosts: tuple[str, ...] = ()
        self.background_tasks: list[Callable[[], bool]] = []
        self._on_duty = threading.Lock()
        self._pending: list[MPI.Request] = []  # messages that have not been taken
        self._longest_pause = LONGEST_S
        self._processes: list[tuple[str, int]] = []  # of all ranks: host and process
        self._node_of: tuple[int, ...] = ()
        self._exits_last = False
        self.before_end: Callable[[], object] = lambda: None

    # ---- messages ----

    def send(self, rank: int, tag: Tag, message: Message) -> None:  # noqa: D102 - World says it
        self._send(rank, tag, message)

    def receive(self, tag: Tag) -> Message | None:  # noqa: D102
        return self._receive(tag)

    def wait_for_message(self, tag: Tag) -> Message:  # noqa: D102
        message: Any = self.wait(lambda: self.receive(tag))
        return message

    def _send(self, rank: int, tag: int, message: Any) -> None:
        self._pending = [request for request in self._pending if not self._is_delivered(request)]
        self._pending.append(self.comm.isend(message, dest=rank, tag=tag))

    def _receive(self, tag: int) -> Any:
        # Open MPI looks first, and only then takes in what has come: the first look may find
        # nothing of it.
        matched = self.comm.improbe(tag=tag) or self.comm.improbe(tag=tag)
        if matched is None:
            return None
        return matched.recv()

    def _is_delivered(self, request: MPI.Request) -> bool:
        """Return True if a message was received or never will be."""
        return request.Test()

    def _all_delivered(self) -> bool | None:
        return all(map(self._is_delivered, self._pending)) or None

    # ---- waiting ----

    def wait(self, ready: Callable[[], T | None], patience: float = 1.0) -> T:  # noqa: D102
        backoff = Backoff(self._longest_pause * patience)
        while True:
            worked = self.run_background_tasks()
            value = ready()
            if value is not None:
                return value
            self.check_for_deaths()
            if worked:
                backoff.reset()
            else:
                backoff.sleep()

    def run_background_tasks(self) -> bool:  # noqa: D102
        if not self._on_duty.acquire(
            blocking=False
        ):  # another thread does them, while this one builds a network
            return False
        try:
            return (
                sum(duty() for duty in self.background_tasks) > 0
            )  # all of them, even after one has done something
        finally:
            self._on_duty.release()

    def sleep(self, seconds: float) -> None:  # noqa: D102
        if self.background_tasks:
            end = time.perf_counter() + seconds
            self.wait(lambda: time.perf_counter() >= end or None)
        elif seconds > 0:
            time.sleep(seconds)

    # ---- which ranks are alive ----

    def check_for_deaths(self) -> None:
        """Do nothing: this rank would have been ended together with the dead one."""

    # ---- all ranks together ----

    def node_of(self) -> tuple[int, ...]:
        """Return the node of each rank, numbered by first appearance; collective.

        ``FLEET_RANKS_PER_NODE=2`` pretends that every two ranks are a node of their own: the paths
        between nodes can then be tried on one machine.
        """
        pretended = os.environ.get("FLEET_RANKS_PER_NODE")
        if pretended:
            self._node_of = tuple(rank // int(pretended) for rank in range(self.size))
            return self._node_of
        self._barrier()
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self._longest_pause = LONGEST_S * max(
            1.0, node.size / (_RANKS_PER_CORE * (os.cpu_count() or 1))
        )
        # The batch system's name for the node, where it tells: by that it is given back.
        host = os.environ.get("SLURMD_NODENAME") or self.host
        names = self.comm.allgather(node.bcast((host, self.rank)))
        node.Free()
        numbers: dict[tuple[str, int], int] = {}
        self._node_of = tuple(numbers.setdefault(name, len(numbers)) for name in names)
        self.hosts = tuple(host for host, _ in numbers)
        return self._node_of

    def broadcast_value(self, value: T | None, root: int = 0) -> T:  # noqa: D102
        self._barrier()
        return self.comm.bcast(value, root=root)

    def allgather(self, value: T) -> list[T]:  # noqa: D102
        self._barrier()
        return self.comm.allgather(value)

    def _barrier(self) -> None:
        """Wait for all ranks, so that none of them busy-waits in the next collective."""
        barrier = self.comm.Ibarrier()
        self.wait(lambda: barrier.Test() or None)

    def finish(self) -> None:  # noqa: D102
        self.wait(self._all_delivered)
        self._processes = self.allgather((self.host, os.getpid()))

    # ---- some of them ----

    def group(self, ranks: Sequence[int], number: int) -> MPIGroup:  # noqa: D102
        members = self.comm.group.Incl(list(ranks))
        # Tags are bounded (MPI promises 32767 at least); numbers that far apart never meet.
        comm = self._group_comm.Create_group(members, tag=number % 32000)
        members.Free()
        return MPIGroup(self, comm, ranks, self._share_node(ranks))

    def _share_node(self, ranks: Sequence[int]) -> bool:
        """Return True if all of some ranks are known to be on one node."""
        return bool(self._node_of) and len({self._node_of[rank] for rank in ranks}) == 1

    def library_name(self) -> str:
        """Return the MPI library and thread level; Horovod needs `multiple`."""
        levels = {
            MPI.THREAD_SINGLE: "single",
            MPI.THREAD_FUNNELED: "funneled",
            MPI.THREAD_SERIALIZED: "serialized",
            MPI.THREAD_MULTIPLE: "multiple",
        }
        name = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
        return f"{name}, threads {levels[MPI.Query_thread()]}"

    # ---- how this process ends ----

    def exit(self, status: int) -> int:
        """Prepare to exit after :meth:`finish`; returns the exit status for Python.

        Only rank 0 gives the status to Open MPI's mpirun, and on one node it goes last: mpirun
        takes a rank that ends with another status than 0 for an abort, and says so in a box, unless
        it is the last that is left. On several nodes it does so even then.
        """
        is_one_node = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(self.size)
        self._exits_last = (
            self.rank == 0 and status != 0 and "PRTE_LAUNCHED" in os.environ and is_one_node
        )
        if self.rank and "PRTE_LAUNCHED" in os.environ:
            return 0
        return status

    def finalize(self) -> None:
        """Finalize MPI after Python's own cleanup; see :meth:`exit`."""
        if not self._exits_last:
            return
        # a barrier: all others are about to end now, and have only to be seen to do so
        MPI.Finalize()
        processes = [
            pid
            for rank, (host, pid) in enumerate(self._processes)
            if rank != self.rank and host == self.host
        ]
        deadline = time.monotonic() + _LAST_S
        while any(map(started, processes)) and time.monotonic() < deadline:
            time.sleep(LONGEST_S)

    def abort(self, error: BaseException, status: int = 1) -> NoReturn:
        """End all ranks at once, after one report of rank, host and cause."""
        self._report(error)
        self.end_all_ranks(status)

    def end_all_ranks(self, status: int) -> NoReturn:
        """End all ranks at once."""
        self.before_end()
        self.comm.Abort(status)

    def end_rank(self) -> NoReturn:
        """Refuse: here no rank can end before the others."""
        raise InfrastructureError(f"rank {self.rank} cannot end before the others do")

    def _report(self, error: BaseException) -> None:
        report = "".join(traceback.format_exception(error))
        print(
            f"\nfleet: rank {self.rank} of {self.size} on {self.host} failed; all ranks end.\n{report}",
            file=sys.stderr,
            flush=True,
        )
