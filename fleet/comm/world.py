"""The one door through which MPI comes in.

A rank that waits polls and sleeps up to a millisecond, longer where many ranks share a core: one that blocks
inside an MPI call burns a core, which on a laptop is half of the machine.

Under ``mpirun --with-ft ulfm`` (User-Level Failure Mitigation) the launch outlives its
ranks: each of them knows within milliseconds which others have died (:attr:`World.lost`), and
the collectives of a group with a dead member end in :class:`fleet.errors.GroupStruck` on all
others. Otherwise mpirun ends all ranks when one dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI

from fleet.comm.messages import Message, Tag
from fleet.errors import CoordinatorLost, GroupStruck, InfrastructureError

T = TypeVar("T")

_SHORTEST_S = 20e-6
_LONGEST_S = 1e-3
_RANKS_PER_CORE = 4  # that may wake up so often: each costs a core about 2 % then

# What Open MPI's mpirun gives its ranks under --with-ft ulfm.
_FT_ENABLED = "OMPI_MCA_mpi_ft_enable"
_PR_SET_PDEATHSIG = 1
# Tags beside those of roles: a rank is ready to make a group; is done, and may go; has failed, so that all end.
_READY_TAG, _DONE_TAG, _FAILED_TAG = 101, 102, 103
# How long a call that cannot be interrupted may go on waiting for a rank that has died.
_PATIENCE_S = 3.0
# Requests of collectives that a death has cut short. MPI may still write into their buffers: nothing frees them.
_ABANDONED: list[MPI.Request] = []


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
        outlives: whether the launch outlives its ranks: ``mpirun --with-ft ulfm``.
    """

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.comm = (comm or MPI.COMM_WORLD).Dup()
        # Open MPI makes groups by messages under the tag that they are given: in here they meet none of ours.
        self._maker = self.comm.Dup()
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        self.host = socket.gethostname()
        self.duties: list[Callable[[], bool]] = []
        self.outlives = os.environ.get(_FT_ENABLED, "0").lower() in ("1", "true")
        if self.outlives:
            _die_with_launcher()
        self._lost: frozenset[int] = frozenset()
        self._pending: list[MPI.Request] = []
        self._longest_pause = _LONGEST_S
        self._ready: defaultdict[int, set[int]] = defaultdict(set)  # number of a group -> ranks ready to make it

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

    # ---- which of them are still alive ----

    @property
    def lost(self) -> frozenset[int]:
        """The ranks that this one knows to have died.

        Raises:
            CoordinatorLost: rank 0 is among them; without it no rank can go on.
        """
        if self.outlives:
            if (told := self._hear_of_ends()) is not None:
                self.end(told, is_told=True)
            if 0 in self._lost:
                raise CoordinatorLost("rank 0, which coordinates, has died")
        return self._lost

    def _hear_of_ends(self) -> int | None:
        """Find out which ranks have died, and whether all are to end; then with which status."""
        told: int | None = self._receive(_FAILED_TAG)  # without a call of this kind MPI hears of no death
        failed = self.comm.Get_failed()
        if failed.size > len(self._lost):
            self._lost = frozenset(MPI.Group.Translate_ranks(failed, range(failed.size), self.comm.group))
        failed.Free()
        return told

    def check(self, ranks: Sequence[int]) -> None:
        """Raise GroupStruck when one of some ranks has died."""
        if dead := self.lost.intersection(ranks):
            raise GroupStruck("died: rank " + ", ".join(map(str, sorted(dead))))

    # ---- messages ----

    def tell(self, rank: int, tag: Tag, message: Message) -> None:
        """Send a message; returns at once. What is told to a dead rank is lost."""
        self._send(rank, tag, message)

    def hear(self, tag: Tag) -> Message | None:
        """The next message under a tag, if one has come."""
        return self._receive(tag)

    def _send(self, rank: int, tag: int, message: Any) -> None:
        self._pending = [request for request in self._pending if not _is_over(request)]
        if rank not in self.lost:
            self._pending.append(self.comm.isend(message, dest=rank, tag=tag))

    def _receive(self, tag: int) -> Any:
        try:
            matched = self.comm.improbe(tag=tag)
            return None if matched is None else matched.recv()
        except MPI.Exception as error:
            if not _tells_of_a_death(error):
                raise
            self.comm.Ack_failed()  # until then no message is given out that might come from anywhere
            return None

    def wait(self, ready: Callable[[], T | None], patience: float = 1.0) -> T:
        """Poll until ``ready`` gives something, doing this rank's duties meanwhile.

        They are done once at least: a rank that is never kept waiting owes them as well.

        Args:
            patience: how much longer than otherwise to sleep between two looks, at most.
        """
        backoff = Backoff(self._longest_pause * patience)
        while True:
            busy = sum(duty() for duty in self.duties)  # all of them, even after one has done something
            if (value := ready()) is not None:
                return value
            _ = self.lost  # nobody is left waiting when rank 0 has died
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
        """A communicator of some ranks; collective over them only.

        Raises:
            GroupStruck: one of them has died.
        """
        members = self.comm.group.Incl(list(ranks))
        if self.outlives:
            # MPI makes no group from a communicator in which somebody has died; without one it does.
            self._stand_ready(ranks, number)
            with self.briefly(ranks):
                comm = MPI.Intracomm.Create_from_group(members, f"fleet-{number}", MPI.INFO_NULL, MPI.ERRORS_RETURN)
        else:
            # Tags are bounded (MPI promises 32767 at least); numbers that far apart never meet.
            comm = self._maker.Create_group(members, tag=number % 32000)
        members.Free()
        return Group(self, comm, ranks)

    def _stand_ready(self, ranks: Sequence[int], number: int) -> None:
        """Wait until all ranks of a group are about to make it: making it cannot be interrupted."""
        others = set(ranks) - {self.rank}
        for rank in others:
            self._send(rank, _READY_TAG, (self.rank, number))
        backoff = Backoff()
        while not others <= self._ready[number]:
            self.check(ranks)
            if (told := self._receive(_READY_TAG)) is not None:
                rank, of = told
                self._ready[of].add(rank)
            else:
                backoff.sleep()
        del self._ready[number]

    @contextmanager
    def briefly(self, ranks: Sequence[int]) -> Iterator[None]:
        """Around calls that block inside MPI until all of some ranks have come, however long that is.

        When one of them dies meanwhile, nothing takes the others out of there again. Such a rank ends itself
        after some seconds, and is lost as well; the rest of the launch goes on.
        """
        over = threading.Event()
        if self.outlives and len(ranks) > 1:
            threading.Thread(target=self._watch, args=(ranks, over), name="watch", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, ranks: Sequence[int], over: threading.Event) -> None:
        while not over.wait(_PATIENCE_S):
            try:
                self.comm.iprobe(tag=_READY_TAG)  # lets MPI notice
                self.check(ranks)
            except (MPI.Exception, InfrastructureError):
                if not over.wait(_PATIENCE_S):
                    os.kill(os.getpid(), signal.SIGKILL)

    def library(self) -> str:
        """The MPI library and its thread level; Horovod's background thread wants `multiple`."""
        levels = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized",
                  MPI.THREAD_MULTIPLE: "multiple"}
        name = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
        return f"{name}, threads {levels[MPI.Query_thread()]}"

    # ---- ends ----

    def finish(self) -> None:
        """Leave together with all other ranks that are left, without burning a core on the wait; collective."""
        self.wait(lambda: all(map(_is_over, self._pending)) or None)
        if self.outlives:
            self._part()
        else:
            self._meet()

    def _part(self) -> None:
        """A barrier in which nobody waits for the dead; rank 0, whom all would miss, is the last to leave it."""
        if self.rank:
            self._send(0, _DONE_TAG, self.rank)
            self.wait(lambda: self._receive(_DONE_TAG))
            self._send(0, _DONE_TAG, self.rank)
        else:
            self._hear_from_all(_DONE_TAG)
            for rank in range(1, self.size):
                self._send(rank, _DONE_TAG, True)
            self._hear_from_all(_DONE_TAG)
        self.wait(lambda: all(map(_is_over, self._pending)) or None)

    def _hear_from_all(self, tag: int) -> None:
        heard = {self.rank}

        def all_heard() -> bool | None:
            if (rank := self._receive(tag)) is not None:
                heard.add(rank)
            return len(heard | self.lost) == self.size or None

        self.wait(all_heard)

    def leave(self, status: int) -> int:
        """The end of this process, with a status; it returns that only where MPI can be finalized."""
        if self.outlives:  # MPI_Finalize waits for ranks that have died (Open MPI 5.0.11)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        return status

    def abort(self, error: BaseException, status: int = 1) -> NoReturn:
        """End all ranks at once, after one report that says who, where and why."""
        all_know = isinstance(error, CoordinatorLost)
        if not all_know or self.rank == self._heir:
            report = "".join(traceback.format_exception(error))
            print(f"\nfleet: rank {self.rank} of {self.size} on {self.host} failed; all ranks end.\n{report}",
                  file=sys.stderr, flush=True)
        self.end(status, is_told=all_know)

    @property
    def _heir(self) -> int:
        """Rank 0, or who comes after it when it has died."""
        return min(set(range(self.size)) - self._lost)

    def end(self, status: int, is_told: bool = False) -> NoReturn:
        """End all ranks at once.

        Args:
            is_told: whether the heir need not be told.

        Under ULFM (Open MPI 5.0.11) MPI_Abort does not reach all ranks, and no rank hears of one that exits by itself:
        so the heir tells all others, and they kill themselves, which is heard of even inside a library.
        """
        if not self.outlives:
            self.comm.Abort(status)
        others = {self._heir} if not is_told else set()
        if self.rank == self._heir:
            others = set(range(self.size)) - {self.rank}
        self._pending += [self.comm.isend(status, dest=rank, tag=_FAILED_TAG) for rank in others - self._lost]
        deadline = time.monotonic() + _PATIENCE_S
        while not others <= self._lost and time.monotonic() < deadline:
            told = self._hear_of_ends()
            if told is not None and self.rank != self._heir:
                break
            time.sleep(_LONGEST_S)
        sys.stdout.flush()
        sys.stderr.flush()
        if self.rank != self._heir:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(status)


def _die_with_launcher() -> None:
    """Have the kernel end this process when its launcher is no more: under ULFM mpirun may go without it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # Linux, like /dev/shm


def _is_over(request: MPI.Request) -> bool:
    """Whether a message has been taken, or never will be: its receiver has died."""
    try:
        return request.Test()
    except MPI.Exception as error:
        if not _tells_of_a_death(error):
            raise
        return True


def _tells_of_a_death(error: MPI.Exception) -> bool:
    return error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


def _are_done(requests: Sequence[MPI.Request]) -> bool:
    """Whether all are done; one after another, for Testall does not say of which kind an error is."""
    return all(request.Test() for request in requests)


class Group:
    """The ranks that train one network together.

    All methods are collective over the group; waiting ranks poll and sleep. When a member has died, all others
    raise :class:`fleet.errors.GroupStruck`.
    """

    def __init__(self, world: World, comm: MPI.Intracomm, ranks: Sequence[int]) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.ranks = tuple(ranks)  # of the world
        self.world = world

    @property
    def is_master(self) -> bool:
        """Whether this rank speaks for the group."""
        return self.rank == 0

    def _complete(self, *requests: MPI.Request) -> None:
        def is_done() -> bool | None:
            if _are_done(requests):
                return True
            self.check()
            return None

        with self.striking(*requests):
            self.world.wait(is_done)

    def check(self) -> None:
        """Raise GroupStruck when a member has died: for those who wait for something else than the group."""
        self.world.check(self.ranks)

    @contextmanager
    def striking(self, *requests: MPI.Request) -> Iterator[None]:
        """Make one error of all that MPI says when a member has died, and let no other member wait for this one."""
        try:
            yield
        except (MPI.Exception, GroupStruck) as error:
            if isinstance(error, MPI.Exception) and not (self.world.outlives and _tells_of_a_death(error)):
                raise
            self.comm.Revoke()
            _ABANDONED.extend(requests)
            raise GroupStruck(f"of the ranks {self.ranks} of this group one has died") from error

    def rest(self, seconds: float) -> None:
        """Let time pass on this rank; see :meth:`World.rest`."""
        self.world.rest(seconds)

    def sum(self, buffer: np.ndarray) -> None:
        """Replace a buffer, on every rank, by the sum of all ranks' buffers."""
        if self.size > 1:
            self._complete(self.comm.Iallreduce(MPI.IN_PLACE, buffer, op=MPI.SUM))

    def broadcast(self, buffers: Sequence[np.ndarray]) -> None:
        """Give every rank the master's buffers."""
        self._complete(*(self.comm.Ibcast(_as_bytes(buffer), root=0) for buffer in buffers))

    def start_broadcast(self, buffers: Sequence[np.ndarray], root: int) -> Broadcast:
        """Begin to give every rank the root's buffers; returns at once.

        Each buffer is one contiguous piece of memory.
        """
        return Broadcast([self.comm.Ibcast(_as_bytes(buffer), root=root) for buffer in buffers])

    def exchange(self, value: T) -> list[T]:
        """Give every rank the values of all, small ones."""
        if self.size == 1:
            return [value]
        self._complete(self.comm.Ibarrier())  # then nobody blocks long in the next lines
        with self.striking():
            return self.comm.allgather(value)

    def from_master(self, value: T | None) -> T:
        """Give every rank the master's value, a small one."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        self._complete(self.comm.Ibarrier())
        with self.striking():
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
        return _are_done(self._requests)


def _as_bytes(buffer: np.ndarray) -> np.ndarray:
    """The same memory, of a type that MPI knows; it does not know all of NumPy's."""
    assert buffer.flags.c_contiguous  # of any other, reshape would give a copy
    return buffer.reshape(-1).view(np.uint8)


@contextmanager
def communicator_for_library(group: Group) -> Iterator[Any]:
    """A communicator of the group's ranks that a library (Horovod) may use, and free, as its own; collective.

    The library takes it into use inside the ``with``.

    Raises:
        GroupStruck: a member has died.
    """
    group.exchange(None)  # all are here: what follows cannot be interrupted
    with group.world.briefly(group.ranks), group.striking():
        yield group.comm.Dup()
