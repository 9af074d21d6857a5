"""The report of a run as one HTML page that needs nothing else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fleet.monitor.account import Account
from fleet.monitor.report import MISSED, Report, best_rows
from fleet.monitor.searched import SearchReport, table_of_found, table_of_rungs
from fleet.monitor.svg import DRAWN, NAMED, colour, is_crowded, line_chart, share_bar, timeline
from fleet.monitor.svg_search import (
    CROWDED,
    LINES,
    STATUS_COLOURS,
    THINNED,
    best_chart,
    descent_chart,
    parameter_charts,
)
from fleet.prediction.ensembles import TOGETHER, table_of
from fleet.storage.files import replacing
from fleet.storage.results import Status
from fleet.units import counted, format_duration

# The parts of the GPU time in the order of the bar: each one's name for people and its colour.
_SPENT = {"training": ("training", "#4e79a7"), "data": ("waiting for data", "#f28e2b"),
          "waiting": ("waiting for work", "#bab0ac"), "checkpointing": ("checkpointing", "#e15759"),
          "moving": ("starting and regrouping", "#76b7b2"), "scheduling": ("scheduling", "#edc948"),
          "profiling": ("profiling", "#b07aa1")}

_CROWD = " A grey bar stands for networks that would be too narrow to be seen; it is paler where there were pauses."


def write_report(path: Path, report: Report) -> None:
    """Write a report's page.

    Raises:
        StorageError: it cannot be written there.
    """
    page = render(report)
    with replacing(path) as file:
        file.write(page)


def render(report: Report) -> str:
    """The whole HTML page."""
    account = report.account
    colours = {name: colour(index) for index, name in enumerate(sorted({stint.name for stint in account.stints}))}
    longest = max(account.seconds, account.simulated_s or 0.0)
    body = [
        f"<h1>{escape(report.name)}</h1>", _summary(report), _note(report.data),
        "<h2>Leaderboard</h2>", *_leaderboard(report),
        *_together(report),
        "<h2>How they learned</h2>", _curves(report, colours),
        *(part for search in report.searches for part in _search(search, account.seconds)), *_rungs(report),
        f"<h2>Who had which {account.device}</h2>",
        f"<p class=note>A bar for every network on every {'slot of a ' * (account.slots > 1)}{account.device} it had. "
        f"A dark edge shows where a group was formed.{_CROWD if is_crowded(account.stints) else ''}</p>",
        timeline(account.stints, account.devices, 1.0, longest, colours, account.device),
        "<h2>Where the time went</h2>", _shares(account), _note(report.samples), _note(report.input),
        _missed(report),
        *_startup(account), "<h2>Beside the simulation</h2>", _comparison(account)]
    if account.replay is not None:
        body.append(timeline(account.replay.simulated.stints, account.devices, account.time_scale, longest, colours,
                             account.device))
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
.row table { align-self: flex-start }
svg .grid { stroke: #e6e6e6 } svg .axis { stroke: #aaa } svg .name { fill: #fff; font-size: 9px }
"""


def _summary(report: Report) -> str:
    account = report.account
    counts = report.counts
    launches = f", {account.launches} launches" if account.launches > 1 else ""
    shared = f", up to {counted(account.slots, 'network')} on each" if account.slots > 1 else ""
    facts = [(f"{counts['finished']} of {counts['networks']}",
              "networks finished" + (f", {counts['failed']} failed" if counts["failed"] else "")),
             (format_duration(account.seconds), f"in all{launches}"),
             (f"{account.gpus}", f"{account.device}s, {account.gpus_per_node} per node{shared}"),
             (account.policy, "policy"),
             (f"{account.spent.shares['training']:.1%}", f"of the {account.device} time in training")]
    return ("<div class=facts>" + "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"
                                          for value, what in facts) + "</div>")


def _leaderboard(report: Report) -> list[str]:
    headers, rows, left_out = best_rows(report.rows)
    return [_table(headers, rows), _note(left_out)]


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


def _together(report: Report) -> list[str]:
    """How good the best networks are together; nothing where that was not found out."""
    if not report.ensembles:
        return []
    return ["<h2>The best networks together</h2>", _table(*table_of(report.ensembles)),
            f"<p class=note>{TOGETHER}</p>"]


def _search(search: SearchReport, seconds: float) -> list[str]:
    """What a search has found, where in its space, and which network came from which."""
    title = f"<h2>{escape(search.title)}</h2>"
    if not search.tried:
        return [title, _note(search.words)]
    if not search.found:
        return [title, "<p class=note>No network of it has a value yet.</p>"]
    family = descent_chart(search)
    few = "" if len(search.tried) <= LINES else (
        f" Of {len(search.tried)} networks, the best {LINES} are drawn, their ancestors included.")
    descent = ["<p class=note>Which network began with whose weights, over the epochs that were trained before. The "
               f"best network and its ancestors are blue.{few}</p>", family] if family else []
    return [title, f"<p class=note>{escape(search.words)}</p>",
            f"<div class=row>{best_chart(search, seconds)}{_table(*table_of_found(search))}</div>",
            "<p class=note>What each network came to at its best epoch, against what it was given"
            f"{THINNED if len(search.tried) > CROWDED else ''}:</p>",
            f"<div class=row>{''.join(parameter_charts(search))}</div>",
            _legend((str(status), fill) for status, fill in STATUS_COLOURS.items()
                    if any(one.status is status for one in search.tried)), *descent]


def _rungs(report: Report) -> list[str]:
    """After how many epochs networks were paused and pruned; nothing where none were."""
    if not report.rungs:
        return []
    return ["<h2>What was pruned when</h2>", _table(*table_of_rungs(report.rungs))]


def _curves(report: Report, colours: Mapping[str, str]) -> str:
    grey = "" if len(report.losses) <= NAMED else f" The best {NAMED} networks are in colour."
    if len(report.losses) > DRAWN:
        grey += (f" Of the other {len(report.losses) - NAMED}, {DRAWN - NAMED} are drawn, evenly from the best to the "
                 "worst.")
    return (f"<p class=note>One point per epoch.{grey}</p><div class=row>"
            + line_chart("training loss", report.losses, colours)
            + (line_chart("validation loss", report.val_losses, colours) if report.val_losses else
               line_chart("accuracy (on validation data, if there are any)", report.accuracies, colours)) + "</div>"
            + _legend((curve.name, colours.get(curve.name, "grey")) for curve in report.losses[:NAMED]))


def _shares(account: Account) -> str:
    """A bar of all GPU time, and its parts in numbers."""
    seconds, shares = dataclasses.asdict(account.spent), account.spent.shares
    return (share_bar((name, shares[part], fill) for part, (name, fill) in _SPENT.items()) + _legend(_SPENT.values())
            + _table(["", f"{account.device}-seconds", "share"], [[name, f"{seconds[part]:.1f}", f"{shares[part]:.2%}"]
                                                    for part, (name, _) in _SPENT.items()]))


def _startup(account: Account) -> list[str]:
    """What passed between the command and the first step, part by part."""
    if not account.startup:
        return []
    total = sum(seconds for _, seconds in account.startup)
    return [f"<h2>From the command to the first step: {total:.1f} s</h2>",
            _table(["on rank 0, one behind the other", "s"],
                   [[part, f"{seconds:.2f}"] for part, seconds in account.startup])]


def _missed(report: Report) -> str:
    return _note(f"{MISSED.format(chunks=counted(report.missed, 'chunk'))}." if report.missed else "")


def _note(text: str) -> str:
    return f"<p class=note>{escape(text[0].upper() + text[1:])}</p>" if text else ""


def _comparison(account: Account) -> str:
    """What the run took and what it should have taken, and the costs that were simulated."""
    measured_s, simulated_s, replay = account.measured_s, account.simulated_s, account.replay
    if measured_s is None or simulated_s is None or replay is None:
        return ("<p class=note>There is nothing to simulate: no network has ended an epoch, or some came while the run "
                "went on, and a simulation knows only those of its beginning.</p>")
    bound_s = replay.simulated.lower_bound_s * account.time_scale
    rows = [["measured, from the first group to the last", f"{measured_s:.1f}", ""],
            ["simulated, with the costs below", f"{simulated_s:.1f}", f"{account.ratio:.3f}"],
            ["no schedule can be faster than", f"{bound_s:.1f}", f"{measured_s / bound_s:.3f}"]]
    costs = [("a group that starts or changes", account.costs.regroup_s), ("between two epochs", account.costs.epoch_s),
             ("a group that stops unfinished", account.costs.checkpoint_s), ("a decision", account.costs.scheduling_s)]
    return (_table(["makespan", "seconds", "measured is times as long"], rows)
            + "<p class=note>The same networks, for as many epochs, under the same policy with the same rates; "
              "what moves cost on average in this run:</p>"
            + _table(["", "milliseconds"], [[what, f"{1000 * seconds:.1f}"] for what, seconds in costs])
            + "<p class=note>The simulated run:</p>")
