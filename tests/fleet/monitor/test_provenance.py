"""Tests of what the HTML report says about the state and the origin of a run."""

from dataclasses import replace

import pytest

from fleet.domain import events as ev
from fleet.domain.timeline import LoggedEvent
from fleet.monitor.html import render
from fleet.monitor.provenance import best_network, provenance, state_of
from fleet.monitor.report import read_report
from tests.fleet.logs import LOG, START, as_text, write_sample_run


@pytest.fixture
def run(tmp_path):
    return write_sample_run(tmp_path)


def test_running_report_has_the_time_left(run):
    eta = LoggedEvent(22.0, ev.TimeLeftEstimated(10.0, 61.0, 1))
    start = replace(START, date=1.7e9)
    run.events.write_text(as_text([LoggedEvent(0.0, start), *LOG[1:9], eta, *LOG[9:11]]))
    report = replace(read_report(run), is_live=True)
    assert "Time left: 9.9 s to 1 min 1 s, until 22:13:52 to 22:14:43 UTC." in state_of(report)
    assert "was killed" in state_of(replace(report, is_live=False))


def test_report_of_an_ended_run_has_no_time_left(run):
    assert state_of(read_report(run)) == ""


def test_best_network_has_its_settings_and_weights(run):
    report = read_report(run)
    run.model("a").mkdir(parents=True)
    for name in ("best.h5", "best.keras"):
        (run.model("a") / name).touch()
    best = replace(report.rows[0], best_epoch=2, epochs=3, val_accuracy=0.5, drawn={"x<y": [1, 2]})
    text = best_network(replace(report, rows=(best,)))
    assert "val_accuracy 0.5 after epoch 2 of 3" in text
    assert "x&lt;y <b>[1, 2]</b>" in text
    assert "models/a/best.keras</code>" in text
    assert f"fleet predict {run.root} INPUTS</code>" in text


def test_best_of_folds_is_their_mean(run):
    report = read_report(run)
    row = replace(report.rows[0], best_epoch=2, val_accuracy=0.5)
    mean = replace(row, name="net", folds=2, deviation={"val_accuracy": 0.125})
    folds = [replace(row, name=f"net-fold{number}") for number in range(2)]
    for fold in folds:
        run.model(fold.name).mkdir(parents=True)
        (run.model(fold.name) / "best.keras").touch()
    text = best_network(replace(report, rows=(mean, *folds)))
    assert 'data-network="net"' in text
    assert "val_accuracy 0.5 ± 0.12, the mean of 2 folds" in text
    assert "net-fold0/best.keras</code><br>" in text
    assert "net-fold1/best.keras</code>" in text


def test_report_without_epochs_has_no_best_network(run):
    run.events.write_text(as_text(LOG[:1]))
    report = read_report(run)
    report = replace(report, rows=tuple(replace(row, best_epoch=0) for row in report.rows))
    assert "No network has finished an epoch yet" in best_network(report)
    assert "Where this run comes from" in render(report)


def test_report_says_why_the_spec_cannot_be_read(run):
    run.spec.write_text("name: [\n")
    text = "".join(provenance(read_report(run)))
    assert "The pages of networks lack settings and predictions: 1 mistake in" in text
    assert "spec.yaml:2: is not YAML" in text


def test_report_says_where_the_run_comes_from(run):
    origin = ev.LaunchOrigin("node<7>", "0.3.0", "mpirun -n 3 python -m fleet.run a&b.yaml")
    start = replace(START, date=1.7e9, origin=origin)
    run.events.write_text(as_text([LoggedEvent(0.0, start), *LOG[1:]]))
    run.spec.write_text("name: <digits>\n")
    text = "".join(provenance(read_report(run)))
    assert "<code>mpirun -n 3 python -m fleet.run a&amp;b.yaml</code>" in text
    for cell in ("node&lt;7&gt;", "0.3.0", "2023-11-14 22:13:20"):
        assert f">{cell}</td>" in text
    assert "<pre>name: &lt;digits&gt;\n</pre>" in text
