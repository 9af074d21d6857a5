"""Tests of the HTML report."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fleet.monitor import html
from fleet.monitor.html import render
from fleet.monitor.html_parts import html_table
from fleet.monitor.report import read_report
from fleet.units import format_duration
from tests.fleet.logs import LOG, as_text, epoch, write_sample_run
from tests.fleet.monitor.test_search_summary import searched  # noqa: F401 (a fixture)


@pytest.fixture
def run(tmp_path):
    return write_sample_run(tmp_path)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_page_is_complete_and_self_contained(run):
    page = render(read_report(run))
    reader = _Reader()
    reader.feed(page)
    assert {tag for tag, _ in reader.tags} & {"link", "img", "iframe"} == set()
    assert not any({"src", "href"} & set(attributes) for _, attributes in reader.tags)
    assert "<1>" not in page.replace("&lt;1&gt;", "")
    for text in (
        "1 of 2",
        "b<1>",
        "training loss",
        "waiting for data",
        "simulated, with the costs below",
    ):
        assert text in reader.text
    places = {attributes.get("id") for _, attributes in reader.tags}
    assert {"curves", "timeline", "simulated", "legend", "data"} <= places
    assert "Apache Software Foundation" in page  # the notice of the library's licence


def test_page_shows_when_all_networks_had_an_epoch(run):
    report, reader = read_report(run), _Reader()
    reader.feed(render(report))
    assert (
        f"{format_duration(report.account.first_signal_s)}until every network had finished an epoch"
        in reader.text
    )
    run.events.write_text(as_text(LOG[:4]))
    assert "until every network had finished an epoch" not in render(read_report(run))


def test_open_page_reloads_until_run_has_ended(run):
    report = read_report(run)
    assert '<meta http-equiv="refresh" content="30">' in render(report, 30.0)
    assert '"refresh"' not in render(report)


def test_titles_begin_with_capitals(run):
    report = read_report(run)
    assert "<h2>GPU time</h2>" in render(report)
    cores = replace(report, account=replace(report.account, device="core"))
    assert "<h2>Core time</h2>" in render(cores)


def test_bars_table_says_what_it_leaves_out(run, monkeypatch):
    report = read_report(run)
    assert "<summary>The bars as a table</summary>" in render(report)
    monkeypatch.setattr(html, "_STINTS", 1)
    bars = len(report.account.stints)
    assert f"<summary>The first 1 of {bars} bars as a table</summary>" in render(report)


def test_search_of_one_key_has_no_axes_to_drag_along(searched):  # noqa: F811
    report = read_report(searched)
    (search,) = report.searches
    assert "Drag along an axis" in render(report)
    space = dict([next(iter(search.space.items()))])
    single = replace(report, searches=(replace(search, space=space),))
    assert "Drag along an axis" not in render(single)


def test_absurd_epoch_number_takes_no_time_or_memory(run):
    run.events.write_text(as_text([*LOG, epoch(24.0, "a", 10**30, 10.0)]))
    assert str(10**30) in render(read_report(run))


def test_page_shows_integers_beyond_floats():
    assert str(10**400) in html_table(["seed"], [[10**400]])
