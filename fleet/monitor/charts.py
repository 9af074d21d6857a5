"""The data of the report's charts, as JSON; ``fleet/data/report.js`` draws them (pure)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from fleet.domain.network import EpochRecord
from fleet.monitor.report import RunReport
from fleet.monitor.search_summary import SearchReport, SearchTrial, coordinate_of
from fleet.spec.dimensions import Dimension, Range
from fleet.storage.leaderboard import short_names
from fleet.storage.results import Status
from launch.errors import pluralize
from scheduler.simulation.ensemble import Stint

NAMED = 12  # best networks, which are in color before any is selected
DRAWN = 200  # maximum number of curves of a chart, and of lines of descent
_MAX_GROUPS = 8  # maximum number of losses, accuracies and metrics with curves
POINTS = 150  # maximum number of points of a curve
MAX_TRIALS = 1000  # maximum number of drawn trials of a search
BARS = 6000  # maximum number of bars of a timeline, beyond which narrow ones are merged
# Colors by status; failed networks have no value to show.
STATUS_COLORS = {
    Status.FINISHED: "#4e79a7",
    Status.PRUNED: "#e0955b",
    Status.SKIPPED: "#bab0ac",
    Status.PAUSED: "#edc948",
    Status.TRAINING: "#59a14f",
}

_T = TypeVar("_T")


def make_charts(report: RunReport) -> dict[str, Any]:
    """Return the data of all charts, in which networks are indices into ``networks``.

    An index, and so the color of a network, never changes while a run goes on: networks are ordered
    by their first device.
    """
    account = report.account
    index = number_networks(report)
    stints = sorted(account.stints, key=lambda stint: stint.start_s)
    seconds = max(account.seconds, account.simulated_s or 0.0)
    timelines = {"timeline": _timeline(report, stints, 1.0, seconds, index)}
    if account.replay is not None:
        timelines["simulated"] = _timeline(
            report, account.replay.simulated.stints, account.time_scale, seconds, index
        )
    return {
        "networks": list(index),
        "statuses": STATUS_COLORS,
        "best": [index[name] for name, _ in report.histories[:NAMED] if name in index],
        "curves": list(_curves(report, index)),
        "timelines": timelines,
        "searches": [_search(search, account.seconds, index) for search in report.searches],
    }


def number_networks(report: RunReport) -> dict[str, int]:
    """Return the index of each network in charts: they are ordered by their first device."""
    stints = sorted(report.account.stints, key=lambda stint: stint.start_s)
    names = [*(stint.name for stint in stints), *(row.name for row in report.rows)]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def as_script(charts: Mapping[str, Any]) -> str:
    """Return JSON that can be embedded in a script element."""
    return json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def subsample(items: Sequence[_T], first: int, limit: int) -> Sequence[_T]:
    """Return the first few items, and evenly spaced others including the last.

    >>> subsample(range(100), 2, 5)
    [0, 1, 34, 67, 99]
    """
    if len(items) <= limit:
        return items
    spread_count = limit - first
    remaining = len(items) - first
    return [
        *items[:first],
        *(
            items[first + (remaining * step - 1) // spread_count]
            for step in range(1, spread_count + 1)
        ),
    ]


def rounded(value: float | None) -> float | None:
    """Round to five digits; None for NaN and infinity."""
    if value is not None and math.isfinite(value):
        return float(f"{value:.5g}")
    return None


# ---- curves over epochs ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Curve:
    """A value over epochs.

    Attributes:
        title: its name for readers.
        group: what it has in common with another curve, such as the loss of other samples.
        part: ``training`` or ``validation``; empty for what belongs to none.
        value: returns it for an epoch.
        is_in_overview: whether the page of all networks has a chart of it.
    """

    title: str
    group: str
    part: str
    value: Callable[[EpochRecord], float]
    is_in_overview: bool


def _curves(report: RunReport, index: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield charts of losses, accuracies and metrics that have a value."""
    for curve in _curves_of(report.histories):
        drawn = [
            (name, history)
            for name, history in report.histories
            if any(math.isfinite(curve.value(record)) for record in history)
        ]
        yield {
            "title": curve.title,
            "group": curve.group,
            "part": curve.part,
            "overview": curve.is_in_overview,
            "lines": [
                _line(*network, curve.value, index) for network in subsample(drawn, NAMED, DRAWN)
            ],
        }


def _curves_of(histories: Sequence[tuple[str, Sequence[EpochRecord]]]) -> list[_Curve]:
    """Return the values that any epoch has: losses first, then accuracies and metrics."""
    records = [record for _, history in histories for record in history]
    metrics = dict.fromkeys(name for record in records for name in record.metrics)
    groups = dict.fromkeys(
        ["loss", "accuracy", *(name.removeprefix("val_") for name in metrics)],
    )
    curves = []
    for group in list(groups)[:_MAX_GROUPS]:
        parts = {
            part: _value_of(f"{prefix}{group}")
            for part, prefix in (("training", ""), ("validation", "val_"))
        }
        measured = [
            part
            for part, value in parts.items()
            if any(math.isfinite(value(record)) for record in records)
        ]
        curves += [
            _Curve(
                f"{part} {group}", group, part, parts[part], group == "loss" or part == measured[-1]
            )
            for part in measured
        ]
    rate = attrgetter("learning_rate")
    if any(len(set(map(rate, history))) > 1 for _, history in histories):
        curves.append(_Curve("learning rate", "learning rate", "", rate, False))
    return curves


def _value_of(name: str) -> Callable[[EpochRecord], float]:
    return lambda record: record.value(name)


def _line(
    name: str,
    history: Sequence[EpochRecord],
    value: Callable[[EpochRecord], float],
    index: Mapping[str, int],
) -> list[Any]:
    """Return the network, its epochs (None if they count from 1), and their values."""
    records = subsample(history, 1, POINTS)
    epochs = [record.epoch for record in records]
    return [
        index.get(name, -1),
        None if epochs == list(range(1, len(epochs) + 1)) else epochs,
        [rounded(value(record)) for record in records],
    ]


# ---- bars over time ----------------------------------------------------------------------------


def _timeline(
    report: RunReport,
    stints: Sequence[Stint],
    scale: float,
    seconds: float,
    index: Mapping[str, int],
) -> dict[str, Any]:
    """Return bars of (network, device, begin, end, label, busy share of a merged bar).

    Args:
        report: the report.
        stints: the stints to draw, in order of their starts.
        scale: seconds per second of the stints.
        seconds: the time that the chart spans.
        index: network -> its index.
    """
    account = report.account
    devices = sorted(account.devices)
    device_set = set(devices)
    occupancies = [
        (stint, device) for stint in stints for device in stint.devices if device in device_set
    ]
    wide, crowds = _crowds(occupancies, len(devices) / BARS * seconds / scale)
    bars = [
        [
            index.get(stint.name),
            device,
            stint.start_s * scale,
            stint.end_s * scale,
            f"{stint.name}: {pluralize(len(stint.devices), account.device)}, "
            f"{_epochs(stint.epochs)}",
            None,
        ]
        for stint, device in wide
    ]
    for device, crowd in crowds:
        begin_s = crowd[0].start_s
        end_s = crowd[-1].end_s
        busy = sum(stint.end_s - stint.start_s for stint in crowd) / max(end_s - begin_s, 1e-9)
        bars.append(
            [
                None,
                device,
                begin_s * scale,
                end_s * scale,
                pluralize(len(crowd), "network"),
                min(1.0, max(0.2, busy)),
            ]
        )
    return {
        "unit": account.device,
        "devices": devices,
        "seconds": seconds,
        "bars": [
            [rounded(part) if isinstance(part, float) else part for part in bar] for bar in bars
        ],
    }


def is_crowded(stints: Sequence[Stint]) -> bool:
    """Return True if a timeline has too many bars to draw each stint."""
    return sum(len(stint.devices) for stint in stints) > BARS


def _crowds(
    occupancies: Sequence[tuple[Stint, int]], max_s: float
) -> tuple[Sequence[tuple[Stint, int]], list[tuple[int, list[Stint]]]]:
    """Return single bars, and (device, stints) of narrow ones that are merged into one bar.

    Bars are merged only if there are too many.

    Args:
        occupancies: (stint, device), in the order of their starts.
        max_s: maximum duration of a merged bar, which follows from the maximum number of bars.
    """
    if len(occupancies) <= BARS:
        return occupancies, []
    wide = list[tuple[Stint, int]]()
    crowds = list[tuple[int, list[Stint]]]()
    latest = dict[int, list[Stint]]()
    for stint, device in occupancies:
        if stint.end_s - stint.start_s >= max_s:
            wide.append((stint, device))
        elif device in latest and stint.end_s - latest[device][0].start_s <= max_s:
            latest[device].append(stint)
        else:
            latest[device] = [stint]
            crowds.append((device, latest[device]))
    return wide, crowds


def _epochs(number: float) -> str:
    return f"{number:.3g} epoch" + ("" if number == 1 else "s")


# ---- searches ----------------------------------------------------------------------------------


def _search(search: SearchReport, seconds: float, index: Mapping[str, int]) -> dict[str, Any]:
    keys = [
        _key(name, values)
        for name, values in zip(short_names(list(search.space)), search.space.values(), strict=True)
    ]
    drawn = subsample(search.ranked, MAX_TRIALS // 4, MAX_TRIALS)
    return {
        "monitor": search.monitor,
        "larger": search.is_larger_better,
        "seconds": seconds,
        "keys": keys,
        "improvements": [
            [index.get(best.network), rounded(best.seconds), rounded(best.value), best.epoch]
            for best in search.improvements
        ],
        "trials": [
            [
                index.get(trial.network),
                str(trial.status),
                rounded(trial.value),
                [
                    rounded(coordinate_of(trial.values.get(name), values))
                    for name, values in search.space.items()
                ],
            ]
            for trial in drawn
        ],
        "objectives": [name for name, _ in search.objectives],
        "pareto": _pareto(search, index),
        "descent": _descent(search, index),
    }


def _pareto(search: SearchReport, index: Mapping[str, int]) -> list[list[Any]]:
    """Return (network, is on the front, its objectives), the front first."""
    front = {trial.network for trial in search.pareto_front}
    dominated = [
        trial
        for trial in search.ranked
        if trial.objectives
        and all(map(math.isfinite, trial.objectives))
        and trial.network not in front
        and trial.status is not Status.FAILED
    ]
    drawn = [
        *search.pareto_front,
        *subsample(dominated, MAX_TRIALS // 4, MAX_TRIALS),
    ]
    return [
        [index.get(trial.network), trial.network in front, list(map(rounded, trial.objectives))]
        for trial in drawn
    ]


def _key(name: str, values: Dimension) -> dict[str, Any]:
    """Return the axis of a key of a space."""
    if isinstance(values, Range):
        return {"name": name, "log": values.log, "low": values.low, "high": values.high}
    return {"name": name, "choices": [_text(value) for value in values]}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)


def _descent(search: SearchReport, index: Mapping[str, int]) -> dict[str, Any]:
    """Return rows of (network, first epoch, last epoch, parent's row, is best line, label).

    Epochs count from those of the earliest ancestor. There are no rows if no network has a parent.
    """
    if not any(trial.parent for trial in search.trials):
        return {"rows": [], "epochs": 0}
    drawn = _families(_best_lines(search))
    rows = {trial.network: row for row, trial in enumerate(drawn)}
    line = set(search.line_of_descent)
    return {
        "epochs": max(trial.begins + trial.epochs for trial in drawn),
        "rows": [
            [
                index.get(trial.network),
                trial.begins,
                trial.begins + trial.epochs,
                rows.get(trial.parent),
                trial.network in line,
                _origin(trial, search),
            ]
            for trial in drawn
        ],
    }


def _best_lines(search: SearchReport) -> Sequence[SearchTrial]:
    """Return the networks whose descent is drawn, by number: the best ones with their ancestors."""
    if len(search.trials) <= DRAWN:
        return search.trials
    by_name = {trial.network: trial for trial in search.trials}
    selected = dict[str, SearchTrial]()
    for best in search.ranked:
        if len(selected) >= DRAWN:
            break
        trial: SearchTrial | None = best
        while trial is not None and trial.network not in selected:
            selected[trial.network] = trial
            trial = by_name.get(trial.parent)
    return sorted(selected.values(), key=lambda trial: trial.number)


def _origin(trial: SearchTrial, search: SearchReport) -> str:
    if math.isfinite(trial.value):
        value = f", {search.monitor} {trial.value:.4g}"
    else:
        value = ""
    if trial.parent:
        parent = f", from {trial.parent} after epoch {trial.parent_epoch}"
    else:
        parent = ""
    return f"{trial.network}, {trial.status}{value}{parent}"


def _families(trials: Sequence[SearchTrial]) -> list[SearchTrial]:
    """Order networks so that each precedes its children, and these the next family."""
    children: dict[str, list[SearchTrial]] = {}
    names = {trial.network for trial in trials}
    for trial in trials:
        children.setdefault(trial.parent if trial.parent in names else "", []).append(trial)
    placed = list[SearchTrial]()
    waiting = children.get("", [])[::-1]
    while waiting:
        placed.append(trial := waiting.pop())
        waiting += children.get(trial.network, [])[::-1]
    return placed
