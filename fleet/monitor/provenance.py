"""The beginning and the end of the HTML report: state, best network, and where a run comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from fleet import __version__
from fleet.domain.run_launch import RunLaunch
from fleet.monitor.html_parts import html_details, html_facts, html_note, html_table
from fleet.monitor.report import RunReport
from fleet.spec.hyperparameters import hyperparameters_of, to_scalar
from fleet.storage.leaderboard import short_names
from fleet.storage.results import NetworkResult
from fleet.units import format_duration
from launch.errors import pluralize

_LAUNCHES = 20  # maximum number of listed launches
_CHECKPOINTS = (".h5", ".json")  # endings of files beside the exported network


def state_of(report: RunReport) -> str:
    """Return whether the run goes on, and how long it may still take, as HTML."""
    launch = report.run.launch
    if launch is None or launch.has_ended or report.paths is None:
        return ""
    if not report.is_live:
        return html_note(
            "the last launch has not ended, or was killed; the same command resumes it"
        )
    if launch.time_left is None:
        return "<p class=live>Running; the time left is not known yet.</p>"
    at_s, estimate = launch.time_left
    passed_s = report.account.seconds - at_s
    ends = [max(0.0, end_s - passed_s) for end_s in (estimate.low_s, estimate.high_s)]
    text = f"Running. Time left: {' to '.join(map(format_duration, ends))}"
    if launch.start.date:
        now = launch.start.date + report.account.seconds - launch.began_s
        text += f", until {' to '.join(_date(now + end_s, '%H:%M:%S') for end_s in ends)} UTC"
    return f"<p class=live>{escape(text)}.</p>"


# ---- the best network --------------------------------------------------------------------------


def best_network(report: RunReport) -> str:
    """Return which network is best, its settings, and where its weights are, as HTML."""
    at = next((at for at, row in enumerate(report.rows) if row.best_epoch or row.is_mean), None)
    if at is None:
        return html_note("no network has finished an epoch yet")
    best = report.rows[at]
    members = [best]
    if best.is_mean:  # of the rows below it
        members = list(report.rows[at + 1 : at + 1 + best.folds + best.repeats])
    facts = [
        (
            "best network so far" if report.is_live else "best network",
            f'<a class=name data-network="{escape(best.name)}">{escape(best.name)}</a>',
        ),
        ("reached", escape(_reached(best, _monitor(report, members[0])))),
        ("settings", _settings(_winning_settings(report, members[0]))),
        ("weights", "<br>".join(filter(None, (_weights(report, row.name) for row in members)))),
        ("to use it", _prediction(report)),
    ]
    return f"<div class=best>{html_facts(facts)}</div>"


def _reached(row: NetworkResult, column: str) -> str:
    """Return the value of a network, or the mean of several, and when it was reached."""
    value = row.value(column)
    text = "" if math.isnan(value) else f"{column} {value:.4g}"
    if row.is_mean:
        deviation = row.deviation.get(column)
        around = "" if deviation is None else f" ± {deviation:.2g}"
        part = "fold" if row.folds else "repeat"
        return f"{text}{around}, the mean of {pluralize(row.folds or row.repeats, part)}"
    return f"{text} after epoch {row.best_epoch} of {row.epochs}".strip()


def _monitor(report: RunReport, row: NetworkResult) -> str:
    """Return the column by which a network is judged."""
    network = report.spec_of(row.name)
    if network is not None:
        return network.train.stopping.metric
    return "val_loss" if math.isnan(row.val_accuracy) else "val_accuracy"


def _winning_settings(report: RunReport, row: NetworkResult) -> Mapping[str, Any]:
    """Return what was drawn for a network; of one without, what it is and how it learns."""
    if row.drawn:
        return row.drawn
    network = report.spec_of(row.name)
    if network is None:
        return {}
    settings = hyperparameters_of(network)
    names = {
        "model": "model",
        "optimizer": "train.optimizer.name",
        "learning_rate": "train.optimizer.learning_rate",
        "batch.size": "train.batch.size",
    }
    return {short: settings[name] for short, name in names.items() if name in settings}


def _settings(settings: Mapping[str, Any]) -> str:
    chips = zip(short_names(list(settings)), settings.values(), strict=True)
    return " ".join(
        f"<span class=chip>{escape(name)} <b>{escape(format_setting(value))}</b></span>"
        for name, value in chips
        if value is not None
    )


def format_setting(value: Any) -> str:
    """Return the value of a setting: numbers with four digits, lists as JSON.

    >>> format_setting(0.0307612), format_setting([8, 16])
    ('0.03076', '[8, 16]')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(to_scalar(value))


def _weights(report: RunReport, name: str) -> str:
    """Return the exported file of a network or else its best checkpoint; empty before any."""
    if report.paths is None:
        return ""
    folder = report.paths.model(name)
    files = sorted(folder.glob("best.*"), key=lambda file: (file.suffix in _CHECKPOINTS, file.name))
    return f"<code>{escape(str(files[0].resolve()))}</code>" if files else ""


def _prediction(report: RunReport) -> str:
    if report.paths is None or report.is_live:
        return ""
    ensemble = " --select greedy" if report.ensembles else ""
    return f"<code>{escape(f'fleet predict {report.paths.root} INPUTS{ensemble}')}</code>"


# ---- where the run comes from ------------------------------------------------------------------


def provenance(report: RunReport) -> list[str]:
    """Return date, host, version, command, data and spec of the run, as HTML."""
    launches = report.run.launches
    if not launches:
        return []
    rows = [_launch_row(report, launch) for launch in launches[-_LAUNCHES:]]
    headers = [
        "began (UTC)",
        "host",
        "FLEET",
        "ranks",
        "nodes",
        f"{report.account.device}s",
        "took",
    ]
    origin = launches[-1].start.origin
    facts = [
        ("command", f"<code>{escape(origin.command)}</code>" if origin and origin.command else ""),
        ("folder", _folder(report.paths.root) if report.paths else ""),
        ("data", "; ".join(map(escape, _data_lines(report)))),
        ("written", _written() if report.paths else ""),
    ]
    spec = _spec_text(report)
    if report.spec_problem:
        problem = f"the pages of networks lack settings and predictions: {report.spec_problem}"
    else:
        problem = ""
    return [
        "<h2>Where this run comes from</h2>",
        html_facts(facts),
        html_table(headers, rows),
        html_note(
            f"These are the last {_LAUNCHES} of {len(launches)} launches."
            if len(launches) > _LAUNCHES
            else ""
        ),
        html_note(problem),
        html_details("The spec", f"<pre>{escape(spec)}</pre>") if spec else "",
    ]


def _written() -> str:
    return f"{_date(datetime.now(UTC).timestamp())} UTC by FLEET {__version__}"


def _launch_row(report: RunReport, launch: RunLaunch) -> list[Any]:
    start = launch.start
    origin = start.origin
    return [
        _date(start.date) if start.date else "",
        origin.host if origin else "",
        origin.version if origin else "",
        start.trainers + start.preprocessors if start.trainers else "",
        start.nodes,
        len(launch.gpus),
        format_duration(launch.ended_s - launch.began_s),
    ]


def _folder(root: Path) -> str:
    return f"<code>{escape(str(root.resolve()))}</code>"


def _data_lines(report: RunReport) -> Iterator[str]:
    """Yield what the data are, for each input pipeline."""
    start = report.run.launches[-1].start
    if report.spec is None:
        yield f"{start.samples} training samples"
        return
    for pipeline, data in report.spec.data_by_pipeline.items():
        path = "" if data.path is None else f" {data.path}"
        text = f"{data.source}{path}: {pluralize(start.samples, 'training sample')}"
        sample = report.samples.get(pipeline)
        if sample is not None:
            text += f" {sample.target.after_samples}"
        yield text


def _spec_text(report: RunReport) -> str:
    """Return the text of the spec; empty if it cannot be read."""
    if report.paths is None:
        return ""
    try:
        return report.paths.spec.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _date(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
