"""Thousands of networks: what policies ask at each epoch's end, without going through all of them one by one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Column:
    """What is known of each row of the table that was asked about last.

    Args:
        look: what is known of a name.
        kind: type of that.
    """

    def __init__(self, look: Callable[[str], float], kind: type) -> None:
        self._look = look
        self._kind = kind
        self._row_of: dict[str, int] = {}
        self._table: tuple[str, ...] = ()
        self._values: NDArray[Any] = np.zeros(0, kind)

    def note(self, name: str) -> None:
        """Something else is known of a name."""
        row = self._row_of.get(name)
        if row is not None:
            self._values[row] = self._look(name)

    def of(self, table: tuple[str, ...]) -> NDArray[Any]:
        """What is known of the rows of a table, shape (rows,).

        Args:
            table: the names of its rows. The same names, or those and further ones, are not looked through again.
        """
        start = len(self._table)
        if table is not self._table and table[:start] != self._table:
            start = 0
            self._row_of = {}
        if start < len(table) or start < len(self._values):
            self._row_of.update(zip(table[start:], range(start, len(table)), strict=True))
            more = list(map(self._look, table[start:]))
            self._values = np.append(self._values[:start], np.array(more, self._kind))
        self._table = table
        return self._values


class IndexedSet(set[str]):
    """The networks that get no devices: a set of names that knows which rows of a table are in it.

    A policy would otherwise look at all networks, and pass over all that have finished, at each epoch's end.
    Names come by :meth:`add` and leave by :meth:`discard`.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__(names)
        self._column = _Column(lambda name: name not in self, np.bool_)

    def add(self, name: str) -> None:
        """Put a name in."""
        super().add(name)
        self._column.note(name)

    def discard(self, name: str) -> None:
        """Take a name out, if it is there."""
        super().discard(name)
        self._column.note(name)

    def rows_outside(self, table: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which rows of a table are not in the set, shape (rows,); see :meth:`_Column.of`."""
        return self._column.of(table)


class IndexedValues(dict[str, float]):
    """Numbers of networks, by name, that can be had for the rows of a table as well; they are set one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._column = _Column(lambda name: self.get(name, np.nan), np.float64)

    def __setitem__(self, name: str, value: float) -> None:
        super().__setitem__(name, value)
        self._column.note(name)

    def of(self, table: tuple[str, ...]) -> NDArray[np.float64]:
        """The numbers of the rows of a table, shape (rows,), NaN where there is none; see :meth:`_Column.of`."""
        return self._column.of(table)


def values_of(table: tuple[str, ...], values: Mapping[str, float]) -> NDArray[np.float64]:
    """The numbers of the rows of a table, shape (rows,), NaN where there is none; a view of what goes on changing.

    Args:
        table: the names of its rows.
    """
    if isinstance(values, IndexedValues):
        return values.of(table)
    return np.array([values.get(name, np.nan) for name in table], np.float64)


def rows_outside(table: tuple[str, ...], names: AbstractSet[str]) -> NDArray[np.bool_]:
    """Which rows of a table are not in a set, shape (rows,); a view of what goes on changing.

    Args:
        table: the names of its rows.
    """
    if isinstance(names, IndexedSet):
        return names.rows_outside(table)
    return np.array([name not in names for name in table], np.bool_)


def iter_ascending(
    values: NDArray[np.float64], few: int, *ties: NDArray[np.int64]
) -> Iterator[int]:
    """The places of values in their rising order, worked out as far as they are looked at.

    Args:
        few: as many as that are looked at nearly always.
        ties: what decides where values are equal, what counts least first; in the end it is the place.

    >>> list(iter_ascending(np.array([3.0, 1.0, 2.0, 1.0]), 4)), list(iter_ascending(np.array([2.0] * 3), 1, np.array([1, 0, 1])))
    ([1, 3, 2, 0], [1, 0, 2])
    """
    is_first = values <= (np.partition(values, few)[few] if len(values) > 4 * few else np.inf)
    for places in (np.flatnonzero(is_first), np.flatnonzero(~is_first)):
        for index in places[np.lexsort((*(tie[places] for tie in ties), values[places]))]:
            yield int(index)


def raise_slowest(
    gpus_of: dict[int, int],
    sizes: Mapping[int, NDArray[np.int64]],
    spare: int,
    pace: Callable[[int], float],
) -> None:
    """Give spare GPUs to the network that is slowest, again and again, as long as a larger group can be had.

    Args:
        given: the GPUs of some networks by their rows; raised in place.
        sizes: the group sizes that each may have, rising.
        spare: GPUs that are left.
        pace: of a network with the GPUs that it has now.
    """
    slowest = [(pace(row), row) for row in gpus_of]
    heapq.heapify(slowest)
    while spare > 0 and slowest:
        _, row = heapq.heappop(slowest)
        larger = sizes[row][np.searchsorted(sizes[row], gpus_of[row], side="right") :]
        if not len(larger) or larger[0] - gpus_of[row] > spare:
            continue  # nothing that is left makes it faster
        spare -= int(larger[0]) - gpus_of[row]
        gpus_of[row] = int(larger[0])
        heapq.heappush(slowest, (pace(row), row))
