"""Tests of the report of a run."""

import gc
import json
from dataclasses import replace
from html import escape

import pytest

from fleet.domain.events import DataChanged, NetworkRolledBack
from fleet.domain.plain_json import as_json
from fleet.domain.timeline import LoggedEvent, dated_events
from fleet.errors import UserError
from fleet.monitor.charts import make_charts
from fleet.monitor.html import render
from fleet.monitor.report import MAX_ROWS, best_rows, read_report
from fleet.storage.leaderboard import leaderboard
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status
from tests.fleet.logs import LOG, START, as_lines, as_text, epoch, write_sample_run
from tests.places import ROOT
from tests.refusals import refused


@pytest.fixture
def run(tmp_path):
    return write_sample_run(tmp_path)


def test_report_of_a_log_of_0_1_0_is_unchanged():
    """A resumed run of three networks, one of which grew; its delta of 20 samples/s has no unit."""
    recorded = RunPaths(ROOT / "tests/golden/run_0.1.0")
    expected = json.loads((recorded.root / "report.json").read_text())
    numbers = as_json(read_report(recorded).as_dict())
    assert (numbers.pop("missed_chunks"), numbers.pop("startup_s")) == (0, {})
    assert numbers.pop("first_signal_s") > 0
    later = {
        "test_loss": None,
        "test_accuracy": None,
        "folds": 0,
        "deviation": {},
        "parent": "",
        "parent_epoch": 0,
    }
    assert [{name: network.pop(name) for name in later} for network in numbers["networks"]] == 3 * [
        later
    ]
    expected["costs"]["epoch_s"] = expected.pop("epoch_s")
    for part in ("spent_gpu_s", "costs"):
        assert numbers.pop(part) == pytest.approx(expected.pop(part))
    for number in ("seconds", "measured_s", "simulated_s"):
        assert numbers.pop(number) == pytest.approx(expected.pop(number))
    assert numbers == expected


def test_repeated_epoch_is_one_point_and_lost_epoch_none(run):
    run.events.write_text(as_text([*LOG, epoch(24.0, "a", 5, 10.0), epoch(24.0, "a", 2, 10.0)]))
    _, history = read_report(run).histories[0]
    assert {record.epoch: record.loss for record in history} == {1: 1.0, 2: 1 / 2, 5: 1 / 5}


def test_restarted_network_has_only_its_new_curve(run):
    run.events.write_text(
        as_text(
            [
                *LOG,
                LoggedEvent(24.0, NetworkRolledBack("a", "--fresh-network", epochs=0, position=0)),
                epoch(25.0, "a", 1, 10.0),
            ]
        )
    )
    assert [record.epoch for record in dict(read_report(run).histories)["a"]] == [1]


def test_report_names_changes_of_the_data(run):
    assert "data_changes" not in read_report(run).as_dict()
    changed = DataChanged(("photos: 12 files more in class cat",), {"a": 2, "b<1>": 3, "c": 2})
    run.events.write_text(as_text([*LOG, LoggedEvent(25.0, changed)]))
    report = read_report(run)
    assert as_json(report.as_dict())["data_changes"] == [
        {"changes": ["photos: 12 files more in class cat"], "epochs": {"a": 2, "b<1>": 3, "c": 2}}
    ]
    note = "photos: 12 files more in class cat (after epoch 2 of a, c; after epoch 3 of b<1>)"
    assert note in report.data_changes
    assert escape(note) in render(report)


def test_report_of_concurrent_launches(run):
    second_log = RunPaths(run.root, "17").events
    second_log.parent.mkdir()
    second_log.write_text(as_text([*LOG[:2], epoch(24.0, "a", 3, 10.0)]))
    report = read_report(run)
    assert [record.epoch for record in report.histories[0][1]] == [1, 2, 3]
    assert (report.account.launches, report.account.seconds) == (2, 47.0)


def test_curve_without_validation_is_of_training(run):
    lines = as_lines(LOG)
    for line in lines:
        if line["event"] == "epoch":
            line |= {"val_loss": None, "val_accuracy": None}
    run.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert make_charts(read_report(run))["curves"][1]["lines"][0][2] == [0.5, 0.5]


def test_log_with_decreasing_times_is_damaged(run):
    run.events.write_text(as_text([*LOG[:5], epoch(3.0, "a", 3, 1.0)]))
    with refused(UserError, run.events, "damaged"):
        read_report(run)
    assert gc.isenabled()


def test_table_shows_best_networks_and_counts_the_rest(run):
    (waits,) = (row for row in read_report(run).rows if row.status is Status.WAITING)
    rows = [waits] * MAX_ROWS
    assert best_rows(rows) == (*leaderboard(rows), "")
    headers, table_rows, left_out = best_rows([*rows, waits, replace(waits, status=Status.FAILED)])
    assert (headers, table_rows) == leaderboard(rows)
    assert left_out == (
        f"These are the best {MAX_ROWS} of {MAX_ROWS + 2} networks. See results.csv for all; not "
        "shown: 1 waiting, 1 failed."
    )


def test_fold_means_do_not_count_as_networks(run):
    report = read_report(run)
    (finished,) = (row for row in report.rows if row.status is Status.FINISHED)
    rows = [
        row
        for network in range(6)
        for row in (replace(finished, name=str(network), folds=3), *[finished] * 3)
    ]
    counted = replace(report, rows=tuple(rows))
    assert counted.as_dict()["counts"] == {"networks": 18, "finished": 18, "failed": 0}
    assert "<b>18 of 18</b>" in render(counted)
    many = rows[:4] * 60
    note = best_rows(many)[2]
    assert note.startswith(f"These are the best {MAX_ROWS * 3 // 4} of 180 networks.")
    assert note.endswith("not shown: 30 finished.")


def test_single_launch_keeps_exact_times():
    start = replace(START, date=1.7e9 + 0.1)
    moments = dated_events([LoggedEvent(0.3, start), *LOG[1:]])
    assert [t_s for t_s, *_ in moments] == [0.3, *(logged.t_s for logged in LOG[1:])]
