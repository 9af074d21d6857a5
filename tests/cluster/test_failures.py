"""A node that dies takes the launch with it, and Slurm starts the same command again on other nodes."""

import shlex
import time
from pathlib import Path

import pytest

from fleet.api import mpirun
from fleet.eventlog import read_events
from fleet.paths import RunPaths
from tests.mpi.conftest import ROOT, Launch, Launcher, spec
from tests.mpi.test_training import replayed

pytestmark = pytest.mark.cluster
# mpirun ends with status 0 when it loses a node, long before Slurm notices; a job that has ended is not requeued.
SCRIPT = """#!/bin/sh
cd '{root}' && {command}
tail -n 1 '{events}' | grep -q '"event": "end"' || sleep 120
"""


def count(events, kind):
    return sum(event["event"] == kind for event in read_events(events)) if events.exists() else 0


def test_a_run_whose_node_dies_goes_on_elsewhere_from_its_checkpoints(slurm, tmp_path):
    models = [{"family": "softmax", "name": "one"}, {"family": "softmax", "name": "both-nodes", "gpus": 2}]
    content = spec(tmp_path, models, samples=400, source="slow", train={"converge": {"max_epochs": 12}},
                   resources={"engine": "numpy", "preprocessors": 2})
    launcher, run = Launcher(tmp_path), RunPaths(tmp_path / "run")
    command = shlex.join([*mpirun(4), "-m", "fleet.run", str(launcher.write(content))])
    job = slurm.submit(SCRIPT.format(root=ROOT, command=command, events=run.events), "--requeue", "--nodes=2",
                       "--ntasks-per-node=2", XDG_CACHE_HOME=str(tmp_path / "cache"))
    deadline = time.monotonic() + 60
    while count(run.events, "epoch") < 3:
        assert time.monotonic() < deadline, slurm.output(job)
        time.sleep(0.05)
    slurm.take_down("n2")
    try:
        killed_after = count(run.events, "epoch")
        ended = slurm.wait_for(job, timeout=180)
    finally:
        slurm.bring_back("n2")
    assert ended.state == "COMPLETED", ended.output
    both = Launch(0, ended.output, 0.0, run)
    assert len(both.events("start")) == 2
    assert killed_after < 24 <= len(both.events("epoch")) <= 24 + len(models)
    for model in models:
        history = both.history(model["name"])
        assert [record.epoch for record in history] == list(range(1, 13))
        assert replayed(launcher, content, both, model["name"]) < 1e-9
    assert not list(Path("/dev/shm").glob(f"{run.segment_name}-*"))
