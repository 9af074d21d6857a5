"""The pictures of the report as SVG: curves over epochs, bars over time, a bar of shares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from fleet.monitor.report import Curve
from fleet.units import counted
from scheduler.simulation.ensemble import Stint

NAMED = 10  # networks whose curves have a colour and a name; the others are grey

DRAWN = 200  # curves of a chart, at most: of more the best, and others evenly down to the worst
_BARS = 6000  # of a timeline, at most, but for those that are wide; then narrow ones are drawn as one

WIDTH = 960  # of what spans the page, in pixels


def colour(index: int) -> str:
    """The colour of the network at this place: golden-ratio steps around the colour wheel keep neighbours apart."""
    return f"hsl({index * 137.5 % 360:.0f} 55% {45 + index % 3 * 7}%)"


# ---- curves over epochs ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """Where in a chart an epoch and a value are, in pixels from the left and from the top."""

    epochs: int
    low: float
    high: float
    width: int = 470
    height: int = 260
    left: int = 46
    right: int = 460
    top: int = 24
    bottom: int = 230

    def across(self, epoch: float) -> float:
        return self.left + (epoch - 1) / max(self.epochs - 1, 1) * (self.right - self.left)

    def down(self, value: float) -> float:
        return self.top + (self.high - value) / (self.high - self.low) * (self.bottom - self.top)


def line_chart(title: str, curves: Sequence[Curve], colours: Mapping[str, str]) -> str:
    """Curves over epochs, the best network's first; the first few are in colour and lie on top.

    Of many curves only :data:`DRAWN` are.

    Args:
        colours: of the networks.
    """
    curves = _drawn(curves)
    values = [value for curve in curves for value in curve.values if math.isfinite(value)]
    if not values:
        return ""
    low, high, step = ticks(min(values), max(values))
    frame = _Frame(max(epoch for curve in curves for epoch in curve.epochs), low, high)
    lines = [_line(curve, frame, colours.get(curve.name, "#888") if place < NAMED else "#d0d0d0",
                   1.8 if place < NAMED else 1) for place, curve in enumerate(curves)]
    return picture(frame.width, frame.height, [f'<text x="{frame.left}" y="14">{escape(title)}</text>',
                                                *_grid(frame, step), *reversed(lines)])


def _drawn(curves: Sequence[Curve]) -> Sequence[Curve]:
    """The first few curves, and others that are evenly spread, with the last."""
    if len(curves) <= DRAWN:
        return curves
    others, many = DRAWN - NAMED, len(curves) - NAMED
    return [*curves[:NAMED], *(curves[NAMED + (many * place - 1) // others] for place in range(1, others + 1))]


def _grid(frame: _Frame, step: float) -> Iterator[str]:
    """Lines at round values, and the numbers at both axes."""
    for index in range(round((frame.high - frame.low) / step) + 1):
        value = frame.low + index * step
        y = frame.down(value)
        yield (f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
               f'<text x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    every = max(1, round(ticks(0, frame.epochs)[2]))
    for epoch in sorted({1, *range(every, frame.epochs + 1, every)}):
        yield f'<text x="{frame.across(epoch):.1f}" y="{frame.height - 10}" text-anchor="middle">{epoch}</text>'


def _line(curve: Curve, frame: _Frame, stroke: str, thickness: float) -> str:
    points = [(frame.across(epoch), frame.down(value)) for epoch, value in zip(curve.epochs, curve.values, strict=True)
              if math.isfinite(value)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    mark = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{stroke}"/>' for x, y in points[-1:])
    return (f'<g><title>{escape(curve.name)}</title><polyline points="{path}" fill="none" stroke="{stroke}" '
            f'stroke-width="{thickness}"/>{mark}</g>')


# ---- bars over time ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Where in a timeline a moment and a device are, in pixels from the left and from the top.

    Attributes:
        places: device -> its row.
        row: height of one.
        per_second: pixels.
    """

    places: Mapping[int, int]
    row: float
    per_second: float
    left: int = 30
    bottom: int = 26  # height of the axis below the rows

    @property
    def height(self) -> float:
        return self.row * len(self.places)

    def across(self, seconds: float) -> float:
        return self.left + seconds * self.per_second

    def down(self, device: int) -> float:
        return self.places[device] * self.row


def timeline(stints: Sequence[Stint], devices: Sequence[int], scale: float, seconds: float,
             colours: Mapping[str, str], unit: str = "GPU") -> str:
    """A bar for every network on every device it had.

    Args:
        scale: seconds that a second of the stints took.
        seconds: that the picture spans.
        colours: of the networks.
        unit: what they were trained on, in a word.
    """
    rows = _Rows({device: index for index, device in enumerate(sorted(devices))},
                 row=max(3.0, min(16.0, 420 / max(len(devices), 1))), per_second=(WIDTH - 40) / max(seconds, 1e-9))
    wide, crowds = _crowds(stints, rows, scale)
    bars = [_bar(stint, rows, scale, colours.get(stint.name, "#888"), unit) for stint in wide]
    bars += [_crowd(crowd, device, rows, scale) for device, crowd in crowds]
    return picture(WIDTH, rows.height + rows.bottom, [*_axes(rows, seconds), *bars])


def _axes(rows: _Rows, seconds: float) -> Iterator[str]:
    """Lines at round times, and the numbers of devices, as far as there is room for them."""
    _, high, step = ticks(0.0, seconds)
    for index in range(round(high / step) + 1):
        if (at := index * step) <= seconds:
            x = rows.across(at)
            yield (f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{rows.height:.1f}"/>'
                   f'<text x="{x:.1f}" y="{rows.height + rows.bottom - 10:.1f}" text-anchor="middle">{at:g} s</text>')
    every = max(1, math.ceil(14 / rows.row))
    for device, index in rows.places.items():
        if index % every == 0:
            yield (f'<text x="{rows.left - 6}" y="{rows.down(device) + rows.row / 2 + 4:.1f}" text-anchor="end">'
                   f'{device}</text>')


def _bar(stint: Stint, rows: _Rows, scale: float, fill: str, unit: str) -> str:
    """The bars of a stint, one on each device, with a darker edge where it begins and its name where there is room."""
    x, end = rows.across(stint.start_s * scale), rows.across(stint.end_s * scale)
    height = f'height="{rows.row - 0.6:.1f}"'
    shown = [device for device in stint.devices if device in rows.places]
    bars = [f'<rect x="{x:.2f}" y="{rows.down(device):.1f}" width="{max(end - x, 0.3):.2f}" {height} fill="{fill}"/>'
            for device in shown]
    edges = [f'<rect x="{x:.2f}" y="{rows.down(device):.1f}" width="0.8" {height} fill="#000" fill-opacity=".35"/>'
             for device in shown]
    said = (f"{stint.name}: {counted(len(stint.devices), unit)}, {_epochs(stint.epochs)}, "
            f"{stint.start_s * scale:.1f} to {stint.end_s * scale:.1f} s")
    return f"<g><title>{escape(said)}</title>{''.join(bars + edges)}{_name(stint, rows, x, end)}</g>"


def is_crowded(stints: Sequence[Stint]) -> bool:
    """Whether a timeline would have too many bars if each stint had its own."""
    return sum(len(stint.devices) for stint in stints) > _BARS


def _crowds(stints: Sequence[Stint], rows: _Rows, scale: float
            ) -> tuple[Sequence[Stint], list[tuple[int, list[Stint]]]]:
    """The stints that are drawn one by one, and (device, stints) that are too narrow for that, as one bar each.

    There are crowds only where there would be too many bars. The width of a crowd follows from how many there may be.
    """
    if not is_crowded(stints):
        return stints, []
    most_s = WIDTH * len(rows.places) / _BARS / rows.per_second / scale
    wide, crowds, latest = list[Stint](), list[tuple[int, list[Stint]]](), dict[int, list[Stint]]()
    for stint in stints:  # in the order of their starts
        if stint.end_s - stint.start_s >= most_s:
            wide.append(stint)
            continue
        for device in stint.devices:
            if device in latest and stint.end_s - latest[device][0].start_s <= most_s:
                latest[device].append(stint)
            elif device in rows.places:
                latest[device] = [stint]
                crowds.append((device, latest[device]))
    return wide, crowds


def _crowd(crowd: Sequence[Stint], device: int, rows: _Rows, scale: float) -> str:
    """One grey bar for several stints on a device, the paler the longer it was idle between them."""
    begin_s, end_s = crowd[0].start_s, crowd[-1].end_s
    busy = sum(stint.end_s - stint.start_s for stint in crowd) / max(end_s - begin_s, 1e-9)
    x, end = rows.across(begin_s * scale), rows.across(end_s * scale)
    who = crowd[0].name if len(crowd) == 1 else counted(len(crowd), "network")
    said = f"{who}: {begin_s * scale:.1f} to {end_s * scale:.1f} s"
    return (f'<rect x="{x:.2f}" y="{rows.down(device):.1f}" width="{max(end - x, 0.3):.2f}" '
            f'height="{rows.row - 0.6:.1f}" fill="#7d8fa3" fill-opacity="{min(1.0, max(0.2, busy)):.2f}">'
            f"<title>{escape(said)}</title></rect>")


def _name(stint: Stint, rows: _Rows, x: float, end: float) -> str:
    """A stint's name on the bar of its first device."""
    first = [device for device in stint.devices[:1] if device in rows.places]
    if not first or rows.row < 9 or end - x <= 5.2 * len(stint.name) + 6:
        return ""
    return (f'<text class="name" x="{x + 4:.1f}" y="{rows.down(first[0]) + rows.row / 2 + 3:.1f}">'
            f'{escape(stint.name)}</text>')


def _epochs(number: float) -> str:
    return f"{number:.3g} epoch" + ("" if number == 1 else "s")


# ---- a bar of shares ---------------------------------------------------------------------------


def share_bar(shares: Iterable[tuple[str, float, str]]) -> str:
    """Shares of a whole beside each other.

    Args:
        shares: the name, share and colour of each; they add up to 1.
    """
    x, parts = 0.0, []
    for name, share, fill in shares:
        width = share * (WIDTH - 20)
        parts.append(f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="30" fill="{fill}">'
                     f"<title>{escape(name)}: {share:.2%}</title></rect>")
        x += width
    return picture(WIDTH, 34, parts)


# ---- what they share ---------------------------------------------------------------------------


def picture(width: float, height: float, parts: Iterable[str]) -> str:
    """A picture of so many pixels, made of its parts."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}">' + "\n".join(parts) + "</svg>")


def ticks(low: float, high: float) -> tuple[float, float, float]:
    """Round bounds around values, and a round step between them, some five steps apart.

    >>> ticks(0.13, 2.3)
    (0.0, 2.5, 0.5)
    """
    raw = max(high - low, 1e-6 * max(abs(high), 1e-6)) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return first * step, max(last, first + 1) * step, step
