"""Several launches share one folder, each with leased networks; some are killed, some stopped."""

import os
import resource
import signal
import subprocess
import sys
import time
from datetime import datetime

import pytest

from fleet.domain.events import EpochEnded, NetworkFinished, NetworkLeased
from fleet.monitor.report import read_report
from fleet.storage.event_log import events_of, read_run
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from launch.processes import launch_members
from tests.mpi.conftest import kill, rank_process, send_all, spec
from tests.places import ROOT
from tests.waiting import wait_until

pytest.importorskip("fleet.companions.shared_run")

EPOCHS, LEASE = 8, {"FLEET_LEASE": "2s"}
NAMES = ["a", "b", "c", "d"]
FAULTY_MACHINE = ROOT / "tests" / "mpi" / "faulty_machine"


def faulty_machine(**faults):
    """Return the environment of processes on a machine with faults."""
    return {"PYTHONPATH": f"{FAULTY_MACHINE}{os.pathsep}{ROOT}", **faults}


class Harvest:
    """Launches that share the folder of one run."""

    def __init__(self, launch, folder, samples=100, source="slow", names=NAMES, lease=LEASE):
        self.names, self.launch, self.lease = names, launch, lease
        self.content = spec(
            folder,
            [{"family": "softmax", "name": name} for name in names],
            samples=samples,
            source=source,
            train={"stopping": {"max_epochs": EPOCHS}},
        )
        self.paths = RunPaths(folder / "run")

    def start(self, *options, ranks=2, **faults):
        """Start a launch, on a machine that may have faults."""
        variables = {**self.lease, **(faulty_machine(**faults) if faults else {})}
        return self.launch.start(
            ranks, self.content, "--share-run", *options, environment=variables
        )

    def epochs(self):
        return [
            (event.network, event.record.epoch)
            for _, event in read_run(self.paths)
            if isinstance(event, EpochEnded)
        ]

    def wait_until_both_train(self):
        wait_until(
            lambda: sum(bool(events_of(log, EpochEnded)) for log in self.paths.event_logs()) == 2
        )

    def check(self, results, again=0):
        """Check that all epochs are trained and in the table, at most ``again`` of them twice."""
        assert set(self.epochs()) == {
            (name, epoch + 1) for name in self.names for epoch in range(EPOCHS)
        }
        assert len(self.epochs()) <= len(self.names) * EPOCHS + again
        assert {(row.status, row.epochs) for row in results.values()} == {("finished", EPOCHS)}
        assert set(results) == set(self.names)
        assert self.paths.foreign_files() == []
        report = read_report(self.paths)
        assert {name: len(epochs) for name, epochs in report.histories} == dict.fromkeys(
            self.names, EPOCHS
        )
        assert report.account.launches == len(self.paths.event_logs())


@pytest.fixture
def harvest(launch, tmp_path):
    return Harvest(launch, tmp_path)


def end(process):
    output, _ = process.communicate(timeout=90)
    return process.returncode, output


def leased(harvest):
    """Return the events of all leases that launches acquired."""
    return [event for log in harvest.paths.event_logs() for event in events_of(log, NetworkLeased)]


def results(harvest):
    return {row.name: row for row in read_results(harvest.paths.root)}


@pytest.mark.long
@pytest.mark.parametrize("wrong_s", [600, -600])
def test_harvest_takes_over_correctly_with_wrong_clocks(launch, tmp_path, wrong_s):
    gate = tmp_path / "gate"
    harvest = Harvest(launch, tmp_path, samples=f"100:150:{gate}", source="gated", names=["a", "b"])
    first = harvest.start(WRONG_BY_S=str(-wrong_s))
    wait_until(harvest.epochs)
    second = harvest.start(ranks=3, WRONG_BY_S=str(wrong_s))  # two trainers, for both networks
    harvest.wait_until_both_train()
    assert sorted((event.network, event.took_over) for event in leased(harvest)) == [
        ("a", False),
        ("b", False),
    ]
    send_all(first, signal.SIGSTOP)
    gate.touch()
    status, output = end(second)
    assert status == 0, output
    assert [event.took_over for event in leased(harvest)].count(True) == 1
    before = {path: path.read_bytes() for path in harvest.paths.models.rglob("*") if path.is_file()}
    send_all(first, signal.SIGCONT)
    status, output = end(first)
    assert status not in (0, 2, 3, 75)
    assert "has been taken over by another launch" in output
    assert {
        path: path.read_bytes() for path in harvest.paths.models.rglob("*") if path.is_file()
    } == before
    harvest.check(results(harvest), again=2)
    logs = [path.read_text() for path in harvest.paths.root.glob("logs/*/rank-000.log")]
    ahead, behind = (
        choose(datetime.fromisoformat(log[:19]) for log in logs) for choose in (max, min)
    )
    assert (ahead - behind).total_seconds() > 1000  # the clocks were wrong indeed


LOCK_ATTEMPTS = """
import errno, fcntl, sys
with open(sys.argv[1], "w") as file:
    for lock in (fcntl.flock, fcntl.lockf):
        try:
            lock(file, fcntl.LOCK_EX)
        except OSError as error:
            assert error.errno == errno.ENOLCK
        else:
            sys.exit("a lock was acquired")
"""


@pytest.mark.long
def test_harvest_works_on_a_file_system_without_locks(harvest, tmp_path):
    faults = {"WITHOUT_LOCKS": "1"}
    attempts = subprocess.run(
        [sys.executable, "-c", LOCK_ATTEMPTS, tmp_path / "file"],
        text=True,
        capture_output=True,
        env={**os.environ, **faulty_machine(**faults)},
        check=False,
    )
    if "no filter can be set" in attempts.stderr:
        pytest.skip("the kernel of this machine filters no system calls")
    assert attempts.returncode == 0, attempts.stderr
    launches = [harvest.start(**faults), harvest.start(**faults)]
    harvest.wait_until_both_train()
    ended = [end(process) for process in launches]
    assert [status for status, _ in ended] == [0, 0], ended
    harvest.check(results(harvest))


@pytest.mark.long
def test_harvest_quota_of_one_launch_hurts_no_other(launch, tmp_path):
    harvest = Harvest(launch, tmp_path, samples=800)  # no network finishes before the fault
    launches = [harvest.start("--idle-timeout", "1s") for _ in range(5)]  # for four networks
    wait_until(lambda: any(events_of(log, EpochEnded) for log in harvest.paths.event_logs()))
    failed = next(
        process for process in launches if process.poll() is None and _trains(harvest, process)
    )
    for rank in range(2):
        # No file may grow.
        resource.prlimit(rank_process(failed.pid, rank), resource.RLIMIT_FSIZE, (0, 0))
    status, output = end(failed)
    assert (status, "cannot be written: File too large" in output, "Traceback" in output) == (
        1,
        True,
        False,
    ), output
    ended = [end(process) for process in launches if process is not failed]
    assert {status for status, _ in ended} <= {0, 75}, ended  # some launches got no network
    if any(row.status != "finished" for row in results(harvest).values()):
        status, output = end(harvest.start())
        assert status == 0, output
    harvest.check(results(harvest), again=1)


@pytest.mark.long
def test_harvest_table_follows_all_launches(launch, tmp_path):
    harvest = Harvest(launch, tmp_path, samples=200, names=["a", "b", "c"])
    harvest.content["models"][0]["train"] = {"stopping": {"max_epochs": 60}}
    launches = [harvest.start("--idle-timeout=1s") for _ in range(2)]
    harvest.wait_until_both_train()
    wait_until(
        lambda: {
            event.network
            for log in harvest.paths.event_logs()
            for event in events_of(log, NetworkFinished)
        }
        >= {"b", "c"}
    )
    time.sleep(4)
    table = []
    until = time.monotonic() + 4
    while time.monotonic() < until:
        table.append(
            {name: (str(row.status), row.epochs) for name, row in results(harvest).items()}
        )
        time.sleep(0.1)
    assert all(seen["a"][0] == "training" for seen in table), "it was over before"
    assert {(seen["b"], seen["c"]) for seen in table} == {
        (("finished", EPOCHS), ("finished", EPOCHS))
    }
    assert table[-1]["a"][1] > table[0]["a"][1]
    for process in launches:
        kill(process)
        process.communicate()


def _trains(harvest, process):
    """Return True if a launch has finished an epoch; its log is named after its process."""
    processes = [f"-{pid}" for pid in launch_members(process.pid)]
    return any(
        log.stem.endswith(tuple(processes)) and events_of(log, EpochEnded)
        for log in harvest.paths.event_logs()
    )


@pytest.mark.long
def test_harvest_exclusive_launch_waits_for_others(launch, tmp_path):
    gate, lease = tmp_path / "gate", {"FLEET_LEASE": "10s"}  # none expires on a busy machine
    harvest = Harvest(launch, tmp_path, samples=f"100:150:{gate}", source="gated", lease=lease)
    first = harvest.start()
    wait_until(harvest.epochs)
    alone = launch(2, harvest.content, environment=lease)
    gate.touch()
    assert alone.status == 2
    assert "another launch is running in this folder" in alone.output
    assert end(first)[0] == 0
    harvest.check(results(harvest))
    again = launch(2, harvest.content, environment=lease)
    assert (again.status, "4 of them already finished" in again.output) == (0, True)
