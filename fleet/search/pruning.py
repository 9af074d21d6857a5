"""The rules by which networks are paused and dropped (pure).

A rule is told of every epoch's end, in the order in which epochs end, and answers. It keeps nothing but what it was
told, so one that is told the same again is as far as the first was: that is how a run that goes on comes by it.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

from fleet.errors import UserError
from fleet.plugins import load_object
from fleet.search.rungs import Bracket, RungDecisions, natural
from fleet.search.searcher import Verdict
from fleet.spec.model import one_line
from fleet.spec.search import Prune, find_rule
from preprocess.user_code import UserCode, seed_generators


class Pruner:
    """A rule at work in one run, which lets every network go on; see :class:`fleet.search.rungs.Bracket` for scores.

    Args:
        prune, most_epochs, seed: as :func:`make_pruner` has them.
    """

    def __init__(self, prune: Prune, most_epochs: int, seed: int) -> None:
        pass

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """A network has ended so many epochs, with this score as its best so far; ``is_done``: it trains no more."""
        return Verdict.GO_ON

    def promotable(self) -> str | None:
        """The paused network that should go on first; None where none may now."""
        return None

    def let_go_on(self, name: str) -> None:
        """A paused network goes on, by this rule's wish or another's."""

    def leave(self, name: str) -> None:
        """A network is over."""

    def settle(self, alive: Collection[str]) -> RungDecisions:
        """Judge those that wait for nobody any more.

        Args:
            alive: the networks that are neither over nor paused; no other can come.
        """
        return RungDecisions()

    def next_rung(self, name: str, epochs: int) -> int | None:
        """The epochs after which a network that has ended so many is judged next; None where there are no rungs."""
        return None

    def expected(self, most: int) -> float | None:
        """How many epochs a network trains on average that may train so many; None where there are no rungs."""
        return None


NoPruning = (
    Pruner  # also what a rule of a user's own begins with, which then says what it does otherwise
)


class Median(NoPruning):
    """Prunes what is worse than the median of the others at the same epoch (Golovin et al., Google Vizier, KDD 2017).

    Args:
        prune: its ``min_epochs``, the epochs that every network may train; ``min_trials``, how many must have come as far; and
            ``synchronous``: with it nobody is judged before all have come as far.
    """

    def __init__(self, prune: Prune, most_epochs: int, seed: int) -> None:
        super().__init__(prune, most_epochs, seed)
        self._least = prune.min_epochs
        self._others = prune.min_trials
        self._in_step = prune.synchronous
        self._scores: defaultdict[int, list[float]] = defaultdict(
            list
        )  # after so many epochs, sorted
        self._seen: dict[str, int] = {}  # network -> the epochs up to which it was judged
        self._waiting: dict[str, tuple[int, float]] = {}  # network -> epochs and score

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """See :class:`Judge`."""
        if epochs <= self._seen.get(name, 0):
            return Verdict.GO_ON
        self._seen[name] = epochs
        insort(self._scores[epochs], score)
        if is_done or epochs < self._least:
            return Verdict.GO_ON
        if self._in_step:
            self._waiting[name] = epochs, score
            return Verdict.PAUSE
        if self._is_bad(epochs, score):
            return Verdict.STOP
        return Verdict.GO_ON

    def _is_bad(self, epochs: int, score: float) -> bool:
        scores = self._scores[epochs]
        return len(scores) > self._others and score < _median_of_others(
            scores, bisect_left(scores, score)
        )

    def let_go_on(self, name: str) -> None:
        """See :class:`Judge`."""
        self._waiting.pop(name, None)

    leave = let_go_on

    def settle(self, alive: Collection[str]) -> RungDecisions:
        """See :class:`Judge`."""
        if alive or not self._waiting:
            return RungDecisions()
        lowest = min(epochs for epochs, _ in self._waiting.values())
        names = sorted(
            (name for name, (epochs, _) in self._waiting.items() if epochs == lowest), key=natural
        )
        bad = {name for name in names if self._is_bad(*self._waiting[name])}
        return RungDecisions(
            tuple(name for name in names if name not in bad),
            tuple(name for name in names if name in bad),
        )


def _median_of_others(scores: Sequence[float], own: int) -> float:
    """The median of sorted numbers without one of them, of at least two.

    >>> _median_of_others([1.0, 2.0, 5.0, 9.0], own=0), _median_of_others([1.0, 2.0, 5.0], own=1)
    (5.0, 3.0)
    """

    def other(place: int) -> float:
        return scores[place + (place >= own)]

    count = len(scores) - 1
    low = other((count - 1) // 2)
    high = other(count // 2)
    # infinite ones have no mean
    if low == high:
        return low
    return (low + high) / 2


class Halving(Pruner):
    """Successive halving in one bracket or several.

    Args:
        brackets: each with its share of the networks.
        seed: of the draw of a network's bracket, by its name.
    """

    def __init__(self, brackets: Sequence[tuple[Bracket, int]], seed: int) -> None:
        self._brackets = tuple(brackets)
        self._seed = seed

    def _bracket(self, name: str) -> Bracket:
        if len(self._brackets) == 1:
            return self._brackets[0][0]
        place = zlib.crc32(f"{self._seed}/{name}".encode()) % sum(
            share for _, share in self._brackets
        )
        for bracket, share in self._brackets:
            if place < share:
                return bracket
            place -= share
        raise AssertionError("the shares add up to their sum")

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """See :class:`Judge`."""
        return self._bracket(name).add(name, epochs, score, is_done)

    def promotable(self) -> str | None:
        """See :class:`Judge`."""
        found = [
            first for bracket, _ in self._brackets if (first := bracket.promotable()) is not None
        ]
        if found:
            return max(found, key=lambda first: first[0])[1]
        return None

    def let_go_on(self, name: str) -> None:
        """See :class:`Judge`."""
        self._bracket(name).let_go_on(name)

    def leave(self, name: str) -> None:
        """See :class:`Judge`."""
        self._bracket(name).leave(name)

    def settle(self, alive: Collection[str]) -> RungDecisions:
        """See :class:`Judge`."""
        busy: set[int] = set()
        for name in alive:
            busy.add(id(self._bracket(name)))
            if len(busy) == len(self._brackets):
                return RungDecisions()
        found = [bracket.settle() for bracket, _ in self._brackets if id(bracket) not in busy]
        return RungDecisions(
            tuple(name for one in found for name in one.go_on),
            tuple(name for one in found for name in one.stop),
        )

    def next_rung(self, name: str, epochs: int) -> int | None:
        """See :class:`Judge`."""
        return self._bracket(name).next_rung(epochs)

    def expected(self, most: int) -> float | None:
        """See :class:`Judge`."""
        shares = sum(share for _, share in self._brackets)
        return sum(share * bracket.expected(most) for bracket, share in self._brackets) / shares


# ---- what the rows of rules name ---------------------------------------------------------------


def make_asha(prune: Prune, most_epochs: int, seed: int) -> Halving:
    """The rule ``asha``."""
    return Halving([(_bracket(prune, prune.min_epochs), 1)], seed)


def make_hyperband(prune: Prune, most_epochs: int, seed: int) -> Halving:
    """Brackets s = 0, 1, ... that begin at ``least * factor**s``, with as many networks as Hyperband gives each.

    Li et al., Hyperband, JMLR 18 (2018), algorithm 1, in which they are counted the other way round.
    """
    last = int(math.log(max(1.0, most_epochs / prune.min_epochs), prune.factor) + 1e-9)
    return Halving(
        [
            (
                _bracket(prune, prune.min_epochs * prune.factor**s),
                math.ceil((last + 1) / (last - s + 1) * prune.factor ** (last - s)),
            )
            for s in range(last + 1)
        ],
        seed,
    )


def _bracket(prune: Prune, least: int) -> Bracket:
    return Bracket(least, prune.factor, prune.on_fail == "pause", prune.synchronous)


# ---- rules of users ----------------------------------------------------------------------------


class _LookedAt:
    """A rule of a user's own, whose answers are looked at before they are carried out."""

    def __init__(self, name: str, judge: Pruner, code: UserCode) -> None:
        self._name = name
        self._judge = judge
        self._code = code
        self._waiting: set[str] = set()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._asked, method)

    def _asked(self, method: str, *arguments: Any) -> Any:
        try:
            with self._code.running():
                answer = getattr(self._judge, method)(*arguments)
        except Exception as error:  # the user's class may raise anything
            raise UserError(
                f"the rule {self._name} failed in {method}: {one_line(error)}"
            ) from error
        match method:
            case "add":
                if answer not in list(Verdict):
                    raise UserError(
                        f"the rule {self._name} answered {answer!r} to an epoch of {arguments[0]}; it "
                        "should be a Verdict"
                    )
                answer = Verdict(answer)
                self._waiting |= {arguments[0]} if answer is Verdict.PAUSE else set()
            case "let_go_on" | "leave":
                self._waiting.discard(arguments[0])
            case "promotable" | "settle":
                if answer is None:
                    named: tuple[Any, ...] = ()
                elif method == "promotable":
                    named = (answer,)
                else:
                    named = (*answer[0], *answer[1])
                others = [name for name in named if name not in self._waiting]
                if others:
                    raise UserError(
                        f"the rule {self._name} decides on {others[0]!r}, which it has not paused"
                    )
        return answer


def make_pruner(prune: Prune, most_epochs: int, seed: int) -> Pruner:
    """A rule at its beginning.

    Args:
        prune: of the spec.
        most_epochs: that a network may train; it decides how many brackets ``hyperband`` has.
        seed: of what is drawn.

    Raises:
        UserError: one of the user's own cannot be made, or lacks a method.
    """
    rule = find_rule(prune.rule)
    if isinstance(rule.make, str) and rule.make.startswith("."):
        module, _, name = rule.make.partition(":")
        ours: Pruner = getattr(import_module(module, "fleet.search"), name)(
            prune, most_epochs, seed
        )
        return ours
    code = UserCode()
    with code.running():
        seed_generators(seed)
        if isinstance(rule.make, str):
            make = load_object(rule.make, "rule")
        else:
            make = rule.make
        try:
            judge = make(prune, most_epochs, seed)
        except Exception as error:  # the user's class may raise anything
            raise UserError(
                f"the rule {prune.rule} cannot be made of (prune, most_epochs, seed): {one_line(error)}"
            ) from error
    lacks = [method for method in _METHODS if not callable(getattr(judge, method, None))]
    if lacks:
        raise UserError(
            f"the rule {prune.rule} has no method {', '.join(lacks)}; see fleet.search.pruning.Pruner"
        )
    return cast(Pruner, _LookedAt(prune.rule, judge, code))


_METHODS = ("add", "promotable", "let_go_on", "leave", "settle", "next_rung", "expected")
