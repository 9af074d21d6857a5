"""Write tables as HTML for the cells of notebooks, which style them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any

MAX_ROWS = 60


def notebook_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """Return a table as HTML, without columns that are empty; of a long one the first rows.

    >>> notebook_table(["name", "loss", "why"], [["a<b", 0.12345678, None]])
    '<table><thead><tr><th>name</th><th>loss</th></tr></thead><tbody><tr><td>a&lt;b</td><td>0.1235</td></tr></tbody></table>'
    """
    cells = [list(map(_cell, row)) for row in rows[:MAX_ROWS]]
    columns = [
        column for column in range(len(headers)) if not cells or any(row[column] for row in cells)
    ]

    def line(tag: str, row: Sequence[str]) -> str:
        inner = "".join(f"<{tag}>{escape(row[column])}</{tag}>" for column in columns)
        return f"<tr>{inner}</tr>"

    notes = [caption] if caption else []
    if len(rows) > MAX_ROWS:
        notes.append(f"the first {MAX_ROWS} of {len(rows)} rows")
    return "".join(
        [
            "<table>",
            f"<caption>{escape('; '.join(notes))}</caption>" if notes else "",
            f"<thead>{line('th', headers)}</thead>",
            f"<tbody>{''.join(line('td', row) for row in cells)}</tbody>",
            "</table>",
        ]
    )


def _cell(value: Any) -> str:
    """Format a value; one that is missing is empty."""
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    return str(value)
