"""Which preprocessor produces which chunk of a stream."""

from __future__ import annotations

from collections.abc import Sequence


class Turns:
    """Ranks that take turns, from some chunk on; others may do so from a later one on.

    >>> turns = Turns(0, (0, 1, 2))
    >>> turns.change(5, (1, 2))
    True
    >>> [turns.rank_of(sequence) for sequence in range(8)]
    [0, 1, 2, 0, 1, 2, 1, 2]
    >>> turns.next_of(0, 1), turns.next_of(0, 4)
    (3, None)
    """

    def __init__(self, first: int, ranks: Sequence[int]) -> None:
        self.first = first
        self._parts = [(first, tuple(ranks))]

    def change(self, since: int, ranks: Sequence[int]) -> bool:
        """From a chunk on that nobody has begun, others take turns; returns whether they did not before."""
        if self._parts[-1][1] == tuple(ranks):
            return False
        self._parts.append((since, tuple(ranks)))
        return True

    def rank_of(self, sequence: int) -> int:
        """Who produces a chunk."""
        ranks = next(ranks for since, ranks in reversed(self._parts) if since <= max(sequence, self.first))
        return ranks[sequence % len(ranks)]

    def next_of(self, rank: int, sequence: int) -> int | None:
        """The first chunk from this one on that a rank is to produce; None where there is none as far as is known."""
        since, ranks = self._parts[-1]
        until = max(sequence, since) + len(ranks)
        return next((number for number in range(sequence, until) if self.rank_of(number) == rank), None)
