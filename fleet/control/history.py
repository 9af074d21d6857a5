"""What was heard and what was done about it, for the report of something that cannot be (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleet.control.effects import Effect, Heard
from fleet.errors import InfrastructureError

_REMEMBERED = 10_000  # of the last moments
_SHOWN = 20  # of them, in the message of an error


@dataclass(frozen=True)
class Moment:
    """Something that was heard, or None where only time has passed, and what was to be done about it."""

    now_s: float
    heard: Heard | None
    effects: tuple[Effect, ...]


class InvalidTransition(Exception):
    """Something cannot be, as things stand; the message says what."""


class ProtocolViolation(InfrastructureError):
    """Something was heard that cannot be, by all that was heard before: a mistake in the program.

    Attributes:
        history: the last moments; what cannot be is in the last of them. As long as they go back to the beginning, an
            ensemble that hears them once more comes to the same error.
    """

    def __init__(self, what: str, history: Iterable[Moment]) -> None:
        self.what = what
        self.history = tuple(history)
        shown = "\n".join(_lines(self.history[-_SHOWN:]))
        super().__init__(
            f"{what}\nThis is what was heard before, and what was done about it:\n{shown}"
        )

    def report(self) -> str:
        """The whole history, a line for each moment and each effect, with values as Python writes them."""
        return "\n".join(_lines(self.history))


def _lines(moments: Iterable[Moment]) -> Iterator[str]:
    for moment in moments:
        yield f"{moment.now_s:.6f} s: {moment.heard!r}"
        yield from (f"    {effect!r}" for effect in moment.effects)


class History:
    """The last moments."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=_REMEMBERED)

    def add(self, now_s: float, heard: Heard | None, effects: Iterable[Effect]) -> None:
        """Remember a moment."""
        self._moments.append(Moment(now_s, heard, tuple(effects)))

    def error(self, what: str) -> ProtocolViolation:
        """What to raise where something cannot be."""
        return ProtocolViolation(what, self._moments)
