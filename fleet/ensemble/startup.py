"""When it is too late to start a training group (pure)."""

from __future__ import annotations


class StartupTimes:
    """How long groups of this launch took to start, and whether another one still can.

    A group that is interrupted saves wherever it is in an epoch, so all that it needs to have come further is to
    be built and to take a step. How long that takes is learned from the groups of this launch: the longest it
    took any of them to tell of training. Before one has, it is never too late: the next launch has no more time
    than this one, so a network that waits for it may wait for ever.

    Args:
        ends_s: when the walltime will be a reason to stop; None where it never is. All times are seconds of one clock.
    """

    def __init__(self, ends_s: float | None) -> None:
        self._ends_s = ends_s
        self._started: dict[str, float] = {}  # the networks of which nothing has been heard since
        self._builds: dict[str, float] = {}  # how long it took the latest group of each network until it was built
        self.longest_s: float | None = None

    def started(self, network: str, now_s: float) -> None:
        """A group was told to start."""
        self._started[network] = now_s

    def is_awaited(self, network: str) -> bool:
        """Whether a group that was told to start has told of no training yet."""
        return network in self._started

    def built(self, network: str, now_s: float) -> None:
        """A group has built its network."""
        if (began := self._started.get(network)) is not None:
            self._builds[network] = now_s - began

    def build_s(self, network: str) -> float:
        """Seconds from the start of a network's latest group until it had been built; 0 where that was not told."""
        return self._builds.get(network, 0.0)

    def trained(self, network: str, now_s: float) -> None:
        """A group told of training."""
        if (began := self._started.pop(network, None)) is not None:
            self.longest_s = max(self.longest_s or 0.0, now_s - began)

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the walltime is a reason to stop; None where it never is."""
        return None if self._ends_s is None else max(0.0, self._ends_s - now_s)

    def is_too_late(self, now_s: float) -> bool:
        """Whether a group that starts now would hardly come to train."""
        left = self.left_s(now_s)
        return left is not None and self.longest_s is not None and left < self.longest_s
