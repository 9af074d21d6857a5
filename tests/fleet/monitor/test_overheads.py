"""What a launch took beside the steps of its networks."""

from dataclasses import replace

import pytest

from fleet.domain.events import FirstStep
from fleet.monitor.overheads import measure_overheads, observed_rates
from fleet.monitor.timeline import replay_log
from fleet.storage.event_log import LoggedEvent
from tests.fleet.logs import LOG, START, epoch, with_rates

FIRST_STEP = LoggedEvent(4.5, FirstStep("a", 1.5))


def launch_of(log):
    return replay_log(log).launch


def test_it_is_the_way_to_the_first_group_what_groups_cost_and_what_epochs_take_beyond_steps_and_validation():
    log = with_rates(20.0, 5.0, replace(START, before_s={"launcher": 0.25, "reading": 2.0}))
    found = measure_overheads(launch_of([*log[:5], FIRST_STEP, *log[5:]]), judging=60)
    assert found.ready_s == pytest.approx(2.25 + 1.0)
    assert found.start_s == pytest.approx(
        0.5
    )  # an epoch of 10 s ended 10.5 s after the group was told to train
    assert found.epoch_s == pytest.approx(10 - (100 + 60 / 3) / 20)


def test_nothing_is_known_before_a_second_epoch():
    assert measure_overheads(launch_of(LOG[:4]), judging=0) is None
    assert measure_overheads(launch_of([*LOG[:4], FIRST_STEP, *LOG[4:6]]), judging=0) is None


def test_where_nobody_looks_at_rates_epochs_show_them_apart_from_waits_and_validation():
    log = [
        *LOG[:4],
        FIRST_STEP,
        *LOG[4:5],
        epoch(22.0, "a", 2, 10.0),
        epoch(35.0, "a", 3, 12.0, waited=2.0),
        epoch(48.0, "a", 4, 13.0),
    ]
    assert observed_rates(launch_of(log), judging=60) == {"a": {1: pytest.approx((100 + 20) / 10)}}
    assert measure_overheads(launch_of(log), judging=60).epoch_s == 0.0
