"""Which networks a launch requests, if several launches share a run (pure).

A launch holds no more networks than it can train at a time, so that other launches find some. It
requests the networks with the fewest epochs first, and again whenever it could train one more. If
it gets none for a while, it ends: other launches train the remaining networks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from fleet.units import format_duration


class LeaseRequest(NamedTuple):
    """A request for leases, which replaces the previous one.

    Attributes:
        names: the networks to acquire, if they are available, in order of preference.
        max_leases: the number of networks to hold in all.
        leave_reason: why the launch has nothing to do in this run; empty if it goes on.
    """

    names: tuple[str, ...] = ()
    max_leases: int = 0
    leave_reason: str = ""


class LeaseRequests:
    """The networks that this launch has leased, and its requests for more.

    Args:
        epochs: network that has not ended -> its epochs, as far as known.
        max_leases: networks to hold at the same time.
        idle_s: seconds without a network after which to leave.

    Attributes:
        epochs: the networks that have not ended.
        leased: the networks that this launch may train.
    """

    def __init__(self, epochs: Mapping[str, int], max_leases: int, idle_s: float) -> None:
        self.epochs = dict(epochs)
        self._max_leases = max_leases
        self._idle_s = idle_s
        self.leased: set[str] = set()
        self._idle_since: float | None = None
        self._ends = False

    def add_lease(self, network: str, epochs: int) -> None:
        """Add a network that this launch has leased, with its epochs by its checkpoint."""
        self.epochs[network] = epochs
        self.leased.add(network)

    def end_lease(self, network: str) -> None:
        """Remove a network that has ended, and that no rank uses any more."""
        self.leased.remove(network)
        del self.epochs[network]

    def decide(
        self, now_s: float, paused: Collection[str] = (), ends: bool = False
    ) -> LeaseRequest:
        """Return which networks to request from now on.

        Args:
            now_s: the time.
            paused: networks that wait for results of others, perhaps in other launches. They take
                no devices, and no launch keeps running for them.
            ends: whether the launch is about to end.
        """
        paused = self.leased.intersection(paused)
        self._ends |= ends
        if self._has_idled(now_s, bool(self.leased - paused)):
            self._ends = True
            return LeaseRequest(
                leave_reason=f"no network was available for {format_duration(self._idle_s)}: other "
                "launches train the remaining ones"
            )
        max_leases = self._max_leases + len(paused)
        if self._ends or len(self.leased) >= max_leases:
            return LeaseRequest()
        names = self.epochs.keys() - self.leased
        return LeaseRequest(
            tuple(sorted(names, key=lambda name: (self.epochs[name], name))), max_leases
        )

    def _has_idled(self, now_s: float, has_any: bool) -> bool:
        """Return True once the launch has had no network for too long."""
        # Without unfinished networks the launch ends by itself.
        if has_any or self._ends or not self.epochs:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now_s
        return self._idle_since is not None and now_s >= self._idle_since + self._idle_s
