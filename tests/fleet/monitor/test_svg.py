"""The pictures of the report."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from fleet.monitor.report import Curve
from fleet.monitor.svg import DRAWN, NAMED, line_chart, share_bar, ticks, timeline
from scheduler.simulation.ensemble import Stint

SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture, tag, **attributes):
    """The elements of a picture that have a tag and attributes."""
    return [element for element in ElementTree.fromstring(picture).iter(SVG + tag)
            if attributes.items() <= element.attrib.items()]


def test_a_curve_has_a_point_for_each_epoch_that_has_a_value():
    picture = line_chart("loss", [Curve("a", (1, 2, 3, 5), (4.0, 2.0, math.nan, 0.0))], {"a": "red"})
    line, = drawn(picture, "polyline")
    assert line.get("points") == "46.0,24.0 149.5,127.0 460.0,230.0"
    assert [text.text for text in drawn(picture, "text", **{"text-anchor": "middle"})] == list("12345")


def test_a_chart_without_a_value_is_left_out():
    assert line_chart("loss", [Curve("a", (1,), (math.nan,))], {}) == ""
    assert line_chart("loss", [], {}) == ""


def test_the_best_networks_have_a_colour_and_lie_on_top():
    curves = [Curve(f"n{place}", (1, 2), (1.0, place)) for place in range(NAMED + 1)]
    lines = drawn(line_chart("loss", curves, {curve.name: "red" for curve in curves}), "polyline")
    assert [line.get("stroke") for line in lines] == ["#d0d0d0", *["red"] * NAMED]


def test_a_network_has_a_bar_on_each_device_that_it_had_and_no_other():
    picture = timeline([Stint("a", (4, 6), 1.0, 3.0, 2)], [4, 6, 8], 1.0, 4.0, {"a": "red"})
    bars = drawn(picture, "rect", fill="red")
    assert [(float(bar.get("x")), float(bar.get("y")), float(bar.get("width"))) for bar in bars] == [
        (260.0, 0.0, 460.0), (260.0, 16.0, 460.0)]
    assert drawn(picture, "title")[0].text == "a: 2 GPUs, 2 epochs, 1.0 to 3.0 s"


def test_a_group_without_devices_has_no_bar():
    assert not drawn(timeline([Stint("a", (), 0.0, 1.0, 1)], [0], 1.0, 1.0, {"a": "red"}), "rect")


def test_a_device_that_was_lost_has_no_row():
    assert len(drawn(timeline([Stint("a", (0, 1), 0.0, 1.0, 1)], [1], 1.0, 1.0, {"a": "red"}), "rect", fill="red")) == 1


def test_emulated_time_is_drawn_in_real_seconds():
    picture = timeline([Stint("a", (0,), 10.0, 20.0, 1)], [0], 0.1, 2.0, {})
    assert drawn(picture, "title")[0].text == "a: 1 GPU, 1 epoch, 1.0 to 2.0 s"


def test_shares_lie_beside_each_other():
    bars = drawn(share_bar([("training", 0.75, "blue"), ("<rest>", 0.25, "grey")]), "rect")
    assert [(float(bar.get("x")), float(bar.get("width"))) for bar in bars] == [(0.0, 705.0), (705.0, 235.0)]


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (1e-9, 3e-9), (-4.0, 17.0), (0.001, 1e6), (5.0, 5.0)])
def test_ticks_are_round_and_span_the_values(low, high):
    first, last, step = ticks(low, high)
    assert first <= low
    assert last >= high
    assert last > first
    assert 1 <= round((last - first) / step) <= 8


def test_of_many_curves_the_best_and_others_down_to_the_worst_are_drawn():
    curves = [Curve(f"n{place}", (1, 2), (1.0, place)) for place in range(5000)]
    names = [title.text for title in drawn(line_chart("loss", curves, {}), "title")][::-1]
    assert len(names) == len(set(names)) == DRAWN
    assert names[:NAMED] == [f"n{place}" for place in range(NAMED)]
    assert names[-1] == "n4999"


def test_thousands_of_narrow_bars_become_few_grey_ones_that_span_the_same_time():
    short = [Stint(f"n{number}", (number % 2,), number // 2, number // 2 + 1, 1) for number in range(10_000)]
    long = [Stint("long", (0,), 5000.0, 6000.0, 1)]
    picture = timeline([*short, *long], [0, 1], 1.0, 6000.0, {"long": "red"})
    assert [float(bar.get("width")) for bar in drawn(picture, "rect", fill="red")] == [pytest.approx(920 / 6, abs=0.01)]
    grey = drawn(picture, "rect", fill="#7d8fa3")
    assert 2 * 920 < len(grey) < 6000
    assert {bar.get("fill-opacity") for bar in grey} == {"1.00"}
    assert sum(float(bar.get("width")) for bar in grey) == pytest.approx(2 * 920 * 5 / 6, rel=0.02)


def test_a_grey_bar_is_paler_where_its_device_was_idle_and_no_bar_is_of_a_device_that_was_lost():
    short = [Stint(f"n{number}", (number % 2,), number // 2, number // 2 + 0.5, 1) for number in range(20_000)]
    grey = drawn(timeline(short, [0], 1.0, 10_000.0, {}), "rect", fill="#7d8fa3")
    assert {bar.get("y") for bar in grey} == {"0.0"}
    assert all(0.5 <= float(bar.get("fill-opacity")) < 0.8 for bar in grey[:-1])
