"""Networks of a run that several launches share."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from fleet.companions.shared_run.lease_requests import LeaseRequests
from fleet.companions.shared_run.shared_run import SharedRun
from fleet.control.effects import LeaseGranted
from fleet.domain import events as ev
from fleet.domain.timeline import LoggedEvent
from fleet.errors import ExitStatus
from fleet.runtime.resume import resume
from fleet.storage.lease import NO_FENCE, Fence, Lease, Process
from fleet.storage.paths import RunPaths
from tests.fleet.histories import record
from tests.fleet.logs import START, as_text
from tests.fleet.runtime.runs import prepare
from tests.fleet.runtime.test_searching import Run

pytestmark = pytest.mark.usefixtures("quick")

BESIDE = dataclasses.replace(START, beside=True, date=2e9)
MODELS = [{"family": "softmax", "name": name} for name in "ab"]


class Leases:
    """Grants each requested lease once."""

    def __init__(self, fence=Fence(None, 1, "")):
        self.new = []
        self.fence = fence

    def request(self, names, max_leases):
        self.new += names[:max_leases]

    def pop_acquired(self):
        acquired, self.new = self.new, []
        return acquired

    def lease_of(self, name):
        return SimpleNamespace(fence=self.fence, took_over=False)

    def release(self, name):
        """Do nothing."""


@pytest.fixture
def half_done(tmp_path):
    """A run in which both networks have epochs before them."""
    run = Run(tmp_path, {}, models=MODELS, epochs=200)
    assert run.launch(turns=150) is None
    return run


def resumed(run):
    prepared = prepare(run.path, (0, 0, 0), shares_run=True)
    return resume(prepared), prepared.past


def write_verdict(paths, launch, verdict):
    """Write the log of another launch with a verdict on a network."""
    verdicts = [LoggedEvent(0.1, ev.NetworkVerdict("a", 1, verdict, ("median",)))]
    write_log(paths, launch, [LoggedEvent(0.0, BESIDE), *verdicts])


def write_log(paths, launch, events):
    """Write the log of another launch."""
    log = RunPaths(paths.root, launch).events
    log.parent.mkdir(exist_ok=True)
    log.write_text(as_text(events))


def test_network_pruned_elsewhere_is_not_trained(half_done):
    write_verdict(half_done.paths, "17", "stop")
    results = resumed(half_done)[0].results
    assert results.run.status_of("a").is_pruned
    assert results.run.status_of("b").outcome is None


@pytest.mark.long_but_first
@pytest.mark.parametrize(("verdict", "is_pruned"), [("stop", True), ("pause", False)])
def test_network_pruned_or_paused_elsewhere_meanwhile(half_done, verdict, is_pruned):
    before, past = resumed(half_done)
    results = before.results
    requests = LeaseRequests({"a": 0, "b": 0}, 2, 300.0)
    parallel = SharedRun(half_done.paths, Leases(), requests, before, past)
    assert parallel.poll(0.0, (), ends=False) == []
    write_verdict(half_done.paths, "17", verdict)
    received = {
        leased.network: leased
        for leased in parallel.poll(1.0, (), ends=False)
        if isinstance(leased, LeaseGranted)
    }
    assert (received["a"].status.is_pruned, received["a"].status.is_paused) == (is_pruned, False)
    assert received["b"].status.outcome is None
    parallel.refresh()
    assert results.run.status_of("a").is_pruned is is_pruned


def test_launch_alone_resumes_networks_that_others_paused(tmp_path):
    prune = {"rule": "asha", "min_epochs": 1, "synchronous": True}
    run = Run(tmp_path, {}, models=MODELS, epochs=2, prune=prune)
    assert run.launch(turns=20) is None
    events = [LoggedEvent(0.0, BESIDE)]
    for name in "ab":
        events.append(LoggedEvent(0.1, ev.EpochEnded(name, record(1))))
        events.append(LoggedEvent(0.2, ev.NetworkVerdict(name, 1, "pause", ("asha",))))
    write_log(run.paths, "17", events)
    assert run.launch() is ExitStatus.OK
    assert sorted(row.status for row in run.rows().values()) == ["finished", "pruned"]


def test_log_finish_reason_of_killed_launch_is_added(
    tmp_path,
):
    run = Run(tmp_path, {}, models=MODELS, epochs=2)
    assert run.launch() == 0
    results = [resume(prepare(run.path, (0, 0, 0), shares_run=True)).statuses]
    lines = run.paths.events.read_text().splitlines(keepends=True)
    ends = [
        line
        for line in lines
        if json.loads(line)["event"] == ev.NetworkFinished.word and '"b"' in line
    ]
    run.paths.events.write_text("".join(line for line in lines if line not in ends))
    results.append(resume(prepare(run.path, (0, 0, 0), shares_run=True)).statuses)
    assert results == [{}, {"b": ev.CheckpointStatus(2, json.loads(ends[0])["reason"])}]


@pytest.mark.parametrize(("generation", "unlogged"), [(1, [1, 2]), (2, [])])
def test_ended_epochs_are_logged_unless_a_live_log_has_them(tmp_path, generation, unlogged):
    run = Run(tmp_path, {}, models=MODELS, epochs=2)
    assert run.launch() == 0
    lines = run.paths.events.read_text().splitlines(keepends=True)
    run.paths.events.write_text(
        "".join(line for line in lines if '"epoch"' not in line or '"b"' not in line)
    )
    prepared = prepare(run.path, (0, 0, 0), shares_run=True)
    past = resume(prepared)
    process = Process()
    lease = Lease(process, process.me)
    parallel = SharedRun.join(prepared, lease, past)
    parallel.leases = Leases(Fence(run.paths.network_lease("b"), generation, "17"))
    assert parallel.elsewhere == {"b"}
    parallel.poll(0.0, (), ends=False)
    (leased,) = parallel.poll(1.0, (), ends=False)
    assert [record.epoch for record in leased.unlogged] == unlogged
    assert parallel.poll(2.0, (), ends=False) == []


def test_history_of_ended_network_that_a_crash_lost_is_written(tmp_path):
    run = Run(tmp_path, {}, models=MODELS, epochs=2)
    assert run.launch() == 0
    history = run.paths.history("b").read_bytes()
    run.paths.history("b").write_bytes(b"".join(history.splitlines(keepends=True)[:-1]))
    prepared = prepare(run.path, (0, 0, 0), shares_run=True)
    process = Process()
    parallel = SharedRun.join(prepared, Lease(process, process.me), resume(prepared))
    parallel.leases = Leases(NO_FENCE)
    assert parallel.elsewhere == {"b"}
    parallel.poll(0.0, (), ends=False)
    parallel.poll(1.0, (), ends=False)
    assert run.paths.history("b").read_bytes() == history
