"""All ranks of a launch: :class:`fleet.comm.protocols.World` over MPI."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn, TypeVar

from mpi4py import MPI

from fleet.comm.group import MPIGroup
from fleet.comm.messages import Tag
from fleet.comm.protocols import LONGEST_S, World
from fleet.errors import CoordinatorDied, GroupMemberDied
from launch.processes import started

T = TypeVar("T")

_RANKS_PER_CORE = 4  # that may wake up every LONGEST_S: each takes about 2 % of a core
_LAST_S = 5.0  # longest wait of rank 0 for the other processes to end


class MPIWorld(World):
    """A launch that is not fault-tolerant: `mpirun` ends all ranks if one dies.

    Args:
        comm: the communicator of all ranks; MPI.COMM_WORLD by default.
    """

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.comm = (comm or MPI.COMM_WORLD).Dup()
        # Open MPI makes groups by messages under the group's tag: here they cannot meet ours.
        self._group_comm = self.comm.Dup()
        self.rank = self.comm.rank
        self.size = self.comm.size
        self.host = socket.gethostname()
        self.background_tasks = []
        self._tasks_lock = threading.Lock()
        self._pending: list[MPI.Request] = []  # messages that have not been received
        self._processes: list[tuple[str, int]] = []  # host and process of each rank
        self._node_of: tuple[int, ...] = ()
        self._exits_last = False
        self.before_end = lambda: None

    # ---- messages ----

    def send(self, rank: int, tag: int, message: Any) -> None:  # noqa: D102 - see World
        self._pending = [request for request in self._pending if not self._is_delivered(request)]
        self._pending.append(self.comm.isend(message, dest=rank, tag=tag))

    def receive(self, tag: int) -> Any:  # noqa: D102
        matched = self._probe(tag)
        if matched is None:
            return None
        return matched.recv()

    def _probe(self, tag: int, status: MPI.Status | None = None) -> MPI.Message | None:
        # Open MPI probes first and only then takes in what has arrived, so the first probe may miss
        # a message.
        return self.comm.improbe(tag=tag, status=status) or self.comm.improbe(
            tag=tag, status=status
        )

    def _is_delivered(self, request: MPI.Request) -> bool:
        """Return True if a message was received or never will be."""
        return request.Test()

    def _all_delivered(self) -> bool | None:
        return all(map(self._is_delivered, self._pending)) or None

    def _delivers_last(self) -> bool | None:
        """Return True if the last messages of this rank were received, or None.

        It receives and discards those of other ranks, for which no role waits any more: until then
        MPI need not complete their sends.
        """
        for tag in Tag:
            while self.receive(tag) is not None:
                pass
        return self._all_delivered()

    def ignore(self, ranks: AbstractSet[int]) -> None:
        """Do nothing: if a rank dies, `mpirun` ends this one as well."""

    def check_for_deaths(self) -> None:
        """Do nothing: if a rank dies, `mpirun` ends this one as well."""

    # ---- all ranks together ----

    def node_of(self) -> tuple[int, ...]:
        """Return the node of each rank, numbered by first appearance; collective.

        ``FLEET_RANKS_PER_NODE=2`` treats every two ranks as a node, so that communication between
        nodes can be tested on one machine.
        """
        simulated_size = os.environ.get("FLEET_RANKS_PER_NODE")
        if simulated_size:
            self._node_of = tuple(rank // int(simulated_size) for rank in range(self.size))
            return self._node_of
        self._barrier()
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self._longest_pause = LONGEST_S * max(
            1.0, node.size / (_RANKS_PER_CORE * (os.cpu_count() or 1))
        )
        # Prefer the batch system's name for the node, because it is needed to release the node.
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
        self.wait(self._delivers_last)
        barrier = self.comm.Ibarrier()
        self.wait(lambda: self._delivers_last() and (barrier.Test() or None))
        self._processes = self.allgather((self.host, os.getpid()))

    # ---- groups ----

    def group(self, ranks: Sequence[int], number: int) -> MPIGroup:  # noqa: D102
        members = self.comm.group.Incl(list(ranks))
        # MPI guarantees tags up to 32767; groups whose numbers are this far apart never coexist.
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

        Only rank 0 returns the status to Open MPI's mpirun, and on one node it exits last: mpirun
        treats a rank that ends with a status other than 0 as an abort and prints a box, unless it
        is the last rank. On several nodes it prints the box even then.
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
        # MPI.Finalize is a barrier: the others are about to end. Wait until they have ended.
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
        """Report rank, host and cause once, then end all ranks."""
        if isinstance(error, CoordinatorDied | GroupMemberDied):  # a traceback would not help
            report = f"{error}\n"
        else:
            report = "".join(traceback.format_exception(error))
        print(
            f"\nfleet: rank {self.rank} of {self.size} on {self.host} failed; all ranks end.\n"
            f"{report}",
            file=sys.stderr,
            flush=True,
        )
        self.end_all_ranks(status)

    def end_all_ranks(self, status: int) -> NoReturn:
        """End all ranks immediately."""
        self.before_end()
        self.comm.Abort(status)
