"""Tests of the screen of a running launch at many sizes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fleet.monitor.live_screen import Progress, Screen, ScreenRow, distinguishable

SIZES = [(40, 10), (60, 15), (80, 24), (120, 40), (240, 80)]
STATES = ("training", "done", "waiting", "pruned", "failed", "paused")


def row(name, state="done", score=0.5, **parts):
    values = {
        "epochs": (3, 10),
        "loss": 0.25,
        "monitor": "val_accuracy",
        "best_epoch": 2,
        "values": "learning_rate 0.05, filters [8, 16]",
        "progress": Progress(0.5, 900.0, 61.0, "0,1") if state == "training" else None,
    }
    return ScreenRow(name, state, score=score, **{**values, **parts})


def many(count):
    """Return rows in all states, the best first."""
    return [
        row(f"softmax-with-a-long-name-{number}", STATES[number % 6], 0.9 - number / 1000)
        for number in range(count)
    ]


def text(rows, width, height):
    lines = Screen("digits: round 1, 3.0 s; ETA 5.0 s to 9.0 s", rows, "core").lines(width, height)
    return [line.plain for line in lines]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 4, 12, 60, 500])
def test_screen_fits(size, count):
    width, height = size
    lines = text(many(count), width, height)
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width


@given(
    st.integers(1, 250),
    st.integers(1, 90),
    st.lists(
        st.tuples(
            st.text("aé数据-", min_size=1, max_size=40),
            st.sampled_from(STATES),
            st.floats(allow_nan=True),
            st.text("xy网 ", max_size=60),
        ),
        max_size=20,
        unique_by=lambda parts: parts[0],
    ),
)
def test_screen_fits_any_size(width, height, networks):
    rows = [
        row(name, state, score, values=values, reason=values if state == "failed" else "")
        for name, state, score, values in networks
    ]
    lines = text(rows, width, height)
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize("size", SIZES)
def test_screen_counts_networks_and_names_the_best(size):
    screen = "\n".join(text(many(12), *size))
    for count in ("2 done", "2 training", "2 waiting", "2 pruned", "2 failed", "2 paused"):
        assert count in screen
    assert "best: softmax-wi" in screen
    assert "90.00%" in screen
    assert "learning_rate 0.05" in screen


def test_screen_orders_training_then_best_then_failed():
    rows = [
        row("fourth", score=0.6),
        *(row(f"good-{number}", score=0.9) for number in range(3)),
        row("waits", "waiting", math.nan),
        row("lost", "failed", math.nan, reason="no room"),
        row("now", "training", 0.1),
    ]
    rows.sort(key=lambda single: -single.score if single.score == single.score else 1)
    lines = text(rows, 120, 24)
    header = next(number for number, line in enumerate(lines) if line.startswith("network"))
    names = [line.split()[0] for line in lines[header + 2 :]]
    assert names == ["now", "good-0", "good-1", "good-2", "lost", "fourth", "waits"]


def test_screen_counts_networks_that_are_not_shown():
    lines = text(many(60), 80, 18)
    visible = [line for line in lines if line.startswith("softmax")]
    assert len(lines) == 18
    assert lines[-1].startswith(f"{60 - len(visible)} networks not shown: ")


def test_screen_tells_why_networks_failed():
    lines = text([row("a", "failed", math.nan, reason="the loss diverged")], 80, 24)
    assert "the loss diverged" in lines[-1]


def test_failed_network_is_not_the_best():
    assert "best: b" in "\n".join(text([row("a", "failed", 0.9), row("b", score=0.8)], 80, 24))


@given(
    st.lists(st.text("ab1-网", min_size=1, max_size=30), min_size=1, max_size=30, unique=True),
    st.integers(8, 40),
)
def test_cut_names_differ_and_fit(names, width):
    shorter = distinguishable(names, width)
    assert all(cell_len(name) <= width for name in shorter)
    assert len(set(shorter)) == len(names)


def test_names_keep_the_end_in_which_they_differ():
    names = [f"a-family-with-long-names-{number}" for number in range(3)]
    assert distinguishable(names, 12) == [f"a-family-w…{number}" for number in range(3)]
