"""All ranks of a launch in one process, one running at a time, in an order determined by a seed.

Every rank is an actor: a thread that runs only while it holds the baton, and hands it back wherever
a real rank would wait. So a run is repeatable, every interleaving can be tried, and a deadlock is
detected without a timeout. Messages and collectives guarantee what MPI guarantees and no more:
messages of one sender and tag keep their order; a broadcast may complete as late as MPI allows.
"""

import contextlib
import pickle
import random
import sys
import threading
import time
import traceback
from collections import defaultdict, deque

import numpy as np

from fleet.errors import InfrastructureError


class Deadlock(AssertionError):
    """All ranks wait for each other."""


class _Abandoned(BaseException):
    """Thrown into a rank that is killed; no rank can catch it by accident."""


class _Actor:
    """A thread that runs only while it holds the baton."""

    def __init__(self, function):
        self.error = None
        self.is_done = self._is_abandoned = False
        self._function = function
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            self._wait_for_baton()
            self._function()
        except _Abandoned:
            pass
        except BaseException as error:  # the scheduler raises it
            self.error = error
        self.is_done = True
        self._back.release()

    def _wait_for_baton(self):
        self._go.acquire()
        if self._is_abandoned:
            raise _Abandoned

    def pause(self):
        """Hand the baton back; called by the actor itself."""
        self._back.release()
        self._wait_for_baton()

    def resume(self):
        """Let the actor run until it pauses or ends; called by the scheduler."""
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def abandon(self):
        self._is_abandoned = True
        while not self.is_done:
            self._go.release()
            self._back.acquire()


class Launch:
    """The ranks of one launch.

    Args:
        size: number of ranks.
        seed: seed of the order in which ranks run, and of the delays of broadcasts.
    """

    def __init__(self, size, seed):
        self.random = random.Random(seed)
        self.mail = defaultdict(deque)
        self.groups = {}
        self.worlds = [World(self, rank, size) for rank in range(size)]
        self.turns = 0
        self._actors = []
        self._idle = 0
        self._last_progress = time.monotonic()

    def run(self, function, turns=None):
        """Run ``function(world)`` on every rank until all have ended; kill them after ``turns``.

        Returns:
            Whether all have ended.

        Raises:
            Deadlock: no rank can continue.
        """
        self.start(function)
        return self.finish(turns)

    def start(self, function):
        """Let every rank begin ``function(world)`` at its first turn."""
        for world in self.worlds:
            world.actor = _Actor(lambda world=world: function(world))
        self._actors = [world.actor for world in self.worlds]

    def turn(self, rank):
        """Let one rank run until it waits, unless it has ended."""
        if not self._actors[rank].is_done:
            self.turns += 1
            self._actors[rank].resume()

    def finish(self, turns=None):
        """Let all ranks run to their ends; see :meth:`run`."""
        try:
            while living := [rank for rank, actor in enumerate(self._actors) if not actor.is_done]:
                if self.turns == turns:
                    return False
                self.turn(self.random.choice(living))
                self._watch()
            return True
        finally:
            self.kill()

    def kill(self):
        """End all ranks at their current position.

        The threads that write their checkpoints outlive them here, unlike in a real process: wait
        until they have finished, so that they write nothing after another launch has begun to read.
        """
        for actor in self._actors:
            actor.abandon()
        until_s = time.monotonic() + 10.0
        works = [
            getattr(thread, "_target", None)
            for thread in threading.enumerate()
            if thread.name == "checkpoint-writer"
        ]
        while (
            any(work is not None and work.__self__._jobs.unfinished_tasks for work in works)
            and time.monotonic() < until_s
        ):
            time.sleep(0.0005)

    def pause(self):
        """Let other ranks run first, if the calling thread is a rank."""
        for actor in self._actors:
            if actor.thread is threading.current_thread():
                actor.pause()

    def note(self, progress):
        """Record whether an actor has done something or was idle."""
        self._idle = 0 if progress else self._idle + 1

    def _watch(self):
        if self._idle < 30 * len(self._actors):
            self._last_progress = time.monotonic()
        elif time.monotonic() - self._last_progress < 10.0:
            # They may wait for a thread of a rank: its own stream, or its checkpoint writer.
            time.sleep(0.0002)
        else:
            raise Deadlock("\n".join(self._rank_label(rank) for rank in range(len(self._actors))))

    def _rank_label(self, rank):
        frame = sys._current_frames().get(self._actors[rank].thread.ident)
        return f"rank {rank}:\n" + "".join(
            traceback.format_stack(frame)[-6:] if frame else ["ended\n"]
        )


class World:
    """fleet.comm.protocols.World of a launch without deaths, on one node."""

    def __init__(self, launch, rank, size):
        self.rank, self.size, self.host, self.hosts = rank, size, f"host{rank}", ()
        self.background_tasks = []
        self.dead_ranks, self.is_fault_tolerant = frozenset(), False
        self.before_end = lambda: None
        self.actor = None
        self._launch = launch
        self._all_ranks = Group(
            self, launch.groups.setdefault("all", _Shared(size, launch.random)), range(size)
        )

    def send(self, rank, tag, message):
        self._launch.mail[rank, tag].append(pickle.dumps(message))
        self._launch.note(progress=True)

    def receive(self, tag):
        mail = self._launch.mail[self.rank, tag]
        return pickle.loads(mail.popleft()) if mail else None

    def wait(self, ready, patience=1.0):
        while True:
            worked = self.run_background_tasks()
            value = ready()
            if value is not None:
                self._launch.note(progress=True)
                return value
            self.pause(worked)

    def run_background_tasks(self):
        return sum(task() for task in self.background_tasks) > 0

    def sleep(self, seconds):
        self.pause(self.run_background_tasks())  # these launches do not model time

    def pause(self, worked):
        """Let the others run; for loops that are not inside ``wait``."""
        self._launch.note(progress=worked)
        self.actor.pause()

    def check_for_deaths(self):
        """Do nothing: no rank dies here."""

    def ignore(self, ranks):
        """Do nothing: no rank dies here."""

    def wait_for_message(self, tag):
        return self.wait(lambda: self.receive(tag))

    def node_of(self):
        self.hosts = ("host0",)
        return (0,) * self.size

    def broadcast_value(self, value, root=0):
        return self._all_ranks.allgather(value)[root]

    def allgather(self, value):
        return self._all_ranks.allgather(value)

    def finish(self):
        self._all_ranks.barrier()

    def end_all_ranks(self, status):
        raise SystemExit(status)

    def end_rank(self):
        raise InfrastructureError(f"rank {self.rank} cannot end before the others do")

    def library_name(self):
        return "one process"

    def group(self, ranks, number):
        key = (tuple(ranks), number)
        shared = self._launch.groups.setdefault(key, _Shared(len(ranks), self._launch.random))
        group = Group(self, shared, ranks)
        background_tasks = self.background_tasks
        self.background_tasks = []  # MPI blocks while it creates a communicator
        group.barrier()
        self.background_tasks = background_tasks
        return group


class _Shared:
    """The contributions of a group's members to each collective."""

    def __init__(self, size, random):
        self.size, self.random = size, random
        self.parts = defaultdict(dict)  # number of the collective -> rank -> part


class Group:
    """fleet.comm.protocols.Group of a launch without deaths."""

    def __init__(self, world, shared, ranks):
        self.ranks, self.rank, self.size = tuple(ranks), list(ranks).index(world.rank), shared.size
        self._world, self._shared = world, shared
        self._number = 0

    @property
    def is_master(self):
        return self.rank == 0

    def check(self):
        """Do nothing: no rank dies here."""

    def _next(self):
        self._number += 1
        return self._shared.parts[self._number]

    def raising_group_failed(self):
        return contextlib.nullcontext()

    def allgather(self, value):
        parts = self._next()
        parts[self.rank] = pickle.dumps(value)
        self._world.wait(lambda: len(parts) == self.size or None)
        return [pickle.loads(parts[rank]) for rank in range(self.size)]

    def barrier(self):
        self.allgather(None)

    def sleep(self, seconds):
        """Do nothing: these launches do not model time."""

    def sum(self, buffer):
        buffer[...] = np.sum(self.allgather(buffer), axis=0)

    def broadcast_value(self, value):
        return self.allgather(value)[0]

    def broadcast(self, buffers):
        broadcast = self.start_broadcast(buffers, root=0)
        self._world.wait(lambda: broadcast.is_done() or None)

    def start_broadcast(self, buffers, root):
        return Broadcast(self._next(), self, buffers, root)

    def free(self):
        """Do nothing: the group holds no resources."""


class Broadcast:
    """fleet.comm.protocols.Broadcast that sends eagerly, or only once all ranks have called it."""

    def __init__(self, parts, group, buffers, root):
        assert all(buffer.flags.c_contiguous for buffer in buffers)
        self._parts, self._group, self._buffers, self._root = parts, group, buffers, root
        self._is_done = False
        if group.rank == root:
            is_eager = group._shared.random.random() < 0.5
            parts["data"] = [buffer.copy() for buffer in buffers] if is_eager else buffers
            parts["is_eager"] = is_eager
        self._receivers = parts.setdefault("receivers", set())

    def is_done(self):
        if "data" not in self._parts:
            return False
        if self._group.rank != self._root and not self._is_done:
            for own_buffers, sent in zip(self._buffers, self._parts["data"], strict=True):
                own_buffers[...] = sent
        self._receivers.add(self._group.rank)
        self._is_done = True
        return (
            self._group.rank != self._root
            or self._parts["is_eager"]
            or len(self._receivers) == self._group.size
        )
