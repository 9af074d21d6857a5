"""What the charts of the report draw."""

import json
import math
from dataclasses import replace

import pytest

from fleet.monitor.charts import BARS, DRAWN, NAMED, POINTS, TRIED, as_script, make_charts
from fleet.monitor.report import NetworkCurve, read_report
from fleet.storage.results import Status
from scheduler.simulation.ensemble import Stint
from tests.fleet.logs import made_up_run
from tests.fleet.monitor.test_search_summary import many


@pytest.fixture
def report(tmp_path):
    return read_report(made_up_run(tmp_path))


def curves(report, *found):
    return make_charts(replace(report, losses=found))["curves"][0]["lines"]


def bars(report, *stints, devices=(0,), seconds=4.0):
    account = replace(report.account, stints=stints, devices=devices, seconds=seconds, replay=None)
    return make_charts(replace(report, account=account))["timelines"]["timeline"]["bars"]


def test_a_curve_has_a_point_for_each_epoch_and_none_where_there_is_no_value(report):
    ((who, epochs, values),) = curves(
        report, NetworkCurve("a", (1, 2, 3, 5), (4.0, 2.0, math.nan, 1 / 3))
    )
    assert make_charts(report)["networks"][who] == "a"
    assert (epochs, values) == ([1, 2, 3, 5], [4.0, 2.0, None, 0.33333])


def test_a_chart_without_a_value_is_left_out(report):
    without = replace(report, losses=(NetworkCurve("a", (1,), (math.nan,)),), accuracies=())
    assert make_charts(without)["curves"] == []


def test_of_many_curves_the_best_and_others_down_to_the_worst_are_drawn(report):
    found = replace(
        report,
        losses=tuple(NetworkCurve(f"n{place}", (1, 2), (1.0, place)) for place in range(5000)),
        rows=tuple(replace(report.rows[0], name=f"n{place}") for place in range(5000)),
    )
    charts = make_charts(found)
    names = [charts["networks"][who] for who, *_ in charts["curves"][0]["lines"]]
    assert len(names) == len(set(names)) == DRAWN
    assert (
        names[:NAMED]
        == [charts["networks"][who] for who in charts["best"]]
        == [f"n{n}" for n in range(NAMED)]
    )
    assert names[-1] == "n4999"


def test_of_a_long_curve_some_points_are_drawn_with_the_first_and_the_last(report):
    ((_, epochs, values),) = curves(report, NetworkCurve("a", tuple(range(1, 1001)), (1.0,) * 1000))
    assert (len(epochs), len(values), epochs[0], epochs[-1]) == (POINTS, POINTS, 1, 1000)


def test_a_network_keeps_its_colour_while_a_run_goes_on(report):
    stints = (Stint("late", (0,), 2.0, 3.0, 1), Stint("first", (0,), 0.0, 1.0, 1))
    account = replace(report.account, stints=stints)
    assert make_charts(replace(report, account=account))["networks"] == [
        "first",
        "late",
        "a",
        "b<1>",
    ]


def test_a_network_has_a_bar_on_each_device_that_it_had_and_none_on_one_that_was_lost(report):
    found = bars(
        report,
        Stint("a", (4, 6), 1.0, 3.0, 2),
        Stint("a", (7,), 3.0, 4.0, 1),
        Stint("a", (), 0.0, 1.0, 1),
        devices=(4, 6, 8),
    )
    assert found == [[0, device, 1.0, 3.0, "a: 2 GPUs, 2 epochs", None] for device in (4, 6)]


def test_emulated_time_is_drawn_in_real_seconds(report):
    simulated = make_charts(report)["timelines"]["simulated"]["bars"]
    slow = make_charts(replace(report, account=replace(report.account, time_scale=2.0)))[
        "timelines"
    ]["simulated"]["bars"]
    assert [bar[3] for bar in slow] == pytest.approx([2 * bar[3] for bar in simulated], rel=1e-4)


def test_thousands_of_narrow_bars_become_few_crowds_that_span_the_same_time(report):
    short = [
        Stint(f"n{number}", (number % 2,), number // 2, number // 2 + 1, 1)
        for number in range(10_000)
    ]
    found = bars(
        report, *short, Stint("long", (0,), 5000.0, 6000.0, 1), devices=(0, 1), seconds=6000.0
    )
    crowds = [bar for bar in found if bar[0] is None]
    assert [bar[4] for bar in found if bar[0] is not None] == ["long: 1 GPU, 1 epoch"]
    assert 1900 < len(crowds) < BARS
    assert {bar[5] for bar in crowds} == {1.0}
    assert sum(bar[3] - bar[2] for bar in crowds) == pytest.approx(2 * 5000, rel=0.02)


def test_a_crowd_says_how_busy_its_device_was(report):
    short = [
        Stint(f"n{number}", (number % 2,), number // 2, number // 2 + 0.5, 1)
        for number in range(20_000)
    ]
    found = bars(report, *short, devices=(0,), seconds=10_000.0)
    assert {bar[1] for bar in found} == {0}
    assert all(bar[5] is None or 0.5 <= bar[5] <= 0.75 for bar in found)


def test_data_cannot_end_the_element_that_holds_it(report):
    text = as_script(make_charts(report))
    assert "<" not in text
    assert "b<1>" in json.loads(text)["networks"]


def searched(report, search):
    return make_charts(replace(report, searches=(search,)))["searches"][0]


def test_a_value_that_is_none_of_an_axis_is_left_out(report):
    search = many(8)
    odd = ["wide", 10**400, 0.0, True, None, 0.01]
    tried = [
        replace(
            one,
            values=one.values | {"filters": filters}
            if value is None
            else one.values | {"train.optimizer.learning_rate": value, "filters": filters},
        )
        for one, value, filters in zip(
            search.trials, odd, ([8], [8, 16], [4], [8], [8], [8]), strict=False
        )
    ]
    found = searched(
        report,
        replace(search, space=search.space | {"filters": ([8], [8, 16])}, trials=tuple(tried)),
    )
    assert [key["name"] for key in found["keys"]] == ["learning_rate", "filters"]
    assert found["keys"][1]["choices"] == ["[8]", "[8, 16]"]
    values = [values for *_, values in found["tried"]]
    assert [rate is None for rate, _ in values] == [True, True, True, True, False, False]
    assert [filters for _, filters in values] == [0, 1, None, 0, 0, 0]


def test_of_thousands_of_networks_of_a_search_the_best_and_others_down_to_the_worst_are_drawn(
    report,
):
    assert len(searched(report, many(TRIED))["tried"]) == TRIED
    values = [value for _, _, value, _ in searched(report, many(10_000))["tried"]]
    assert len(values) == TRIED
    assert values == sorted(values, reverse=True)
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(1e-4)


def test_of_thousands_of_lines_of_descent_the_best_are_drawn_with_their_ancestors(report):
    search = many(10_000)
    tried = [*search.trials[:-1], replace(search.trials[-1], network="first")]
    tried[0] = replace(tried[0], parent="first", parent_epoch=1, begins=1)
    rows = searched(report, replace(search, trials=tuple(tried)))["descent"]["rows"]
    assert len(rows) == DRAWN
    assert {said.partition(",")[0] for *_, said in rows} == {
        "first",
        *(f"net-{place}" for place in range(DRAWN - 1)),
    }
    assert searched(report, many(10))["descent"]["rows"] == []


def test_of_several_objectives_the_front_is_drawn_before_others(report):
    search = many(10)
    tried = tuple(
        replace(one, objectives=(one.value, float(place < 9)))
        for place, one in enumerate(search.trials)
    )
    failed = replace(tried[0], status=Status.FAILED, network="failed", objectives=(2.0, 0.0))
    found = replace(
        search, trials=(*tried, failed), objectives=(("accuracy", "maximize"), ("size", "minimize"))
    )
    drawn = searched(report, found)
    assert drawn["objectives"] == ["accuracy", "size"]
    assert [(is_best, values) for _, is_best, values in drawn["pareto"]][:3] == [
        (True, [1.0, 1.0]),
        (True, [0.1, 0.0]),
        (False, [0.9, 1.0]),
    ]
    assert len(drawn["pareto"]) == 10
    assert searched(report, search)["pareto"] == []
