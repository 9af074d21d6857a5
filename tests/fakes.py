"""What stands for the world around a part of the program: ranks, time, and the programs of a batch system.

A whole launch of ranks that are threads of one process is :mod:`tests.fleet.one_process`.
"""

from fleet.comm.messages import Tag
from fleet.comm.single_rank import SingleRankGroup


class Clock:
    """Time that stands still unless it is set, or somebody sleeps; ``then`` is what happens at times."""

    def __init__(self, now=0.0, then=()):
        self.now, self.then = now, dict(then)

    def __call__(self):
        return self.now

    monotonic = __call__

    def sleep(self, seconds):
        self.now += seconds
        for time in [time for time in self.then if self.now >= time]:
            self.then.pop(time)()


class World:
    """One rank's view of the others.

    What they say is in ``said``, and what they are told is in ``told``. Another rank than 0 is told ``given`` where
    all share a value; what this one has brought is in ``shared``.
    """

    size, host, hosts = 1, "here", ()

    def __init__(self, is_fault_tolerant=True, rank=0, answers=None, dead_ranks=frozenset()):
        self.is_fault_tolerant, self.rank, self.dead_ranks = is_fault_tolerant, rank, dead_ranks
        self.said, self.told, self.shared, self._answers = [], [], [], answers

    def node_of(self):
        return (0,)

    def receive(self, tag):
        assert tag is Tag.COORDINATOR
        return self.said.pop(0) if self.said else None

    def send(self, rank, tag, message):
        self.told.append((rank, tag, message))

    def broadcast_value(self, value):
        self.shared.append(value)
        return self._answers if self.rank else value

    def allgather(self, value):
        return [value]

    def finish(self):
        """Nobody else is there."""


class Group(SingleRankGroup):
    """A group whose other ranks bring zeros; notes how long it rests, and rests no moment."""

    def __init__(self, size=1, rank=0):
        self.size, self.rank, self.is_master, self.rested = size, rank, rank == 0, []

    def sleep(self, seconds):
        self.rested.append(seconds)


def put_programs(folder, programs):
    """Put programs into a folder that is on the PATH: what a shell does, by the name of each."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
