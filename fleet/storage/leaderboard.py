"""Format the results of networks as the final table of a run."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fleet.storage.results import NetworkResult, Status

SHOWN_PARAMETERS = 6  # maximum drawn parameters in the final table
_LEAST = ("why", "params", "s", "acc", "loss", "best")
_LONGEST_VALUE = 20  # maximum letters of a value


def leaderboard(
    rows: Sequence[NetworkResult], parameters: int = SHOWN_PARAMETERS
) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows of the final table.

    Args:
        rows: the networks, in order.
        parameters: maximum number of drawn parameters with a column.
    """

    def format_value(row: NetworkResult, name: str) -> str:
        value = row.value(name)
        deviation = row.deviation.get(name)
        around = "" if deviation is None else f" ± {deviation:.4f}"
        if math.isnan(value):
            return ""
        return f"{value:.4f}{around}"

    has_test = any(not math.isnan(row.test_loss) for row in rows)
    has_accuracy = any(not math.isnan(row.accuracy) for row in rows) or all(
        math.isnan(row.loss) for row in rows
    )
    values = {
        **({"val acc": "val_accuracy"} if has_accuracy else {}),
        "val loss": "val_loss",
        **({"acc": "accuracy"} if has_accuracy else {"loss": "loss"}),
        **({"test acc": "test_accuracy"} if has_test and has_accuracy else {}),
        **({"test loss": "test_loss"} if has_test else {}),
    }
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    metrics = [
        name
        for name in metrics
        if name.startswith(("val_", "test_")) or f"val_{name}" not in metrics
    ]
    has_children = any(row.parent for row in rows)
    has_energy = any(row.energy_kj is not None for row in rows)
    has_violations = any(row.violates for row in rows)
    varied = varied_parameters(rows)[:parameters]
    headers = [
        "network",
        "status",
        "epochs",
        "best",
        *values,
        *(re.sub("^(val|test)_", r"\1 ", name) for name in metrics),
        *short_names(varied),
        "params",
        "s",
        *(["kJ"] if has_energy else []),
        *(["from"] if has_children else []),
        *(["violates"] if has_violations else []),
        "why",
    ]
    return headers, [
        [
            row.name,
            str(row.status),
            row.epochs,
            row.best_epoch or "",
            *(format_value(row, name) for name in (*values.values(), *metrics)),
            *(_brief(row.drawn.get(name)) for name in varied),
            row.parameters,
            round(row.seconds, 1),
            *(["" if row.energy_kj is None else f"{row.energy_kj:.4g}"] if has_energy else []),
            *([row.parent and f"{row.parent}, epoch {row.parent_epoch}"] if has_children else []),
            *([row.violates] if has_violations else []),
            row.reason if len(row.reason) <= 50 else row.reason[:47] + "...",
        ]
        for row in rows
    ]


def least_columns(rows: Sequence[NetworkResult]) -> list[str]:
    """Return columns that a narrow final table can do without, the least important one first."""
    headers, _ = leaderboard(rows)
    has_failed = any(row.status is Status.FAILED for row in rows)
    score = next((name for name in ("val acc", "val loss") if name in headers), "")
    parameters = short_names(varied_parameters(rows)[:SHOWN_PARAMETERS])
    always = ["network", "status", "epochs", score, *parameters, *(["why"] if has_failed else [])]
    first = [name for name in _LEAST if name in headers and name not in always]
    further = [name for name in reversed(headers) if name not in (*first, *always)]
    return [*first, *further, *reversed(parameters)]


def varied_parameters(rows: Sequence[NetworkResult]) -> list[str]:
    """Return the drawn parameters in which networks differ, in the order of drawing."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.drawn.items():
            values.setdefault(name, set()).add(repr(value))
    return [name for name, distinct in values.items() if len(distinct) > 1]


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten names of parameters by their common prefixes, where they stay unique.

    >>> short_names(["train.optimizer.learning_rate", "train.batch.size", "train.seed", "seed"])
    ['learning_rate', 'batch.size', 'train.seed', 'seed']
    """
    short = [re.sub(r"^train\.(optimizer\.)?", "", name) for name in names]
    counts = Counter(short)
    return [name if counts[brief] > 1 else brief for name, brief in zip(names, short, strict=True)]


def _brief(value: Any) -> Any:
    """Return a drawn value for a cell: numbers with four digits, long texts truncated."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        if value is None:
            return ""
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return text[: _LONGEST_VALUE - 3] + "..."
