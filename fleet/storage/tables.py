"""Tables of a run's results for other tools: a list of rows, which pandas takes as a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fleet.errors import UserError

if TYPE_CHECKING:
    import pandas


class Row(Protocol):
    """A row of a table."""

    def cells(self) -> dict[str, Any]:
        """What it has in which column."""


R = TypeVar("R", bound=Row)


class Table(list[R]):
    """Rows in their order."""

    def columns(self) -> dict[str, list[Any]]:
        """Column -> the value of each row; None where a row has none."""
        cells = [row.cells() for row in self]
        return {name: [each.get(name) for each in cells] for name in dict.fromkeys(name for each in cells
                                                                                   for name in each)}

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a data frame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas() needs pandas: pip install 'fleet-ensemble[pandas]'") from None
        return pandas.DataFrame(self.columns())


def apart(given: Mapping[str, Any], taken: Sequence[str], prefix: str) -> dict[str, Any]:
    """Columns that users have named, with a prefix where a column has that name already.

    >>> apart({"width": 8, "epochs": 3}, ["name", "epochs"], "drawn")
    {'width': 8, 'drawn.epochs': 3}
    """
    return {f"{prefix}.{name}" if name in taken else name: value for name, value in given.items()}
