"""Successive halving: who goes on from one rung to the next (pure).

A rung is a number of epochs, ``least * factor**k``. Of the networks that have come there only the best 1/``factor`` go
on. :class:`Bracket` is that rule asynchronously, as ASHA has it (Li et al., A System for Massively Parallel
Hyperparameter Tuning, arXiv:1810.05934): with pruning, or with promotion (its algorithm 2); and in step, as the
original (Jamieson and Talwalkar, AISTATS 2016), where nobody is judged before all have come.

A score is a value of which more is better; minus infinity stands for one that is no number, and is never among the
best.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.search.searcher import Verdict


def natural(name: str) -> tuple[str | int, ...]:
    """The key by which names are sorted so that net-9 is before net-10.

    >>> sorted(["net-10", "net-9"], key=natural)
    ['net-9', 'net-10']
    """
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


class RungDecisions(NamedTuple):
    """What becomes of networks that have waited until nothing else could be done."""

    go_on: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


class _Place(NamedTuple):
    """Where a network stands in a rung: places are sorted with the best first."""

    worse: float  # minus its score
    key: tuple[str | int, ...]
    name: str


@dataclass
class Rung:
    """Those that have come to so many epochs.

    Attributes:
        gone_on: how many have been let go on from here, or were done here.
    """

    epochs: int
    gone_on: int = 0
    _all: list[_Place] = field(default_factory=list)
    _waiting: list[_Place] = field(default_factory=list)
    _place: dict[str, _Place] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self._place

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, name: str, score: float) -> None:
        """A network has come here."""
        self._place[name] = place = _Place(-score, natural(name), name)
        insort(self._all, place)

    def wait(self, name: str) -> None:
        """It is paused here."""
        insort(self._waiting, self._place[name])

    def release(self, name: str) -> bool:
        """It waits no longer; returns whether it did."""
        place = self._place.get(name)
        if place is None:
            at = len(self._waiting)
        else:
            at = bisect_left(self._waiting, place)
        if at == len(self._waiting) or self._waiting[at] != place:
            return False
        del self._waiting[at]
        return True

    @property
    def waiting(self) -> list[str]:
        """Those that are paused here, the best first."""
        return [place.name for place in self._waiting]

    @property
    def best_waiting(self) -> str | None:
        """The best of those that are paused here."""
        if self._waiting:
            return self._waiting[0].name
        return None

    def is_among(self, name: str, most: int) -> bool:
        """Whether a network is one of the best so many; equal ones count in order of their names."""
        place = self._place[name]
        return place.worse < math.inf and bisect_left(self._all, place) < most

    def is_level_with(self, name: str, most: int) -> bool:
        """The same, where equal ones count as one."""
        worse = self._place[name].worse
        return worse < math.inf and bisect_left(self._all, (worse,)) < most


class Bracket:
    """Successive halving of some networks.

    Args:
        least: epochs of the first rung.
        factor: one in so many goes on.
        pauses: whether those that are not among the best wait; otherwise they are pruned.
        in_step: whether nobody is judged before all have come; then all wait.
    """

    def __init__(self, least: int, factor: int, pauses: bool, in_step: bool) -> None:
        self._least = least
        self._factor = factor
        self._pauses = pauses
        self._in_step = in_step
        self._rungs: dict[int, Rung] = {}

    def next_rung(self, epochs: int) -> int:
        """The first rung beyond so many epochs.

        >>> [Bracket(2, 3, True, False).next_rung(epochs) for epochs in (0, 1, 2, 6)]
        [2, 2, 6, 18]
        """
        rung = self._least
        while rung <= epochs:
            rung *= self._factor
        return rung

    def expected(self, most: int) -> float:
        """How many epochs a network trains on average that may train so many, if one in ``factor`` leaves each rung.

        >>> Bracket(1, 2, True, False).expected(8)  # 1 epoch, 1 more of a half, 2 of a quarter, 4 of an eighth
        2.5
        """
        total = 0.0
        share = 1.0
        at = 0
        while (rung := self.next_rung(at)) < most:
            total = total + share * (rung - at)
            share = share / self._factor
            at = rung
        return total + share * (most - at)

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """A network has ended an epoch.

        Args:
            epochs: that it has ended.
            score: its best one so far.
            is_done: whether there is nothing left to train.
        """
        if self.next_rung(epochs - 1) != epochs:
            return Verdict.GO_ON
        rung = self._rungs.setdefault(epochs, Rung(epochs))
        if name in rung:  # it came here before, and has fallen back since
            return Verdict.GO_ON
        rung.enter(name, score)
        if is_done or (not self._in_step and self._goes_on(rung, name)):
            rung.gone_on += 1
            return Verdict.GO_ON
        if not (self._pauses or self._in_step):
            return Verdict.STOP
        rung.wait(name)
        return Verdict.PAUSE

    def _goes_on(self, rung: Rung, name: str) -> bool:
        if self._pauses:
            return rung.is_among(name, len(rung) // self._factor)
        return rung.is_level_with(name, max(1, len(rung) // self._factor))

    def promotable(self) -> tuple[int, str] | None:
        """The epochs and the name of the paused network that should go on first; None where none may."""
        if self._in_step:
            return None
        for epochs in sorted(self._rungs, reverse=True):
            rung = self._rungs[epochs]
            name = rung.best_waiting
            if name is not None and self._goes_on(rung, name):
                return epochs, name
        return None

    def let_go_on(self, name: str) -> None:
        """A paused network goes on."""
        for rung in self._rungs.values():
            rung.gone_on += rung.release(name)

    def leave(self, name: str) -> None:
        """A network is over: it waits for nothing any more, and what it came to still counts."""
        for rung in self._rungs.values():
            rung.release(name)

    def settle(self) -> RungDecisions:
        """Judge those that wait, now that nobody else can come.

        In step that is the rule itself. Otherwise the best of the highest rung goes on if nobody has from there, so
        that some network is trained to its end; or else all that wait are pruned.
        """
        held = [
            self._rungs[epochs]
            for epochs in sorted(self._rungs)
            if self._rungs[epochs].best_waiting
        ]
        if not held:
            return RungDecisions()
        if self._in_step:
            return self._settle_in_step(held[0])
        best = held[-1].best_waiting
        if best is not None and not held[-1].gone_on and held[-1].is_among(best, 1):
            return RungDecisions(go_on=(best,))
        return RungDecisions(stop=tuple(name for rung in held for name in rung.waiting))

    def _settle_in_step(self, rung: Rung) -> RungDecisions:
        most = max(1, len(rung) // self._factor)
        best = [name for name in rung.waiting if rung.is_among(name, most)]
        return RungDecisions(
            tuple(best), tuple(name for name in rung.waiting if name not in set(best))
        )
