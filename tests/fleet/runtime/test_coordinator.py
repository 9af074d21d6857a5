"""The coordinator: it receives inputs and carries out effects."""

import errno
import logging
from types import SimpleNamespace

import pytest

from fleet.comm.messages import EpochDone, Exit, Joined, Pace, Ready, Start, Stopped
from fleet.comm.roles import assign
from fleet.control.controller import Controller
from fleet.control.effects import CheckpointRead, PolicyAnswered, RanksDied
from fleet.control.history import ProtocolViolation
from fleet.control.launch_state import LaunchConfig, PriorRates
from fleet.control.measurement import RateMeasurement
from fleet.domain.events import GroupFailed
from fleet.domain.network import TrainingState
from fleet.errors import ExitStatus, InfrastructureError, StorageError
from fleet.runtime.coordinator import Coordinator
from fleet.runtime.external.tracking import Tracking
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import ProfileFile
from fleet.runtime.run_sharing import RunSharing
from fleet.runtime.searchers import Searchers
from fleet.search.controller import make_controller
from fleet.spec.entries import with_extreme_networks
from fleet.storage.checkpoint import write_state
from fleet.storage.event_log import EventLog, read_events
from fleet.storage.lease import NO_FENCE
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from scheduler.base import Network, RateTable
from tests.fakes import World
from tests.fleet.histories import history, record, results_of, spec
from tests.refusals import refused


class EventRecorder:
    def __init__(self):
        self.events, self.paces = [], 0

    def on_event(self, event):
        self.events.append(event.word)

    def on_pace(self):
        self.paces += 1


class Launch:
    """A coordinator of one network, on the first of two trainers."""

    def __init__(self, folder, **config):
        content = spec({"family": "softmax", "name": "a"}, schedule={"policy": "baseline"})
        roles = assign((0, 0, 0), None, None, own_preprocessing=True)
        self.world, self.recorder, self.paths = World(), EventRecorder(), RunPaths(folder)
        self.results = results_of(content, self.paths)
        self.log = EventLog(self.paths.events, clock=lambda: 0.0)
        search = make_controller(content, with_extreme_networks(content), self.results.run, {}, 2)
        search.restore(())
        setup = LaunchConfig(content, roles, None, samples=60, outlives=True, **config)
        self.coordinator = Coordinator(
            self.world,
            setup,
            PriorRates(
                RateMeasurement([], {}, content.profile, 2, 2, {}),
                RateTable(60, 2, (Network("a", (10.0,)),)),
            ),
            self.results,
            self.log,
            ProfileFile(self.paths.profile),
            NO_FENCE,
            Tracking([], self.paths, ""),
            [self.recorder.on_event],
            self.recorder.on_pace,
            Interruption(None),
            search,
            Searchers({}),
            SimpleNamespace(pop_ready=lambda training, now_s: ()),
            None,
            RunSharing(),
        )
        self.coordinator.start()

    def receive(self, *messages):
        """Let the coordinator receive messages and handle all of them."""
        self.world.inbox += messages
        while self.coordinator.step():
            pass

    def pop_sent(self):
        """Return (rank, type) of the messages that were sent since the last call."""
        sent, self.world.sent = self.world.sent, []
        return [(rank, type(message)) for rank, _, message in sent]


@pytest.fixture
def make_launch(tmp_path):
    """Make launches and close their logs at the end."""
    launches = []

    def make_launch(**config):
        launches.append(Launch(tmp_path, **config))
        return launches[-1]

    yield make_launch
    for launch in launches:
        launch.log.close()


@pytest.fixture
def launch(make_launch):
    return make_launch()


def test_coordinator_sends_logs_and_writes_results(launch):
    launch.receive(Ready(1), Ready(2))
    assert launch.pop_sent() == [(1, Start)]
    launch.receive(
        Joined("a"),
        Pace("a", 10, 5.0),
        EpochDone("a", record(1), 0.5, "1 epoch"),
        Stopped("a", 0.0),
    )
    launch.coordinator.stop()
    assert launch.pop_sent()[-2:] == [(1, Exit), (2, Exit)]
    assert launch.coordinator.status is ExitStatus.OK
    assert [
        logged.event.word for logged in read_events(launch.paths.events)
    ] == launch.recorder.events
    assert launch.recorder.events == [
        "start",
        "plan",
        "round",
        "group",
        "ready",
        "first_step",
        "epoch",
        "final",
        "plan",
        "stopped",
        "end",
    ]
    assert launch.recorder.paces == 1
    assert [(row.name, row.epochs, row.reason) for row in read_results(launch.paths.root)] == [
        ("a", 1, "1 epoch")
    ]


def test_coordinator_handles_deaths_after_messages_of_the_dead(launch):
    launch.receive(Ready(1), Ready(2), Joined("a"))
    launch.world.dead_ranks = frozenset({1})
    launch.receive(EpochDone("a", record(1), 0.5, ""))
    assert launch.recorder.events.index("epoch") < launch.recorder.events.index("lost")
    assert launch.recorder.events.count("lost") == 1
    assert launch.world.ignored == {1}  # what it has sent may still arrive


def test_coordinator_restores_failed_network_from_checkpoint(launch):
    launch.receive(Ready(1), Ready(2), Joined("a"))
    write_state(
        launch.paths.last("a"),
        TrainingState(arrays={}, identity="i", history=history(0.5, 0.6), position=7),
    )
    launch.world.dead_ranks = frozenset({1})
    launch.receive()
    assert GroupFailed("a", epochs=2, position=7) in [
        logged.event for logged in read_events(launch.paths.events)
    ]
    assert [row.epochs for row in read_results(launch.paths.root)] == [2]
    assert launch.pop_sent()[-1] == (2, Start)


def test_coordinator_hands_over_the_policy_answer_first(launch, monkeypatch):
    launch.receive(Ready(1), Ready(2), Joined("a"))
    inputs = []
    handle = Controller.handle

    def note_input(controller, now_s, message=None, more_pending=False):
        inputs.append(type(message))
        return handle(controller, now_s, message, more_pending)

    monkeypatch.setattr(Controller, "handle", note_input)
    launch.world.dead_ranks = frozenset({1})
    launch.receive()
    assert inputs[:4] == [RanksDied, PolicyAnswered, CheckpointRead, PolicyAnswered]


def test_coordinator_raises_an_error_that_ends_the_launch(make_launch):
    launch = make_launch(replayed=(0,))
    launch.world.dead_ranks = frozenset({2})
    with refused(InfrastructureError, "rank 2"):
        launch.receive()


def test_coordinator_logs_nothing_after_an_error(launch, monkeypatch):
    launch.receive(Ready(1), Ready(2), Joined("a"))
    monkeypatch.setattr(launch.results, "on_event", refused_by_disk)
    with pytest.raises(StorageError):
        launch.receive(EpochDone("a", record(1), 0.5, ""))
    monkeypatch.undo()
    before = launch.paths.events.read_bytes()
    launch.receive(EpochDone("a", record(2), 0.5, ""))  # by the watchdog's thread
    assert launch.paths.events.read_bytes() == before


def test_coordinator_reads_its_lease_again_after_a_refusal(launch, monkeypatch):
    refusals = [OSError(errno.ESTALE, "Stale file handle")] * 2
    checks = []

    def check(self):
        checks.append(self)
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr(type(NO_FENCE), "check", check)
    launch.coordinator.stop()
    assert len(checks) == 3


def refused_by_disk(event):
    raise StorageError("no space left")


def test_coordinator_reports_protocol_violation_with_history(launch, caplog):
    launch.receive(Ready(1))
    with (
        caplog.at_level(logging.CRITICAL, "fleet"),
        pytest.raises(ProtocolViolation, match="a is FORMING"),
    ):
        launch.receive(Stopped("a", 0.0))
    assert "Ready(rank=1)" in caplog.text
    assert "Stopped(network='a'" in caplog.text
