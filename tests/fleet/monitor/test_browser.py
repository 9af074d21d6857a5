"""Tests of the HTML report in Chromium (FLEET_TEST_CHROMIUM); skipped if it is missing."""

import base64
import fcntl
import io
import json
import os
import select
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import pytest
from PIL import Image

from fleet.monitor import network_pages
from fleet.monitor.html import render
from fleet.monitor.report import read_report
from tests.fleet.logs import epoch, write_sample_run
from tests.fleet.monitor.test_search_summary import searched  # noqa: F401 (a fixture)

CHROMIUM = os.environ.get("FLEET_TEST_CHROMIUM") or next(
    filter(
        None,
        map(
            shutil.which,
            (
                "chromium",
                "chromium-browser",
                "chromium-headless-shell",
                "google-chrome",
                "google-chrome-stable",
            ),
        ),
    ),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (tools/chromium.sh installs it)"
)

# The actions of a reader: point at an epoch, click, and sort by a column.
_DRIVE = """(() => {
const seen = [], box = document.querySelector("#curves .chart");
const chart = echarts.getInstanceByDom(box);
const point = chart.getOption().series[0].data[1];
const [offsetX, offsetY] = chart.convertToPixel({gridIndex: 0}, point);
const pointer = {offsetX, offsetY, event: {pageX: 0, pageY: 0}};
chart.getZr().trigger("mousemove", pointer);
seen.push(document.getElementById("tip").textContent);
chart.getZr().trigger("click", pointer);
seen.push(document.querySelector("tr.chosen").dataset.network);
seen.push(document.getElementById("legend").textContent);
const headers = [...document.querySelectorAll("th")];
const header = headers.find(cell => cell.textContent === "network");
const rows = () => [...header.closest("table").tBodies[0].rows];
const column = () => rows().map(row => row.cells[header.cellIndex].textContent);
header.click(); seen.push(column().join()); header.click(); seen.push(column().join());
return seen; })()"""


class Browser:
    """A page in Chromium, controlled through its debugging pipe."""

    def __init__(self, page, tmp_path):
        (tmp_path / "page.html").write_text(page)
        pipes = [fcntl.fcntl(end, fcntl.F_DUPFD, 50) for end in (*os.pipe(), *os.pipe())]
        child_read, self.write, self.read, their_write = pipes
        self.process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--single-process",
                "--no-zygote",
                "--remote-debugging-pipe",
                f"--user-data-dir={tmp_path / 'profile'}",
                "--window-size=1100,2400",
                "--hide-scrollbars",
            ],
            close_fds=False,
            start_new_session=True,  # the program may be a script that starts the browser
            preexec_fn=lambda: (os.dup2(child_read, 3), os.dup2(their_write, 4)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_read)
        os.close(their_write)
        self.buffer, self.errors, self.session, self.number = b"", [], {}, 0
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = {
            "sessionId": self.ask("Target.attachToTarget", targetId=target, flatten=True)[
                "sessionId"
            ]
        }
        self.ask("Runtime.enable")
        self.ask("Page.navigate", url=(tmp_path / "page.html").as_uri())
        while self.run("document.readyState + location.protocol") != "completefile:":
            time.sleep(0.1)

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **self.session}
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                assert select.select([self.read], [], [], 60)[0], "the browser does not answer"
                self.buffer += (data := os.read(self.read, 1 << 20))
                assert data, "the browser has ended"
            reply, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(reply)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"])
            if answer.get("id") == self.number:
                return answer["result"]

    def run(self, script):
        evaluated = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        return evaluated["result"].get("value")

    def show(self, width=1100, scheme="light"):
        """Show the page at a width, in a color scheme."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)
        # What listens to such changes is called before a frame is drawn.
        self.run(
            "new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))"
        )

    def go_to(self, fragment):
        """Follow a link inside of the page."""
        self.run(
            "new Promise(done => { addEventListener('hashchange', () => done(1), {once: true}); "
            f"location.hash = {fragment!r}; }})"
        )

    def drag(self, begin, end):
        """Drag the mouse from one point of the window to another."""
        for kind, (x, y) in (("Pressed", begin), ("Moved", end), ("Released", end)):
            button = "none" if kind == "Moved" else "left"
            mouse = {"type": f"mouse{kind}", "x": x, "y": y, "button": button, "buttons": 1}
            self.ask("Input.dispatchMouseEvent", **mouse, clickCount=1)

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.read)
        os.close(self.write)


@pytest.fixture
def browse(tmp_path):
    """Return a function that opens a page."""
    opened = []

    def open_page(page):
        opened.append(Browser(page, tmp_path))
        return opened[-1]

    yield open_page
    for tab in opened:
        tab.close()


def test_tooltip_selection_and_sorting_work(tmp_path, browse):
    page = browse(render(read_report(write_sample_run(tmp_path))))
    assert page.run(_DRIVE) == [
        "a: epoch 2, training loss 0.5",
        "a",
        "ashow all",
        "a,b<1>",
        "b<1>,a",
    ]
    assert not page.errors


def test_charts_of_a_search_are_drawn(browse, searched):  # noqa: F811
    page = browse(render(read_report(searched)))
    assert (
        page.run("document.querySelectorAll('canvas').length") == 9
    )  # three for curves, and two for keys
    assert not page.errors
    shot = page.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
    with Image.open(io.BytesIO(base64.b64decode(shot))) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(2**24)}
    assert (0x4E, 0x79, 0xA7) in colours  # best so far, and the line of descent of the best network


def test_open_page_reloads_until_writing_stops(tmp_path, browse):
    report = read_report(write_sample_run(tmp_path))
    page, file = browse(render(report, 1.0)), tmp_path / "page.html"
    file.write_text(render(replace(report, name="anew"), 1.0))
    until = time.monotonic() + 30
    while page.run("document.readyState + document.title") != "completeanew":
        assert time.monotonic() < until
        time.sleep(0.1)
    os.utime(file, (time.time() - 3600,) * 2)  # the process that wrote it was killed
    while "has stopped reloading" not in (
        page.run("document.body && document.body.innerText") or ""
    ):
        assert time.monotonic() < until
        time.sleep(0.1)
    page.run("window.stays = true")
    time.sleep(1.5)
    assert page.run("window.stays")
    assert not page.errors


def many_networks(tmp_path, count=60, epochs=8):
    """Return the report of a run with many networks, the last of which diverges."""
    report = read_report(write_sample_run(tmp_path))
    names = [f"net-{number}" for number in range(count)]
    records = [epoch(0.0, "", at, 1.0).event.record for at in range(1, epochs + 1)]
    keys = ["width", *(f"a_long_parameter_{index}" for index in range(10))]

    def history(number):
        scale = 1e9 if number == count - 1 else 1 + number / count
        return tuple(
            replace(record, loss=scale * record.loss, val_loss=scale * record.val_loss)
            for record in records
        )

    return replace(
        report,
        rows=tuple(
            replace(report.rows[0], name=network, best_epoch=1, drawn=dict.fromkeys(keys, number))
            for number, network in enumerate(names)
        ),
        histories=tuple((network, history(number)) for number, network in enumerate(names)),
    )


# The range of an axis of the first chart of learning curves.
_RANGE = """(axis => echarts.getInstanceByDom(document.querySelectorAll("#curves .chart")[%d])
.getModel().getComponent(axis).axis.scale.getExtent())("%s")"""
_ACT = "[...document.querySelectorAll('button.act')].find(each => each.textContent === %r).click()"


def test_diverged_network_does_not_flatten_the_others(tmp_path, browse):
    page = browse(render(many_networks(tmp_path)))
    assert page.run(_RANGE % (0, "yAxis"))[1] < 4
    assert "net-59 leaves the charts." in page.run("document.body.innerText")
    page.run(_ACT % "show everything")
    assert page.run(_RANGE % (0, "yAxis"))[1] >= 1e9


def test_both_losses_have_one_range_and_log_axes(tmp_path, browse):
    page = browse(render(many_networks(tmp_path)))
    assert page.run(_RANGE % (0, "yAxis")) == page.run(_RANGE % (1, "yAxis"))
    page.run(_ACT % "log axes")
    kind = "echarts.getInstanceByDom(document.querySelector('#curves .chart'))"
    assert page.run(f"{kind}.getOption().yAxis[0].type") == "log"
    assert not page.errors


def test_dragging_zooms_and_a_double_click_shows_all(tmp_path, browse):
    page = browse(render(many_networks(tmp_path)))
    full_range = page.run(_RANGE % (0, "xAxis"))
    x, y = page.run(
        "(box => { box.scrollIntoView(); const {left, top} = box.getBoundingClientRect(); "
        "return [left, top]; })(document.querySelector('#curves .chart'))"
    )
    page.drag((x + 100, y + 60), (x + 200, y + 160))
    low, high = page.run(_RANGE % (0, "xAxis"))
    assert full_range[0] < low < high < full_range[1]
    page.run("document.querySelector('#curves .chart').dispatchEvent(new Event('dblclick'))")
    assert page.run(_RANGE % (0, "xAxis")) == full_range
    assert not page.errors


def test_best_networks_have_a_color_each(tmp_path, browse):
    page = browse(render(many_networks(tmp_path)))
    strokes = "[...document.querySelectorAll('#legend line')].map(line => line.getAttribute(%r))"
    assert len(set(page.run(strokes % "stroke"))) == 12
    page.run(_ACT % "color all 60")
    looks = zip(page.run(strokes % "stroke"), page.run(strokes % "stroke-dasharray"), strict=True)
    assert len(set(looks)) == 60


def test_long_leaderboard_shows_that_it_scrolls(tmp_path, browse):
    page = browse(render(many_networks(tmp_path)))
    note = page.run("document.querySelector('.scroll').innerText")
    assert note.startswith("Rows 1 to ")
    assert "of 60; scroll for the others." in note
    page.run("document.querySelector('.scroll button').click()")
    assert "Rows" not in page.run("document.querySelector('.scroll').innerText")
    height, inner = page.run(
        "(t => [t.clientHeight, t.scrollHeight])(document.querySelector('.table'))"
    )
    assert height >= inner


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_page_does_not_scroll_sideways(tmp_path, browse, scheme):
    page = browse(render(many_networks(tmp_path)))
    page.show(400, scheme)
    assert page.run("document.documentElement.scrollWidth") == 400
    page.go_to("#network=net-3")
    assert page.run("document.documentElement.scrollWidth") == 400


def test_dark_scheme_changes_page_and_charts(tmp_path, browse):
    page = browse(render(many_networks(tmp_path)))
    page.show(scheme="dark")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 28)"
    chart = "echarts.getInstanceByDom(document.querySelector('#curves .chart'))"
    assert page.run(f"{chart}.getOption().textStyle.color") == "#e3e5e8"


def test_print_has_all_rows_columns_and_charts(tmp_path, browse):
    page = browse(render(many_networks(tmp_path)))
    page.run("dispatchEvent(new Event('beforeprint'))")
    page.ask("Emulation.setEmulatedMedia", media="print")
    size = {"width": 703, "height": 1000, "deviceScaleFactor": 1, "mobile": False}  # A4
    page.ask("Emulation.setDeviceMetricsOverride", **size)
    printed = """[...document.querySelectorAll('.table, .split')]
        .filter(each => each.offsetHeight && each.textContent.includes('net-59'))
        .map(each => [each.offsetHeight >= each.scrollHeight,
            each.querySelector('table').offsetWidth <= 703,
            [...each.querySelectorAll('th')].map(cell => cell.textContent),
            each.querySelectorAll('tbody tr').length])"""
    parts = page.run(printed)
    assert len(parts) > 1  # the table is wider than a page
    assert all(part == [True, True, part[2], 60] for part in parts)
    headers = [header for part in parts for header in part[2]]
    assert {"network", "val acc", "a_long_parameter_9", "width", "why"} <= set(headers)
    widths = page.run(
        "[...document.querySelectorAll('main > .grid .chart canvas')].map(c => c.offsetWidth)"
    )
    assert all(0 < width <= 703 for width in widths)
    hints = "[...document.querySelectorAll('.hint')].map(each => each.offsetHeight)"
    assert set(page.run(hints)) == {0}
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("document.querySelectorAll('.split').length") == 0
    assert not page.errors


def test_page_of_a_network_has_its_own_address(tmp_path, browse):
    page = browse(render(read_report(write_sample_run(tmp_path))))
    page.go_to("#network=b%3C1%3E")
    assert page.run("document.querySelector('main').hidden")
    assert page.run("document.querySelector('article h1').textContent") == "b<1>"
    titles = page.run("[...document.querySelectorAll('article h2')].map(each => each.textContent)")
    assert titles == ["Curves", "Its GPUs over time", "Settings"]
    page.go_to("#")
    assert not page.run("document.querySelector('main').hidden")
    link = page.run("document.querySelector('tr[data-network] a').getAttribute('href')")
    assert link == "#network=a"
    assert not page.errors


EVALUATIONS = [
    {
        "title": "3 validation samples",
        "kind": "classes",
        "names": ["cat", "<b>dog"],
        "whole": True,
        "accuracy": 0.6667,
        "cells": [[0, 0, 2], [1, 0, 1]],
    },
    {"title": "rare", "kind": "labels", "rows": [["sunny", 3, 0.5, None]]},
    {
        "title": "2 test samples",
        "kind": "values",
        "name": "price",
        "error": 0.5,
        "r2": None,
        "points": [[1.0, 1.5], [2.0, 1.5]],
    },
]


def test_page_of_a_network_shows_its_predictions(tmp_path, browse, monkeypatch):
    monkeypatch.setattr(network_pages, "_evaluations", lambda report, row: EVALUATIONS)
    page = browse(render(read_report(write_sample_run(tmp_path))))
    page.go_to("#network=a")
    text = page.run("document.querySelector('article').innerText")
    for part in ("<b>dog", "66.67% are right", "Labels, rare", "Mean absolute error 0.5"):
        assert part in text
    assert not page.errors


def test_page_asks_for_nothing_from_outside(tmp_path, browse):
    page = browse(render(many_networks(tmp_path)))
    entries = "performance.getEntriesByType('resource').map(each => each.name)"
    assert page.run(entries) == []
