"""Several launches in one folder at a time, each on networks that it holds by lease; some die, some are stopped."""

import os
import resource
import signal
import time

import pytest

from fleet.monitor.report import read_report
from fleet.storage.event_log import events_of, read_run
from fleet.storage.events import EpochEnded, NetworkTaken
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.mpi.conftest import kill, rank_process, session_members, spec

EPOCHS, LEASE = 8, {"FLEET_LEASE": "2s"}
NAMES = ["a", "b", "c", "d"]


class Harvest:
    """Launches over one run's folder."""

    def __init__(self, launch, folder, samples=100):
        self.content = spec(folder, [{"family": "softmax", "name": name} for name in NAMES], samples=samples,
                            source="slow", train={"converge": {"max_epochs": EPOCHS}})
        self.start = lambda *more: launch.start(2, self.content, "--beside-others", *more, environment=LEASE)
        self.paths = RunPaths(folder / "run")

    def epochs(self):
        return [(event.network, event.record.epoch) for _, event in read_run(self.paths)
                if isinstance(event, EpochEnded)]

    def wait_until(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait_until_both_train(self):
        self.wait_until(lambda: sum(bool(events_of(log, EpochEnded)) for log in self.paths.event_logs()) == 2)

    def check(self, results, again=0):
        """All epochs are trained, so many of them again at most, and the table has all of them."""
        assert set(self.epochs()) == {(name, epoch + 1) for name in NAMES for epoch in range(EPOCHS)}
        assert len(self.epochs()) <= len(NAMES) * EPOCHS + again
        assert {(row.status, row.epochs) for row in results.values()} == {("finished", EPOCHS)}
        assert set(results) == set(NAMES)
        assert self.paths.foreign() == []
        report = read_report(self.paths)
        assert {curve.name: len(curve.epochs) for curve in report.losses} == dict.fromkeys(NAMES, EPOCHS)
        assert report.account.launches == len(self.paths.event_logs())


@pytest.fixture
def harvest(launch, tmp_path):
    return Harvest(launch, tmp_path)


def end(process):
    output, _ = process.communicate(timeout=90)
    return process.returncode, output


def results(harvest):
    return {row.name: row for row in read_results(harvest.paths.root)}


@pytest.mark.long
def test_two_launches_share_the_networks_and_one_that_is_killed_loses_an_epoch_at_most(harvest):
    first, second = harvest.start(), harvest.start()
    harvest.wait_until_both_train()
    kill(first)
    first.communicate()
    status, output = end(second)
    assert status == 0, output
    harvest.check(results(harvest), again=1)
    taken = [event for log in harvest.paths.event_logs() for event in events_of(log, NetworkTaken)]
    assert len([event for event in taken if event.took_over]) == 1


@pytest.mark.long
def test_launches_that_are_left_alone_train_each_epoch_once_and_all_end_well(harvest):
    launches = [harvest.start(), harvest.start()]
    harvest.wait_until_both_train()
    ended = [end(process) for process in launches]
    assert [status for status, _ in ended] == [0, 0], ended
    harvest.check(results(harvest))


@pytest.mark.long
def test_a_launch_that_was_stopped_for_longer_than_its_lease_ends_and_destroys_nothing(harvest):
    first, second = harvest.start(), harvest.start()
    harvest.wait_until_both_train()
    stopped = session_members(first.pid)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    status, output = end(second)
    assert status == 0, output
    before = {path: path.read_bytes() for path in harvest.paths.models.rglob("*") if path.is_file()}
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    status, output = end(first)
    assert status not in (0, 2, 3, 75)
    assert "has been taken over by another launch" in output
    assert {path: path.read_bytes() for path in harvest.paths.models.rglob("*") if path.is_file()} == before
    harvest.check(results(harvest), again=2)


@pytest.mark.long
def test_one_launch_of_five_whose_quota_is_hit_says_so_and_the_others_lose_nothing(launch, tmp_path):
    harvest = Harvest(launch, tmp_path, samples=800)  # no network is done before it is struck
    launches = [harvest.start("--idle", "1s") for _ in range(5)]  # of four networks
    harvest.wait_until(lambda: any(events_of(log, EpochEnded) for log in harvest.paths.event_logs()))
    struck = next(process for process in launches if process.poll() is None and _trains(harvest, process))
    for rank in range(2):
        resource.prlimit(rank_process(struck.pid, rank), resource.RLIMIT_FSIZE, (0, 0))  # no file may have a byte more
    status, output = end(struck)
    assert (status, "cannot be written: File too large" in output, "Traceback" in output) == (1, True, False), output
    ended = [end(process) for process in launches if process is not struck]
    assert {status for status, _ in ended} <= {0, 75}, ended  # some found no network for themselves
    if any(row.status != "finished" for row in results(harvest).values()):
        status, output = end(harvest.start())
        assert status == 0, output
    harvest.check(results(harvest), again=1)


def _trains(harvest, process):
    """Whether a launch has finished an epoch; its log is named after its process."""
    processes = [f"-{pid}" for pid in session_members(process.pid)]
    return any(log.stem.endswith(tuple(processes)) and events_of(log, EpochEnded)
               for log in harvest.paths.event_logs())


@pytest.mark.long
def test_a_launch_that_wants_to_be_alone_is_refused_until_the_others_have_ended(launch, tmp_path):
    harvest = Harvest(launch, tmp_path, samples=600)  # no network is done while it is waited for
    first = harvest.start()
    harvest.wait_until(lambda: harvest.epochs())
    alone = launch(2, harvest.content, environment=LEASE)
    assert alone.status == 2
    assert "another launch is at work in this folder" in alone.output
    assert end(first)[0] == 0
    harvest.check(results(harvest))
    again = launch(2, harvest.content, environment=LEASE)
    assert (again.status, "4 of them done before" in again.output) == (0, True)
