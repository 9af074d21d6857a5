"""What stands for the world around a part of the program: ranks, time, and the programs of a batch system."""

from fleet.comm.messages import Tag


class Clock:
    """Time that stands still unless it is set."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


class World:
    """Rank 0's view of the others: what they say is in ``said``, and what they are told is in ``told``."""

    hosts = ()

    def __init__(self, outlives=True):
        self.outlives, self.said, self.told, self.lost = outlives, [], [], frozenset()

    def hear(self, tag):
        assert tag is Tag.COORDINATOR
        return self.said.pop(0) if self.said else None

    def tell(self, rank, tag, message):
        self.told.append((rank, tag, message))


def put_programs(folder, programs):
    """Put programs into a folder that is on the PATH: what a shell does, by the name of each."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
