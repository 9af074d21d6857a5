"""An event log for tests, and a run with this log."""

import json

from fleet.domain import events as ev
from fleet.domain.json_record import to_json
from fleet.domain.network import EpochRecord, NetworkStatus, Outcome
from fleet.domain.timeline import LoggedEvent
from fleet.spec import parse
from fleet.storage.paths import RunPaths
from scheduler.base import Delta
from tests.fleet.histories import apply_status, results_of

START = ev.LaunchStarted(
    networks=2,
    trainers=2,
    preprocessors=1,
    nodes=1,
    gpus_per_node=2,
    policy="baseline",
    finished=(),
    first_stream_epoch=0,
    samples=100,
    devices=(0, 1),
    stream="free",
    options=ev.ScheduleOptions(0.8, Delta(0.15, relative=True), peak_limited=True, seed=0),
    bounds={"a": (1, None), "b<1>": (1, None)},  # a name that HTML must escape
)


def epoch(t_s, network, number, seconds, waited=0.0, gpus=1):
    record = EpochRecord(
        number,
        number - 1,
        loss=1 / number,
        accuracy=0.5,
        val_loss=0.7,
        val_accuracy=0.4 + number / 9,
        learning_rate=0.1,
        samples=100,
        gpus=gpus,
        seconds=seconds,
        waited_s=waited,
    )
    return LoggedEvent(t_s, ev.EpochEnded(network, record, blocked_s=0.25))


# a trains two epochs of 10 s on device 0, b one of 20 s on device 1; groups form in half a second,
# and end in 0.1 s.
LOG = [
    LoggedEvent(0.0, START),
    LoggedEvent(1.0, ev.PlanChanged((), scheduling_s=0.01)),
    LoggedEvent(1.0, ev.GroupStarted("a", (0,), 0, 1)),
    LoggedEvent(1.0, ev.GroupStarted("b<1>", (1,), 0, 1)),
    epoch(11.5, "a", 1, 10.0),
    epoch(21.5, "b<1>", 1, 20.0, waited=5.0),
    LoggedEvent(21.5, ev.NetworkFinished("b<1>", "1 epoch", 1)),
    LoggedEvent(21.6, ev.GroupStopped("b<1>", 0.1)),
    epoch(22.0, "a", 2, 10.0),
    LoggedEvent(22.0, ev.NetworkFinished("a", "2 epochs", 2)),
    LoggedEvent(22.1, ev.GroupStopped("a", 0.1)),
    LoggedEvent(23.0, ev.LaunchEnded(0)),
]


def with_rates(a, b, start=START):
    """Return the log of a run with given rates of its networks on one GPU."""
    return [
        LoggedEvent(0.0, start),
        LoggedEvent(0.0, ev.RatesLoaded({"a": (a,), "b<1>": (b,)})),
        *LOG[1:],
    ]


def as_lines(log):
    """Return the JSON objects of a log."""
    return [{"t_s": t_s, **to_json(event)} for t_s, event in log]


def as_text(log):
    return "".join(json.dumps(line) + "\n" for line in as_lines(log))


def write_sample_run(folder):
    """Write a run: in its table the second network waits, in its log it has trained."""
    paths = RunPaths(folder / "run")
    spec = parse(
        {"models": [{"family": "softmax", "name": "a"}, {"family": "softmax", "name": "b"}]}
    )
    results = results_of(spec, paths)
    apply_status(results, "a", NetworkStatus((), Outcome("2 epochs")))
    paths.results.write_text(paths.results.read_text().replace("b,", "b<1>,"))
    paths.events.write_text(as_text(LOG))
    return paths
