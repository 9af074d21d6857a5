"""The last inputs and effects, for reports of protocol violations (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleet.control.effects import AskPolicy, Effect, Input
from fleet.errors import InfrastructureError

_REMEMBERED = 10_000  # of the last moments
_SHOWN = 20  # of them, in the message of an error


@dataclass(frozen=True)
class HistoryEntry:
    """An input, or None for a clock tick, and its effects."""

    now_s: float
    message: Input | None
    effects: tuple[Effect, ...]


class InvalidTransition(Exception):
    """An input is impossible in the current state; the message says why."""


class ProtocolViolation(InfrastructureError):
    """An input is impossible after all inputs before it: a bug in the program.

    Attributes:
        problem: what is impossible.
        history: the last entries; the input is in the last one. If they go back to the beginning, a
            controller that gets them again raises the same error.
    """

    def __init__(self, problem: str, history: Iterable[HistoryEntry]) -> None:
        self.problem = problem
        self.history = tuple(history)
        lines = "\n".join(_lines(self.history[-_SHOWN:]))
        super().__init__(f"{problem}\nThe last inputs and effects:\n{lines}")

    def report(self) -> str:
        """Return the whole history with Python values, a line per input and effect."""
        return "\n".join(_lines(self.history))


def _lines(moments: Iterable[HistoryEntry]) -> Iterator[str]:
    for moment in moments:
        yield f"{moment.now_s:.6f} s: {moment.message!r}"
        yield from (f"    {effect!r}" for effect in moment.effects)


class History:
    """The last inputs and effects."""

    def __init__(self) -> None:
        self._moments: deque[HistoryEntry] = deque(maxlen=_REMEMBERED)

    def add(self, now_s: float, message: Input | None, effects: Iterable[Effect]) -> None:
        """Add an input and its effects; questions for the policy, which are large, are left out."""
        small = tuple(effect for effect in effects if not isinstance(effect, AskPolicy))
        self._moments.append(HistoryEntry(now_s, message, small))

    def make_error(self, problem: str) -> ProtocolViolation:
        """Return the error to raise for an impossible input."""
        return ProtocolViolation(problem, self._moments)
