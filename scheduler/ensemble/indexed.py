"""Index per-network values by table row, so that policies need not scan thousands of networks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Column:
    """An array of one value per row of the last table.

    Args:
        look: returns the value of a name.
        kind: type of the values.
    """

    def __init__(self, look: Callable[[str], float], kind: type) -> None:
        self._look = look
        self._kind = kind
        self._row_of: dict[str, int] = {}
        self._table: tuple[str, ...] = ()
        self._values: NDArray[Any] = np.zeros(0, kind)

    def note(self, name: str) -> None:
        """Update the value of a name."""
        row = self._row_of.get(name)
        if row is not None:
            self._values[row] = self._look(name)

    def of(self, table: tuple[str, ...]) -> NDArray[Any]:
        """Return the values of the rows of a table, shape (rows,).

        Args:
            table: the names of its rows. If it is the last table, perhaps with names appended,
                known rows are not looked up again.
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
    """A set of names that also knows which rows of a table it contains.

    Without it, a policy would scan all networks at each epoch's end. Add names by :meth:`add` and
    remove them by :meth:`discard`.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__(names)
        self._column = _Column(lambda name: name not in self, np.bool_)

    def add(self, name: str) -> None:
        """Add a name."""
        super().add(name)
        self._column.note(name)

    def discard(self, name: str) -> None:
        """Remove a name if it is present."""
        super().discard(name)
        self._column.note(name)

    def rows_outside(self, table: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return which rows of a table are not in the set, bool of shape (rows,)."""
        return self._column.of(table)


class IndexedValues(dict[str, float]):
    """A mapping from names to numbers that also returns them by table row."""

    def __init__(self) -> None:
        super().__init__()
        self._column = _Column(lambda name: self.get(name, np.nan), np.float64)

    def __setitem__(self, name: str, value: float) -> None:
        super().__setitem__(name, value)
        self._column.note(name)

    def of(self, table: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the numbers of the rows of a table, float64 (rows,), NaN where missing."""
        return self._column.of(table)


def values_of(table: tuple[str, ...], values: Mapping[str, float]) -> NDArray[np.float64]:
    """Return the numbers of the rows of a table, float64 (rows,), NaN where missing.

    Args:
        table: the names of its rows.
    """
    if isinstance(values, IndexedValues):
        return values.of(table)
    return np.array([values.get(name, np.nan) for name in table], np.float64)


def rows_outside(table: tuple[str, ...], names: AbstractSet[str]) -> NDArray[np.bool_]:
    """Return which rows of a table are not in a set, bool of shape (rows,); may be a view.

    Args:
        table: the names of its rows.
    """
    if isinstance(names, IndexedSet):
        return names.rows_outside(table)
    return np.array([name not in names for name in table], np.bool_)


def iter_ascending(
    values: NDArray[np.float64], few: int, *ties: NDArray[np.int64]
) -> Iterator[int]:
    """Yield the indices of values in ascending order, sorted lazily.

    Args:
        few: number of values that are usually enough.
        ties: keys that break ties, the least important first; the last one is the index.

    >>> list(iter_ascending(np.array([3.0, 1.0, 2.0, 1.0]), 4))
    [1, 3, 2, 0]
    >>> list(iter_ascending(np.array([2.0] * 3), 1, np.array([1, 0, 1])))
    [1, 0, 2]
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
    """Give spare GPUs to the slowest network, repeatedly, while a larger group is possible.

    Args:
        gpus_of: row -> GPUs; changed in place.
        sizes: the allowed group sizes of each network, ascending.
        spare: number of GPUs to give.
        pace: returns the pace of a row with its current GPUs.
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
