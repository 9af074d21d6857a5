"""A simulated ``mpi4py.MPI``, with what FLEET uses of it, and what MPI guarantees and no more.

Messages of one sender, receiver, communicator and tag keep their order; any others may overtake. A
send completes at once or when it was received; a collective completes on each rank at some time
after all have arrived. If a rank has died, with fault tolerance (ULFM), each rank learns of it at
its own time, and an operation in which the dead rank took part completes on some ranks and fails on
others. Without fault tolerance it hangs until the launcher ends all ranks.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.simulate import kernel as k

IN_PLACE = "in place"
SUM = "sum"
ANY_SOURCE = -1
AFTER_ABORT = "the end after Abort"
ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED = 75, 76, 77


class Exception(RuntimeError):
    """An error of MPI."""

    def __init__(self, code: int) -> None:
        super().__init__(f"MPI error {code}")
        self._code = code

    def Get_error_class(self) -> int:
        return self._code


@dataclass(eq=False)
class Job:
    """What the ranks of one launch share.

    Attributes:
        processes: the processes, by rank.
        delay_s: longest latency of a message.
        late: share of sends and collectives that complete late.
        is_fault_tolerant: whether a launch survives a death.
        abort: ends the launch with a status.
        on_news: (observer, the dead) -> is called once the observer has asked who has died.
        has_deaths: whether a rank has ended; only then dead ones are sought.
        open_groups: number of communicators of groups that a process has not freed.
    """

    kernel: k.Kernel
    processes: list[k.Process]
    delay_s: float
    late: float
    is_fault_tolerant: bool
    abort: Callable[[int], None]
    learnt: dict[tuple[k.Process, k.Process], float] = field(default_factory=dict)
    communicators: dict[Any, _Shared] = field(default_factory=dict)
    world: _Shared | None = None
    has_deaths: bool = False
    on_news: dict[tuple[k.Process, k.Process], Callable[[], object]] = field(default_factory=dict)
    open_groups: Counter[k.Process] = field(default_factory=Counter)  # not yet freed

    def latency(self) -> float:
        """Return the duration of a message."""
        random = self.kernel.random
        if random.random() < self.late:
            return random.uniform(0, 20 * self.delay_s)
        return random.uniform(0, self.delay_s)

    def _detection_s(self) -> float:
        """Return how much longer a process needs to notice a death."""
        random = self.kernel.random
        return random.choice((0.0, 0.0, 0.1, 1.0)) * random.random()

    def tell_death(
        self, observer: k.Process, peer: k.Process, on_news: Callable[[], object]
    ) -> None:
        """Let a process notice the death of another one as soon as it asks."""
        self.learnt[observer, peer] = self.kernel.now
        self.on_news[observer, peer] = on_news

    def knows_death(self, observer: k.Process, peer: k.Process) -> bool:
        """Return True if a process has learnt that another one has died."""
        if peer.is_alive or peer.has_finalized:
            return False
        key = (observer, peer)
        if key not in self.learnt:
            self.learnt[key] = self.kernel.now + self.latency() + self._detection_s()
        return self.kernel.now >= self.learnt[key]


@dataclass(eq=False)
class _Envelope:
    source: int
    tag: int
    content: Any
    visible_s: float
    read: Callable[[], Any] | None = None
    is_received: bool = False

    @property
    def message(self) -> Any:
        """A copy of the message, if it is a Python object."""
        return pickle.loads(self.content)


@dataclass(eq=False)
class _Collective:
    arrived: dict[int, float] = field(default_factory=dict)
    parts: dict[int, Any] = field(default_factory=dict)
    outcome: dict[int, bool] = field(default_factory=dict)
    result: Any = None


class _Shared:
    """What the members of a communicator share."""

    def __init__(self, job: Job, members: Sequence[k.Process]) -> None:
        self.job = job
        self.members = list(members)
        self.boxes: list[dict[int, deque[_Envelope]]] = [defaultdict(deque) for _ in self.members]
        self.collectives: defaultdict[Any, _Collective] = defaultdict(_Collective)
        self.revoked: dict[int, float] = {}
        self.children: dict[Any, _Shared] = {}


class Group:
    """Processes in an order."""

    def __init__(self, members: Sequence[k.Process]) -> None:
        self.members = list(members)

    @property
    def size(self) -> int:
        return len(self.members)

    def Incl(self, ranks: Sequence[int]) -> Group:
        return Group([self.members[rank] for rank in ranks])

    def Free(self) -> None:
        """Do nothing."""

    @staticmethod
    def Translate_ranks(group: Group, ranks: Sequence[int], peer: Group) -> list[int]:
        return [peer.members.index(group.members[rank]) for rank in ranks]


class Request:
    """An operation in progress."""

    def __init__(self, test: Callable[[], bool]) -> None:
        self._test = test
        self._is_done = False

    def Test(self) -> bool:
        _kernel().check_alive()
        if not self._is_done:
            self._is_done = self._test()
        return self._is_done


class Status:
    """What a probe says of a message."""

    def __init__(self) -> None:
        self.source = ANY_SOURCE

    def Get_source(self) -> int:
        return self.source


class Message:
    """A message that was matched and not yet received."""

    def __init__(self, envelope: _Envelope) -> None:
        self._envelope = envelope

    def recv(self) -> Any:
        self._envelope.is_received = True
        return self._envelope.message


def _kernel() -> k.Kernel:
    assert k.KERNEL is not None
    return k.KERNEL


class Intracomm:
    """A communicator, as one of its ranks sees it."""

    def __init__(self, shared: _Shared, rank: int, is_of_group: bool = False) -> None:
        self._shared = shared
        self._is_of_group = is_of_group
        self._job = shared.job
        self._process = shared.members[rank]
        self.rank = rank
        self.size = len(shared.members)
        self._collective = 0
        self._acknowledged: set[int] = set()
        self._sent_s: defaultdict[tuple[int, int], float] = defaultdict(float)

    @property
    def group(self) -> Group:
        return Group(self._shared.members)

    # ---- deaths ----

    def _dead(self, ranks: Sequence[int] | None = None) -> list[int]:
        if not self._job.has_deaths:
            return []
        members = self._shared.members
        return [
            rank
            for rank in (range(self.size) if ranks is None else ranks)
            if self._job.knows_death(self._process, members[rank])
        ]

    def _check(self) -> None:
        if not self._job.is_fault_tolerant:
            return
        revoked_s = self._shared.revoked.get(self.rank)
        if revoked_s is not None and self._job.kernel.now >= revoked_s:
            raise Exception(ERR_REVOKED)

    def Get_failed(self) -> Group:
        dead = [self._shared.members[rank] for rank in self._dead()]
        for peer in dead:
            self._job.on_news.pop((self._process, peer), lambda: None)()
        return Group(dead)

    def Ack_failed(self) -> None:
        self._acknowledged.update(self._dead())

    def Revoke(self) -> None:
        for rank in range(self.size):
            at_s = self._job.kernel.now
            if rank != self.rank:
                at_s += self._job.latency()
            self._shared.revoked.setdefault(rank, at_s)

    # ---- messages ----

    def _send(self, content: Any, read: Any, dest: int, tag: int) -> Request:
        job = self._job
        kernel = job.kernel
        self._check()
        kernel.pause()
        # Messages of one pair and tag keep their order.
        visible_s = max(self._sent_s[dest, tag], kernel.now + job.latency())
        self._sent_s[dest, tag] = visible_s
        envelope = _Envelope(self.rank, tag, content, visible_s, read)
        self._shared.boxes[dest][tag].append(envelope)
        if content is not None:
            kernel.watch_message(self._process, envelope)
        kernel.progress()
        kernel.reach("send")
        done_s = kernel.now if kernel.random.random() < 0.5 else None
        if read is not None and done_s is not None:  # buffered
            envelope.content = read()
            envelope.read = None

        def test() -> bool:
            self._check()
            if done_s is not None or envelope.is_received:
                return True
            if job.is_fault_tolerant and self._dead([dest]):
                raise Exception(ERR_PROC_FAILED)
            return False

        return Request(test)

    def isend(self, message: Any, dest: int, tag: int) -> Request:
        return self._send(pickle.dumps(message), None, dest, tag)

    def Isend(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        return self._send(None, buffer.copy, dest, tag)

    def _match(self, tag: int, source: int = ANY_SOURCE) -> _Envelope | None:
        """Return a message that has arrived: the first of one of the sources."""
        now = self._job.kernel.now
        box = self._shared.boxes[self.rank][tag]
        firsts: dict[int, _Envelope] = {}
        for envelope in box:
            if source in (ANY_SOURCE, envelope.source):
                firsts.setdefault(envelope.source, envelope)
        arrived = [
            envelope
            for envelope in firsts.values()
            if envelope.visible_s <= now and not self._is_lost(envelope)
        ]
        if not arrived:
            return None
        return arrived[self._job.kernel.random.randrange(len(arrived))]

    def _is_lost(self, envelope: _Envelope) -> bool:
        """Return True if a message was on its way when its sender was killed, and got lost.

        Half of the senders take with them whatever has not arrived.
        """
        sender = self._shared.members[envelope.source]
        if not self._job.is_fault_tolerant or sender.status != -9:
            return False
        return envelope.visible_s > sender.ended_s and bool(int(sender.ended_s * 1e6) % 2)

    def _take(self, envelope: _Envelope) -> None:
        self._shared.boxes[self.rank][envelope.tag].remove(envelope)
        self._job.kernel.progress()

    def improbe(
        self, source: int = ANY_SOURCE, tag: int = 0, status: Status | None = None
    ) -> Message | None:
        self._job.kernel.check_alive()
        self._check()
        envelope = self._match(tag, source)
        if envelope is None:
            if self._job.is_fault_tolerant and set(self._dead()) - self._acknowledged:
                raise Exception(ERR_PROC_FAILED_PENDING)
            return None
        self._take(envelope)
        if status is not None:
            status.source = envelope.source
        return Message(envelope)

    def iprobe(self, source: int = ANY_SOURCE, tag: int = 0) -> bool:
        self._job.kernel.check_alive()
        self._check()
        return self._match(tag, source) is not None

    def Iprobe(self) -> bool:
        self._job.kernel.check_alive()
        self._check()
        return False

    def Irecv(self, buffer: np.ndarray, source: int, tag: int) -> Request:
        self._job.kernel.check_alive()

        def test() -> bool:
            self._check()
            envelope = self._match(tag, source)
            if envelope is None:
                if self._job.is_fault_tolerant and self._dead([source]):
                    raise Exception(ERR_PROC_FAILED)
                return False
            self._take(envelope)
            envelope.is_received = True
            buffer[...] = envelope.content if envelope.read is None else envelope.read()
            return True

        return Request(test)

    # ---- collectives ----

    def _arrive(self, part: Any) -> tuple[_Collective, Callable[[], bool]]:
        """Take part in the next collective; returns it and whether it is over for this rank."""
        kernel = self._job.kernel
        kernel.check_alive()
        self._check()
        kernel.reach("collective")
        self._collective += 1
        collective = self._shared.collectives[self._collective]
        collective.arrived[self.rank] = kernel.now
        collective.parts[self.rank] = part
        kernel.reach("arrived")
        kernel.progress()
        after_s = self._job.latency()

        def is_over() -> bool:
            self._check()
            missing = [rank for rank in range(self.size) if rank not in collective.arrived]
            if missing:
                if self._job.is_fault_tolerant and self._dead(missing):
                    raise Exception(ERR_PROC_FAILED)
                return False
            dead = self._job.is_fault_tolerant and self._dead()
            if dead:
                # A rank that has died after it arrived: some learn the result, some do not.
                if collective.outcome.setdefault(self.rank, kernel.random.random() < 0.5):
                    return True
                raise Exception(ERR_PROC_FAILED)
            return kernel.now >= max(collective.arrived.values()) + after_s

        return collective, is_over

    def _wait(self, is_over: Callable[[], bool], reason: str) -> None:
        """Block inside MPI, as a call does that cannot be interrupted."""
        kernel = self._job.kernel
        while not is_over():
            kernel.sleep(kernel.random.uniform(1e-4, 5e-3), reason)

    def Ibarrier(self) -> Request:
        return Request(self._arrive(None)[1])

    def Iallreduce(self, how: str, part: np.ndarray, op: str) -> Request:
        collective, is_over = self._arrive(part.copy())

        def test() -> bool:
            if not is_over():
                return False
            part[...] = _sum(collective)
            return True

        return Request(test)

    def Allreduce(self, how: str, part: np.ndarray, op: str) -> None:
        collective, is_over = self._arrive(part.copy())
        self._wait(is_over, "Allreduce")
        part[...] = _sum(collective)

    def Ibcast(self, buffer: np.ndarray, root: int) -> Request:
        collective, _ = self._arrive(buffer.copy() if self.rank == root else None)
        ready_s = self._job.kernel.now + self._job.latency()

        def test() -> bool:
            self._check()
            if self.rank == root:
                return self._job.kernel.now >= ready_s
            if root not in collective.arrived:
                if self._job.is_fault_tolerant and self._dead([root]):
                    raise Exception(ERR_PROC_FAILED)
                return False
            if self._job.kernel.now < max(ready_s, collective.arrived[root]):
                return False
            dead = self._job.is_fault_tolerant and self._dead()
            if dead and not collective.outcome.setdefault(
                self.rank, self._job.kernel.random.random() < 0.5
            ):
                raise Exception(ERR_PROC_FAILED)
            buffer[...] = collective.parts[root]
            return True

        return Request(test)

    def allgather(self, value: Any) -> list[Any]:
        collective, is_over = self._arrive(pickle.dumps(value))
        self._wait(is_over, "allgather")
        return [pickle.loads(collective.parts[rank]) for rank in range(self.size)]

    def bcast(self, value: Any, root: int = 0) -> Any:
        packed = pickle.dumps(value) if self.rank == root else None
        collective, is_over = self._arrive(packed)
        self._wait(is_over, "bcast")
        return pickle.loads(collective.parts[root])

    # ---- other communicators ----

    def _child(self, key: Any, members: Sequence[k.Process]) -> Intracomm:
        shared = self._shared.children.get(key)
        if shared is None:
            shared = self._shared.children[key] = _Shared(self._job, members)
        return Intracomm(shared, shared.members.index(self._process))

    def Dup(self) -> Intracomm:
        _, is_over = self._arrive(None)
        number = self._collective
        self._wait(is_over, "Dup")
        return self._child(("dup", number), self._shared.members)

    def Split_type(self, kind: str) -> Intracomm:
        _, is_over = self._arrive(None)
        number = self._collective
        self._wait(is_over, "Split_type")
        members = [
            process for process in self._shared.members if process.node is self._process.node
        ]
        return self._child(("split", number, self._process.node.name), members)

    def Create_group(self, group: Group, tag: int = 0) -> Intracomm:
        return _meet(self._job, ("create", id(self._shared), tag), group, self._process)

    @staticmethod
    def Create_from_group(
        group: Group, word: str, info: Any = None, errors: Any = None
    ) -> Intracomm:
        process = _kernel().process
        assert process is not None
        return _meet(process.mpi, word, group, process)

    def Free(self) -> None:
        if self._is_of_group:
            self._job.open_groups[self._process] -= 1
            self._is_of_group = False

    def Abort(self, status: int) -> None:
        self._job.abort(status)
        _kernel().sleep(60.0, AFTER_ABORT)
        raise k.ProcessExit(status)


def _meet(job: Job, key: Any, group: Group, process: k.Process) -> Intracomm:
    """Make a communicator together with the other members, by a call that blocks."""
    counts = job.communicators.setdefault("counts", defaultdict(int))
    kernel = job.kernel
    members = tuple(group.members)
    counts[key, members, process] += 1
    key = (key, members, counts[key, members, process])
    shared = job.communicators.setdefault(key, _Shared(job, members))
    arrived = shared.collectives["made"].arrived
    kernel.reach("collective")
    arrived[members.index(process)] = kernel.now
    kernel.reach("arrived")
    while len(arrived) < len(members):
        kernel.sleep(kernel.random.uniform(1e-4, 5e-3), "the others, to make a group")
    job.open_groups[process] += 1
    return Intracomm(shared, members.index(process), is_of_group=True)


def _sum(collective: _Collective) -> np.ndarray:
    if collective.result is None:
        collective.result = sum(collective.parts[rank] for rank in sorted(collective.parts))
    return collective.result


class _World:
    """Stands for ``COMM_WORLD``: that of the running process."""

    def Dup(self) -> Intracomm:
        process = _kernel().process
        assert process is not None
        job: Job = process.mpi
        if job.world is None:
            job.world = _Shared(job, job.processes)
        key = ("world", process)
        if key not in job.communicators:
            job.communicators[key] = Intracomm(job.world, job.processes.index(process))
        return job.communicators[key].Dup()


def _finalize() -> None:
    process = _kernel().process
    assert process is not None
    process.has_finalized = True


def install() -> None:
    """Let ``from mpi4py import MPI`` give this module's names; before FLEET is imported."""
    package = types.ModuleType("mpi4py")
    package.__path__ = []
    module = types.ModuleType("mpi4py.MPI")
    names: dict[str, Any] = {
        "COMM_WORLD": _World(),
        "COMM_TYPE_SHARED": "shared",
        "Intracomm": Intracomm,
        "Group": Group,
        "Request": Request,
        "Status": Status,
        "Exception": Exception,
        "IN_PLACE": IN_PLACE,
        "SUM": SUM,
        "ANY_SOURCE": ANY_SOURCE,
        "ERR_PROC_FAILED": ERR_PROC_FAILED,
        "ERR_PROC_FAILED_PENDING": ERR_PROC_FAILED_PENDING,
        "ERR_REVOKED": ERR_REVOKED,
        "INFO_NULL": None,
        "ERRORS_RETURN": None,
        "Get_library_version": lambda: "simulated MPI",
        "Query_thread": lambda: 3,
        "Is_finalized": lambda: False,
        "Finalize": _finalize,
    }
    for number, level in enumerate(("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")):
        names[f"THREAD_{level}"] = number
    vars(module).update(names)
    package.MPI = module
    sys.modules["mpi4py"] = package
    sys.modules["mpi4py.MPI"] = module
