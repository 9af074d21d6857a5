"""Tests of a run as trackers model it."""

from dataclasses import replace

from fleet.domain import events as ev
from fleet.domain.timeline import LoggedEvent
from fleet.export.tracked_run import read_tracked_run
from tests.fleet.logs import START, as_text, epoch, write_sample_run


def test_run_time_excludes_time_between_launches(tmp_path):
    paths = write_sample_run(tmp_path)
    paths.spec.write_text(
        "models: [{family: softmax, name: a}, {family: softmax, name: b}]\n", encoding="utf-8"
    )
    launches = [
        [
            LoggedEvent(0.0, replace(START, date=1000.0)),
            LoggedEvent(1.0, ev.GroupStarted("a", (0,), 0, 1)),
            epoch(11.0, "a", 1, 10.0),
            LoggedEvent(12.0, ev.LaunchEnded(75)),
        ],
        [
            LoggedEvent(0.0, replace(START, date=90_000.0)),
            LoggedEvent(2.0, ev.GroupStarted("a", (0,), 0, 1)),
            epoch(12.0, "a", 2, 10.0),
            LoggedEvent(13.0, ev.LaunchEnded(0)),
        ],
    ]
    paths.events.write_text("".join(map(as_text, launches)))
    tracked = {network.name: network for network in read_tracked_run(paths).networks}["a"]
    assert tracked.began == 1001.0
    assert [epoch.date for epoch in tracked.epochs] == [1011.0, 90_012.0]
    assert [epoch.run_time_s for epoch in tracked.epochs] == [10.0, 23.0]
