"""What a person sees of a run."""

import ast
import errno
import inspect
import io
import math

import pytest

from fleet.errors import StorageError
from fleet.monitor.view import LiveView, PlainView, describe
from fleet.runtime import coordinator
from tests.fleet.histories import spec

EPOCH = {"network": "a", "epoch": 2, "stream_epoch": 7, "loss": 0.5, "accuracy": 0.75, "val_loss": 0.25,
         "val_accuracy": 0.875, "learning_rate": 0.1, "samples": 600, "gpus": 2, "seconds": 2.0, "waited_s": 0.1,
         "blocked_s": 0.0}
START = {"networks": 3, "trainers": 4, "preprocessors": 1, "nodes": 2, "gpus_per_node": 2, "policy": "global",
         "finished": [], "first_stream_epoch": 0}
STREAM = {"preprocessors": 2, "of": 2, "policy": "global", "pace": "shared", "kept": False,
          "supply_samples_per_s": 100.4, "demand_samples_per_s": 200.6}

# (event, its fields, the line; nothing where it is not worth one)
EVENTS = [
    ("start", START, "3 networks; 4 trainers, 1 preprocessor on 2 nodes; policy global"),
    ("start", {**START, "finished": ["a", "b"]},
     "3 networks, 2 of them done before; 4 trainers, 1 preprocessor on 2 nodes; policy global"),
    ("measured", {"network": "a", "gpus": 1, "rate": 99.6, "seconds": 1.0, "done": 2, "total": 5},
     "measured 2/5: a on 1 GPU: 100 samples/s"),
    ("measured", {"network": "a", "gpus": 2, "rate": 0.0, "seconds": 1.0, "done": 2, "total": 5, "reason": "no room"},
     "measured 2/5: a on 2 GPUs: no room"),
    ("profiled", {"measurements": 5, "seconds": 75.0, "rates": {}}, "rates known after 1 min 15 s"),
    ("profiled", {"measurements": 0, "seconds": 0.0, "rates": {}}, "rates known, measured before"),
    ("stream", {**STREAM, "bottleneck": "training"},
     "input 100 samples/s by 2 preprocessors, the fastest network takes 201: training is the bottleneck"),
    ("stream", {**STREAM, "bottleneck": "input"},
     "input 100 samples/s by 2 preprocessors, the fastest network takes 201: input is the bottleneck "
     "(more preprocessors: start more ranks, raise resources.preprocessors; or decode once: data.cache: memory, or "
     "file)"),
    ("stream", {**STREAM, "bottleneck": "training", "of": 5, "policy": "adaptive"},
     "input 100 samples/s by 2 preprocessors, the fastest network takes 201: training is the bottleneck "
     "(3 preprocessors of 5 could train instead); adaptive is faster where networks go at their own pace: "
     "data.cache: memory, or data.order: ring"),
    ("stream", {**STREAM, "bottleneck": "input", "kept": True, "pace": "own"},
     "input 100 samples/s by 2 preprocessors, the fastest network takes 201: decoded in the first epoch, kept from "
     "then on"),
    ("rates", {"rates": {}}, ""),
    ("plan", {"members": [], "scheduling_s": 0.1}, ""),
    ("round", {"round": 2, "members": ["a", "b"]}, "round 2: a, b"),
    ("group", {"network": "a", "devices": [0, 1], "stream_epoch": 3, "round": 2}, "  a on devices [0, 1]"),
    ("regroup", {"network": "a", "before": [0], "devices": [0, 1], "position": 8, "seconds": 0.25},
     "  a on devices [0, 1] instead of [0], after 0.2 s"),
    ("epoch", EPOCH, "a epoch 2/9: loss 0.5000 75.00%, validation 0.2500 87.50% (300 samples/s)"),
    ("epoch", {**EPOCH, "val_loss": math.nan, "val_accuracy": math.nan},
     "a epoch 2/9: loss 0.5000 75.00% (300 samples/s)"),
    ("epoch", {**EPOCH, "seconds": 0.0, "samples": 0}, "a epoch 2/9: loss 0.5000 75.00%, validation 0.2500 87.50% "
                                                       "(0 samples/s)"),
    ("final", {"network": "a", "reason": "9 epochs", "epochs": 9}, "a is done: 9 epochs"),
    ("failed", {"network": "a", "reason": "no room", "detail": "Traceback"}, "a FAILED: no room"),
    ("stopped", {"network": "a", "checkpoint_s": 0.1}, ""),
    ("too_late", {"networks": ["a", "b"], "left_s": 5.0, "needed_s": 30.0},
     "too late to start a, b: 5.0 s are left, and a group has taken 30.0 s to start"),
    ("retry", {"network": "a", "reason": "Stale file handle", "retry": 1, "retries": 2},
     "a failed: Stale file handle; that may pass: retry 1 of 2"),
    ("fell_back", {"network": "a", "damage": "last.h5 is torn", "epochs": 3, "position": 0},
     "WARNING: a goes on after epoch 3: last.h5 is torn"),
    ("fell_back", {"network": "a", "damage": "both are torn", "epochs": 0, "position": 0},
     "WARNING: a starts over: both are torn"),
    ("best_lost", {"network": "a", "damage": "best.h5 is torn; epoch 3 stands in"},
     "WARNING: a: best.h5 is torn; epoch 3 stands in"),
    ("lost", {"rank": 3, "device": 2}, "rank 3 has died; the others go on"),
    ("struck", {"network": "a", "epochs": 3, "position": 0},
     "a lost a rank, and goes back to its last checkpoint: after epoch 3"),
    ("struck", {"network": "a", "epochs": 3, "position": 70},
     "a lost a rank, and goes back to its last checkpoint: after epoch 3, sample 70"),
    ("bad_sample", {"name": "x.png", "reason": "torn", "training": True}, "skipped x.png: torn"),
    ("interrupted", {"reason": "SIGTERM came", "replay": False},
     "SIGTERM came: finishing the step, saving, and stopping; the same command goes on"),
    ("interrupted", {"reason": "SIGTERM came", "replay": True},
     "SIGTERM came: stopping; a replay does not go on, the same command starts it over"),
    ("end", {"status": 0, "seconds": 1.0, "rounds": 1}, ""),
]


@pytest.mark.parametrize(("event", "fields", "line"), EVENTS)
def test_an_event_is_a_line_or_nothing(event, fields, line):
    assert describe(event, fields, {"a": 9}) == line


def test_every_event_that_the_coordinator_logs_is_thought_of():
    calls = (node for node in ast.walk(ast.parse(inspect.getsource(coordinator))) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Attribute) and node.func.attr == "_log")
    assert {ast.literal_eval(call.args[0]) for call in calls} == {event for event, *_ in EVENTS}


@pytest.fixture
def network():
    return spec({"family": "softmax", "name": "a"}, train={"converge": {"max_epochs": 9}})


def test_a_batch_log_has_a_line_for_each_thing_that_happens_with_its_time(network):
    out = io.StringIO()
    view = PlainView(network, out)
    for event, fields, _ in EVENTS:
        view.on_event(event, fields)
    view.on_pace("a", 10, 5.0)
    view.close()
    lines = out.getvalue().splitlines()
    assert [line.split("] ", 1)[1] for line in lines] == [line for *_, line in EVENTS if line]
    assert all(line.startswith("[") and " s] " in line for line in lines)


def test_the_live_table_follows_networks_from_start_to_end(network, monkeypatch):
    monkeypatch.setattr("fleet.monitor.view.terminal_width", lambda screen: 120)
    screen = io.StringIO()
    view = LiveView(network, screen, {})

    def shown():
        view._live.refresh()
        return screen.getvalue().split("network")[-1]

    try:
        first_epoch = [event for event, *_ in EVENTS].index("epoch")
        for event, fields, _ in EVENTS[:first_epoch]:
            view.on_event(event, fields)
        assert "0/9" in shown()
        view.on_event("epoch", EPOCH)
        view.on_pace("a", 300, 50.0)
        view.on_pace("unknown", 300, 50.0)
        assert "2/9" in shown()
        assert "87.50%" in shown()
        view.on_event("stopped", {"network": "a", "checkpoint_s": 0.1})
        assert "2/9" not in shown()
        for event, fields, _ in EVENTS[first_epoch + 3:]:
            view.on_event(event, fields)
    finally:
        view.close()
    assert "a FAILED: no room" in screen.getvalue()


GROUP = {"network": "a", "devices": [0], "stream_epoch": 3, "round": 1}


@pytest.fixture
def live(network, monkeypatch):
    """A live view of a network that has trained four epochs in an earlier launch, and how its table looks."""
    monkeypatch.setattr("fleet.monitor.view.terminal_width", lambda screen: 120)
    screen = io.StringIO()
    view = LiveView(network, screen, {"a": 4})

    def shown():
        view._live.refresh()
        return screen.getvalue().split("network")[-1]

    yield view, shown
    view.close()


def test_the_live_table_goes_on_counting_epochs_where_a_network_goes_on(live):
    view, shown = live
    view.on_event("group", GROUP)
    assert "4/9" in shown()
    view.on_event("epoch", {**EPOCH, "epoch": 5})
    view.on_event("stopped", {"network": "a", "checkpoint_s": 0.1})
    view.on_event("group", GROUP)
    assert "5/9" in shown()
    view.on_event("struck", {"network": "a", "epochs": 3, "position": 0})
    view.on_event("group", GROUP)
    assert "3/9" in shown()


def test_without_validation_data_the_live_table_shows_no_accuracy_of_it(live):
    view, shown = live
    view.on_event("group", GROUP)
    view.on_event("epoch", {**EPOCH, "val_loss": math.nan, "val_accuracy": math.nan})
    assert "0.5000" in shown()
    assert "nan" not in shown()


def test_the_live_table_may_change_while_it_is_drawn(live):
    view, _ = live
    drawing = iter(view._rows.items())
    view.on_event("group", GROUP)
    assert dict(drawing)["a"].cells()
    drawing = iter(view._rows.items())
    view.on_event("final", {"network": "a", "reason": "9 epochs"})
    assert len(list(drawing)) == 1


class Full(io.StringIO):
    """A batch log on a disk that is full."""

    def flush(self):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_under_a_batch_log_is_told_as_any_other():
    view = PlainView(spec({"family": "softmax", "name": "a"}), Full())
    with pytest.raises(StorageError, match="standard output cannot be written: No space left"):
        view.on_event("final", {"network": "a", "reason": "9 epochs", "epochs": 9})
