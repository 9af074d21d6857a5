"""The event log."""

import json

import pytest

from fleet.storage.events import EventLog, read_events


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "events.jsonl"


def written(path, *events, clock=lambda: 0.0):
    log = EventLog(path, clock)
    for event, fields in events:
        log.add(event, **fields)
    log.close()


def test_events_are_read_in_order_with_the_time_since_the_launch_began(path):
    times = iter([100.0, 101.5, 103.25])
    written(path, ("start", {"networks": 2}), ("end", {"status": 0}), clock=lambda: next(times))
    assert list(read_events(path)) == [{"t_s": 1.5, "event": "start", "networks": 2},
                                       {"t_s": 3.25, "event": "end", "status": 0}]


def test_an_event_can_be_read_as_soon_as_it_is_added(path):
    log = EventLog(path)
    log.add("start")
    assert [event["event"] for event in read_events(path)] == ["start"]
    log.close()


def test_a_resumed_run_goes_on_in_the_same_file(path):
    written(path, ("start", {}))
    written(path, ("again", {}))
    assert [event["event"] for event in read_events(path)] == ["start", "again"]


@pytest.mark.parametrize("cut", [1, 2, 10, 30])
def test_half_a_line_of_a_killed_run_is_passed_over_and_harms_no_later_one(path, cut):
    written(path, ("start", {}), ("epoch", {"network": "a", "loss": 1.0}))
    path.write_bytes(path.read_bytes()[:-cut])
    written(path, ("resumed", {}))
    # A line that lacks nothing but its end is whole.
    assert [event["event"] for event in read_events(path)] == (
        ["start", "epoch", "resumed"] if cut == 1 else ["start", "resumed"])


def test_what_is_no_number_is_null_so_that_any_program_can_read_the_file(path):
    written(path, ("epoch", {"val_loss": float("nan"), "rates": {"a": (1.0, float("inf"))}}))

    def refuse(constant):
        pytest.fail(f"{constant} is not JSON")

    line, = path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {"t_s": 0, "event": "epoch", "val_loss": None,
                                                       "rates": {"a": [1.0, None]}}
