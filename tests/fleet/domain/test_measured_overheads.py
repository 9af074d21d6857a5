"""Tests of the overheads of a launch."""

from dataclasses import replace

import pytest

from fleet.domain.events import FirstStep
from fleet.domain.overheads import measure_overheads, observed_rates
from fleet.domain.timeline import LoggedEvent, replay_log
from tests.fleet.logs import LOG, START, epoch, with_rates

FIRST_STEP = LoggedEvent(4.5, FirstStep("a", 1.5))


def launch_of(log):
    return replay_log(log).launch


def test_overheads_are_startup_forming_and_epoch_excess():
    log = with_rates(20.0, 5.0, replace(START, before_s={"launcher": 0.25, "reading": 2.0}))
    overheads = measure_overheads(launch_of([*log[:5], FIRST_STEP, *log[5:]]), validated=60)
    assert overheads.ready_s == pytest.approx(2.25 + 1.0)
    assert overheads.start_s == pytest.approx(
        0.5
    )  # an epoch of 10 s ended 10.5 s after the group was ordered to train
    assert overheads.epoch_s == pytest.approx(10 - (100 + 60 / 3) / 20)


def test_overheads_need_a_second_epoch():
    assert measure_overheads(launch_of(LOG[:4]), validated=0) is None
    assert measure_overheads(launch_of([*LOG[:4], FIRST_STEP, *LOG[4:6]]), validated=0) is None


def test_observed_rates_exclude_waits_and_validation():
    log = [
        *LOG[:4],
        FIRST_STEP,
        *LOG[4:5],
        epoch(22.0, "a", 2, 10.0),
        epoch(35.0, "a", 3, 12.0, waited=2.0),
        epoch(48.0, "a", 4, 13.0),
    ]
    assert observed_rates(launch_of(log), validated=60) == {
        "a": {1: pytest.approx((100 + 20) / 10)}
    }
    assert measure_overheads(launch_of(log), validated=60).epoch_s == 0.0
