"""Tests of ``fleet report``."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fleet.__main__ import main
from fleet.domain.events import EpochEnded
from fleet.errors import StorageError
from fleet.monitor.html import write_report
from tests.fakes import Clock
from tests.fleet.logs import LOG, as_text, write_sample_run


@pytest.fixture
def run(tmp_path):
    return write_sample_run(tmp_path)


def test_report_writes_html_and_prints_a_table(run, capsys):
    assert main(["report", str(run.root)]) == 0
    assert "makespan: 21.1 s measured, 21.5 s simulated (ratio 0.98" in capsys.readouterr().out
    assert run.report.read_text().startswith("<!doctype html>")
    assert main(["report", str(run.root), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["measured_s"], result["gpus"]) == (pytest.approx(21.1), 2)
    assert {row["name"]: row["status"] for row in result["networks"]} == {
        "a": "finished",
        "b<1>": "waiting",
    }


def with_missed_chunks(logged):
    """Return a line of the log; if an epoch ended, the epoch missed three chunks."""
    if isinstance(logged.event, EpochEnded):
        return logged._replace(event=replace(logged.event, missed=3))
    return logged


def test_report_counts_missed_chunks(run, capsys):
    run.events.write_text(as_text([with_missed_chunks(logged) for logged in LOG]))
    assert main(["report", str(run.root)]) == 0
    assert "9 chunks of the ring could not be used" in capsys.readouterr().out
    assert "9 chunks of the ring could not be used" in run.report.read_text()


def test_report_shows_a_run_in_a_read_only_folder(run, capsys):
    run.report.mkdir()
    (run.report / "in the way").touch()
    assert main(["report", str(run.root)]) == 0
    out, err = capsys.readouterr()
    assert "makespan: 21.1 s measured" in out
    assert "shows it" not in out
    assert "cannot be written" in err
    assert main(["report", str(run.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 2


@pytest.mark.parametrize("ends", ["launch", "Ctrl-C"])
def test_report_every_rewrites_the_page_until_the_launch_ends(run, capsys, monkeypatch, ends):
    pages, clock, lease = [], Clock(), iter([run.lease] * 6)
    log = run.events.read_text()
    run.events.write_text("")  # the launch has no results yet

    def sleep(seconds):
        clock.now += seconds
        pages.append(run.report.read_text() if run.report.exists() else "")
        run.events.write_text(log)
        if ends == "Ctrl-C" and len(pages) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("fleet.commands.report.find_held_lease", lambda paths: next(lease, None))
    monkeypatch.setattr("fleet.commands.report.time", SimpleNamespace(monotonic=clock, sleep=sleep))
    assert main(["report", str(run.root), "--every", "1s"]) == 0
    assert pages[0] == ""
    assert '<meta http-equiv="refresh"' in pages[1]
    assert '<meta http-equiv="refresh"' not in run.report.read_text()
    assert capsys.readouterr().out.count("updated every") == 1


@pytest.mark.parametrize("may_pass", [True, False])
def test_report_every_survives_a_disk_that_is_full_for_a_while(run, capsys, monkeypatch, may_pass):
    lease, errors = iter([run.lease] * 6), [StorageError("there is no room", may_pass)]

    def write(*arguments):
        if errors:
            raise errors.pop()
        write_report(*arguments)

    monkeypatch.setattr("fleet.commands.report.find_held_lease", lambda paths: next(lease, None))
    monkeypatch.setattr("fleet.commands.report.write_report", write)
    assert main(["report", str(run.root), "--every", "0.01s"]) == (0 if may_pass else 1)
    out, err = capsys.readouterr()
    assert ("updated every" in out, err.count("there is no room")) == (may_pass, 1)


@pytest.mark.parametrize("copy", [["--json"], ["--at", "1s"]])
def test_report_every_refuses_json_and_at(run, copy, capsys):
    assert main(["report", str(run.root), "--every", "30s", *copy]) == 2
    assert "--every" in capsys.readouterr().err


@pytest.mark.parametrize("lacks", ["results.csv", "events.jsonl", "launches"])
def test_report_refuses_folders_without_a_run(run, lacks, capsys):
    if lacks == "launches":
        run.events.write_text("")
    else:
        (run.root / lacks).unlink()
    assert main(["report", str(run.root)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
