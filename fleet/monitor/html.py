"""The report of a run as one self-contained HTML page."""

from __future__ import annotations

import dataclasses
import math
from html import escape
from pathlib import Path

from fleet.monitor.accounting import ACTIVITIES, Account
from fleet.monitor.charts import (
    DRAWN,
    MAX_TRIALS,
    NAMED,
    STATUS_COLORS,
    as_script,
    is_crowded,
    make_charts,
    number_networks,
    subsample,
)
from fleet.monitor.html_parts import (
    html_details,
    html_hint,
    html_legend,
    html_note,
    html_table,
)
from fleet.monitor.importance import importance_of
from fleet.monitor.network_pages import make_network_pages
from fleet.monitor.provenance import best_network, provenance, state_of
from fleet.monitor.report import RunReport, best_rows
from fleet.monitor.search_summary import (
    FRONT_TITLE,
    RUNGS_TITLE,
    SearchReport,
    front_table,
    improvements_table,
    rungs_table,
    trials_table,
)
from fleet.prediction.ensembles import TABLE_NOTE, TABLE_TITLE, make_table
from fleet.storage.files import atomic_write
from fleet.storage.leaderboard import short_names
from fleet.units import format_duration, format_energy
from launch.errors import pluralize

# Activity -> label and color, in the order of the bar of GPU time.
_SPENT = {
    activity: (label, color)
    for (activity, label), color in zip(
        ACTIVITIES.items(),
        ("#4e79a7", "#f28e2b", "#bab0ac", "#e15759", "#76b7b2", "#edc948", "#b07aa1"),
        strict=True,
    )
}

_PARAMETERS = 30  # maximum number of drawn parameters with a column in the leaderboard
_ROWS = 30  # rows per network in the table of losses
_STINTS = 200  # rows of the table of device assignments

_CROWD = (
    " A gray bar merges networks whose bars are too narrow to see; a paler one contains more "
    "idle time."
)


def write_report(
    path: Path, report: RunReport, every_s: float | None = None, skip_slow: bool = False
) -> None:
    """Write the page of a report; see :func:`render`.

    Raises:
        StorageError: the file cannot be written.
    """
    page = render(report, every_s, skip_slow)
    with atomic_write(path) as file:
        file.write(page)


def render(report: RunReport, every_s: float | None = None, skip_slow: bool = False) -> str:
    """Return the HTML page of a report.

    Args:
        report: the report.
        every_s: seconds after which an open page reloads, if it is rewritten periodically.
        skip_slow: True to leave out what takes seconds to compute, because devices wait for it.
    """
    account = report.account
    headers, rows, left_out = best_rows(report.rows, _PARAMETERS)
    body = [
        f"<h1>{escape(report.name)}</h1>",
        state_of(report),
        _summary(report),
        html_note(report.data_changes),
        "<noscript><p class=note>The charts and the pages of single networks need JavaScript, "
        "which is disabled. The tables show the same numbers.</p></noscript>",
        best_network(report),
        "<h2>Leaderboard</h2>",
        html_table(headers, rows),
        html_note(left_out),
        *_ensembles(report),
        "<h2>Learning curves</h2>",
        *_curves(report),
        *(
            part
            for number, search in enumerate(report.searches)
            for part in _search(search, number, skip_slow)
        ),
        *_rungs(report),
        f"<h2>Networks by {account.device}</h2>",
        f"<p class=note>Each bar is a network on a {'slot of a ' * (account.slots > 1)}"
        f"{account.device}. A dark edge marks the start of a group."
        f"{_CROWD if is_crowded(account.stints) else ''}</p>",
        "<div id=timeline></div>",
        _stints(account),
        f"<h2>{account.device[0].upper()}{account.device[1:]} time</h2>",
        _shares(account),
        html_note(report.cache_summary),
        html_note(report.input_summary),
        html_note(report.missed_summary and f"{report.missed_summary}."),
        *_startup(account),
        "<h2>Comparison with a simulation</h2>",
        _comparison(account),
        "<div id=simulated></div>",
        *provenance(report),
    ]
    is_quick = skip_slow or every_s is not None
    pages = make_network_pages(report, number_networks(report), is_quick)
    seconds = None if every_s is None else max(1, round(every_s))
    # A script reloads the page while it is updated; without scripts, the meta element does.
    if seconds is None:
        again = ""
    else:
        again = f'<noscript><meta http-equiv="refresh" content="{seconds}"></noscript>'
    return _PAGE.format(
        title=escape(report.name),
        again=again,
        every=seconds or "",
        style=_data("report.css"),
        body="\n".join(body),
        library=_data("echarts.min.js"),
        script=_data("report.js"),
        data=as_script(make_charts(report) | {"pages": pages}),
    )


def _data(name: str) -> str:
    return (Path(__file__).parents[1] / "data" / name).read_text(encoding="utf-8")


_PAGE = """<!doctype html>
<html lang="en" data-every="{every}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
    {again}<title>{title}</title>
<style>
{style}</style></head>
<body>
<main>
{body}
</main>
<article hidden></article>
<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script>
{script}</script>
</body>
</html>
"""


def _summary(report: RunReport) -> str:
    account = report.account
    counts = report.counts
    launches = f", {account.launches} launches" if account.launches > 1 else ""
    if account.slots > 1:
        shared = f", up to {pluralize(account.slots, 'network')} on each"
    else:
        shared = ""
    finished = "networks finished"
    if counts["failed"]:
        finished += f", {counts['failed']} failed"
    facts = [
        (f"{counts['finished']} of {counts['networks']}", finished),
        (format_duration(account.seconds), f"total time{launches}"),
    ]
    if account.first_signal_s is not None:
        facts.append(
            (format_duration(account.first_signal_s), "until every network had finished an epoch")
        )
    if report.energy_kj is not None:
        facts.append((format_energy(report.energy_kj), "energy of training"))
    facts += [
        (f"{account.gpus}", f"{account.device}s, {account.gpus_per_node} per node{shared}"),
        (account.policy, "policy"),
        (f"{account.spent.shares['training']:.1%}", f"of the {account.device} time in training"),
    ]
    return (
        "<div class=facts>"
        + "".join(
            f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>"
            for value, label in facts
        )
        + "</div>"
    )


def _ensembles(report: RunReport) -> list[str]:
    """Return the scores of ensembles; empty if they were not computed."""
    if not report.ensembles:
        return []
    return [
        f"<h2>{TABLE_TITLE}</h2>",
        html_table(*make_table(report.ensembles)),
        f"<p class=note>{TABLE_NOTE}</p>",
    ]


def _search(search: SearchReport, number: int, skip_slow: bool) -> list[str]:
    """Return the section of a search: best values, its space, and lines of descent."""
    title = f"<h2>{escape(search.title)}</h2>"
    if not search.trials:
        return [title, html_note(search.summary)]
    if not search.improvements:
        return [title, "<p class=note>None of its networks has a value yet.</p>"]
    if len(search.trials) <= DRAWN:
        limit = ""
    else:
        limit = (
            f" The best {DRAWN} of {len(search.trials)} networks are drawn, including their "
            "ancestors."
        )
    if any(trial.parent for trial in search.trials):
        descent = [
            "<p class=note>Lines of descent: networks that started from the weights of other "
            "networks, over trained epochs. The best network and its ancestors are blue."
            f"{limit}</p>",
            _chart_element(number, "descent"),
        ]
    else:
        descent = []
    if len(search.ranked) > MAX_TRIALS:
        drawn = (
            f"; {MAX_TRIALS} of {len(search.ranked)} networks are drawn, from the best to the worst"
        )
    else:
        drawn = ""
    # A single key has no parallel coordinates.
    drag = html_hint(" Drag along an axis to select a range.") if len(search.space) > 1 else ""
    if search.objectives:
        front = [
            f"<h3>{FRONT_TITLE}</h3>",
            _chart_element(number, "pareto"),
            html_table(*front_table(search)),
            "<p class=note>No other network is at least as good in all objectives and better in "
            "one.</p>",
        ]
    else:
        front = []
    return [
        title,
        f"<p class=note>{escape(search.summary)}</p>",
        f"<div class=row>{_chart_element(number, 'best')}",
        f"{html_table(*improvements_table(search))}</div>",
        *front,
        "<p class=note>The value of each network at its best epoch against its parameters"
        f"{drawn}.{drag}</p>",
        _chart_element(number, "parallel"),
        _chart_element(number, "keys"),
        html_legend(
            (str(status), fill)
            for status, fill in STATUS_COLORS.items()
            if any(trial.status is status for trial in search.trials)
        ),
        html_details("The best networks as a table", html_table(*trials_table(search))),
        *_importance(search, skip_slow),
        *descent,
    ]


def _importance(search: SearchReport, skip_slow: bool) -> list[str]:
    """Return the importance of each key as bars that need no script."""
    importance = importance_of(search, skip_slow)
    if importance is None:
        return []
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=number>{share:.0%}</td><td class=bar><i class=share "
        f'style="width:{share:.0%}"></i></td></tr>'
        for name, share in zip(
            short_names(list(importance.shares)), importance.shares.values(), strict=True
        )
    )
    head = "<tr><th>key</th><th>importance</th><th></th></tr>"
    table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
    return [html_note(importance.summary), f"<div class=table>{table}</div>" if rows else ""]


def _chart_element(number: int, chart: str) -> str:
    """Return the element that a chart of a search is drawn into."""
    return f'<div class=grid id="search-{number}-{chart}"></div>'


def _rungs(report: RunReport) -> list[str]:
    """Return the table of rungs; empty if no network was paused or pruned."""
    if not report.rungs:
        return []
    return [f"<h2>{RUNGS_TITLE}</h2>", html_table(*rungs_table(report.rungs))]


def _curves(report: RunReport) -> list[str]:
    count = len(report.histories)
    if count <= NAMED:
        gray = ""
    else:
        gray = f" The best {NAMED} networks are in color."
    if count > DRAWN:
        gray += (
            f" {DRAWN - NAMED} of the other {count - NAMED} are drawn, evenly spaced "
            "from the best to the worst."
        )
    names = ("loss", "val_loss", "accuracy", "val_accuracy")
    best = report.histories[:NAMED]
    columns = [
        name
        for name in names
        if any(math.isfinite(record.value(name)) for _, history in best for record in history)
    ]
    rows = [
        [name, record.epoch, *(_formatted(record.value(column)) for column in columns)]
        for name, history in best
        for record in subsample(history, 1, _ROWS)
    ]
    return [
        "<p class=note>"
        + html_hint(
            "Point at a curve to see its network, and click it to highlight the network in all "
            "charts. Drag over a chart to zoom; a double click shows all again."
        )
        + f"{gray}</p>",
        "<div id=controls></div><div class=grid id=curves></div><div class=legend id=legend></div>",
        html_details(
            "The curves of the best networks as a table",
            html_table(["network", "epoch", *columns], rows),
        ),
    ]


def _formatted(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""


def _stints(account: Account) -> str:
    """Return a table of the first device assignments."""
    rows = [
        [
            stint.name,
            ", ".join(map(str, stint.devices)),
            f"{stint.start_s:.1f}",
            f"{stint.end_s:.1f}",
        ]
        for stint in account.stints[:_STINTS]
    ]
    if len(rows) < len(account.stints):
        bars = f"The first {len(rows)} of {len(account.stints)} bars"
    else:
        bars = "The bars"
    return html_details(
        f"{bars} as a table",
        html_table(["network", f"{account.device}s", "start, s", "end, s"], rows),
    )


def _shares(account: Account) -> str:
    """Return a bar of all GPU time and a table of its parts."""
    seconds = dataclasses.asdict(account.spent)
    shares = account.spent.shares
    bar = "".join(
        f'<i style="width:{shares[part]:.3%};background:{fill}" title="{name}: '
        f'{shares[part]:.2%}"></i>'
        for part, (name, fill) in _SPENT.items()
    )
    return (
        f"<div class=shares>{bar}</div>"
        + html_legend(_SPENT.values())
        + html_table(
            ["", f"{account.device}-seconds", "share"],
            [
                [name, f"{seconds[part]:.1f}", f"{shares[part]:.2%}"]
                for part, (name, _) in _SPENT.items()
            ],
        )
    )


def _startup(account: Account) -> list[str]:
    """Return the parts of the time between the command and the first step."""
    if not account.startup:
        return []
    total = sum(seconds for _, seconds in account.startup)
    return [
        f"<h2>From the command to the first step: {total:.1f} s</h2>",
        html_table(
            ["on rank 0, in order", "s"],
            [[part, f"{seconds:.2f}"] for part, seconds in account.startup],
        ),
    ]


def _comparison(account: Account) -> str:
    """Return measured and simulated times, and the costs that were simulated."""
    measured_s = account.measured_s
    simulated_s = account.simulated_s
    replay = account.replay
    if measured_s is None or simulated_s is None or replay is None:
        return (
            "<p class=note>The run cannot be simulated: no network has finished an epoch, or "
            "networks were added during the run.</p>"
        )
    bound_s = replay.simulated.lower_bound_s * account.time_scale
    rows = [
        ["measured, first to last group", f"{measured_s:.1f}", ""],
        ["simulated, with the costs below", f"{simulated_s:.1f}", f"{account.ratio:.3f}"],
        ["lower bound of any schedule", f"{bound_s:.1f}", f"{measured_s / bound_s:.3f}"],
    ]
    costs = [
        ("starting or changing a group", account.costs.regroup_s),
        ("between two epochs", account.costs.epoch_s),
        ("stopping an unfinished group", account.costs.checkpoint_s),
        ("a scheduling decision", account.costs.scheduling_s),
    ]
    return (
        html_table(["makespan", "seconds", "measured / this"], rows)
        + "<p class=note>The simulation uses the same networks, epochs, policy and rates, and the "
        "mean costs of this run:</p>"
        + html_table(
            ["", "milliseconds"], [[label, f"{1000 * seconds:.1f}"] for label, seconds in costs]
        )
        + "<p class=note>The simulated run:</p>"
    )
