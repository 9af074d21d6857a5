"""Tests of the data of the report's charts."""

import json
import math
from dataclasses import replace

import pytest

from fleet.domain.network import EpochRecord
from fleet.monitor.charts import BARS, DRAWN, MAX_TRIALS, NAMED, POINTS, as_script, make_charts
from fleet.monitor.report import read_report
from fleet.spec.dimensions import Choices, Range
from fleet.storage.results import Status
from scheduler.simulation.ensemble import Stint
from tests.fleet.logs import write_sample_run
from tests.fleet.monitor.test_search_summary import many


@pytest.fixture
def report(tmp_path):
    return read_report(write_sample_run(tmp_path))


def curve(name, epochs, losses):
    none = (math.nan,) * 3
    return name, tuple(
        EpochRecord(epoch, epoch - 1, loss, *none, 0.1, 1, 1, 1.0, 0.0)
        for epoch, loss in zip(epochs, losses, strict=True)
    )


def lines_of(report, *curves):
    return make_charts(replace(report, histories=curves))["curves"][0]["lines"]


def bars(report, *stints, devices=(0,), seconds=4.0):
    account = replace(report.account, stints=stints, devices=devices, seconds=seconds, replay=None)
    return make_charts(replace(report, account=account))["timelines"]["timeline"]["bars"]


def test_curve_has_a_point_per_epoch_with_a_value(report):
    ((index, epochs, values),) = lines_of(
        report, curve("a", (1, 2, 3, 5), (4.0, 2.0, math.nan, 1 / 3))
    )
    assert make_charts(report)["networks"][index] == "a"
    assert (epochs, values) == ([1, 2, 3, 5], [4.0, 2.0, None, 0.33333])


def test_curves_have_both_losses_beside_the_accuracy(report):
    curves = make_charts(report)["curves"]
    assert [curve["title"] for curve in curves if curve["overview"]] == [
        "training loss",
        "validation loss",
        "validation accuracy",
    ]
    assert [curve["title"] for curve in curves if not curve["overview"]] == ["training accuracy"]


def test_metrics_and_changing_learning_rates_have_curves(report):
    name, records = curve("a", (1, 2), (2.0, 1.0))
    records = tuple(
        replace(record, metrics={"mae": 1.0, "val_mae": None}, learning_rate=1 / record.epoch)
        for record in records
    )
    titles = [
        (chart["title"], chart["overview"])
        for chart in make_charts(replace(report, histories=((name, records),)))["curves"]
    ]
    assert titles == [("training loss", True), ("training mae", True), ("learning rate", False)]


def test_epochs_that_count_from_one_are_not_listed(report):
    assert lines_of(report, curve("a", (1, 2), (2.0, 1.0)))[0][1:] == [None, [2.0, 1.0]]


def test_chart_without_values_is_omitted(report):
    without = replace(report, histories=(curve("a", (1,), (math.nan,)),))
    assert make_charts(without)["curves"] == []


def test_many_curves_are_subsampled_from_best_to_worst(report):
    drawn = replace(
        report,
        histories=tuple(curve(f"n{number}", (1, 2), (1.0, number)) for number in range(5000)),
        rows=tuple(replace(report.rows[0], name=f"n{number}") for number in range(5000)),
    )
    charts = make_charts(drawn)
    names = [charts["networks"][index] for index, *_ in charts["curves"][0]["lines"]]
    assert len(names) == len(set(names)) == DRAWN
    assert (
        names[:NAMED]
        == [charts["networks"][index] for index in charts["best"]]
        == [f"n{n}" for n in range(NAMED)]
    )
    assert names[-1] == "n4999"


def test_long_curve_is_subsampled_with_first_and_last(report):
    ((_, epochs, values),) = lines_of(report, curve("a", tuple(range(1, 1001)), (1.0,) * 1000))
    assert (len(epochs), len(values), epochs[0], epochs[-1]) == (POINTS, POINTS, 1, 1000)


def test_network_keeps_its_color(report):
    stints = (Stint("late", (0,), 2.0, 3.0, 1), Stint("first", (0,), 0.0, 1.0, 1))
    account = replace(report.account, stints=stints)
    assert make_charts(replace(report, account=account))["networks"] == [
        "first",
        "late",
        "a",
        "b<1>",
    ]


def test_network_has_a_bar_per_device_except_dead_ones(report):
    drawn = bars(
        report,
        Stint("a", (4, 6), 1.0, 3.0, 2),
        Stint("a", (7,), 3.0, 4.0, 1),
        Stint("a", (), 0.0, 1.0, 1),
        devices=(4, 6, 8),
    )
    assert drawn == [[0, device, 1.0, 3.0, "a: 2 GPUs, 2 epochs", None] for device in (4, 6)]


def test_emulated_time_is_drawn_in_real_seconds(report):
    simulated = make_charts(report)["timelines"]["simulated"]["bars"]
    slow = make_charts(replace(report, account=replace(report.account, time_scale=2.0)))[
        "timelines"
    ]["simulated"]["bars"]
    assert [bar[3] for bar in slow] == pytest.approx([2 * bar[3] for bar in simulated], rel=1e-4)


def test_narrow_bars_are_merged_over_the_same_time(report):
    short = [
        Stint(f"n{number}", (number % 2,), number // 2, number // 2 + 1, 1)
        for number in range(10_000)
    ]
    drawn = bars(
        report, *short, Stint("long", (0,), 5000.0, 6000.0, 1), devices=(0, 1), seconds=6000.0
    )
    crowds = [bar for bar in drawn if bar[0] is None]
    assert [bar[4] for bar in drawn if bar[0] is not None] == ["long: 1 GPU, 1 epoch"]
    assert 1900 < len(crowds) < BARS
    assert {bar[5] for bar in crowds} == {1.0}
    assert sum(bar[3] - bar[2] for bar in crowds) == pytest.approx(2 * 5000, rel=0.02)


def test_merged_bar_has_its_busy_share(report):
    short = [
        Stint(f"n{number}", (number % 2,), number // 2, number // 2 + 0.5, 1)
        for number in range(20_000)
    ]
    drawn = bars(report, *short, devices=(0,), seconds=10_000.0)
    assert {bar[1] for bar in drawn} == {0}
    assert all(bar[5] is None or 0.5 <= bar[5] <= 0.75 for bar in drawn)


def test_as_script_escapes_end_tags(report):
    text = as_script(make_charts(report))
    assert "<" not in text
    assert "b<1>" in json.loads(text)["networks"]


def searched(report, search):
    return make_charts(replace(report, searches=(search,)))["searches"][0]


def test_values_outside_an_axis_are_omitted(report):
    search = many(8)
    odd = ["wide", 10**400, 0.0, True, None, 0.01]
    trials = []
    for trial, value, filters in zip(
        search.trials, odd, ([8], [8, 16], [4], [8], [8], [8]), strict=False
    ):
        changes = {"filters": filters}
        if value is not None:
            changes = {"train.optimizer.learning_rate": value, "filters": filters}
        trials.append(replace(trial, values=trial.values | changes))
    drawn = searched(
        report,
        replace(search, space=search.space | {"filters": ([8], [8, 16])}, trials=tuple(trials)),
    )
    assert [key["name"] for key in drawn["keys"]] == ["learning_rate", "filters"]
    assert drawn["keys"][1]["choices"] == ["[8]", "[8, 16]"]
    values = [values for *_, values in drawn["trials"]]
    assert [rate is None for rate, _ in values] == [True, True, True, True, False, False]
    assert [filters for _, filters in values] == [0, 1, None, 0, 0, 0]


def test_unused_parameters_are_gaps_on_their_axes(report):
    search = many(4)
    momentum = "train.optimizer.momentum"
    space = {
        "norm": Choices(("none", "batch"), weights=(1, 2)),
        momentum: Range(0, 0.9, step=0.3, when={"norm": "batch"}),
    }
    values = [{"norm": "batch", momentum: 0.0}, {"norm": "none"}] * 2
    trials = tuple(
        replace(trial, values=drawn) for trial, drawn in zip(search.trials, values, strict=True)
    )
    drawn = searched(report, replace(search, space=space, trials=trials))
    assert drawn["keys"][0]["choices"] == ["none", "batch"]
    assert [values for *_, values in drawn["trials"]].count([1.0, 0.0]) == 2
    assert [values for *_, values in drawn["trials"]].count([0.0, None]) == 2


def test_many_trials_are_subsampled_from_best_to_worst(
    report,
):
    assert len(searched(report, many(MAX_TRIALS))["trials"]) == MAX_TRIALS
    values = [value for _, _, value, _ in searched(report, many(10_000))["trials"]]
    assert len(values) == MAX_TRIALS
    assert values == sorted(values, reverse=True)
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(1e-4)


def test_best_lines_of_descent_are_drawn_with_ancestors(report):
    search = many(10_000)
    trials = [*search.trials[:-1], replace(search.trials[-1], network="first")]
    trials[0] = replace(trials[0], parent="first", parent_epoch=1, begins=1)
    rows = searched(report, replace(search, trials=tuple(trials)))["descent"]["rows"]
    assert len(rows) == DRAWN
    assert {label.partition(",")[0] for *_, label in rows} == {
        "first",
        *(f"net-{number}" for number in range(DRAWN - 1)),
    }
    assert searched(report, many(10))["descent"]["rows"] == []


def test_pareto_front_is_drawn_first(report):
    search = many(10)
    trials = tuple(
        replace(trial, objectives=(trial.value, float(number < 9)))
        for number, trial in enumerate(search.trials)
    )
    failed = replace(trials[0], status=Status.FAILED, network="failed", objectives=(2.0, 0.0))
    report_with_front = replace(
        search,
        trials=(*trials, failed),
        objectives=(("accuracy", "maximize"), ("size", "minimize")),
    )
    drawn = searched(report, report_with_front)
    assert drawn["objectives"] == ["accuracy", "size"]
    assert [(is_best, values) for _, is_best, values in drawn["pareto"]][:3] == [
        (True, [1.0, 1.0]),
        (True, [0.1, 0.0]),
        (False, [0.9, 1.0]),
    ]
    assert len(drawn["pareto"]) == 10
    assert searched(report, search)["pareto"] == []
