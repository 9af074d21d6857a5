"""The event log."""

import json
import math

import pytest

from fleet.storage.event_log import EventLog, read_events
from fleet.storage.events import BadSample, Ended, EpochEnded, Interrupted, RankLost, RatesGiven
from tests.fleet.histories import record

LOST = RankLost(3, 2)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "events.jsonl"


def written(path, *events, clock=lambda: 0.0):
    log = EventLog(path, clock)
    for event in events:
        log.add(event)
    log.close()


def test_events_are_read_in_order_with_the_time_since_the_launch_began(path):
    times = iter([100.0, 101.5, 103.25])
    written(path, RankLost(3, None), BadSample("x.png", "torn", True), clock=lambda: next(times))
    assert list(read_events(path)) == [
        {"t_s": 1.5, "event": "lost", "rank": 3, "device": None},
        {"t_s": 3.25, "event": "bad_sample", "name": "x.png", "reason": "torn", "training": True}]


def test_an_event_can_be_read_as_soon_as_it_is_added(path):
    log = EventLog(path)
    log.add(LOST)
    assert [event["event"] for event in read_events(path)] == ["lost"]
    log.close()


def test_a_resumed_run_goes_on_in_the_same_file(path):
    written(path, LOST)
    written(path, Ended(0))
    assert [event["event"] for event in read_events(path)] == ["lost", "end"]


@pytest.mark.parametrize("cut", [1, 2, 10, 30])
def test_half_a_line_of_a_killed_run_is_passed_over_and_harms_no_later_one(path, cut):
    written(path, LOST, Interrupted("SIGTERM came"))
    path.write_bytes(path.read_bytes()[:-cut])
    written(path, Ended(0))
    # A line that lacks nothing but its end is whole.
    assert [event["event"] for event in read_events(path)] == (
        ["lost", "interrupted", "end"] if cut == 1 else ["lost", "end"])


def test_what_is_no_number_is_null_so_that_any_program_can_read_the_file(path):
    written(path, EpochEnded("a", record(1, val_loss=math.nan)), RatesGiven({"a": (1.0, math.inf)}))

    def refuse(constant):
        pytest.fail(f"{constant} is not JSON")

    epoch, rates = (json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines())
    assert epoch["val_loss"] is None
    assert rates == {"t_s": 0, "event": "rates", "rates": {"a": [1.0, None]}}
