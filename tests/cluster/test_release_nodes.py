"""Runs on a real Slurm release nodes and continue: Slurm shrinks their jobs and starts another."""

import json
import sys
import time
from pathlib import Path

import pytest
import yaml

from fleet.domain.events import EpochEnded
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from tests.cluster.test_evict import PLAIN, evict
from tests.mpi.conftest import ROOT, Launcher, spec

pytestmark = pytest.mark.cluster
# With ULFM, ranks outlive others. Slurm must not know the daemons of mpirun: it would end those on
# the released nodes, and mpirun does not survive that.
SITE = {
    "system": "slurm",
    "ranks": 2,
    "launcher": "mpirun --with-ft ulfm --prtemca plm ssh --prtemca plm_ssh_agent "
    f"{Path(__file__).with_name('agent.sh')} -n {{ranks}} --map-by ppr:{{ranks_per_node}}:node "
    "--bind-to none",
    "resources": ["--nodes={nodes}", "--ntasks-per-node={ranks_per_node}"],
}


class Run:
    """An ensemble of networks that train on two nodes until they are stopped."""

    def __init__(self, slurm, folder, networks=2, **site):
        folder.mkdir(exist_ok=True)
        self.slurm, self.folder, self.paths = slurm, folder, RunPaths(folder / "run")
        models = [{"family": "softmax", "name": f"net{number}"} for number in range(networks)]
        content = spec(
            folder,
            models,
            samples=100,
            source="slow",
            train={"stopping": {"max_epochs": 10_000}},
            schedule={"policy": "adaptive"},
        )
        (folder / "site.yaml").write_text(yaml.safe_dump({**SITE, **site}))
        self.job = slurm.call(
            sys.executable,
            "-m",
            "fleet",
            "submit",
            str(Launcher(folder).write(content)),
            "--nodes=2",
            f"--site={folder / 'site.yaml'}",
            "--walltime=1h",
            PYTHONPATH=str(ROOT),
            XDG_CACHE_HOME=str(folder / "cache"),
        ).strip()

    def epochs(self):
        return [
            (event.network, event.record.epoch)
            for event in events_of(self.paths.events, EpochEnded)
        ]

    def wait_for_epochs(self, epochs=4):
        """Wait until more epochs are trained."""
        before = len(self.epochs()) if self.paths.events.exists() else 0
        self.slurm.wait_until(
            "it trains",
            lambda: self.paths.events.exists() and len(self.epochs()) >= before + epochs,
            self.report,
        )

    def report(self):
        return "\n".join(
            file.read_text(errors="replace")[-5000:]
            for file in sorted(self.paths.jobs.glob("*.out"))
        )


def test_release_nodes_of_four_runs_for_an_urgent_job(slurm, tmp_path):
    slurm.clean()
    runs = [Run(slurm, tmp_path / name) for name in "abcd"]  # two of them share two nodes
    for run in runs:
        run.wait_for_epochs()
    nodes_before = {run.job: slurm.nodes_of(run.job) for run in runs}
    urgent = slurm.submit("#!/bin/sh\nsleep 5\n", "--nodes=2", "--exclusive")
    answers = []
    for run in runs:
        assert slurm.state(urgent) == "PENDING"
        answers.append(
            json.loads(
                slurm.call(
                    sys.executable,
                    "-m",
                    "fleet",
                    "release-nodes",
                    str(run.paths.root),
                    "--nodes=1",
                    "--within=2min",
                    f"--shrink={run.job}",
                    "--json",
                    PYTHONPATH=str(ROOT),
                )
            )
        )
    released = time.time()
    assert slurm.wait_for(urgent).state == "COMPLETED"
    print(
        f"released after {[answer['seconds'] for answer in answers]} s; the urgent job ended after "
        f"{time.time() - released:.1f} s"
    )
    assert {node for run in runs for node in slurm.nodes_of(run.job)}.isdisjoint(
        slurm.nodes_of(urgent)
    )
    for run, answer in zip(runs, answers, strict=True):
        assert answer["nodes"] == nodes_before[run.job][1:]
        assert answer["keeps"] == slurm.nodes_of(run.job) == nodes_before[run.job][:1]
        run.wait_for_epochs()
        slurm.call("scancel", "--batch", "--signal=USR2", run.job)
    for run in runs:
        slurm.wait_for(run.job)
        assert "status 75" in run.report()
        # Networks were saved before their nodes were released: no epoch was trained again.
        assert len(run.epochs()) == len(set(run.epochs()))


def test_evict_asks_a_run_to_release_a_node(slurm, tmp_path):
    slurm.clean()
    comment = f"fleet:signal=B:USR2,app_time=1,yields={tmp_path / 'a/run'}"
    run = Run(slurm, tmp_path / "a", directives=["--exclusive", f'--comment="{comment}"'])
    plain = [slurm.submit(PLAIN, "--nodes=1", "--exclusive") for _ in range(2)]
    run.wait_for_epochs()
    nodes_before = slurm.nodes_of(run.job)
    urgent = slurm.submit("#!/bin/sh\nsleep 1\n", "--nodes=1", "--exclusive")
    _, record = evict(
        slurm,
        tmp_path,
        "--nodes=1",
        "--deadline=3",
        f"--for={urgent}",
        "--yes",
        f"--record={tmp_path / 'record'}",
    )
    assert [note["what"] for note in record] == ["begin", "yield", "shrunk", "free", "end"]
    assert slurm.wait_for(urgent).state == "COMPLETED"
    assert slurm.nodes_of(urgent) == nodes_before[1:]
    assert slurm.nodes_of(run.job) == nodes_before[:1]
    assert [slurm.state(job) for job in plain] == ["RUNNING"] * 2
    run.wait_for_epochs()
    assert len(run.epochs()) == len(set(run.epochs()))
    for job in (run.job, *plain):
        slurm.cancel(job)
