"""What the charts of the report draw, as JSON; ``fleet/data/report.js`` draws them (pure)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fleet.monitor.report import NetworkCurve, RunReport
from fleet.monitor.search_summary import SearchReport, SearchTrial, coordinate_of
from fleet.spec.space import Dimension, Range
from fleet.storage.results import Status, short_names
from fleet.units import pluralize
from scheduler.simulation.ensemble import Stint

NAMED = 10  # the best networks, which have a colour before any is chosen
DRAWN = 200  # curves of a chart, and lines of descent, at most
POINTS = 150  # of a curve, at most
TRIED = 1000  # networks of a search that are drawn, at most
BARS = (
    6000  # of a timeline, at most, but for those that are wide; then narrow ones are drawn as one
)
# The colour of a network by how far it is; failed ones have no value to show.
STATUS_COLOURS = {
    Status.FINISHED: "#4e79a7",
    Status.PRUNED: "#e0955b",
    Status.SKIPPED: "#bab0ac",
    Status.PAUSED: "#edc948",
    Status.TRAINING: "#59a14f",
}

_T = TypeVar("_T")


def make_charts(report: RunReport) -> dict[str, Any]:
    """All that is drawn. A network is a number there: its place in ``networks``, by which it also has its colour.

    That place never changes while a run goes on: networks stand in the order in which they first had a device.
    """
    account = report.account
    stints = sorted(account.stints, key=lambda stint: stint.start_s)
    names = list(
        dict.fromkeys([*(stint.name for stint in stints), *(row.name for row in report.rows)])
    )
    who = {name: place for place, name in enumerate(names)}
    charts = [
        ("training loss", report.losses),
        ("validation loss", report.val_losses)
        if report.val_losses
        else ("accuracy", report.accuracies),
    ]
    seconds = max(account.seconds, account.simulated_s or 0.0)
    timelines = {"timeline": _timeline(report, stints, 1.0, seconds, who)}
    if account.replay is not None:
        timelines["simulated"] = _timeline(
            report, account.replay.simulated.stints, account.time_scale, seconds, who
        )
    return {
        "networks": names,
        "statuses": STATUS_COLOURS,
        "best": [who[curve.name] for curve in report.losses[:NAMED] if curve.name in who],
        "curves": [
            {
                "title": title,
                "lines": [_line(curve, who) for curve in subsample(curves, NAMED, DRAWN)],
            }
            for title, curves in charts
            if any(math.isfinite(value) for curve in curves for value in curve.values)
        ],
        "timelines": timelines,
        "searches": [_search(search, account.seconds, who) for search in report.searches],
    }


def as_script(charts: Mapping[str, Any]) -> str:
    """JSON that may stand inside an element of a page."""
    return json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def subsample(items: Sequence[_T], first: int, most: int) -> Sequence[_T]:
    """The first few, and others that are evenly subsample, with the last.

    >>> subsample(range(100), 2, 5)
    [0, 1, 34, 67, 99]
    """
    if len(items) <= most:
        return items
    others = most - first
    many = len(items) - first
    return [
        *items[:first],
        *(items[first + (many * place - 1) // others] for place in range(1, others + 1)),
    ]


def _rounded(value: float | None) -> float | None:
    """Five digits, as many as anybody reads; None where it is no number."""
    if value is not None and math.isfinite(value):
        return float(f"{value:.5g}")
    return None


# ---- curves over epochs ------------------------------------------------------------------------


def _line(curve: NetworkCurve, who: Mapping[str, int]) -> list[Any]:
    points = subsample(list(zip(curve.epochs, curve.values, strict=True)), 1, POINTS)
    return [
        who.get(curve.name, -1),
        [epoch for epoch, _ in points],
        [_rounded(value) for _, value in points],
    ]


# ---- bars over time ----------------------------------------------------------------------------


def _timeline(
    report: RunReport, stints: Sequence[Stint], scale: float, seconds: float, who: Mapping[str, int]
) -> dict[str, Any]:
    """Bars of (network, device, begin, end, what is said, share of its time that a crowd is busy).

    Args:
        scale: seconds that a second of the stints took.
        seconds: that the picture spans.
    """
    account = report.account
    devices = sorted(account.devices)
    there = set(devices)
    shown = [(stint, device) for stint in stints for device in stint.devices if device in there]
    wide, crowds = _crowds(shown, len(devices) / BARS * seconds / scale)
    bars = [
        [
            who.get(stint.name),
            device,
            stint.start_s * scale,
            stint.end_s * scale,
            f"{stint.name}: {pluralize(len(stint.devices), account.device)}, {_epochs(stint.epochs)}",
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
            [_rounded(part) if isinstance(part, float) else part for part in bar] for bar in bars
        ],
    }


def is_crowded(stints: Sequence[Stint]) -> bool:
    """Whether a timeline would have too many bars if each stint had its own."""
    return sum(len(stint.devices) for stint in stints) > BARS


def _crowds(
    shown: Sequence[tuple[Stint, int]], most_s: float
) -> tuple[Sequence[tuple[Stint, int]], list[tuple[int, list[Stint]]]]:
    """The bars that are drawn one by one, and (device, stints) that are too narrow for that, as one bar each.

    There are crowds only where there would be too many bars.

    Args:
        shown: (stint, device), in the order of their starts.
        most_s: that a crowd lasts; it follows from how many bars there may be.
    """
    if len(shown) <= BARS:
        return shown, []
    wide = list[tuple[Stint, int]]()
    crowds = list[tuple[int, list[Stint]]]()
    latest = dict[int, list[Stint]]()
    for stint, device in shown:
        if stint.end_s - stint.start_s >= most_s:
            wide.append((stint, device))
        elif device in latest and stint.end_s - latest[device][0].start_s <= most_s:
            latest[device].append(stint)
        else:
            latest[device] = [stint]
            crowds.append((device, latest[device]))
    return wide, crowds


def _epochs(number: float) -> str:
    return f"{number:.3g} epoch" + ("" if number == 1 else "s")


# ---- searches ----------------------------------------------------------------------------------


def _search(search: SearchReport, seconds: float, who: Mapping[str, int]) -> dict[str, Any]:
    keys = [
        _key(name, values)
        for name, values in zip(short_names(list(search.space)), search.space.values(), strict=True)
    ]
    drawn = subsample(search.ranked, TRIED // 4, TRIED)
    return {
        "monitor": search.monitor,
        "larger": search.is_larger_better,
        "seconds": seconds,
        "keys": keys,
        "found": [
            [who.get(found.network), _rounded(found.seconds), _rounded(found.value), found.epoch]
            for found in search.improvements
        ],
        "tried": [
            [
                who.get(one.network),
                str(one.status),
                _rounded(one.value),
                [
                    _rounded(coordinate_of(one.values.get(name), values))
                    for name, values in search.space.items()
                ],
            ]
            for one in drawn
        ],
        "objectives": [name for name, _ in search.objectives],
        "pareto": _pareto(search, who),
        "descent": _descent(search, who),
    }


def _pareto(search: SearchReport, who: Mapping[str, int]) -> list[list[Any]]:
    """Networks as (network, whether it is of the front, what it came to in each objective); the front comes first."""
    if search.objectives:
        front = {one.network for one in search.pareto_front}
    else:
        front = set()
    others = [
        one
        for one in search.ranked
        if one.objectives
        and all(map(math.isfinite, one.objectives))
        and one.network not in front
        and one.status is not Status.FAILED
    ]
    drawn = [*(search.pareto_front if front else ()), *subsample(others, TRIED // 4, TRIED)]
    return [
        [who.get(one.network), one.network in front, list(map(_rounded, one.objectives))]
        for one in drawn
    ]


def _key(name: str, values: Dimension) -> dict[str, Any]:
    """The axis of a key of a space."""
    if isinstance(values, Range):
        return {"name": name, "log": values.log, "low": values.low, "high": values.high}
    return {"name": name, "choices": [_text(value) for value in values]}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)


def _descent(search: SearchReport, who: Mapping[str, int]) -> dict[str, Any]:
    """Rows of (network, first epoch, last epoch, the row of its parent, whether the best came from it, what is said).

    Epochs count from those of the earliest ancestor on. There are none where nobody has a parent.
    """
    if not any(one.parent for one in search.trials):
        return {"rows": [], "epochs": 0}
    drawn = _families(_best_lines(search))
    rows = {one.network: row for row, one in enumerate(drawn)}
    line = {one.network for one in search.ancestry}
    return {
        "epochs": max(one.begins + one.epochs for one in drawn),
        "rows": [
            [
                who.get(one.network),
                one.begins,
                one.begins + one.epochs,
                rows.get(one.parent),
                one.network in line,
                _origin(one, search),
            ]
            for one in drawn
        ],
    }


def _best_lines(search: SearchReport) -> Sequence[SearchTrial]:
    """The networks whose descent is drawn, by their numbers: of many the best ones, each with its ancestors."""
    if len(search.trials) <= DRAWN:
        return search.trials
    by_name = {one.network: one for one in search.trials}
    kept = dict[str, SearchTrial]()
    for best in search.ranked:
        if len(kept) >= DRAWN:
            break
        one: SearchTrial | None = best
        while one is not None and one.network not in kept:
            kept[one.network] = one
            one = by_name.get(one.parent)
    return sorted(kept.values(), key=lambda one: one.number)


def _origin(one: SearchTrial, search: SearchReport) -> str:
    if math.isfinite(one.value):
        value = f", {search.monitor} {one.value:.4g}"
    else:
        value = ""
    if one.parent:
        parent = f", from {one.parent} after epoch {one.parent_epoch}"
    else:
        parent = ""
    return f"{one.network}, {one.status}{value}{parent}"


def _families(tried: Sequence[SearchTrial]) -> list[SearchTrial]:
    """Each network before its children, and these before the next family."""
    children: dict[str, list[SearchTrial]] = {}
    names = {one.network for one in tried}
    for one in tried:
        children.setdefault(one.parent if one.parent in names else "", []).append(one)
    placed = list[SearchTrial]()
    waiting = children.get("", [])[::-1]
    while waiting:
        placed.append(one := waiting.pop())
        waiting += children.get(one.network, [])[::-1]
    return placed
