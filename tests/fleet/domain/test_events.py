"""Types of events, and their JSON."""

import ast
import json
import math
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain import events
from fleet.domain.events import (
    KINDS,
    Event,
    NetworkWarned,
    ProfilingFinished,
    RankDied,
    RateMeasured,
    event_from_json,
)
from fleet.domain.json_record import read_record, to_json
from scheduler.base import Delta
from tests.places import ROOT

KIND_CLASSES = get_args(Event)

st.register_type_strategy(
    float, st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
)

# A user-defined searcher may answer with any JSON.
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.from_type(float)),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)


ANY = {
    "answer": JSON,
    "given": st.dictionaries(st.text(), JSON),
    "values": st.dictionaries(st.text(), JSON),
    "settings": st.dictionaries(st.text(), JSON),
}


@given(
    st.one_of(
        [
            st.builds(kind, **{field.name: ANY.get(field.name, ...) for field in fields(kind)})
            for kind in KIND_CLASSES
        ]
    )
)
def test_event_is_written_the_same_after_reading(event):
    line = json.dumps(to_json(event), allow_nan=False)
    again = event_from_json(json.loads(line))
    assert type(again) is type(event)
    assert json.dumps(to_json(again)) == line


def test_events_have_words():
    kinds = {
        value
        for value in vars(events).values()
        if isinstance(value, type) and hasattr(value, "word")
    }
    assert set(KINDS.values()) == set(KIND_CLASSES) == kinds


def test_events_are_all_used():
    called = {
        ast.unparse(node.func).rpartition(".")[2]
        for path in (ROOT / "fleet").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    unused = {kind.__name__ for kind in KIND_CLASSES} - called
    if not (ROOT / "fleet" / "companions").exists():
        unused -= {"NodesReleased"}
    assert unused == set()


def test_event_rounds_numbers_and_omits_defaults():
    measured = RateMeasured("a", 2, rate=12.34567, seconds=0.00049, done=1, total=4)
    assert to_json(measured) == {
        "event": "measured",
        "network": "a",
        "gpus": 2,
        "rate": 12.346,
        "seconds": 0.0,
        "done": 1,
        "total": 4,
    }


@pytest.mark.parametrize(
    "record",
    [
        None,
        3,
        [],
        {},
        {"event": None},
        {"event": ["lost"]},
        {"event": "elsewhere"},
        {"event": "lost"},
        {"event": "lost", "rank": "3", "device": 2},
        {"event": "lost", "rank": True, "device": 2},
        {"event": "lost", "rank": 3.0, "device": 2},
        {"event": "lost", "rank": 3, "device": [2]},
        {"event": "epoch", "network": "a"},
        {"event": "group", "network": "a", "devices": 3, "stream_epoch": 0, "round": 1},
        {"event": "round", "round": 1, "members": [1]},
        {"event": "rates", "rates": {"a": 1.0}},
        {"event": "plan", "members": [{"name": "a"}], "scheduling_s": 0.1},
    ],
)
def test_event_from_json_returns_none_if_damaged(record):
    assert event_from_json(record) is None


def test_event_from_json_ignores_unknown_keys():
    assert event_from_json({"event": "lost", "rank": 3, "device": None, "later": 1}) == RankDied(
        3, None
    )


def test_event_from_json_accepts_integers_for_floats():
    record = {"event": "profiled", "measurements": 1, "seconds": 2, "rates": {"a": [1, 2.5]}}
    assert event_from_json(record) == ProfilingFinished(1, 2.0, {"a": (1.0, 2.5)})


@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400])
def test_event_from_json_refuses_numbers_that_are_not_finite(value):
    record = {"event": "profiled", "measurements": 1, "seconds": value, "rates": {}}
    assert event_from_json(record) is None


def test_event_from_json_reads_null_as_nan_where_scores_are():
    record = {"event": "search", "entry": "e", "call": "tell", "value": [1, None]}
    first, second = event_from_json(record).value
    assert (first, math.isnan(second)) == (1.0, True)


def test_event_from_json_accepts_names_of_undecodable_bytes():
    record = {"event": "warning", "network": "a", "warning": "in f\udcff.py"}
    assert event_from_json(record) == NetworkWarned("a", "in f?.py")


@pytest.mark.parametrize(
    ("text", "delta"),
    [("15%", Delta(0.15, relative=True)), ("20/s", Delta(20.0, False)), ("20", Delta(20.0, False))],
)
def test_schedule_options_read_the_tolerance_of_each_version(text, delta):
    record = {"alpha": 0.8, "delta": text, "peak_limited": True, "seed": 0}
    assert read_record(events.ScheduleOptions, record).delta == delta
