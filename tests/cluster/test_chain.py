"""Chains of jobs on a real Slurm: when a job stops, the next one resumes, until the run is done."""

import json
import sys

import pytest

from fleet.companions.chains.chain import CHAIN_CANCELLED
from fleet.domain.events import EpochEnded
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from tests.mpi.conftest import ROOT, Launch, Launcher, spec
from tests.mpi.test_training import replayed

pytestmark = pytest.mark.cluster
MODELS = [
    {"family": "softmax", "name": "one"},
    {"family": "softmax", "name": "both-nodes", "gpus": 2},
]


PLANNED, SAMPLES = 24, 400  # epochs, and samples of an epoch
QUICK = 1200  # samples that a rank prepares quickly: six epochs, since there are two such ranks


class Ensemble:
    """Networks, one per node, that train on one or two nodes as a chain of jobs.

    The first epochs are quick. The others would take about seven minutes until the gate is opened,
    so a test that acts before that acts in the middle of training.
    """

    def __init__(self, slurm, folder, nodes=2):
        folder.mkdir(exist_ok=True)
        self.slurm, self.folder, self._gate = slurm, folder, folder / "gate"
        self._nodes, self.models = nodes, MODELS[:nodes]
        self.content = spec(
            folder,
            self.models,
            samples=f"{SAMPLES}:{QUICK}:{self._gate}",
            source="gated",
            train={"stopping": {"max_epochs": PLANNED}},
            resources={"engine": "numpy", "preprocessors": nodes},
        )
        self.launcher, self.paths = Launcher(folder), RunPaths(folder / "run")
        self.job = ""

    def submit(self, *options, walltime="10min"):
        self.job = self.slurm.call(
            sys.executable,
            "-m",
            "fleet",
            "submit",
            str(self.launcher.write(self.content)),
            "--system=slurm",
            f"--nodes={self._nodes}",
            "--ranks-per-node=2",
            f"--walltime={walltime}",
            "--chain",
            *options,
            PYTHONPATH=str(ROOT),
            XDG_CACHE_HOME=str(self.folder / "cache"),
        ).strip()

    def wait_until_it_trains(self, epochs=4):
        self.slurm.wait_until(
            f"{epochs} epochs are trained", lambda: len(self.epochs()) >= epochs, self.report
        )

    def wait_for_end(self):
        """Open the gate and wait for the end of the chain."""
        self._gate.touch()
        ended = self.slurm.wait_for(self.job)
        assert ended.state == "COMPLETED", self.report() or ended.output

    def nodes(self):
        return self.slurm.nodes_of(self.job)

    def epochs(self):
        return [
            (event.network, event.record.epoch)
            for event in events_of(self.paths.events, EpochEnded)
        ]

    def stops(self):
        text = self.paths.stops.read_text() if self.paths.stops.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["event"] == "stopped"]

    def report(self):
        return "\n".join(
            file.read_text(errors="replace")[-5000:] for file in sorted(self.paths.jobs.glob("*"))
        )

    def check_epochs(self, again=0):
        """Check that all epochs are trained, ``again`` of them twice, and no file is left."""
        epochs = self.epochs()
        assert len(set(epochs)) == PLANNED * len(self.models), self.report()
        assert len(epochs) <= PLANNED * len(self.models) + again, self.report()
        for model in self.models:
            history = self.launch.history(model["name"])
            assert [record.epoch for record in history] == list(range(1, PLANNED + 1))
        assert self.paths.foreign_files() == []

    def check(self, again=0):
        """Check the epochs and the chain's last record."""
        self.check_epochs(again)
        assert self.stops()[-1]["then"] == "all networks finished"

    def check_replays(self):
        """Check that each network has the same losses if it is trained again alone."""
        for model in self.models:
            assert replayed(self.launcher, self.content, self.launch, model["name"]) < 1e-9

    @property
    def launch(self):
        return Launch(0, "", 0.0, self.paths)


@pytest.fixture
def ensemble(slurm, tmp_path):
    slurm.clean()
    return Ensemble(slurm, tmp_path)


def test_chain_continues_after_a_short_walltime(ensemble):
    # Slurm checks every half a minute and warns if less time would be left at the next check: the
    # warning comes after 30 to 60 s.
    ensemble.submit("--warn=60s", walltime="2min")
    ensemble.slurm.wait_until("a job has stopped", ensemble.stops, ensemble.report)
    ensemble.wait_for_end()
    *before, last = ensemble.stops()
    assert before
    assert all(stop["warned"] and stop["next"] == ensemble.job for stop in before), (
        ensemble.report()
    )
    assert any((stop["status"], stop["why"]) == (75, "received SIGUSR2") for stop in before), (
        ensemble.report()
    )
    assert last["status"] == 0
    ensemble.check()


def test_chain_continues_after_a_signal_to_the_script(ensemble):
    ensemble.submit()
    ensemble.wait_until_it_trains()
    ensemble.slurm.call("scancel", "--batch", "--signal=TERM", ensemble.job)
    ensemble.slurm.wait_until("the job has stopped", ensemble.stops, ensemble.report)
    ensemble.wait_for_end()
    assert [(stop["status"], stop["warned"]) for stop in ensemble.stops()] == [
        (75, True),
        (0, False),
    ]
    ensemble.check()


def test_chain_counts_no_failure_for_a_preempted_job(ensemble):
    ensemble.submit("--retries=0")
    ensemble.wait_until_it_trains()
    second = ensemble.slurm.submit("#!/bin/sh\n", "--partition=high", "--nodes=4", "--exclusive")
    assert ensemble.slurm.wait_for(second).state == "COMPLETED"
    ensemble.wait_for_end()
    assert len(ensemble.stops()) == 2, ensemble.report()
    ensemble.check(again=len(MODELS))


def test_chain_continues_after_the_death_of_a_node(ensemble):
    ensemble.submit()
    ensemble.wait_until_it_trains()
    ensemble.slurm.take_down(ensemble.nodes()[1])
    ensemble.wait_for_end()
    assert [stop["status"] for stop in ensemble.stops()] == [1, 0], ensemble.report()
    ensemble.check(again=len(MODELS))


def test_slurm_restarts_a_job_whose_first_node_dies(ensemble):
    ensemble.submit()
    ensemble.wait_until_it_trains()
    ensemble.slurm.take_down(ensemble.nodes()[0])
    ensemble.wait_for_end()
    assert [stop["status"] for stop in ensemble.stops()] == [None, 0], ensemble.report()
    ensemble.check(again=len(MODELS))


def test_end_saves_and_stops_a_chain_until_submitted_again(ensemble):
    ensemble.submit()
    ensemble.wait_until_it_trains()
    message = ensemble.slurm.call(
        sys.executable,
        "-m",
        "fleet",
        "submit",
        "--end",
        str(ensemble.paths.root),
        PYTHONPATH=str(ROOT),
    )
    assert f"{ensemble.job} signaled to save and end" in message
    # A stopped job exits with 75.
    assert ensemble.slurm.wait_for(ensemble.job).state == "FAILED"
    (stop,) = ensemble.stops()
    assert (stop["status"], stop["next"], stop["then"]) == (75, None, CHAIN_CANCELLED), (
        ensemble.report()
    )
    with pytest.raises(AssertionError, match="the chain has no waiting or running job"):
        ensemble.slurm.call(
            sys.executable,
            "-m",
            "fleet",
            "submit",
            "--end",
            str(ensemble.paths.root),
            PYTHONPATH=str(ROOT),
        )
    ensemble.submit()
    ensemble.wait_for_end()
    ensemble.check()
