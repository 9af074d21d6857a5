"""Tests of the views of a run."""

import errno
import io
import math
import re
from dataclasses import replace
from typing import get_args

import pytest

from fleet.domain import events as ev
from fleet.domain.network import EpochRecord, EvaluationResult, NetworkStatus
from fleet.domain.run import RunState
from fleet.errors import StorageError
from fleet.monitor import live_view
from fleet.monitor.live_view import LiveView
from fleet.monitor.view import PlainView, format_event
from fleet.storage import files
from fleet.storage.paths import RunPaths
from fleet.storage.results import Results
from scheduler.base import Delta
from tests.fleet.histories import spec
from tests.refusals import refused

EPOCH = ev.EpochEnded(
    "a",
    EpochRecord(
        2,
        7,
        loss=0.5,
        accuracy=0.75,
        val_loss=0.25,
        val_accuracy=0.875,
        learning_rate=0.1,
        samples=600,
        gpus=2,
        seconds=2.0,
        waited_s=0.1,
    ),
)
START = ev.LaunchStarted(
    3,
    4,
    1,
    2,
    2,
    "global",
    (),
    0,
    600,
    (0, 1, 2, 3),
    "lockstep",
    ev.ScheduleOptions(0.8, Delta(0.15, relative=True), True, 0),
    {"a": (1, None)},
)
STREAM = ev.StreamStarted(2, 2, "global", "shared", False, 100.4, 200.6, "training")


def epoch(**changes):
    return replace(EPOCH, record=replace(EPOCH.record, **changes))


# (event, line; empty if the event needs none)
EVENTS = [
    (START, "3 networks; 4 trainers, 1 preprocessor on 2 nodes; policy global"),
    (
        replace(START, finished=("a", "b")),
        "3 networks, 2 of them already finished; 4 trainers, 1 preprocessor on 2 nodes; policy "
        "global",
    ),
    (ev.RateMeasured("a", 1, 99.6, 1.0, 2, 5), "measured 2/5: a on 1 GPU: 100 samples/s"),
    (ev.RateMeasured("a", 2, 0.0, 1.0, 2, 5, "no room"), "measured 2/5: a on 2 GPUs: no room"),
    (ev.ProfilingFinished(5, 75.0, {}), "rates are known after 1 min 15 s"),
    (ev.ProfilingFinished(0, 0.0, {}), "rates are known from earlier measurements"),
    (
        STREAM,
        "input 100 samples/s by 2 preprocessors, the fastest network consumes 201: training is "
        "the bottleneck",
    ),
    (
        replace(STREAM, bottleneck="input"),
        "input 100 samples/s by 2 preprocessors, the fastest network consumes 201: the input is "
        "the bottleneck (start more ranks or raise resources.preprocessors; or decode only once "
        "with data.cache: memory or file)",
    ),
    (
        replace(STREAM, of=5, policy="adaptive"),
        "input 100 samples/s by 2 preprocessors, the fastest network consumes 201: training is "
        "the bottleneck (3 preprocessors of 5 could train instead); adaptive is faster if "
        "networks train at their own pace: data.cache: memory or data.order: ring",
    ),
    (
        replace(STREAM, bottleneck="input", kept=True, pace="own"),
        "input 100 samples/s by 2 preprocessors, the fastest network consumes 201: decoded in the "
        "first epoch and then stored",
    ),
    (
        replace(STREAM, bottleneck="", demand_samples_per_s=0.0),
        "input 100 samples/s by 2 preprocessors: the rates of networks are not known yet",
    ),
    (
        replace(STREAM, bottleneck="", demand_samples_per_s=0.0, kept=True),
        "input 100 samples/s by 2 preprocessors: decoded in the first epoch and then stored",
    ),
    (ev.RatesLoaded({}), ""),
    (
        ev.CacheChosen("memory", "auto", "60 samples take 1 kB", 960, "network"),
        "decoded samples stay in memory: 60 samples take 1 kB",
    ),
    (
        ev.CacheChosen("file", "file", "as requested by the spec", 960, "stream"),
        "samples are decoded once, into a file: as requested by the spec",
    ),
    (
        ev.CacheChosen(
            "none", "auto", "order: ring is for data sets larger than the memory", 0, "stream"
        ),
        "samples are prepared anew in every epoch: order: ring is for data sets larger than the "
        "memory",
    ),
    (ev.RateLearned("a", 1, 238.0, 0.1, 10), ""),
    (ev.RatesEstimated({"a": (238.0,)}, 1), ""),
    (ev.TrainersReady(), "all trainers are ready"),
    (ev.FirstStep("a"), ""),
    (
        ev.RateMeasured("a", 1, 99.6, 1.0, 2, 5, spread=0.034),
        "measured 2/5: a on 1 GPU: 100 samples/s ± 3%",
    ),
    (
        ev.CachedRatesUsed(
            "rates.json",
            {
                "a": (
                    ev.RememberedRate(1, 238.0, 0.02, 7200.0, "node7: 8 cores", "measured"),
                    ev.RememberedRate(2, 400.0, 0.1, 270000.0, "node3: 8 cores", "trained"),
                )
            },
        ),
        "using cached rates of 1 network, measured 2 h 0 min to 3 days ago on node3, node7, "
        "spread up to 10%: rates.json; use --remeasure to measure again",
    ),
    (
        ev.RateMismatch("a", 1, 238.0, 1348.0, 0.1, 40, True),
        "WARNING: a on 1 GPU trains 1348 samples/s, but 238 were expected: the cache now has the "
        "new rate for later runs; further corrections in this launch are not reported",
    ),
    (
        ev.RateMismatch("a", 1, 238.0, 1348.0, 0.1, 40, False),
        "WARNING: a on 1 GPU trains 1348 samples/s, but 238 were expected: correct schedule.rates",
    ),
    (ev.PlanChanged((), 0.1), ""),
    (ev.RoundStarted(2, ("a", "b")), "round 2: a, b"),
    (ev.TimeLeftEstimated(65.0, 130.0, 2), "ETA: 1 min 5 s to 2 min 10 s"),
    (ev.TimeLeftEstimated(65.0, 65.0, 2), "ETA: 1 min 5 s"),
    (ev.GroupStarted("a", (0, 1), 3, 2), "  a on devices [0, 1]"),
    (
        ev.GroupChanged("a", (0,), (0, 1), 8, 0.25),
        "  a on devices [0, 1] instead of [0], after 0.2 s",
    ),
    (EPOCH, "a epoch 2/9: loss 0.5000 75.00%, validation 0.2500 87.50% (300 samples/s)"),
    (
        epoch(val_loss=math.nan, val_accuracy=math.nan),
        "a epoch 2/9: loss 0.5000 75.00% (300 samples/s)",
    ),
    (
        epoch(seconds=0.0, samples=0),
        "a epoch 2/9: loss 0.5000 75.00%, validation 0.2500 87.50% (0 samples/s)",
    ),
    (ev.NetworkFinished("a", "9 epochs", 9), "a has finished: 9 epochs"),
    (ev.NetworkLeased("a", 3, 1, 40), "a continues in this launch after 1 epoch"),
    (
        ev.NetworkTested("a", EvaluationResult(0.25, 0.9, 40), 1.5),
        "a on the test data: loss 0.2500 90.00%",
    ),
    (ev.NetworkFailed("a", "no room", "Traceback"), "a FAILED: no room"),
    (ev.GroupStopped("a", 0.1), ""),
    (
        ev.TooLateToStart(("a", "b"), 5.0, 30.0),
        "too late to start a, b: 5.0 s left, but groups took 30.0 s to start",
    ),
    (
        ev.SharingLearned((1.0, 1.6, 1.9), slots=4),
        "2 networks on one GPU train 1.6 times as fast as one, 3 networks 1.9 times: 3 pay off",
    ),
    (
        ev.SharingLearned((1.0, 1.6, 1.9), slots=3, bound="ranks"),
        "2 networks on one GPU train 1.6 times as fast as one, 3 networks 1.9 times: 3 pay off; "
        "more may pay off: start more ranks",
    ),
    (
        ev.SharingLearned((1.0, 1.6), slots=2, device="core", bound="per_device"),
        "2 networks on one core train 1.6 times as fast as one: 2 pay off; more may pay off: "
        "raise resources.networks_per_gpu, and start more ranks",
    ),
    (
        ev.SharingLearned((1.0, 1.6, 1.9), bound="ranks"),
        "2 networks on one GPU train 1.6 times as fast as one, 3 networks 1.9 times: 3 pay off; "
        "this run has 1 slot per GPU: start more ranks",
    ),
    (
        ev.SupplyChanged(1190.04, 6936.0),
        "the input gives 1190 samples/s, the fastest network could take 6936: no network gets "
        "devices that would only "
        "wait for it",
    ),
    (
        ev.SupplyChanged(9000.0, 6936.0),
        "the input gives 9000 samples/s, the fastest network could take 6936: it holds no network "
        "back",
    ),
    (
        ev.NetworkRetried("a", "out of memory", 0, 2, alone=True),
        "a failed: out of memory; it shared a device, and is retried alone",
    ),
    (
        ev.NetworkRetried("a", "Stale file handle", 1, 2),
        "a failed: Stale file handle; this may be transient: retry 1 of 2",
    ),
    (
        ev.NetworkRolledBack("a", "last.h5 is torn", 3, 0),
        "WARNING: a continues after epoch 3: last.h5 is torn",
    ),
    (
        ev.NetworkRolledBack("a", "last.h5 is torn", 3, 0, finished=True),
        "WARNING: a stays finished: last.h5 is torn; its best epoch is intact",
    ),
    (ev.NetworkRolledBack("a", "both are torn", 0, 0), "WARNING: a starts over: both are torn"),
    (
        ev.ChangesAccepted("a", ("nets.py", "args"), 3),
        "a continues after epoch 3 with changed nets.py args",
    ),
    (
        ev.DataChanged(("photos: 2 files more in class cat",), {"a": 3}),
        "the data has changed, and networks continue with it: photos: 2 files more in class cat",
    ),
    (
        ev.BestCheckpointDamaged("a", "best.h5 is torn; epoch 3 stands in"),
        "WARNING: a: best.h5 is torn; epoch 3 stands in",
    ),
    (ev.NetworkWarned("a", "its loss is not used"), "WARNING: a: its loss is not used"),
    (ev.EnergyUsed("a", 12.5), ""),
    (ev.RunWarned("images are large"), "WARNING: images are large"),
    (ev.RankDied(3, 2), "rank 3 has died; the other ranks continue"),
    (
        ev.GroupFailed("a", 3, 0),
        "a lost a rank and resumes from its last checkpoint, after epoch 3",
    ),
    (
        ev.GroupFailed("a", 3, 70),
        "a lost a rank and resumes from its last checkpoint, after epoch 3, sample 70",
    ),
    (ev.SampleSkipped("x.png", "torn", True), "skipped x.png: torn"),
    (ev.CommandReceived("1-here", "stop", ("a",)), ""),
    (
        ev.CommandReceived("1-here", "yield", ("a",), {"hosts": ["n3"], "within_s": 60.0}),
        "requested: release n3 within 60.0 s",
    ),
    (
        ev.NodesReleased("1-here", (2, 3), ("n3", "n4"), (4, 5), 3.14, has_ended=True),
        "released after 3.1 s: n3, n4; the processes there end",
    ),
    (ev.SearcherCalled("net", "report", 7, 3, 0.81, answer="stop", network="net-7"), ""),
    (
        ev.SearcherFailed("net", "Ask(number=3) took longer than 1 min 0 s"),
        "WARNING: the sampler of net failed and will not be called again: Ask(number=3) took "
        "longer than 1 min 0 s",
    ),
    (
        ev.TrackerFailed("wandb", "runs/a/track/wandb", "no room"),
        "WARNING: trackers: cannot write wandb, continuing without it: no room; fleet export can "
        "write the same data later",
    ),
    (
        ev.ReplayDiffered(
            "net", "a replayed answer differs: Ask(number=1) was answered by 3, and now by 4"
        ),
        "WARNING: net: a replayed answer differs: Ask(number=1) was answered by 3, and now by 4; "
        "using the logged answer",
    ),
    (ev.SearcherStarted("net", {"max_trials": 3}), ""),
    (
        ev.SearcherStarted("net", {"max_trials": 4}, "max_trials was 3 and is 4"),
        "the search of net continues with other settings: max_trials was 3 and is 4",
    ),
    (
        ev.EarlierRunRead("net", "runs/a", 3, {"dropout has no value": 2}),
        "the searcher of net received 3 networks of runs/a; 2 are left out: dropout has no value",
    ),
    (
        ev.NetworkAdded("net-7", "net", 7, {"rate": 0.012345678, "width": 16}, (1, None), 9),
        "net-7 is new: rate 0.01235, width 16",
    ),
    (
        ev.NetworkAdded("net-8", "net", 8, {"width": 16}, (1, None), 9, parent="net-7"),
        "net-8 is new from net-7: width 16",
    ),
    (ev.NetworkAdded("cnn", "", -1, {}, (1, None), 9), "cnn is new"),
    (ev.NetworkAdded("net-9", "net", 9, {"width": 0}, (1, None), 9, wrong="too narrow"), ""),
    (ev.NetworkVerdict("a", 3, "pause", ("asha",)), "a is paused after 3 epochs (by asha)"),
    (
        ev.NetworkVerdict("a", 1, "stop", ("asha", "searcher")),
        "a is pruned after 1 epoch (by asha and searcher)",
    ),
    (ev.NetworkVerdict("a", 3, "go_on", ("user",)), "a continues after 3 epochs (by user)"),
    (
        ev.LaunchInterrupted("received SIGTERM"),
        "received SIGTERM: finishing the step, saving, and stopping; run the same command "
        "to resume",
    ),
    (
        ev.LaunchInterrupted("received SIGTERM", replay=True),
        "received SIGTERM: stopping; a replay cannot be resumed, so the same command starts "
        "it over",
    ),
    (ev.LaunchEnded(0, 1.0, 1), ""),
]


@pytest.mark.parametrize(("event", "line"), EVENTS)
def test_format_event(run, event, line):
    assert format_event(event, run) == line


def test_format_event_covers_all_events():
    assert {type(event) for event, _ in EVENTS} == set(get_args(ev.Event))


class ViewedRun:
    """A run with a view."""

    def __init__(self, run, view):
        self.run, self.view = run, view

    def on_pace(self, *pace):
        self.run.record_pace(*pace)
        self.view.on_pace()

    def on_event(self, event):
        self.run.apply(0.0, event)
        self.view.on_event(event)


@pytest.fixture
def run():
    """Return a run of one network."""
    return RunState(spec({"family": "softmax", "name": "a"}, train={"stopping": {"max_epochs": 9}}))


def test_plain_view_prints_a_dated_line_per_event(run):
    out = io.StringIO()
    view = ViewedRun(run, PlainView(run, out))
    for event, _ in EVENTS:
        view.on_event(event)
    view.on_pace("a", 10, 5.0)
    view.view.close()
    lines = out.getvalue().splitlines()
    assert [line.split("] ", 1)[1] for line in lines] == [line for _, line in EVENTS if line]
    assert all(line.startswith("[") and " s] " in line for line in lines)


class Terminal(io.StringIO):
    """A terminal whose size may change."""

    size = (120, 30)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(live_view, "terminal_size", lambda screen: screen.size)
    monkeypatch.setattr(live_view, "_REFRESH_S", 1000.0)  # only the tests draw
    monkeypatch.setattr(live_view, "_READ_S", 0.0)
    monkeypatch.setattr(live_view, "_READ_SHARE", 1e9)
    return Terminal()


class LiveRun(ViewedRun):
    """A run with a live view."""

    def __init__(self, run, terminal, tmp_path):
        self.terminal = terminal
        results = Results(run._spec, RunPaths(tmp_path), run)
        super().__init__(run, LiveView(run, terminal, results.rows, "digits"))

    def text(self):
        """Draw the screen, and return what was written for it."""
        before = len(self.terminal.getvalue())
        self.view.draw()
        return self.terminal.getvalue()[before:]


@pytest.fixture
def live(run, terminal, tmp_path):
    """Return a live view of a network with four epochs in an earlier launch."""
    run.restore({"a": NetworkStatus(tuple(epoch(epoch=number).record for number in range(1, 5)))})
    view = LiveRun(run, terminal, tmp_path)
    view.on_event(START)
    yield view
    view.view.close()


GROUP = ev.GroupStarted("a", (0,), stream_epoch=3, round=1)


def test_live_view_follows_networks(run, terminal, tmp_path):
    run.restore({"a": NetworkStatus((epoch(epoch=1).record,))})
    view = LiveRun(run, terminal, tmp_path)
    first_epoch = [event for event, _ in EVENTS].index(EPOCH)
    for event, _ in EVENTS[:first_epoch]:
        if not isinstance(event, ev.NetworkAdded):
            view.on_event(event)
    assert "1/9" in view.text()
    view.on_event(EPOCH)
    view.on_pace("a", 300, 50.0)
    view.on_pace("unknown", 300, 50.0)
    text = view.text()
    assert "2/9" in text
    assert "87.50%" in text
    assert "1 training" in text
    view.on_event(ev.GroupStopped("a", 0.1))
    assert "0 training, 1 waiting" in view.text()
    for event, _ in EVENTS[first_epoch + 3 :]:
        view.on_event(event)
    view.view.close()
    assert "a FAILED: no room" in terminal.getvalue()
    warnings = [line for _, line in EVENTS if line.startswith("WARNING")]
    assert [line for line in warnings if line[:60] not in terminal.getvalue()] == []


def test_live_view_continues_epochs_of_resumed_network(live):
    live.on_event(GROUP)
    assert "4/9" in live.text()
    live.on_event(epoch(epoch=5))
    live.on_event(ev.GroupStopped("a", 0.1))
    live.on_event(GROUP)
    assert "5/9" in live.text()
    live.on_event(ev.GroupFailed("a", 3, 0))
    live.on_event(GROUP)
    assert "3/9" in live.text()


def test_live_view_shows_progress_of_the_first_epoch(live):
    live.on_event(GROUP)
    live.on_pace("a", 150, 50.0)
    assert "9.5 s" in live.text()  # of 2 s an epoch, 4.75 are left


def test_live_view_without_validation_shows_no_accuracy(live):
    live.on_event(GROUP)
    live.on_event(epoch(val_loss=math.nan, val_accuracy=math.nan))
    text = live.text()
    assert "0.5000" in text
    assert "nan" not in text


def test_live_view_follows_the_size_of_the_terminal(live):
    live.on_event(GROUP)
    live.on_event(ev.NetworkWarned("a", "its loss is not used"))
    live.text()
    assert "WARNING" not in live.text()  # it stands above the screen already
    live.terminal.size = (40, 10)
    text = live.text()
    assert text.startswith("\x1b[H\x1b[2J")
    assert "WARNING: a: its loss is not used" in text
    visible = [re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", line) for line in text.split("\n")]
    assert max(map(len, visible)) < 40
    assert len(visible) <= 10


def test_live_view_leaves_the_numbers_of_networks(live):
    live.on_event(GROUP)
    live.on_event(ev.NetworkFinished("a", "9 epochs", 9))
    before = len(live.terminal.getvalue())
    live.view.close()
    assert "1 done, 0 training" in live.terminal.getvalue()[before:]
    assert "epochs" not in live.terminal.getvalue()[before:].split("of 1")[1]


def test_live_view_survives_a_closed_terminal(live):
    live.terminal.close()
    live.on_event(GROUP)
    live.view.draw()
    live.terminal = Terminal()


class FullDisk(io.StringIO):
    """A batch log on a full disk."""

    def flush(self):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_plain_view_reports_a_full_disk(monkeypatch):
    monkeypatch.setattr(files, "PATIENCE_S", 0.1)
    view = PlainView(RunState(), FullDisk())
    with refused(StorageError, "standard output", "No space left"):
        view.on_event(ev.NetworkFinished("a", "9 epochs", 9))


class ClosedTerminal(io.StringIO):
    """A closed terminal: writes fail with the error of a bad disk, and it is no terminal."""

    is_there = True

    def isatty(self):
        return self.is_there

    def flush(self):
        raise OSError(errno.EIO, "Input/output error")


def test_plain_view_does_not_wait_for_a_closed_terminal(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    times = iter(range(99))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    view = PlainView(RunState(), out := ClosedTerminal(), lambda: 0.0)
    out.is_there = False
    with refused(StorageError, "standard output", "Input/output error"):
        view.on_event(ev.NetworkFinished("a", "9 epochs", 9))
    assert next(times) <= 3


def lines_about(*events):
    """Return the lines about events, in order."""
    run, lines = RunState(), []
    for event in events:
        run.apply(0.0, event)
        lines.append(format_event(event, run))
    return lines


def test_wrong_cached_rates_are_reported_once_per_launch():
    wrong = ev.RateMismatch("a", 1, 238.0, 1348.0, 0.1, 40, True)
    lines = lines_about(START, wrong, replace(wrong, network="b"), START, wrong)
    assert [bool(line) for line in lines] == [True, True, False, True, True]


def test_wrong_rates_of_a_file_are_all_reported():
    wrong = ev.RateMismatch("a", 1, 238.0, 1348.0, 0.1, 40, False)
    _, *lines = lines_about(START, wrong, replace(wrong, network="b"))
    assert all(line.endswith("correct schedule.rates") for line in lines)


@pytest.mark.parametrize("device", ["core", "trainer"])
def test_format_event_names_the_device(device):
    lines = lines_about(
        replace(START, device=device),
        *(
            event
            for event, _ in EVENTS
            if not isinstance(event, ev.LaunchStarted | ev.SharingLearned)
        ),
    )
    assert f"measured 2/5: a on 2 {device}s: no room" in lines
    assert not any("GPU" in line for line in lines)
