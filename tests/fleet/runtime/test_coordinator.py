"""The hands of the coordinator: what comes in is heard, and what is wanted is done."""

import logging
from types import SimpleNamespace

import pytest

from fleet.comm.messages import EpochDone, Exit, Joined, Pace, Ready, Start, Stopped
from fleet.comm.roles import assign
from fleet.control.history import ProtocolViolation
from fleet.control.launch_state import LaunchConfig, PriorRates
from fleet.control.measurement import RateMeasurement
from fleet.domain.events import GroupFailed
from fleet.domain.network import TrainingState
from fleet.errors import ExitStatus, InfrastructureError
from fleet.runtime.coordinator import Coordinator, Files, SearchParts, StartupEvents
from fleet.runtime.external.tracking import Tracking
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import ProfileFile
from fleet.runtime.searchers import Searchers
from fleet.runtime.startup import StartupTimer
from fleet.search.controller import make_controller
from fleet.spec.resolve import with_extreme_networks
from fleet.storage.checkpoint import write_state
from fleet.storage.event_log import EventLog, read_events
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from scheduler.base import Network, RateTable
from tests.fakes import World
from tests.fleet.histories import history, record, results_of, spec


class Watcher:
    def __init__(self):
        self.events, self.paces = [], []

    def on_event(self, event):
        self.events.append(event.word)

    def on_pace(self, *pace):
        self.paces.append(pace)


class Launch:
    """A coordinator of one network, on the first of two trainers."""

    def __init__(self, folder, **rest):
        content = spec({"family": "softmax", "name": "a"}, schedule={"policy": "baseline"})
        roles = assign((0, 0, 0), None, None, own_preprocessing=True)
        self.world, self.watcher, self.paths = World(), Watcher(), RunPaths(folder)
        self.results = results_of(content, self.paths)
        self.log = EventLog(self.paths.events, clock=lambda: 0.0)
        search = SearchParts(
            make_controller(content, with_extreme_networks(content), {}, 2),
            Searchers({}),
            SimpleNamespace(pop_ready=lambda training, now_s: ()),
            (),
            None,
        )
        setup = LaunchConfig(content, roles, None, samples=60, outlives=True, **rest)
        self.coordinator = Coordinator(
            self.world,
            setup,
            PriorRates(
                RateMeasurement([], {}, content.profile, 2, 2, {}),
                RateTable(60, 2, (Network("a", (10.0,)),)),
            ),
            Files(
                self.results,
                self.log,
                ProfileFile(self.paths.profile),
                None,
                Tracking([], self.paths, ""),
            ),
            [self.watcher.on_event],
            self.watcher.on_pace,
            Interruption(None),
            StartupEvents((), None, {}, (), StartupTimer()),
            search,
        )
        self.coordinator.start()

    def hear(self, *words):
        """Let the coordinator hear some words, and then that there are no more."""
        self.world.said += words
        while self.coordinator.step():
            pass

    def told(self):
        received, self.world.told = self.world.told, []
        return [(rank, type(message)) for rank, _, message in received]


@pytest.fixture
def make(tmp_path):
    """Makes a launch whose log is closed in the end."""
    launches = []

    def make(**rest):
        launches.append(Launch(tmp_path, **rest))
        return launches[-1]

    yield make
    for launch in launches:
        launch.log.close()


@pytest.fixture
def launch(make):
    return make()


def test_coordinator_sends_logs_and_writes_results(launch):
    launch.hear(Ready(1), Ready(2))
    assert launch.told() == [(1, Start)]
    launch.hear(
        Joined("a"),
        Pace("a", 10, 5.0),
        EpochDone("a", record(1), 0.5, "1 epoch"),
        Stopped("a", 0.0),
    )
    launch.coordinator.stop()
    assert launch.told()[-2:] == [(1, Exit), (2, Exit)]
    assert launch.coordinator.status is ExitStatus.OK
    assert [
        logged.event.word for logged in read_events(launch.paths.events)
    ] == launch.watcher.events
    assert launch.watcher.events == [
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
    assert launch.watcher.paces == [("a", 10, 5.0)]
    assert [(row.name, row.epochs, row.reason) for row in read_results(launch.paths.root)] == [
        ("a", 1, "1 epoch")
    ]


def test_a_death_is_heard_when_all_that_the_dead_have_said_is(launch):
    launch.hear(Ready(1), Ready(2), Joined("a"))
    launch.world.dead_ranks = frozenset({1})
    launch.hear(EpochDone("a", record(1), 0.5, ""))
    assert launch.watcher.events.index("epoch") < launch.watcher.events.index("lost")
    assert launch.watcher.events.count("lost") == 1


def test_a_struck_network_is_as_far_as_its_checkpoint_on_disk(launch):
    launch.hear(Ready(1), Ready(2), Joined("a"))
    write_state(
        launch.paths.last("a"),
        TrainingState(arrays={}, identity="i", history=history(0.5, 0.6), position=7),
    )
    launch.world.dead_ranks = frozenset({1})
    launch.hear()
    assert GroupFailed("a", epochs=2, position=7) in [
        logged.event for logged in read_events(launch.paths.events)
    ]
    assert [row.epochs for row in read_results(launch.paths.root)] == [2]
    assert launch.told()[-1] == (2, Start)


def test_what_ends_all_ranks_is_raised(make):
    launch = make(replayed=(0,))
    launch.world.dead_ranks = frozenset({2})
    with pytest.raises(InfrastructureError, match="rank 2 has died"):
        launch.hear()


def test_coordinator_reports_protocol_violation_with_history(launch, caplog):
    launch.hear(Ready(1))
    with (
        caplog.at_level(logging.CRITICAL, "fleet"),
        pytest.raises(ProtocolViolation, match="a is FORMING"),
    ):
        launch.hear(Stopped("a", 0.0))
    assert "Ready(rank=1)" in caplog.text
    assert "Stopped(network='a'" in caplog.text
