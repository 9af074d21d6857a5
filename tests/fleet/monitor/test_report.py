"""What there is to report of a run, and the page that shows it."""

import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from fleet.__main__ import main
from fleet.errors import UserError
from fleet.monitor.html import _ticks, render
from fleet.monitor.report import read_report
from fleet.spec import parse
from fleet.storage.files import as_json
from fleet.storage.paths import RunPaths
from fleet.storage.results import Results
from tests.fleet.logs import LOG, as_lines, as_text, epoch
from tests.places import ROOT


@pytest.fixture
def run(tmp_path):
    """A run's folder."""
    paths = RunPaths(tmp_path / "run")
    spec = parse({"models": [{"family": "softmax", "name": "a"}, {"family": "softmax", "name": "b"}]})
    results = Results(spec, paths, 100)
    results.finish("a", "2 epochs")
    table = paths.results.read_text().replace("b,", "b<1>,")  # a name that HTML would take for a tag
    paths.results.write_text(table)
    paths.events.write_text(as_text(LOG))
    return paths


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_page_shows_everything_and_fetches_nothing(run):
    page = render(read_report(run))
    reader = _Reader()
    reader.feed(page)
    assert {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe"} == set()
    assert not any({"src", "href"} & set(attributes) for _, attributes in reader.tags)
    assert "<1>" not in page.replace("&lt;1&gt;", "")
    for said in ("1 of 2", "b<1>", "training loss", "waiting for data", "simulated, with the costs below"):
        assert said in reader.text
    pictures = page.split("<svg")[1:]
    assert len(pictures) == 5  # two charts, two timelines, a bar
    for picture in pictures:
        ElementTree.fromstring("<svg" + picture[:picture.index("</svg>")] + "</svg>")


def test_the_command_writes_the_page_and_prints_the_numbers(run, capsys):
    assert main(["report", str(run.root)]) == 0
    assert "makespan 21.1 s, simulated 21.5 s: 0.98" in capsys.readouterr().out
    assert run.report.read_text().startswith("<!doctype html>")
    assert main(["report", str(run.root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["measured_s"], found["gpus"]) == (pytest.approx(21.1), 2)
    assert {row["name"]: row["status"] for row in found["networks"]} == {"a": "finished", "b<1>": "waiting"}


def test_a_run_in_whose_folder_nothing_may_be_written_is_shown_too(run, capsys):
    run.report.mkdir()
    (run.report / "in the way").touch()
    assert main(["report", str(run.root)]) == 0
    out, err = capsys.readouterr()
    assert "makespan 21.1 s" in out
    assert "shows it" not in out
    assert "cannot be written" in err
    assert main(["report", str(run.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 2


def test_a_log_of_0_1_0_gives_the_numbers_that_it_gave_then():
    """A resumed run of three networks, one of which grew; its delta of 20 samples/s has no unit."""
    recorded = RunPaths(ROOT / "tests/golden/run_0.1.0")
    expected = json.loads((recorded.root / "report.json").read_text())
    found = as_json(read_report(recorded).numbers())
    for part in ("spent_gpu_s", "costs"):
        assert found.pop(part) == pytest.approx(expected.pop(part))
    for number in ("seconds", "measured_s", "simulated_s", "epoch_s"):
        assert found.pop(number) == pytest.approx(expected.pop(number))
    assert found == expected


def test_an_epoch_that_was_trained_again_has_one_point_in_the_curve_and_a_lost_one_none(run):
    log = [*LOG, epoch(24.0, "a", 5, 10.0), epoch(24.0, "a", 2, 10.0)]
    run.events.write_text(as_text(log))
    curve = read_report(run).curves[0]
    assert curve.loss == pytest.approx([1, 1 / 2, float("nan"), float("nan"), 1 / 5], nan_ok=True)


def test_without_validation_the_curve_is_of_training(run):
    lines = as_lines(LOG)
    for line in lines:
        if line["event"] == "epoch":
            line |= {"val_loss": None, "val_accuracy": None}
    run.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_report(run).curves[0].accuracy == (0.5, 0.5)


def test_a_log_whose_times_go_back_is_damaged(run):
    run.events.write_text(as_text([*LOG[:5], epoch(3.0, "a", 3, 1.0)]))
    with pytest.raises(UserError, match="is damaged"):
        read_report(run)


@pytest.mark.parametrize("lacks", ["results.csv", "events.jsonl", "launches"])
def test_what_is_no_run_is_one_line_and_status_2(run, lacks, capsys):
    if lacks == "launches":
        run.events.write_text("")
    else:
        (run.root / lacks).unlink()
    assert main(["report", str(run.root)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (1e-9, 3e-9), (-4.0, 17.0), (0.001, 1e6), (5.0, 5.0)])
def test_ticks_are_round_and_span_the_values(low, high):
    first, last, step = _ticks(low, high)
    assert first <= low
    assert last >= high
    assert last > first
    assert 1 <= round((last - first) / step) <= 8
