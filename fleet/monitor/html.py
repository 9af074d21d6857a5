"""The report of a run as one HTML page that needs nothing else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fleet.monitor.account import Account
from fleet.monitor.report import Report
from fleet.storage.files import replacing
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status, leaderboard
from fleet.units import format_duration
from scheduler.ensemble.simulation import Stint

_CURVES = 10  # networks whose curves have a colour and a name; the others are grey


_WIDTH = 960  # of the timelines, in pixels


_SPENT: dict[str, str] = {"training": "#4e79a7", "data": "#f28e2b", "waiting": "#bab0ac", "checkpointing": "#e15759",
          "moving": "#76b7b2", "scheduling": "#edc948", "profiling": "#b07aa1"}


_SPENT_NAMES = {"data": "waiting for data", "waiting": "waiting for work", "moving": "starting and regrouping"}


def render(report: Report) -> str:
    """The whole HTML page."""
    told = report.account
    colours = {name: _colour(index) for index, name in enumerate(sorted({stint.name for stint in told.stints}))}
    named = report.curves[:_CURVES]
    grey = "" if len(report.curves) <= _CURVES else f" The best {_CURVES} have a colour."
    simulated = told.replay.simulated.stints if told.replay is not None else ()
    longest = max(told.seconds, told.simulated_s or 0.0)
    body = [
        f"<h1>{escape(report.name)}</h1>", _summary(report),
        "<h2>The best first</h2>", _table(*leaderboard(report.rows)),
        "<h2>How they learned</h2>", f"<p class=note>A point an epoch.{grey}</p>",
        '<div class=row>',
        _chart("training loss", [(curve.name, curve.loss) for curve in report.curves], colours),
        _chart("accuracy (validation, where there is any)", [(curve.name, curve.accuracy) for curve in report.curves],
               colours), "</div>", _legend((curve.name, colours.get(curve.name, "grey")) for curve in named),
        "<h2>Who had which GPU</h2>",
        "<p class=note>A bar for every network on every GPU it had; a darker edge where a group formed anew.</p>",
        _timeline(told.stints, told.devices, 1.0, longest, colours),
        "<h2>Where the time went</h2>", _shares(told),
        "<h2>Beside the simulation</h2>", _comparison(told)]
    if simulated:
        body.append(_timeline(simulated, told.devices, told.time_scale, longest, colours))
    return _PAGE.format(title=escape(report.name), style=_STYLE, body="\n".join(body))


_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>{style}</style></head>
<body>
{body}
</body>
</html>
"""


_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 1040px; margin: 2em auto;
       padding: 0 1em }
h1 { font-size: 1.6em; margin: 0 0 .3em } h2 { font-size: 1.15em; margin: 2em 0 .4em }
.note { color: #666; margin: .2em 0 .6em } .facts { display: flex; flex-wrap: wrap; gap: .6em 2.2em; margin: 1em 0 }
.facts div { display: flex; flex-direction: column } .facts b { font-size: 1.35em; font-weight: 600 }
.facts span { color: #666 } .row { display: flex; flex-wrap: wrap; gap: 20px }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { text-align: left; border-bottom: 2px solid #ddd; color: #555; font-weight: 600 } th, td { padding: .22em .8em }
td.number, th.number { text-align: right } tr:nth-child(even) td { background: #f6f7f9 } td.failed { color: #b3261e }
.legend { display: flex; flex-wrap: wrap; gap: .2em 1.2em } .legend i { display: inline-block; width: .8em;
height: .8em; border-radius: 2px; margin-right: .4em } svg text { font: 11px system-ui, sans-serif; fill: #555 }
svg .grid { stroke: #e6e6e6 } svg .axis { stroke: #aaa } svg .name { fill: #fff; font-size: 9px }
"""


def _colour(index: int) -> str:
    """Golden-ratio steps around the colour wheel keep neighbours in a list apart."""
    return f"hsl({index * 137.5 % 360:.0f} 55% {45 + index % 3 * 7}%)"


def _summary(report: Report) -> str:
    told = report.account
    finished = sum(row.status is Status.FINISHED for row in report.rows)
    failed = sum(row.status is Status.FAILED for row in report.rows)
    facts = [(f"{finished} of {len(report.rows)}", "networks finished" + (f", {failed} failed" if failed else "")),
             (format_duration(told.seconds), "in all" + (f", {told.launches} launches" if told.launches > 1 else "")),
             (f"{len(told.devices)}", f"GPUs, {told.gpus_per_node} a node"), (told.policy, "policy"),
             (f"{told.spent.shares['training']:.1%}", "of the GPU time in training")]
    return ("<div class=facts>" + "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"
                                          for value, what in facts) + "</div>")


def _table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    numeric = [all(_is_number(row[column]) for row in rows) for column in range(len(headers))]

    def cell(tag: str, value: Any, column: int) -> str:
        kind = "number" if numeric[column] else "failed" if value == Status.FAILED else ""
        return f"<{tag}{f' class={kind}' if kind else ''}>{'' if value is None else escape(str(value))}</{tag}>"

    lines = ["".join(cell("th", header, column) for column, header in enumerate(headers))]
    lines += ["".join(cell("td", value, column) for column, value in enumerate(row)) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>\n" for line in lines) + "</table>"


def _is_number(value: Any) -> bool:
    try:
        return value in ("", None) or math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _legend(items: Iterable[tuple[str, str]]) -> str:
    return "<div class=legend>" + "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
                                          for name, colour in items) + "</div>"


def _chart(title: str, series: Sequence[tuple[str, Sequence[float]]], colours: dict[str, str]) -> str:
    """Lines over epochs; the first few are in colour and lie on top."""
    width, height, left, top, bottom = 470, 260, 46, 24, 30
    values = [value for _, line in series for value in line if math.isfinite(value)]
    if not values:
        return ""
    low, high, step = _ticks(min(values), max(values))
    epochs: int = max(len(line) for _, line in series)

    def across(epoch: float) -> float:
        return left + (epoch - 1) / max(epochs - 1, 1) * (width - left - 10)

    def down(value: float) -> float:
        return top + (high - value) / (high - low) * (height - top - bottom)

    parts = [f'<text x="{left}" y="14">{escape(title)}</text>']
    for index in range(round((high - low) / step) + 1):
        value = low + index * step
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 10}" y1="{down(value):.1f}" y2="{down(value):.1f}"/>'
                     f'<text x="{left - 6}" y="{down(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for epoch in sorted({1, *range(_whole_step(epochs), epochs + 1, _whole_step(epochs))}):
        parts.append(f'<text x="{across(epoch):.1f}" y="{height - 10}" text-anchor="middle">{epoch}</text>')
    for place, (name, line) in reversed(list(enumerate(series))):
        colour = colours.get(name, "#888") if place < _CURVES else "#d0d0d0"
        points = [f"{across(epoch):.1f},{down(value):.1f}" for epoch, value in enumerate(line, start=1)
                  if math.isfinite(value)]
        dot = points[-1].split(",") if points else ()
        mark = f'<circle cx="{dot[0]}" cy="{dot[1]}" r="2.2" fill="{colour}"/>' if dot else ""
        parts.append(f'<g><title>{escape(name)}</title><polyline points="{" ".join(points)}" fill="none" '
                     f'stroke="{colour}" stroke-width="{1.8 if place < _CURVES else 1}"/>{mark}</g>')
    return _svg(width, height, parts)


def _timeline(stints: Sequence[Stint], devices: Sequence[int], scale: float, seconds: float,
              colours: dict[str, str]) -> str:
    """A bar for every network on every device it had.

    Args:
        scale: seconds that a second of the stints took.
        seconds: that the picture spans.
    """
    left, bottom = 30, 26
    row = max(3.0, min(16.0, 420 / max(len(devices), 1)))
    height = row * len(devices) + bottom
    place = {device: index for index, device in enumerate(sorted(devices))}
    per_second = (_WIDTH - left - 10) / max(seconds, 1e-9)
    _, high, step = _ticks(0.0, seconds)
    parts = []
    for index in range(round(high / step) + 1):
        if (at := index * step) <= seconds:
            x = left + at * per_second
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - bottom:.1f}"/>'
                         f'<text x="{x:.1f}" y="{height - 10:.1f}" text-anchor="middle">{at:g} s</text>')
    every = max(1, math.ceil(14 / row))
    parts += [f'<text x="{left - 6}" y="{index * row + row / 2 + 4:.1f}" text-anchor="end">{device}</text>'
              for device, index in place.items() if index % every == 0]
    for stint in stints:
        x, end = left + stint.start_s * scale * per_second, left + stint.end_s * scale * per_second
        colour = colours.get(stint.name, "#888")
        said = (f"{stint.name}: {_count(len(stint.devices), 'GPU')}, {_count(stint.epochs, 'epoch')}, "
                f"{stint.start_s * scale:.1f} to {stint.end_s * scale:.1f} s")
        bars = [f'<rect x="{x:.2f}" y="{place[device] * row:.1f}" width="{max(end - x, 0.3):.2f}" '
                f'height="{row - 0.6:.1f}" fill="{colour}"/>' for device in stint.devices if device in place]
        edge = [f'<rect x="{x:.2f}" y="{place[device] * row:.1f}" width="0.8" height="{row - 0.6:.1f}" '
                f'fill="#000" fill-opacity=".35"/>' for device in stint.devices if device in place]
        name = ""
        if row >= 9 and end - x > 5.2 * len(stint.name) + 6 and stint.devices[0] in place:
            name = (f'<text class="name" x="{x + 4:.1f}" y="{place[stint.devices[0]] * row + row / 2 + 3:.1f}">'
                    f'{escape(stint.name)}</text>')
        parts.append(f"<g><title>{escape(said)}</title>{''.join(bars + edge)}{name}</g>")
    return _svg(_WIDTH, height, parts)


def _shares(told: Account) -> str:
    """A bar of all GPU time, and its parts in numbers."""
    spent, shares = dataclasses.asdict(told.spent), told.spent.shares
    at, parts = 0.0, []
    for name, colour in _SPENT.items():
        width = shares[name] * (_WIDTH - 20)
        parts.append(f'<rect x="{at:.2f}" y="0" width="{width:.2f}" height="30" fill="{colour}">'
                     f"<title>{_SPENT_NAMES.get(name, name)}: {shares[name]:.2%}</title></rect>")
        at += width
    rows = [[_SPENT_NAMES.get(name, name), f"{spent[name]:.1f}", f"{shares[name]:.2%}"] for name in _SPENT]
    return (_svg(_WIDTH, 34, parts) + _legend((_SPENT_NAMES.get(name, name), colour) for name, colour in _SPENT.items())
            + _table(["", "GPU-seconds", "share"], rows))


def _comparison(told: Account) -> str:
    if told.measured_s is None or told.simulated_s is None or told.replay is None:
        return "<p class=note>No network has ended an epoch: there is nothing to simulate.</p>"
    bound = told.replay.simulated.lower_bound_s * told.time_scale
    rows = [["measured, from the first group to the last", f"{told.measured_s:.1f}", ""],
            ["simulated, with the costs below", f"{told.simulated_s:.1f}", f"{told.measured_s / told.simulated_s:.3f}"],
            ["no schedule can be faster than", f"{bound:.1f}", f"{told.measured_s / bound:.3f}"]]
    costs = [("a group that starts or changes", told.costs.regroup_s), ("between two epochs", told.epoch_s),
             ("a group that stops unfinished", told.costs.checkpoint_s), ("a decision", told.costs.scheduling_s)]
    return (_table(["makespan", "seconds", "measured is times as long"], rows)
            + "<p class=note>The same networks, for as many epochs, under the same policy with the same rates; "
              "what moves cost on average in this run:</p>"
            + _table(["", "milliseconds"], [[what, f"{1000 * seconds:.1f}"] for what, seconds in costs])
            + "<p class=note>The simulated run:</p>")


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}">' + "\n".join(parts) + "</svg>")


def _ticks(low: float, high: float) -> tuple[float, float, float]:
    """Round bounds around values, and a round step between them, some five steps apart.

    >>> _ticks(0.13, 2.3)
    (0.0, 2.5, 0.5)
    """
    raw = max(high - low, 1e-6 * max(abs(high), 1e-6)) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return first * step, max(last, first + 1) * step, step


def _whole_step(count: int) -> int:
    return max(1, round(_ticks(0, count)[2]))


def _count(number: float, what: str) -> str:
    return f"{number:.3g} {what}" + ("" if number == 1 else "s")


def write_report(paths: RunPaths, report: Report) -> None:
    """Write ``report.html``.

    Raises:
        StorageError: it cannot be written there.
    """
    page = render(report)
    with replacing(paths.report) as file:
        file.write(page)
