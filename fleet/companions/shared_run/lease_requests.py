"""Which networks a launch requests, if several launches share a run (pure).

A launch holds no more networks than it can train at a time, so that other launches find some. It
requests the networks with the fewest epochs first, and again whenever it could train one more. If
it gets none for a while, it ends: other launches train the remaining networks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fleet.units import format_duration


@dataclass(frozen=True)
class RequestLeases:
    """Acquire the first of these networks that are available, up to ``max_leases`` in all."""

    names: tuple[str, ...]
    max_leases: int


@dataclass(frozen=True)
class ReleaseLease:
    """Release the lease of this network."""

    network: str


@dataclass(frozen=True)
class LeaveRun:
    """The launch has nothing to do in this run."""

    reason: str


Effect: TypeAlias = RequestLeases | ReleaseLease | LeaveRun


class LeaseRequests:
    """The networks that this launch has leased, and its requests for more.

    Args:
        epochs: network that has not ended -> its epochs, as far as known.
        max_leases: networks to hold at the same time.
        idle_s: seconds without a network after which to leave.

    Attributes:
        leased: the networks that this launch may train.
    """

    def __init__(self, epochs: Mapping[str, int], max_leases: int, idle_s: float) -> None:
        self._epochs = dict(epochs)
        self._max_leases = max_leases
        self._idle_s = idle_s
        self.leased: set[str] = set()
        self._request = RequestLeases((), 0)
        self._releases = list[Effect]()
        self._idle_since: float | None = None
        self._ends = False

    @property
    def names(self) -> frozenset[str]:
        """The networks that have not ended."""
        return frozenset(self._epochs)

    def add_lease(self, network: str, epochs: int, is_over: bool) -> None:
        """Add a network that this launch has leased.

        Args:
            network: its name.
            epochs: its epochs by its checkpoint.
            is_over: whether there is nothing left to train.
        """
        self._epochs[network] = epochs
        self.leased.add(network)
        if is_over:
            self.end_lease(network)

    def end_lease(self, network: str) -> None:
        """Release a network that has ended, and that no rank uses any more."""
        self.leased.remove(network)
        del self._epochs[network]
        self._releases.append(ReleaseLease(network))

    def end(self) -> None:
        """Request nothing more: the launch is about to end."""
        self._ends = True

    def decide(self, now_s: float, paused: Collection[str] = ()) -> list[Effect]:
        """Return the next effects, in order.

        Args:
            now_s: the time.
            paused: networks that wait for results of others, perhaps in other launches. They take
                no devices, and no launch keeps running for them.
        """
        paused = self.leased.intersection(paused)
        effects = self._releases
        self._releases = []
        want = self._next_request(self._max_leases + len(paused))
        if want != self._request:
            self._request = want
            effects.append(want)
        return effects + self._leave(now_s, bool(self.leased - paused))

    def _next_request(self, max_leases: int) -> RequestLeases:
        if self._ends or len(self.leased) >= max_leases:
            return RequestLeases((), 0)
        names = self._epochs.keys() - self.leased
        return RequestLeases(
            tuple(sorted(names, key=lambda name: (self._epochs[name], name))), max_leases
        )

    def _leave(self, now_s: float, has_any: bool) -> list[Effect]:
        # Without unfinished networks the launch ends by itself.
        if has_any or self._ends or not self._epochs:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now_s
        elif now_s >= self._idle_since + self._idle_s:
            self._ends = True
            self._request = RequestLeases((), 0)
            return [
                self._request,
                LeaveRun(
                    f"no network was available for {format_duration(self._idle_s)}: other launches "
                    "train the remaining ones"
                ),
            ]
        return []
