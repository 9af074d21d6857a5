"""Parts of the HTML report: tables, notes and details (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fleet.storage.results import Status

_LONG = 60  # letters of a cell beyond which it may have several lines


def html_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table with numbers aligned to the right; rows of networks carry their names."""
    numeric = [all(_is_number(row[column]) for row in rows) for column in range(len(headers))]

    def cell(tag: str, value: Any, column: int) -> str:
        if numeric[column]:
            kind = "number"
        elif value == Status.FAILED:
            kind = "failed"
        elif len(str(value)) > _LONG:
            kind = "long"
        else:
            kind = ""
        text = "" if value is None else escape(str(value))
        return f"<{tag}{f' class={kind}' if kind else ''}>{text}</{tag}>"

    def line(row: Sequence[Any]) -> str:
        cells = "".join(cell("td", value, column) for column, value in enumerate(row))
        return f"<tr{named(row)}>{cells}</tr>"

    def named(row: Sequence[Any]) -> str:
        if "network" in headers:
            return f' data-network="{escape(str(row[headers.index("network")]))}"'
        return ""

    head = "".join(cell("th", header, column) for column, header in enumerate(headers))
    return (
        f"<div class=table><table><thead><tr>{head}</tr></thead>\n<tbody>"
        + "\n".join(map(line, rows))
        + "</tbody></table></div>"
    )


def _is_number(value: Any) -> bool:
    try:
        return value in ("", None) or math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def html_details(title: str, content: str) -> str:
    """Return content that a click on its title shows."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def html_legend(items: Iterable[tuple[str, str]]) -> str:
    """Return a legend of (name, color)."""
    return (
        "<div class=legend>"
        + "".join(
            f'<span><i style="background:{color}"></i>{escape(name)}</span>'
            for name, color in items
        )
        + "</div>"
    )


def html_note(text: str) -> str:
    """Return a paragraph; nothing for an empty text."""
    if text:
        return f"<p class=note>{escape(text[0].upper() + text[1:])}</p>"
    return ""


def html_hint(text: str) -> str:
    """Return what a reader can do on the screen, which is not printed."""
    return f"<span class=hint>{escape(text)}</span>"


def html_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Return (name, HTML of its value) as a list; facts without a value are left out."""
    return (
        "<dl>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in facts if value)
        + "</dl>"
    )
