"""The past of a run: each log is read once before a launch trains."""

import builtins
from contextlib import closing

import pytest

from fleet.domain.timeline import LoggedEvent
from fleet.runtime.coordinator import Coordinator
from fleet.runtime.startup.past import Past
from fleet.runtime.startup.request import Request
from fleet.spec import load
from fleet.storage.event_log import EventLog
from fleet.storage.paths import RunPaths
from tests.fleet.logs import LOG, START, as_text
from tests.fleet.runtime.runs import launch, write

pytestmark = pytest.mark.usefixtures("quick")

MODELS = [{"family": "softmax", "name": name} for name in "ab"]
DATA = {"source": "tests.sources:numbered", "path": "24", "transforms": []}
TRAIN = {"batch": {"size": 8}, "stopping": {"max_epochs": 2}}
SEARCH = [
    {
        "family": "softmax",
        "name": "net",
        "space": {"train.optimizer.learning_rate": {"low": 0.001, "high": 0.1}},
    }
]


@pytest.fixture
def reads(monkeypatch):
    """The logs that were opened to be read before the coordinator started, in order."""
    opened, is_starting = [], [True]
    open_file, start = builtins.open, Coordinator.start

    def counting(path, mode="r", *args, **options):
        if is_starting and str(path).endswith(".jsonl") and mode in ("r", "rb"):
            opened.append(str(path))
        return open_file(path, mode, *args, **options)

    def start_after_counting(coordinator, *arguments):
        is_starting.clear()
        start(coordinator, *arguments)

    monkeypatch.setattr("builtins.open", counting)
    monkeypatch.setattr(Coordinator, "start", start_after_counting)

    def reset():
        opened.clear()
        is_starting[:] = [True]

    return opened, reset


@pytest.fixture
def run(tmp_path, reads):
    """A run that was killed: the path of its spec."""
    path = write(tmp_path, MODELS, data=DATA, train=TRAIN)
    launch(path, 3, turns=150)
    return path


def log_of(path):
    return str(path.parent / "run" / "events.jsonl")


def test_first_launch_reads_no_log(tmp_path, reads):
    launch(write(tmp_path, MODELS, data=DATA, train=TRAIN), 3)
    assert reads[0] == []


def test_fresh_launch_reads_no_log(run, reads):
    reads[1]()
    launch(run, 3, fresh=True)
    assert reads[0] == []


def test_resumed_launch_reads_its_log_once(run, reads):
    reads[1]()
    launch(run, 3)
    assert reads[0] == [log_of(run)]


def test_launch_that_shares_its_run_reads_each_log_once(run, reads):
    other_log = RunPaths(run.parent / "run", "17").events
    other_log.parent.mkdir(exist_ok=True)
    other_log.write_text(as_text([LoggedEvent(0.0, START)]))
    reads[1]()
    launch(run, 3, turns=5, shares_run=True)
    assert sorted(reads[0]) == sorted([log_of(run), str(other_log)])


def test_replay_reads_the_log_of_its_run_once(run, reads):
    launch(run, 3)
    reads[1]()
    launch(run, 3, replay=str(run.parent / "run"), only="a")
    assert reads[0] == [log_of(run)]


def test_warm_start_reads_the_log_of_the_earlier_run_once(tmp_path, reads):
    search = {"sampler": "random", "max_trials": 2}
    earlier = write(tmp_path / "earlier", [{**SEARCH[0], "search": search}], data=DATA, train=TRAIN)
    launch(earlier, 3)
    reads[1]()
    warm = {**search, "warm_start": [str(tmp_path / "earlier/run")]}
    launch(write(tmp_path / "later", [{**SEARCH[0], "search": warm}], data=DATA, train=TRAIN), 3)
    assert reads[0] == [log_of(earlier)]


def test_past_catches_up_with_what_was_logged_since(tmp_path):
    paths = RunPaths(tmp_path / "run")
    spec = load(write(tmp_path, MODELS, data=DATA, train=TRAIN))
    with closing(EventLog(paths.events)) as log:
        for logged in LOG[:3]:
            log.add(logged.event)
        past = Past(Request("spec.yaml"), paths, spec)
        assert len(past.events_of(paths.events)) == 3
        assert not past.catch_up()
        for logged in LOG[3:]:
            log.add(logged.event)
        assert past.catch_up()
    assert past.events_of(paths.events) == [logged.event for logged in LOG]


def test_past_of_a_run_that_starts_over_is_empty(tmp_path):
    paths = RunPaths(tmp_path / "run")
    with closing(EventLog(paths.events)) as log:
        log.add(START)
    spec = load(write(tmp_path, MODELS, data=DATA, train=TRAIN))
    past = Past(Request("spec.yaml", fresh=True), paths, spec)
    assert (past.paths, past.run.launches, past.events_of(paths.events)) == (None, [], [])
