"""The pictures of a search as SVG: the best so far, values against parameters, and lines of descent."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from fleet.monitor.searched import SearchReport, Tried
from fleet.monitor.svg import WIDTH, picture, ticks
from fleet.spec.space import Range, Space
from fleet.storage.results import Status

# The colour of a network by how far it is; failed ones have no value to show.
STATUS_COLOURS = {Status.FINISHED: "#4e79a7", Status.PRUNED: "#e0955b", Status.PAUSED: "#edc948",
                  Status.TRAINING: "#59a14f"}
CROWDED = 1000  # points from which on some of a chart are left out
THINNED = "; of points that would lie on each other only the best is there"
LINES = 200  # of descent that are drawn, at most
_APART = 6  # pixels between two points of one colour where there are many

_MARKS = 6  # at most, of choices and of powers of ten
_LONGEST = 14  # letters of a mark


# ---- axes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes:
        low, high: its ends; of a logarithmic axis their logarithms.
        marks: places with their texts.
    """

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]
    is_log: bool = False
    choices: tuple[str, ...] = ()

    def share(self, value: Any) -> float | None:
        """How far along the axis a value is, from 0 to 1; None where it is none of this axis."""
        if self.choices:
            text = _text(value)
            place = float(self.choices.index(text)) if text in self.choices else math.nan
        elif isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
            return None
        else:
            place = math.log10(value) if self.is_log and value > 0 else math.nan if self.is_log else float(value)
        share = (place - self.low) / (self.high - self.low)
        return share if -1e-9 <= share <= 1 + 1e-9 else None


def linear(low: float, high: float) -> Axis:
    """An axis with round ends around two values."""
    low, high, step = ticks(low, high)
    values = [low + index * step for index in range(round((high - low) / step) + 1)]
    return Axis(low, high, tuple((value, f"{value:.4g}") for value in values))


def logarithmic(low: float, high: float) -> Axis:
    """An axis from a power of ten to another, around two values above 0.

    >>> [text for _, text in logarithmic(2e-4, 0.1).marks]
    ['0.0001', '0.001', '0.01', '0.1']
    """
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    powers = range(first, last + 1, math.ceil((last - first) / _MARKS))
    return Axis(first, last, tuple((float(power), f"{10.0 ** power:g}") for power in powers), is_log=True)


def of_choices(choices: Sequence[Any]) -> Axis:
    """An axis with one place for each of some choices, in their order."""
    texts = tuple(map(_text, choices))
    every = math.ceil(len(texts) / _MARKS)
    marks = [(float(place), text if len(text) <= _LONGEST else text[:_LONGEST - 1] + "…")
             for place, text in enumerate(texts) if place % every == 0]
    return Axis(-0.5, len(texts) - 0.5, tuple(marks), choices=texts)


def axis_of(space: Space, key: str) -> Axis:
    """The axis of a key of a space."""
    values = space[key]
    if not isinstance(values, Range):
        return of_choices(values)
    return logarithmic(values.low, values.high) if values.log else linear(values.low, values.high)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ---- charts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chart:
    """A chart with two axes, in pixels from the left and from the top."""

    title: str
    x: Axis
    y: Axis
    width: int
    height: int = 240
    left: int = 50
    top: int = 24
    bottom: int = 30

    def across(self, share: float) -> float:
        return self.left + share * (self.width - self.left - 14)

    def down(self, share: float) -> float:
        return self.top + (1 - share) * (self.height - self.top - self.bottom)

    def drawn(self, parts: Iterable[str]) -> str:
        return picture(self.width, self.height, [f'<text x="{self.left}" y="14">{escape(self.title)}</text>',
                                                 *self._grid(), *parts])

    def _grid(self) -> Iterator[str]:
        right, foot = self.across(1), self.down(0)
        for place, text in self.y.marks:
            y = self.down((place - self.y.low) / (self.y.high - self.y.low))
            yield (f'<line class="grid" x1="{self.left}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
                   f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        for place, text in self.x.marks:
            x = self.across((place - self.x.low) / (self.x.high - self.x.low))
            yield (f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{foot:.1f}"/>'
                   f'<text x="{x:.1f}" y="{self.height - 10}" text-anchor="middle">{escape(text)}</text>')


def best_chart(search: SearchReport, seconds: float) -> str:
    """The best value so far over the time of the run, as steps; nothing before there is one.

    Args:
        seconds: that the run has taken.
    """
    if not search.found:
        return ""
    values = [found.value for found in search.found]
    chart = _Chart(f"best {search.monitor} so far, over seconds", Axis(0.0, max(seconds, 1e-9), _seconds(seconds)),
                   linear(min(values), max(values)), width=WIDTH // 2)
    places = [(chart.across(chart.x.share(found.t_s) or 0.0), chart.down(chart.y.share(found.value) or 0.0))
              for found in search.found]
    steps = [f"{places[0][0]:.1f},{places[0][1]:.1f}"]
    for (_, before), (x, y) in pairwise(places):
        steps += [f"{x:.1f},{before:.1f}", f"{x:.1f},{y:.1f}"]
    steps.append(f"{chart.across(1):.1f},{places[-1][1]:.1f}")
    line = f'<polyline points="{" ".join(steps)}" fill="none" stroke="#4e79a7" stroke-width="1.8"/>'
    points = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="#4e79a7"><title>{escape(found.network)}, epoch '
              f"{found.epoch}: {found.value:.4g} after {found.t_s:.1f} s</title></circle>"
              for (x, y), found in zip(places, search.found, strict=True)]
    return chart.drawn([line, *points])


def _seconds(seconds: float) -> tuple[tuple[float, str], ...]:
    """Round times that lie within the run."""
    return tuple(mark for mark in linear(0.0, max(seconds, 1e-9)).marks if mark[0] <= seconds)


def parameter_charts(search: SearchReport) -> list[str]:
    """A chart for each key of the space: what networks came to, against what they had."""
    valued = [one for one in search.tried if math.isfinite(one.value)]
    if not valued:
        return []
    y = linear(min(one.value for one in valued), max(one.value for one in valued))
    return [_parameter_chart(search, key, y, valued) for key in search.space]


def _parameter_chart(search: SearchReport, key: str, y: Axis, valued: Sequence[Tried]) -> str:
    chart = _Chart(f"{search.monitor} against {key}", axis_of(search.space, key), y, width=WIDTH // 3)
    points = []
    drawn = _apart(search, key, chart, valued) if len(valued) > CROWDED else valued
    for one in sorted(drawn, key=lambda one: one.status is Status.FINISHED):  # these lie on top
        across, down = chart.x.share(one.values.get(key)), chart.y.share(one.value)
        if across is not None and down is not None:
            said = f"{one.network}, {one.status}: {key} {_text(one.values[key])}, {search.monitor} {one.value:.4g}"
            points.append(f'<circle cx="{chart.across(across):.1f}" cy="{chart.down(down):.1f}" r="3.2" '
                          f'fill="{STATUS_COLOURS.get(one.status, "#888")}" fill-opacity=".8">'
                          f"<title>{escape(said)}</title></circle>")
    return chart.drawn(points)


def _apart(search: SearchReport, key: str, chart: _Chart, valued: Sequence[Tried]) -> list[Tried]:
    """The networks of a chart without those that would lie on a better one of the same status."""
    best: dict[tuple[Status, int, int], Tried] = {}
    for one in sorted(valued, key=lambda one: one.value, reverse=search.is_larger_better):
        across, down = chart.x.share(one.values.get(key)), chart.y.share(one.value)
        if across is not None and down is not None:
            place = round(chart.across(across) / _APART), round(chart.down(down) / _APART)
            best.setdefault((one.status, *place), one)
    return list(best.values())


# ---- who came from whom ------------------------------------------------------------------------


def descent_chart(search: SearchReport) -> str:
    """A line for each network, from where its parent was to its own last epoch; nothing where nobody has a parent.

    The best network and its ancestors are blue.
    """
    if not any(one.parent for one in search.tried):
        return ""
    drawn = _best_lines(search)
    rows = {one.network: row for row, one in enumerate(_families(drawn))}
    high = max(4.0, min(16.0, 640 / len(rows)))
    epochs = max(one.begins + one.epochs for one in drawn)
    axis, foot = linear(0, max(epochs, 1)), high * len(rows)

    def across(epoch: float) -> float:
        return 10 + epoch / axis.high * (WIDTH - 110)

    def down(network: str) -> float:
        return rows[network] * high + high / 2

    line = {one.network for one in search.ancestry}
    parts = [f'<line class="grid" x1="{across(place):.1f}" x2="{across(place):.1f}" y1="0" y2="{foot:.1f}"/>'
             f'<text x="{across(place):.1f}" y="{foot + 16:.1f}" text-anchor="middle">{text}</text>'
             for place, text in axis.marks]
    for one in sorted(drawn, key=lambda one: one.network in line):
        x, y, stroke = across(one.begins), down(one.network), "#4e79a7" if one.network in line else "#b9b9b9"
        rise = f'M{x:.1f} {down(one.parent):.1f}V{y:.1f}' if one.parent in rows else f"M{x:.1f} {y:.1f}"
        end = across(one.begins + one.epochs)
        name = (f'<text x="{end + 5:.1f}" y="{y + 4:.1f}">{escape(one.network)}</text>' if high >= 11 else "")
        parts.append(f'<g><title>{escape(_origin(one, search))}</title><path d="{rise}H{end:.1f}" fill="none" '
                     f'stroke="{stroke}" stroke-width="2"/><circle cx="{end:.1f}" cy="{y:.1f}" r="2.4" '
                     f'fill="{stroke}"/>{name}</g>')
    return picture(WIDTH, foot + 24, parts)


def _best_lines(search: SearchReport) -> Sequence[Tried]:
    """The networks whose descent is drawn, by their numbers: of many the best ones, each with its ancestors."""
    if len(search.tried) <= LINES:
        return search.tried
    by_name, kept = {one.network: one for one in search.tried}, dict[str, Tried]()
    sign = 1 if search.is_larger_better else -1
    for best in sorted(search.tried, key=lambda one: sign * one.value if math.isfinite(one.value) else -math.inf,
                       reverse=True):
        if len(kept) >= LINES:
            break
        one: Tried | None = best
        while one is not None and one.network not in kept:
            kept[one.network] = one
            one = by_name.get(one.parent)
    return sorted(kept.values(), key=lambda one: one.number)


def _origin(one: Tried, search: SearchReport) -> str:
    value = f", {search.monitor} {one.value:.4g}" if math.isfinite(one.value) else ""
    parent = f", from {one.parent} after epoch {one.parent_epoch}" if one.parent else ""
    return f"{one.network}, {one.status}{value}{parent}"


def _families(tried: Sequence[Tried]) -> list[Tried]:
    """Each network before its children, and these before the next family."""
    children: dict[str, list[Tried]] = {}
    names: Mapping[str, Tried] = {one.network: one for one in tried}
    for one in tried:
        children.setdefault(one.parent if one.parent in names else "", []).append(one)
    placed, waiting = list[Tried](), children.get("", [])[::-1]
    while waiting:
        placed.append(one := waiting.pop())
        waiting += children.get(one.network, [])[::-1]
    return placed
