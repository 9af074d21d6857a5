"""What stands for the world around a part of the program: ranks, and time."""

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
