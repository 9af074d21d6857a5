"""Chains of jobs on a real Slurm: whatever stops a job, another goes on, and the ensemble is finished."""

import json
import sys
import time

import pytest

from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths
from tests.mpi.conftest import ROOT, Launch, Launcher, spec
from tests.mpi.test_training import replayed

pytestmark = pytest.mark.cluster
MODELS = [{"family": "softmax", "name": "one"}, {"family": "softmax", "name": "both-nodes", "gpus": 2}]


class Ensemble:
    """Two networks that train one after the other on two nodes, submitted as a chain of jobs.

    Args:
        samples: of an epoch, a millisecond each to prepare.
    """

    def __init__(self, slurm, folder, samples=400, epochs=8):
        self.slurm, self.folder, self.planned = slurm, folder, epochs
        self.content = spec(folder, MODELS, samples=samples, source="slow", train={"converge": {"max_epochs": epochs}},
                            resources={"engine": "numpy", "preprocessors": 2})
        self.launcher, self.paths = Launcher(folder), RunPaths(folder / "run")
        self.job = ""

    def submit(self, *options, walltime="10min"):
        self.job = self.slurm.call(
            sys.executable, "-m", "fleet", "submit", str(self.launcher.write(self.content)), "--system=slurm",
            "--nodes=2", "--ranks-per-node=2", f"--walltime={walltime}", "--chain", *options,
            PYTHONPATH=str(ROOT), XDG_CACHE_HOME=str(self.folder / "cache")).strip()

    def wait_for_epochs(self, count):
        deadline = time.monotonic() + 180
        while len(self.epochs()) < count:
            assert time.monotonic() < deadline, self.report()
            time.sleep(0.05)

    def wait_for_end(self):
        ended = self.slurm.wait_for(self.job, timeout=240)
        assert ended.state == "COMPLETED", self.report()

    def epochs(self):
        events = read_events(self.paths.events) if self.paths.events.exists() else ()
        return [(event["network"], event["epoch"]) for event in events if event["event"] == "epoch"]

    def stops(self):
        lines = [json.loads(line) for line in self.paths.stops.read_text().splitlines()]
        return [line for line in lines if line["event"] == "stopped"]

    def report(self):
        return "\n".join(file.read_text(errors="replace")[-5000:] for file in sorted(self.paths.jobs.iterdir()))

    def check(self, again=0):
        """All epochs are trained, and so many of them again at most; what a job may leave behind is not there."""
        epochs = self.epochs()
        assert len(set(epochs)) == self.planned * len(MODELS), self.report()
        assert len(epochs) <= self.planned * len(MODELS) + again, self.report()
        for model in MODELS:
            history = self.launch.history(model["name"])
            assert [record.epoch for record in history] == list(range(1, self.planned + 1))
        assert self.stops()[-1]["then"] == "all networks finished"
        assert self.paths.foreign() == []

    @property
    def launch(self):
        return Launch(0, "", 0.0, self.paths)


@pytest.fixture
def ensemble(slurm, tmp_path):
    return Ensemble(slurm, tmp_path)


def test_a_walltime_that_is_too_short_warns_the_job_and_another_finishes(slurm, tmp_path):
    ensemble = Ensemble(slurm, tmp_path, samples=1600, epochs=24)  # 40 s at least
    ensemble.submit("--warn=55s", walltime="1min")  # Slurm looks every half a minute whether a warning is due
    ensemble.wait_for_end()
    *before, last = ensemble.stops()
    assert before
    assert all(stop["warned"] and stop["next"] == ensemble.job for stop in before), ensemble.report()
    assert any((stop["status"], stop["why"]) == (75, "SIGUSR2 came") for stop in before), ensemble.report()
    assert last["status"] == 0
    ensemble.check()


def test_a_signal_to_the_batch_script_stops_the_job_and_another_finishes(ensemble):
    ensemble.submit()
    ensemble.wait_for_epochs(4)
    ensemble.slurm.call("scancel", "--batch", "--signal=TERM", ensemble.job)
    ensemble.wait_for_end()
    assert [(stop["status"], stop["warned"]) for stop in ensemble.stops()] == [(75, True), (0, False)]
    ensemble.check()


def test_a_job_that_is_preempted_is_followed_by_another_and_no_failure_is_counted(ensemble):
    ensemble.submit("--retries=0")
    ensemble.wait_for_epochs(4)
    other = ensemble.slurm.submit("#!/bin/sh\n", "--partition=high", "--nodes=4", "--exclusive")
    assert ensemble.slurm.wait_for(other).state == "COMPLETED"
    ensemble.wait_for_end()
    assert len(ensemble.stops()) == 2, ensemble.report()
    ensemble.check(again=len(MODELS))


def test_a_job_whose_node_dies_goes_on_elsewhere_from_its_checkpoints(ensemble):
    ensemble.submit()
    ensemble.wait_for_epochs(4)
    ensemble.slurm.take_down("n2")
    try:
        ensemble.wait_for_end()
    finally:
        ensemble.slurm.bring_back("n2")
    assert [stop["status"] for stop in ensemble.stops()] == [1, 0], ensemble.report()
    ensemble.check(again=len(MODELS))
    for model in MODELS:
        assert replayed(ensemble.launcher, ensemble.content, ensemble.launch, model["name"]) < 1e-9


def test_a_job_whose_first_node_dies_with_its_script_is_started_again_by_slurm(ensemble):
    ensemble.submit()
    ensemble.wait_for_epochs(4)
    ensemble.slurm.take_down("n1")
    try:
        ensemble.wait_for_end()
    finally:
        ensemble.slurm.bring_back("n1")
    assert [stop["status"] for stop in ensemble.stops()] == [None, 0], ensemble.report()
    ensemble.check(again=len(MODELS))
