"""The data of the report's pages of single networks, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.monitor.evaluations import read_evaluations, saved_bytes
from fleet.monitor.provenance import format_setting
from fleet.monitor.report import MAX_ROWS, RunReport
from fleet.spec.hyperparameters import hyperparameters_of
from fleet.storage.results import NetworkResult, without_means

_LONG = 40  # letters of a reason beyond which it is a paragraph
# Bytes of saved outputs that are read, the best networks first.
_MAX_BYTES = 1 << 30
_MAX_QUICK_BYTES = 32 << 20  # where devices wait, or the page is written again and again


def make_network_pages(
    report: RunReport, index: Mapping[str, int], is_quick: bool
) -> dict[str, Any]:
    """Return settings, folders and evaluations of the best networks, by index as text.

    Args:
        report: the report.
        index: network -> its index.
        is_quick: whether to read few saved outputs.
    """
    rows = [row for row in without_means(report.rows[:MAX_ROWS]) if row.name in index]
    settings = {row.name: _settings(report, row) for row in rows}
    common = _common(list(settings.values()))
    budget = _MAX_QUICK_BYTES if is_quick else _MAX_BYTES
    pages: dict[str, Any] = {}
    for row in rows:
        page: dict[str, Any] = {
            "settings": {
                name: value for name, value in settings[row.name].items() if name not in common
            },
        }
        if len(row.reason) > _LONG:
            page["reason"] = row.reason
        if report.paths is not None:
            page["folder"] = str(report.paths.model(row.name).resolve())
            budget -= saved_bytes(report.paths, row.name)
            if budget >= 0:
                page["evaluations"] = _evaluations(report, row)
            else:
                page["unread"] = True
        pages[str(index[row.name])] = page
    return {"common": common, "networks": pages}


def _settings(report: RunReport, row: NetworkResult) -> dict[str, str]:
    """Return all settings of a network as text; what was drawn without a spec."""
    network = report.spec_of(row.name)
    values = row.drawn if network is None else hyperparameters_of(network)
    return {name: format_setting(value) for name, value in values.items() if value is not None}


def _common(settings: list[dict[str, str]]) -> dict[str, str]:
    """Return the settings that all of several networks share."""
    if len(settings) < 2:
        return {}
    first, *remaining = settings
    return {
        name: value
        for name, value in first.items()
        if all(values.get(name) == value for values in remaining)
    }


def _evaluations(report: RunReport, row: NetworkResult) -> list[dict[str, Any]]:
    network = report.spec_of(row.name)
    if network is None or report.paths is None or network.pipeline not in report.samples:
        return []
    return read_evaluations(report.paths, row.name, report.samples[network.pipeline].target)
