"""Which networks a launch asks for, where several launches work on one run's networks at a time (pure).

A launch holds no more networks than it can train at once, so that others find some. It asks for those that have been
trained least first, and again whenever it could train one more. When none is to be had for a while, it leaves: those
that are left are trained elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fleet.units import format_duration


@dataclass(frozen=True)
class RequestLeases:
    """Take the first of these networks that can be had, until so many are held."""

    names: tuple[str, ...]
    most: int


@dataclass(frozen=True)
class ReleaseLease:
    """Another launch need not wait for this network."""

    network: str


@dataclass(frozen=True)
class LeaveRun:
    """The launch has nothing to do here."""

    reason: str


Effect: TypeAlias = RequestLeases | ReleaseLease | LeaveRun


class Claims:
    """The networks that this launch holds, and those that it wants.

    Args:
        epochs: network that is not over -> epochs that it has been trained, as far as is known.
        most: networks to hold at the same time.
        idle_s: seconds without a network after which to leave.

    Attributes:
        held: the networks that this launch may train.
    """

    def __init__(self, epochs: Mapping[str, int], most: int, idle_s: float) -> None:
        self._epochs = dict(epochs)
        self._most = most
        self._idle_s = idle_s
        self.held: set[str] = set()
        self._want = RequestLeases((), 0)
        self._let_go = list[Effect]()
        self._idle_since: float | None = None
        self._ends = False

    def got(self, network: str, epochs: int, is_over: bool) -> None:
        """This launch holds a network now.

        Args:
            epochs: that it has been trained, by its checkpoint.
            is_over: whether there is nothing left to train.
        """
        self._epochs[network] = epochs
        self.held.add(network)
        if is_over:
            self.over(network)

    def over(self, network: str) -> None:
        """A network that this launch holds is done, or has failed, and no rank has to do with it any more."""
        self.held.remove(network)
        del self._epochs[network]
        self._let_go.append(ReleaseLease(network))

    def end(self) -> None:
        """The launch is about to end."""
        self._ends = True

    def decide(self, now_s: float, paused: Collection[str] = ()) -> list[Effect]:
        """What is to be done now, in this order.

        Args:
            paused: networks that wait for what others come to, perhaps in other launches. They take no devices, and no
                launch stays for them.
        """
        paused = self.held.intersection(paused)
        effects = self._let_go
        self._let_go = []
        want = self._wanted(self._most + len(paused))
        if want != self._want:
            self._want = want
            effects.append(want)
        return effects + self._leave(now_s, bool(self.held - paused))

    def _wanted(self, most: int) -> RequestLeases:
        if self._ends or len(self.held) >= most:
            return RequestLeases((), 0)
        left = self._epochs.keys() - self.held
        return RequestLeases(tuple(sorted(left, key=lambda name: (self._epochs[name], name))), most)

    def _leave(self, now_s: float, has_any: bool) -> list[Effect]:
        if (
            has_any or self._ends or not self._epochs
        ):  # where all are over, the launch ends by itself
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now_s
        elif now_s >= self._idle_since + self._idle_s:
            self._ends = True
            self._want = RequestLeases((), 0)
            return [
                self._want,
                LeaveRun(
                    f"no network was to be had for {format_duration(self._idle_s)}: those that are "
                    "left are trained by other launches"
                ),
            ]
        return []
