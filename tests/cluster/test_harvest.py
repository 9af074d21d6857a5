"""A harvest on a real Slurm: jobs that come and go share the networks of a run, while others' jobs take their nodes."""

import random
import sys
import time
from pathlib import Path

import pytest

from fleet.storage.event_log import read_run
from fleet.storage.events import EpochEnded, NetworkTaken
from fleet.storage.lines import read_lines
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.mpi.conftest import ROOT, Launcher, spec

pytestmark = pytest.mark.cluster
NAMES, EPOCHS = [f"net{number}" for number in range(6)], 30
OTHERS_S, SEED = 40, 5  # how long others' jobs go on arriving


def test_a_harvest_on_nodes_that_others_take_back_loses_no_network(slurm, tmp_path):
    slurm.clean()
    content = spec(tmp_path, [{"family": "softmax", "name": name} for name in NAMES], samples=600, source="slow",
                   train={"converge": {"max_epochs": EPOCHS}})
    paths, launcher = RunPaths(tmp_path / "run"), Launcher(tmp_path)
    slurm.call(sys.executable, "-m", "fleet", "harvest", str(launcher.write(content)), "--system=slurm",
               "--nodes-per-job=1", "--ranks-per-node=2", "--backlog=2", "--most=4", "--idle=20s", "--walltime=20min",
               "--", "--partition=low", PYTHONPATH=str(ROOT), FLEET_LEASE="6s",
               XDG_CACHE_HOME=str(tmp_path / "cache"))

    def epochs():
        return [(event.network, event.record.epoch) for _, event in read_run(paths) if isinstance(event, EpochEnded)]

    def report():
        return "\n".join(Path(file).read_text(errors="replace")[-3000:] for file in sorted(paths.jobs.glob("*")))

    slurm.wait_until("it trains", lambda: len(epochs()) >= 3, report)
    draw, until = random.Random(SEED), time.monotonic() + OTHERS_S
    while time.monotonic() < until:
        nodes, seconds = draw.randint(1, 3), draw.randint(2, 8)
        slurm.wait_for(slurm.submit(f"#!/bin/sh\nsleep {seconds}\n", "--partition=high", f"--nodes={nodes}",
                                    "--exclusive"))
        time.sleep(draw.uniform(0, 4))
    slurm.wait_until("all networks are done", lambda: {row.status for row in read_results(paths.root)} == {"finished"},
                     report)
    slurm.wait_until("no job is left", lambda: not slurm.call("squeue", "--noheader").strip(), report, seconds=120)
    noted = list(read_lines(paths.harvested))
    cut = sum(one["event"] == "begun" for one in noted) - sum(
        one["event"] == "ended" and not one.get("warning") for one in noted)
    assert cut, "nobody was preempted"
    assert {(row.name, row.epochs) for row in read_results(paths.root)} == {(name, EPOCHS) for name in NAMES}
    assert set(epochs()) == {(name, epoch + 1) for name in NAMES for epoch in range(EPOCHS)}, report()
    assert len(epochs()) <= len(NAMES) * EPOCHS + cut, report()
    assert len({event.generation for _, event in read_run(paths) if isinstance(event, NetworkTaken)}) > 1
    assert paths.foreign() == []
