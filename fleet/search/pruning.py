"""The pruners (pure).

A pruner receives the end of every epoch, in order, and answers. Its state follows from these calls
alone, so repeating them restores it: that is how a resumed run does it.
"""

from __future__ import annotations

import copy
import math
import zlib
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, cast

from fleet.errors import UserError
from fleet.plugins import load_object
from fleet.search.rungs import Bracket, RungDecisions, natural_key
from fleet.search.searcher import Verdict
from fleet.spec.model import one_line
from fleet.spec.search import Prune, find_rule
from preprocess.import_path import import_own
from preprocess.user_code import UserCode, seed_generators


class Pruner:
    """A pruner of one run, which lets every network continue.

    See :class:`fleet.search.rungs.Bracket` for scores.

    Args:
        prune, most_epochs, seed: as in :func:`make_pruner`.
    """

    def __init__(self, prune: Prune, most_epochs: int, seed: int) -> None:
        pass

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """Return the verdict on a network that has ended an epoch.

        Args:
            name: name of the network.
            epochs: its ended epochs.
            score: its best score so far.
            is_done: whether it trains no more.
        """
        return Verdict.GO_ON

    def promotable(self) -> str | None:
        """Return the paused network that should be resumed first; None if none may be now."""
        return None

    def let_go_on(self, name: str) -> None:
        """Record that a paused network was resumed, by this pruner or another decision."""

    def leave(self, name: str) -> None:
        """Record that a network has ended."""

    def settle(self, alive: Collection[str]) -> RungDecisions:
        """Judge networks that wait for no others any more.

        Args:
            alive: networks that have neither ended nor been paused; no others can come.
        """
        return RungDecisions()

    def next_rung(self, name: str, epochs: int) -> int | None:
        """Return the epochs at the next rung of a network; None without rungs."""
        return None

    def expected(self, max_epochs: int) -> float | None:
        """Return the mean epochs of networks, of at most ``max_epochs``; None without rungs."""
        return None


NoPruning = (
    Pruner  # also what a rule of a user's own begins with, which then says what it does otherwise
)


class Median(NoPruning):
    """Prunes networks that are worse than the median of the others at the same epoch.

    Golovin et al., Google Vizier, KDD 2017.

    Args:
        prune: its ``min_epochs``, the epochs that every network may train; ``min_trials``, how many
            must have come as far; and ``synchronous``: whether all wait for each other.
        most_epochs: maximum epochs of a network.
        seed: not used.
    """

    def __init__(self, prune: Prune, most_epochs: int, seed: int) -> None:
        super().__init__(prune, most_epochs, seed)
        self._min_epochs = prune.min_epochs
        self._min_trials = prune.min_trials
        self._in_step = prune.synchronous
        # epochs -> scores after so many, sorted
        self._scores: defaultdict[int, list[float]] = defaultdict(list)
        self._seen: dict[str, int] = {}  # network -> the epochs up to which it was judged
        self._waiting: dict[str, tuple[int, float]] = {}  # network -> epochs and score

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """See :class:`Pruner`."""
        if epochs <= self._seen.get(name, 0):
            return Verdict.GO_ON
        self._seen[name] = epochs
        insort(self._scores[epochs], score)
        if is_done or epochs < self._min_epochs:
            return Verdict.GO_ON
        if self._in_step:
            self._waiting[name] = epochs, score
            return Verdict.PAUSE
        if self._is_bad(epochs, score):
            return Verdict.STOP
        return Verdict.GO_ON

    def _is_bad(self, epochs: int, score: float) -> bool:
        scores = self._scores[epochs]
        return len(scores) > self._min_trials and score < _median_of_others(
            scores, bisect_left(scores, score)
        )

    def let_go_on(self, name: str) -> None:
        """See :class:`Pruner`."""
        self._waiting.pop(name, None)

    leave = let_go_on

    def settle(self, alive: Collection[str]) -> RungDecisions:
        """See :class:`Pruner`."""
        if alive or not self._waiting:
            return RungDecisions()
        lowest = min(epochs for epochs, _ in self._waiting.values())
        names = sorted(
            (name for name, (epochs, _) in self._waiting.items() if epochs == lowest),
            key=natural_key,
        )
        bad = {name for name in names if self._is_bad(*self._waiting[name])}
        return RungDecisions(
            tuple(name for name in names if name not in bad),
            tuple(name for name in names if name in bad),
        )


def _median_of_others(scores: Sequence[float], excluded: int) -> float:
    """Return the median of sorted numbers without one of them, of at least two.

    >>> _median_of_others([1.0, 2.0, 5.0, 9.0], 0), _median_of_others([1.0, 2.0, 5.0], 1)
    (5.0, 3.0)
    """

    def score_at(index: int) -> float:
        return scores[index + (index >= excluded)]

    count = len(scores) - 1
    low = score_at((count - 1) // 2)
    high = score_at(count // 2)
    # infinite ones have no mean
    if low == high:
        return low
    return (low + high) / 2


class Halving(Pruner):
    """Successive halving in one bracket or several.

    Args:
        brackets: each with its share of the networks.
        seed: the seed with which a network's bracket is drawn, by its name.
    """

    def __init__(self, brackets: Sequence[tuple[Bracket, int]], seed: int) -> None:
        self._brackets = tuple(brackets)
        self._seed = seed

    def _bracket(self, name: str) -> Bracket:
        if len(self._brackets) == 1:
            return self._brackets[0][0]
        offset = zlib.crc32(f"{self._seed}/{name}".encode()) % sum(
            share for _, share in self._brackets
        )
        for bracket, share in self._brackets:
            if offset < share:
                return bracket
            offset -= share
        raise AssertionError("the shares add up to their sum")

    def add(self, name: str, epochs: int, score: float, is_done: bool = False) -> Verdict:
        """See :class:`Pruner`."""
        return self._bracket(name).add(name, epochs, score, is_done)

    def promotable(self) -> str | None:
        """See :class:`Pruner`."""
        candidates = [
            first for bracket, _ in self._brackets if (first := bracket.promotable()) is not None
        ]
        if candidates:
            return max(candidates, key=lambda first: first[0])[1]
        return None

    def let_go_on(self, name: str) -> None:
        """See :class:`Pruner`."""
        self._bracket(name).let_go_on(name)

    def leave(self, name: str) -> None:
        """See :class:`Pruner`."""
        self._bracket(name).leave(name)

    def settle(self, alive: Collection[str]) -> RungDecisions:
        """See :class:`Pruner`."""
        busy: set[int] = set()
        for name in alive:
            busy.add(id(self._bracket(name)))
            if len(busy) == len(self._brackets):
                return RungDecisions()
        decisions = [bracket.settle() for bracket, _ in self._brackets if id(bracket) not in busy]
        return RungDecisions(
            tuple(name for decision in decisions for name in decision.go_on),
            tuple(name for decision in decisions for name in decision.stop),
        )

    def next_rung(self, name: str, epochs: int) -> int | None:
        """See :class:`Pruner`."""
        return self._bracket(name).next_rung(epochs)

    def expected(self, max_epochs: int) -> float | None:
        """See :class:`Pruner`."""
        shares = sum(share for _, share in self._brackets)
        return (
            sum(share * bracket.expected(max_epochs) for bracket, share in self._brackets) / shares
        )


# ---- constructors of rules ---------------------------------------------------------------------


def make_asha(prune: Prune, most_epochs: int, seed: int) -> Halving:
    """Return the pruner of the rule ``asha``."""
    return Halving([(_bracket(prune, prune.min_epochs), 1)], seed)


def make_hyperband(prune: Prune, most_epochs: int, seed: int) -> Halving:
    """Return brackets that begin at ``min_epochs * factor**s``, weighted as in Hyperband.

    Li et al., Hyperband, JMLR 18 (2018), algorithm 1, which counts brackets in reverse.
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


def _bracket(prune: Prune, min_epochs: int) -> Bracket:
    return Bracket(min_epochs, prune.factor, prune.on_fail == "pause", prune.synchronous)


# ---- rules of users ----------------------------------------------------------------------------


class _CheckedPruner:
    """A user-defined pruner whose answers are validated."""

    def __init__(self, name: str, pruner: Pruner, code: UserCode) -> None:
        self._name = name
        self._pruner = pruner
        self._code = code
        self._waiting: set[str] = set()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, method)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            with self._code.running():
                answer = getattr(self._pruner, method)(*arguments)
        except Exception as error:  # the user's class may raise anything
            raise UserError(
                f"the rule {self._name} failed in {method}: {one_line(error)}"
            ) from error
        match method:
            case "add":
                if answer not in list(Verdict):
                    raise UserError(
                        f"the rule {self._name} answered {answer!r} to an epoch of "
                        f"{arguments[0]}; it should be a Verdict"
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
                unknown = [name for name in named if name not in self._waiting]
                if unknown:
                    raise UserError(
                        f"the rule {self._name} decides on {unknown[0]!r}, which it has not paused"
                    )
        return answer


def make_pruner(prune: Prune, most_epochs: int, seed: int) -> Pruner:
    """Return a pruner in its initial state.

    Args:
        prune: settings of the spec.
        most_epochs: maximum epochs of a network; it decides the number of brackets of
            ``hyperband``.
        seed: seed of its random choices.

    Raises:
        UserError: a user-defined pruner cannot be constructed, or lacks a method.
    """
    rule = find_rule(prune.rule)
    if isinstance(rule.make, str) and rule.make.startswith("."):
        built_in: Pruner = import_own(rule.make, "fleet.search")(prune, most_epochs, seed)
        return built_in
    code = UserCode()
    with code.running():
        seed_generators(seed)
        if isinstance(rule.make, str):
            make = load_object(rule.make, "rule")
        else:
            make = rule.make
        try:
            pruner = make(prune, most_epochs, seed, **copy.deepcopy(dict(prune.options)))
        except Exception as error:  # the user's class may raise anything
            raise UserError(
                f"the rule {prune.rule} cannot be constructed with (prune, most_epochs, seed"
                f"{', **options' if prune.options else ''}): {one_line(error)}"
            ) from error
    missing = [method for method in _METHODS if not callable(getattr(pruner, method, None))]
    if missing:
        raise UserError(
            f"the rule {prune.rule} has no method {', '.join(missing)}; "
            "see fleet.search.pruning.Pruner"
        )
    return cast(Pruner, _CheckedPruner(prune.rule, pruner, code))


_METHODS = ("add", "promotable", "let_go_on", "leave", "settle", "next_rung", "expected")
