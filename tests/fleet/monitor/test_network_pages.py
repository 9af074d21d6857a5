"""Tests of the data of the pages of single networks."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.monitor import network_pages
from fleet.monitor.charts import number_networks
from fleet.monitor.network_pages import make_network_pages
from fleet.monitor.report import read_report
from tests.fleet.logs import write_sample_run


@pytest.fixture
def report(tmp_path):
    """Make a report with two networks, whose spec cannot be read."""
    report = read_report(write_sample_run(tmp_path))
    values = {"a": {"width": 8, "rate": 0.01}, "b<1>": {"width": 8, "rate": 0.1}}
    rows = tuple(replace(row, drawn=values[row.name]) for row in report.rows)
    return replace(report, rows=rows)


def test_shared_settings_are_listed_once(report):
    index = number_networks(report)
    pages = make_network_pages(report, index, is_quick=False)
    assert pages["common"] == {"width": "8"}
    assert pages["networks"][str(index["a"])]["settings"] == {"rate": "0.01"}


def test_long_reason_is_told_whole(report):
    reason = "out of memory; " * 9
    rows = (replace(report.rows[0], reason=reason), *report.rows[1:])
    index = number_networks(report)
    pages = make_network_pages(replace(report, rows=rows), index, is_quick=False)["networks"]
    assert [pages[str(index[row.name])].get("reason") for row in rows] == [reason, None]


def test_outputs_beyond_the_limit_are_not_read(report, monkeypatch):
    monkeypatch.setattr(network_pages, "_MAX_QUICK_BYTES", 10)
    path = report.paths.predictions("b<1>", "validation")
    path.parent.mkdir(parents=True)
    np.savez(path, outputs=np.zeros((4, 2)))
    index = number_networks(report)
    for is_quick in (True, False):
        pages = make_network_pages(report, index, is_quick)["networks"]
        assert pages[str(index["b<1>"])].get("unread", False) == is_quick
        assert "unread" not in pages[str(index["a"])]
