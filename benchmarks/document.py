"""Share Markdown tables, figures and placeholders between the scripts that write pages of docs/."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def table(headers: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Format a table in Markdown; columns of numbers are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [
        all(re.fullmatch(r"[-+<>~x() .,\d%]*", row[column]) for row in cells)
        for column in range(len(headers))
    ]
    rule = ["---:" if is_numeric else "---" for is_numeric in numeric]
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in [list(map(str, headers)), rule, *cells]
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def fill(text: str, blocks: Mapping[str, Callable[[], str]], only: Sequence[str] = ()) -> str:
    """Replace the content of the marked places by measured blocks; all of them, or only some."""

    def measure(match: re.Match[str]) -> str:
        if only and match[1] not in only:
            return match[0]
        print(f"measuring: {match[1]}", file=sys.stderr)
        return f"<!-- measured: {match[1]} -->\n{blocks[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- measured: (\w+) -->.*?<!-- end -->", measure, text, flags=re.DOTALL)


def picture(
    path: Path, size: tuple[float, float], rows: int, columns: int, draw: Callable[[Any], None]
) -> None:
    """Write a figure of rows x columns panels; ``draw`` receives the array of panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots(rows, columns, squeeze=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80, metadata={"Software": None})
