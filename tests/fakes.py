"""Test doubles of ranks, time, and the programs of a batch system.

:mod:`tests.fleet.one_process` has a whole launch of ranks that are threads of one process.
"""

from fleet.comm.messages import Tag
from fleet.comm.single_rank import SingleRankGroup


class Clock:
    """A clock that advances only by sleep() or when it is set.

    Args:
        now: the time in seconds.
        then: time -> function, which is called once the time is reached.
    """

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

    Args:
        answers: what a rank other than 0 receives from a broadcast.

    Attributes:
        inbox: messages that this rank will receive.
        sent: (rank, tag, message) of the messages that this rank has sent.
        shared: the values that this rank has broadcast.
    """

    size, host, hosts = 1, "localhost", ()

    def __init__(self, is_fault_tolerant=True, rank=0, answers=None, dead_ranks=frozenset()):
        self.is_fault_tolerant, self.rank, self.dead_ranks = is_fault_tolerant, rank, dead_ranks
        self.inbox, self.sent, self.shared, self._answers = [], [], [], answers

    def node_of(self):
        return (0,)

    def receive(self, tag):
        assert tag is Tag.COORDINATOR
        return self.inbox.pop(0) if self.inbox else None

    def ignore(self, ranks):
        self.ignored = ranks

    def send(self, rank, tag, message):
        self.sent.append((rank, tag, message))

    def broadcast_value(self, value):
        self.shared.append(value)
        return self._answers if self.rank else value

    def allgather(self, value):
        return [value]

    def finish(self):
        """Do nothing: there is no other rank."""


class Group(SingleRankGroup):
    """A group whose other ranks contribute zeros; records its sleeps instead of sleeping."""

    def __init__(self, size=1, rank=0):
        self.size, self.rank, self.sleeps = size, rank, []

    def sleep(self, seconds):
        self.sleeps.append(seconds)


def put_programs(folder, programs):
    """Write shell scripts, by name, into a folder on the PATH."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
