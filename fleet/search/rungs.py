"""Successive halving: which networks continue from one rung to the next (pure).

A rung is a number of epochs, ``min_epochs * factor**k``. Of the networks that reach it only the
best 1/``factor`` continue. :class:`Bracket` applies this asynchronously, as ASHA does (Li et al.,
A System for Massively Parallel Hyperparameter Tuning, arXiv:1810.05934): with pruning, or with
promotion (its algorithm 2); and synchronously, as the original (Jamieson and Talwalkar, AISTATS
2016), which judges no network before all have reached the rung.

A score is a value of which more is better; minus infinity stands for NaN, and is never among the
best.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.search.searcher import Verdict


def natural_key(name: str) -> tuple[str | int, ...]:
    """Return a sort key that orders net-9 before net-10.

    >>> sorted(["net-10", "net-9"], key=natural_key)
    ['net-9', 'net-10']
    """
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


class RungDecisions(NamedTuple):
    """Decisions on networks that have waited until nothing else could be done."""

    go_on: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


class _Entry(NamedTuple):
    """A network in a rung, in an order that puts the best first."""

    worse: float  # minus its score
    key: tuple[str | int, ...]
    name: str


@dataclass
class Rung:
    """The networks that have reached a number of epochs.

    Attributes:
        epochs: the number of epochs.
        promoted: number of networks that continued from here, or finished here.
    """

    epochs: int
    promoted: int = 0
    _all: list[_Entry] = field(default_factory=list)
    _waiting: list[_Entry] = field(default_factory=list)
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._all)

    @property
    def names(self) -> Collection[str]:
        """The networks that have reached it, in order of arrival."""
        return self._entries.keys()

    def score_of(self, name: str) -> float:
        """Return the score with which a network has come."""
        return -self._entries[name].worse

    def position(self, name: str) -> int:
        """Return how many networks are better than a network; ties are broken by name."""
        return bisect_left(self._all, self._entries[name])

    def count_near(self, tolerance: float) -> int:
        """Return how many scores are lower than the best one by at most a share of it."""
        if not self._all or not math.isfinite(self._all[0].worse):
            return 0
        lowest = self._all[0].worse
        return bisect_right(
            self._all, lowest + tolerance * abs(lowest), key=lambda entry: entry.worse
        )

    def enter(self, name: str, score: float) -> None:
        """Add a network."""
        self._entries[name] = entry = _Entry(-score, natural_key(name), name)
        insort(self._all, entry)

    def pause(self, name: str) -> None:
        """Pause a network here."""
        insort(self._waiting, self._entries[name])

    def release(self, name: str) -> bool:
        """Let a network wait no longer; return True if it was waiting."""
        entry = self._entries.get(name)
        if entry is None:
            at = len(self._waiting)
        else:
            at = bisect_left(self._waiting, entry)
        if at == len(self._waiting) or self._waiting[at] != entry:
            return False
        del self._waiting[at]
        return True

    @property
    def waiting(self) -> list[str]:
        """The networks that are paused here, the best first."""
        return [entry.name for entry in self._waiting]

    @property
    def best_waiting(self) -> str | None:
        """The best network that is paused here."""
        if self._waiting:
            return self._waiting[0].name
        return None

    def is_in_top(self, name: str, count: int) -> bool:
        """Return True if a network is one of the best ``count``; ties are broken by name."""
        entry = self._entries[name]
        return entry.worse < math.inf and self.position(name) < count

    def is_tied_with_top(self, name: str, count: int) -> bool:
        """Return True if fewer than ``count`` networks are strictly better."""
        worse = self._entries[name].worse
        return worse < math.inf and bisect_left(self._all, (worse,)) < count


class Bracket:
    """Successive halving of some networks.

    Args:
        min_epochs: epochs of the first rung.
        factor: one in so many continues.
        pauses: whether the others are paused; otherwise they are pruned.
        in_step: whether no network is judged before all have come; then all wait.
    """

    def __init__(self, min_epochs: int, factor: int, pauses: bool, in_step: bool) -> None:
        self._min_epochs = min_epochs
        self._factor = factor
        self._pauses = pauses
        self._in_step = in_step
        self._rungs: dict[int, Rung] = {}

    def next_rung(self, epochs: int) -> int:
        """Return the first rung above a number of epochs.

        >>> [Bracket(2, 3, True, False).next_rung(epochs) for epochs in (0, 1, 2, 6)]
        [2, 2, 6, 18]
        """
        rung = self._min_epochs
        while rung <= epochs:
            rung *= self._factor
        return rung

    def expected(self, max_epochs: int) -> float:
        """Return the epochs that a network trains on average, of at most ``max_epochs``.

        One in ``factor`` passes each rung.

        >>> Bracket(1, 2, True, False).expected(8)  # 1 + 1/2 + 2/4 + 4/8
        2.5
        """
        total = 0.0
        share = 1.0
        at = 0
        while (rung := self.next_rung(at)) < max_epochs:
            total = total + share * (rung - at)
            share = share / self._factor
            at = rung
        return total + share * (max_epochs - at)

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """Return the verdict on a network that has ended an epoch.

        Args:
            name: name of the network.
            epochs: its ended epochs.
            score: its best score so far.
            is_done: whether there is nothing left to train.
        """
        if self.next_rung(epochs - 1) != epochs:
            return Verdict.GO_ON
        rung = self._rungs.setdefault(epochs, Rung(epochs))
        if name in rung:  # it was here before, and has returned to an earlier checkpoint since
            return Verdict.GO_ON
        rung.enter(name, score)
        if is_done or (not self._in_step and self._goes_on(rung, name)):
            rung.promoted += 1
            return Verdict.GO_ON
        if not (self._pauses or self._in_step):
            return Verdict.STOP
        rung.pause(name)
        return Verdict.PAUSE

    def _goes_on(self, rung: Rung, name: str) -> bool:
        if self._pauses:
            return rung.is_in_top(name, len(rung) // self._factor)
        return rung.is_tied_with_top(name, max(1, len(rung) // self._factor))

    def promotable(self) -> tuple[int, str] | None:
        """Return the epochs and the name of the network to resume first, or None."""
        if self._in_step:
            return None
        for epochs in sorted(self._rungs, reverse=True):
            rung = self._rungs[epochs]
            name = rung.best_waiting
            if name is not None and self._goes_on(rung, name):
                return epochs, name
        return None

    def let_go_on(self, name: str) -> None:
        """Record that a paused network was resumed."""
        for rung in self._rungs.values():
            rung.promoted += rung.release(name)

    def leave(self, name: str) -> None:
        """Record that a network has ended: it waits no more, and its score still counts."""
        for rung in self._rungs.values():
            rung.release(name)

    def settle(self) -> RungDecisions:
        """Judge the waiting networks, now that no others can come.

        If synchronous, that is the rule itself. Otherwise the best of the highest rung continues if
        none has from there, so that some network trains to its end; or else all waiting networks
        are pruned.
        """
        waiting = [
            self._rungs[epochs]
            for epochs in sorted(self._rungs)
            if self._rungs[epochs].best_waiting
        ]
        if not waiting:
            return RungDecisions()
        if self._in_step:
            return self._settle_in_step(waiting[0])
        best = waiting[-1].best_waiting
        if best is not None and not waiting[-1].promoted and waiting[-1].is_in_top(best, 1):
            return RungDecisions(go_on=(best,))
        return RungDecisions(stop=tuple(name for rung in waiting for name in rung.waiting))

    def _settle_in_step(self, rung: Rung) -> RungDecisions:
        count = max(1, len(rung) // self._factor)
        best = [name for name in rung.waiting if rung.is_in_top(name, count)]
        return RungDecisions(
            tuple(best), tuple(name for name in rung.waiting if name not in set(best))
        )
