"""Tests of progress lines about long epochs."""

import io
from dataclasses import replace

from fleet.domain.events import EpochEnded, GroupFailed, GroupStarted, GroupStopped
from fleet.domain.network import EpochRecord, NetworkStatus
from fleet.domain.run import RunState
from fleet.monitor.progress import FIRST_S, LONGEST_S, Progress
from fleet.monitor.view import PlainView
from fleet.spec import parse
from tests.fakes import Clock
from tests.fleet.histories import history
from tests.fleet.logs import START

SAMPLES = 1000


class ProgressRun:
    """A run, and the progress lines of its networks."""

    def __init__(self, names, epochs=None):
        self.run = RunState(
            parse(
                {
                    "models": [{"family": "softmax", "name": name} for name in names],
                    "train": {"stopping": {"max_epochs": 9}},
                }
            )
        )
        self.run.restore(
            {
                name: NetworkStatus(history(*[0.5] * number))
                for name, number in (epochs or {}).items()
            }
        )
        self.progress = Progress(self.run)

    def make_line(self, network, samples, samples_per_s, now_s):
        self.run.record_pace(network, samples, samples_per_s)
        return self.progress.make_line(now_s)

    def add(self, event, now_s):
        self.run.apply(now_s, event)
        if isinstance(event, GroupStarted | EpochEnded):
            self.progress.mark_reported(event.network, now_s)


def started(names, epochs=None):
    progress_run = ProgressRun(names, epochs)
    progress_run.add(replace(START, samples=SAMPLES), 0.0)
    for name in names:
        progress_run.add(GroupStarted(name, (0,), 0, 1), 0.0)
    return progress_run


def ended(name, epoch):
    return EpochEnded(
        name, EpochRecord(epoch, epoch - 1, 0.5, 0.5, 0.5, 0.5, 0.1, SAMPLES, 1, 1.0, 0.0)
    )


def test_progress_of_long_epochs_at_growing_intervals():
    progress = started("a")
    lines = {
        now: line
        for now in range(1, 2000)
        if (line := progress.make_line("a", now // 2, 0.5, float(now)))
    }
    assert lines[30] == "a epoch 1/9: 2% (0 samples/s)"
    assert lines[450] == "a epoch 1/9: 22% (0 samples/s)"
    assert list(lines) == [30, 90, 210, 450, 750, 1050, 1350, 1650, 1950]
    assert (FIRST_S, LONGEST_S) == (30, 300)


def test_progress_is_silent_about_short_epochs():
    progress = started("a")
    for epoch in range(1, 100):
        now = 20.0 * epoch
        assert progress.make_line("a", 500, 50.0, now - 10) == ""
        progress.add(ended("a", epoch), now)


def test_progress_line_covers_all_networks():
    progress = started([f"n{number}" for number in range(12)])
    progress.add(ended("n3", 2), 29.0)
    lines = [
        progress.make_line(f"n{number}", 250, 40.0, 30.0 if number == 11 else 20.0)
        for number in range(12)
    ]
    assert lines[:11] == [""] * 11
    assert lines[11] == "; ".join(
        [
            *(f"n{number} epoch 1/9: 25% (40 samples/s)" for number in (0, 1, 2, 4, 5, 6, 7, 8)),
            "and 3 more",
        ]
    )


def test_progress_names_the_current_epoch():
    progress = started("ab", {"a": 4})
    progress.add(ended("b", 1), 1.0)
    progress.make_line("a", 0, 1.0, 30.9)
    assert progress.make_line("b", 1200, 1.0, 31.0) == ""  # the previous line was about a
    assert (
        progress.make_line("b", 1200, 1.0, 95.0)
        == "a epoch 5/9: 0% (1 samples/s); b epoch 2/9: 100% (1 samples/s)"
    )
    progress.add(GroupFailed("a", 3, 0), 96.0)
    progress.add(GroupStopped("b", 0.1), 96.0)
    progress.add(GroupStarted("a", (0,), 3, 1), 96.0)
    assert progress.make_line("a", 10, 1.0, 300.0) == "a epoch 4/9: 1% (1 samples/s)"


def test_plain_view_prints_progress_lines():
    now, out, run = Clock(), io.StringIO(), ProgressRun("a", {"a": 2}).run
    view = PlainView(run, out, now)
    run.apply(0.0, replace(START, samples=SAMPLES))
    run.apply(0.0, GroupStarted("a", (0,), 2, 1))
    for second in range(1, 40):
        now.now = float(second)
        run.record_pace("a", 10 * second, 10.0)
        view.on_pace()
    assert out.getvalue().splitlines() == ["[      30.0 s] a epoch 3/9: 30% (10 samples/s)"]
