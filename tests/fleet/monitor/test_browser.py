"""Tests of the HTML report in Chromium (FLEET_TEST_CHROMIUM); skipped if it is missing."""

import base64
import fcntl
import io
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import replace

import pytest
from PIL import Image

from fleet.monitor.html import render
from fleet.monitor.report import read_report
from tests.fleet.logs import write_sample_run
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
            ],
            close_fds=False,
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
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get(
            "value"
        )

    def close(self):
        self.process.kill()
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
