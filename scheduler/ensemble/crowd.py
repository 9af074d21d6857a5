"""Thousands of networks: what policies ask at each epoch's end, without going through all of them one by one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray


class _Rows:
    """The rows of the table that was asked about last.

    Attributes:
        of: name -> row.
    """

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self._table: tuple[str, ...] = ()

    def follow(self, table: tuple[str, ...]) -> int:
        """Take another table.

        Returns:
            How many of its first rows are those of the last one, if they are all of them; otherwise 0.
        """
        known = len(self._table)
        if table is not self._table and table[:known] != self._table:
            known, self.of = 0, {}
        self.of.update(zip(table[known:], range(known, len(table)), strict=True))
        self._table = table
        return known


class Gone(set[str]):
    """The networks that get no devices: a set of names that knows which rows of a table are in it.

    A policy would otherwise look at all networks, and pass over all that have finished, at each epoch's end.
    Names come by :meth:`add` and leave by :meth:`discard`.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__(names)
        self._rows = _Rows()
        self._left = np.zeros(0, np.bool_)  # of these rows, which are not in the set

    def add(self, name: str) -> None:
        """Put a name in."""
        super().add(name)
        if (row := self._rows.of.get(name)) is not None:
            self._left[row] = False

    def discard(self, name: str) -> None:
        """Take a name out, if it is there."""
        if name in self:
            super().discard(name)
            if (row := self._rows.of.get(name)) is not None:
                self._left[row] = True

    def left(self, table: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which rows of a table are not in the set, shape (rows,).

        Args:
            table: the names of its rows. The same names, or those and further ones, are not looked through again.
        """
        if (known := self._rows.follow(table)) != len(table) or known != len(self._left):
            more = np.array([name not in self for name in table[known:]], np.bool_)
            self._left = np.concatenate([self._left[:known], more])
        return self._left


class Values(dict[str, float]):
    """Numbers of networks, by name, that can be had for the rows of a table as well; they are set one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._rows = _Rows()
        self._of_rows = np.zeros(0)

    def __setitem__(self, name: str, value: float) -> None:
        super().__setitem__(name, value)
        if (row := self._rows.of.get(name)) is not None:
            self._of_rows[row] = value

    def of(self, table: tuple[str, ...]) -> NDArray[np.float64]:
        """The numbers of the rows of a table, shape (rows,); NaN where there is none.

        Args:
            table: the names of its rows; see :meth:`Gone.left`.
        """
        if (known := self._rows.follow(table)) != len(table) or known != len(self._of_rows):
            self._of_rows = np.concatenate([self._of_rows[:known], _looked_up(self, table[known:])])
        return self._of_rows


def values_of(table: tuple[str, ...], values: Mapping[str, float]) -> NDArray[np.float64]:
    """The numbers of the rows of a table, shape (rows,), NaN where there is none; a view of what goes on changing.

    Args:
        table: the names of its rows.
    """
    return values.of(table) if isinstance(values, Values) else _looked_up(values, table)


def _looked_up(values: Mapping[str, float], names: tuple[str, ...]) -> NDArray[np.float64]:
    return np.array([values.get(name, np.nan) for name in names], dtype=np.float64)


def left(table: tuple[str, ...], gone: AbstractSet[str]) -> NDArray[np.bool_]:
    """Which rows of a table are not in a set, shape (rows,); a view of what goes on changing.

    Args:
        table: the names of its rows.
    """
    return gone.left(table) if isinstance(gone, Gone) else np.array([name not in gone for name in table], np.bool_)


def rising(values: NDArray[np.float64], few: int, *ties: NDArray[np.int64]) -> Iterator[int]:
    """The places of values in their rising order, worked out as far as they are looked at.

    Args:
        few: as many as that are looked at nearly always.
        ties: what decides where values are equal, what counts least first; in the end it is the place.

    >>> list(rising(np.array([3.0, 1.0, 2.0, 1.0]), 4)), list(rising(np.array([2.0] * 3), 1, np.array([1, 0, 1])))
    ([1, 3, 2, 0], [1, 0, 2])
    """
    is_first = values <= (np.partition(values, few)[few] if len(values) > 4 * few else np.inf)
    for places in (np.flatnonzero(is_first), np.flatnonzero(~is_first)):
        for place in places[np.lexsort((*(tie[places] for tie in ties), values[places]))]:
            yield int(place)


def raise_slowest(given: dict[int, int], sizes: Mapping[int, NDArray[np.int64]], spare: int,
                  pace: Callable[[int], float]) -> None:
    """Give spare GPUs to the network that is slowest, again and again, as long as a larger group can be had.

    Args:
        given: the GPUs of some networks by their rows; raised in place.
        sizes: the group sizes that each may have, rising.
        spare: GPUs that are left.
        pace: of a network with the GPUs that it has now.
    """
    slowest = [(pace(row), row) for row in given]
    heapq.heapify(slowest)
    while spare > 0 and slowest:
        _, row = heapq.heappop(slowest)
        larger = sizes[row][np.searchsorted(sizes[row], given[row], side="right"):]
        if not len(larger) or larger[0] - given[row] > spare:
            continue  # nothing that is left makes it faster
        spare -= int(larger[0]) - given[row]
        given[row] = int(larger[0])
        heapq.heappush(slowest, (pace(row), row))
