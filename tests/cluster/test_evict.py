"""Evictions on a real Slurm: a run saves and resumes later, and an urgent job starts in time."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.cluster.harvest_trial import HarvestTrial
from tests.cluster.test_chain import PLANNED, Ensemble
from tests.cluster.test_harvest import emulated
from tests.mpi.conftest import ROOT, Launcher

pytestmark = pytest.mark.cluster
UNRESPONSIVE = (
    "#!/bin/sh\n#SBATCH --comment=fleet:signal=B:USR1,app_time=0.2\ntrap '' USR1\n"
    "while true; do sleep 1; done\n"
)
PLAIN = "#!/bin/sh\nsleep 900\n"


def evict(slurm, folder, *words):
    """Run ``fleet evict`` and return its output and its record."""
    printed = slurm.call(
        sys.executable,
        "-m",
        "fleet",
        "evict",
        "--slurm",
        "--carry-out",
        *words,
        PYTHONPATH=str(ROOT),
    )
    record = folder / "record"
    if not record.exists():
        return printed, []
    return printed, [json.loads(line) for line in record.read_text().splitlines()]


def actions(record):
    """Return (action, job) of each line of the record."""
    return [(note["what"], note.get("job")) for note in record]


def check_started(slurm, record, urgent):
    """Check that the urgent job had started when the eviction ended, and wait for its end."""
    (end,) = (note for note in record if note["what"] == "end")
    assert re.match(rf"job {urgent} is (RUNNING|COMPLETING|COMPLETED) ", end["said"])
    assert slurm.wait_for(urgent).state == "COMPLETED"


def test_evict_stops_three_of_four_runs_until_the_job_starts(slurm, tmp_path):
    slurm.clean()
    ensembles = [Ensemble(slurm, tmp_path / name, nodes=1) for name in "abcd"]
    for ensemble in ensembles:
        ensemble.submit("--warn=30s")
    for ensemble in ensembles:
        ensemble.wait_until_it_trains(epochs=2)
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=3", "--exclusive")
    _, record = evict(
        slurm,
        tmp_path,
        "--nodes=3",
        "--deadline=4",
        f"--for={urgent}",
        "--yes",
        f"--record={tmp_path / 'record'}",
    )
    check_started(slurm, record, urgent)
    done = actions(record)
    saved = {job for text, job in done if text == "save"}
    assert len(saved) == 3
    for text in ("freed", "hold", "release"):
        assert {job for also, job in done if also == text} == saved
    assert not {"stop", "deaf", "ended", "refused"} & {text for text, _ in done}
    free, end = (
        note["time"] - record[0]["time"] for note in record if note["what"] in ("free", "end")
    )
    print(f"free after {free:.1f} s; the urgent job had started after {end:.1f} s")
    for ensemble in ensembles:
        ensemble.wait_for_end()
        ensemble.check()  # no epoch was trained again
        assert [stop["status"] for stop in ensemble.stops()] == (
            [75, 0] if ensemble.job in saved else [0]
        )


def test_evict_saves_a_run_and_requeues_an_unresponsive_job(slurm, tmp_path):
    slurm.clean()
    ensemble = Ensemble(slurm, tmp_path)
    ensemble.submit("--warn=30s")
    unresponsive, plain = (
        slurm.submit(script, "--nodes=1", "--exclusive", "--requeue")
        for script in (UNRESPONSIVE, PLAIN)
    )
    ensemble.wait_until_it_trains()
    # The urgent job comes after them in the queue.
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=3", "--exclusive")

    printed, record = evict(slurm, tmp_path, "--nodes=3", "--deadline=2.5")
    assert "Nothing was done" in printed
    assert re.search(
        rf"job {ensemble.job} of root: saves, until minute .* \(signal B:USR2\)", printed
    )
    assert record == []
    assert [slurm.state(job) for job in (ensemble.job, unresponsive, plain)] == ["RUNNING"] * 3

    _, record = evict(
        slurm,
        tmp_path,
        "--nodes=3",
        "--deadline=2.5",
        "--margin=20s",
        f"--for={urgent}",
        "--yes",
        f"--record={tmp_path / 'record'}",
    )
    done = actions(record)
    assert ("save", ensemble.job) in done
    assert ("freed", ensemble.job) in done
    assert ("deaf", unresponsive) in done
    assert [text for text, _ in done].count("stop") == 1  # the cheaper of the other two jobs
    check_started(slurm, record, urgent)
    (stopped,) = (job for text, job in done if text == "stop")
    # Without the hold they would have started first.
    assert {job for text, job in done if text == "hold"} == {ensemble.job, stopped}
    assert {job for text, job in done if text == "release"} == {ensemble.job, stopped}
    ensemble.wait_for_end()
    assert 75 in [stop.get("status") for stop in ensemble.stops()]
    # The run resumed and trained no epoch twice.
    assert len(ensemble.epochs()) == len(set(ensemble.epochs())) == 2 * PLANNED
    for job in (unresponsive, plain):
        slurm.cancel(job)


class Harvest(HarvestTrial):
    """A harvest on four nodes with two more queued jobs; its networks take ten minutes."""

    def submit(self):
        self.slurm.call(
            sys.executable,
            "-m",
            "fleet",
            "harvest",
            str(Launcher(self.folder).write(self.content)),
            "--system=slurm",
            "--nodes-per-job=1",
            "--ranks-per-node=2",
            "--backlog=2",
            "--max-jobs=8",
            "--idle-timeout=20s",
            "--walltime=1h",
            "--warn=30s",
            "--",
            "--partition=low",
            PYTHONPATH=str(ROOT),
            XDG_CACHE_HOME=str(self.folder / "cache"),
            **self.variables,
        )

    def jobs(self, state):
        return self.slurm.call("squeue", "--noheader", f"--states={state}", "--format=%i").split()

    def end(self):
        self.slurm.call(
            sys.executable,
            "-m",
            "fleet",
            "harvest",
            str(self.folder / "spec.yaml"),
            "--system=slurm",
            "--end",
            PYTHONPATH=str(ROOT),
        )
        self.slurm.clean()


@pytest.fixture
def harvest(slurm, tmp_path):
    slurm.clean()
    trial = Harvest(slurm, tmp_path, emulated(tmp_path, 8, 600))
    trial.submit()
    slurm.wait_until("four jobs train", lambda: len(trial.training()) >= 4, trial.report)
    slurm.wait_until("two jobs wait", lambda: len(trial.jobs("PENDING")) == 2, trial.report)
    yield trial
    trial.end()


def test_evict_keeps_freed_nodes_from_a_harvest(slurm, harvest, tmp_path):
    queued = set(harvest.jobs("PENDING"))
    # For Slurm it is no more urgent than the harvest.
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=2", "--exclusive")
    printed, record = evict(
        slurm,
        tmp_path,
        "--nodes=2",
        "--deadline=4",
        f"--for={urgent}",
        "--yes",
        f"--record={tmp_path / 'record'}",
    )
    print(printed)
    check_started(slurm, record, urgent)
    done = actions(record)
    saved = {job for text, job in done if text == "save"}
    assert len(saved) == 2
    assert not {"stop", "deaf", "ended", "refused", "taken"} & {text for text, _ in done}
    held_jobs = {job for text, job in done if text == "hold"}
    assert queued <= held_jobs
    assert held_jobs == {job for text, job in done if text == "release"}
    slurm.wait_until(
        "the harvest has all nodes again", lambda: len(harvest.jobs("RUNNING")) == 4, harvest.report
    )


def test_evict_releases_jobs_held_by_a_killed_eviction(slurm, harvest, tmp_path):
    record = tmp_path / "record"
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=4", "--exclusive", "--begin=now+1hour")
    words = (
        sys.executable,
        "-m",
        "fleet",
        "evict",
        "--slurm",
        "--carry-out",
        "--nodes=1",
        f"--for={urgent}",
        f"--record={record}",
    )
    killed = subprocess.Popen(
        [*words, "--deadline=30", "--yes"],
        cwd=tmp_path,
        env={**slurm.environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    slurm.wait_until("it holds jobs", lambda: record.exists() and '"hold"' in record.read_text())
    time.sleep(5)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert "still held by an eviction that was killed" in slurm.call(
        *words, "--deadline=1", PYTHONPATH=str(ROOT)
    )
    ended = subprocess.Popen(
        [*words, "--deadline=30", "--yes"],
        cwd=tmp_path,
        env={**slurm.environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    slurm.wait_until("it has begun", lambda: record.read_text().count('"begin"') == 2)
    time.sleep(5)
    ended.send_signal(signal.SIGTERM)
    assert ended.wait() == 1
    slurm.cancel(urgent)
    assert "JobHeldUser" not in slurm.call("squeue", "--noheader", "--format=%r")


def test_evict_holds_a_successor_until_the_urgent_job_starts(slurm, tmp_path):
    slurm.clean()
    ensembles = [Ensemble(slurm, tmp_path / name, nodes=1) for name in "abcd"]
    site = tmp_path / "site.yaml"
    # So that each job is followed by another.
    site.write_text("base: generic\ndirectives: ['--no-requeue']\n")
    for ensemble in ensembles:
        ensemble.submit("--warn=30s", f"--site={site}")
    for ensemble in ensembles:
        ensemble.wait_until_it_trains(epochs=2)
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=2", "--exclusive")
    _, record = evict(
        slurm,
        tmp_path,
        "--nodes=2",
        "--deadline=4",
        f"--for={urgent}",
        "--yes",
        f"--record={tmp_path / 'record'}",
    )
    check_started(slurm, record, urgent)
    done = actions(record)
    assert not {"stop", "taken"} & {text for text, _ in done}
    saved = {job for text, job in done if text == "save"}
    following = {
        stop["next"] for ensemble in ensembles for stop in ensemble.stops() if stop["next"]
    }
    assert len(saved) == len(following) == 2
    assert {job for text, job in done if text == "hold"} == following
    for ensemble in ensembles:
        ensemble.job = ensemble.stops()[-1]["next"] if ensemble.stops() else ensemble.job
        ensemble.wait_for_end()
        ensemble.check()


def test_evict_reports_errors_in_one_line(slurm, tmp_path):
    slurm.clean()
    with pytest.raises(
        AssertionError, match="squeue, running jobs of all users: 3 nodes cannot be freed: 0 jobs"
    ):
        evict(slurm, tmp_path, "--nodes=3", "--deadline=3")
    with pytest.raises(AssertionError, match="nowhere"):
        evict(slurm, tmp_path, "--nodes=3", "--deadline=3", "--partition=nowhere")
