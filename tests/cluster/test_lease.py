"""Ranks that stand still on a real Slurm, for longer than their launch's lease."""

import os
import shlex
import signal

import pytest

from fleet.api import mpirun
from fleet.storage.checkpoint import read_state
from fleet.storage.lease import newest_generation
from tests.cluster.slurm import environments
from tests.cluster.test_chain import MODELS, PLANNED, Ensemble
from tests.mpi.conftest import ROOT

pytestmark = pytest.mark.cluster
LEASE = "3s"


@pytest.fixture
def ensemble(slurm, tmp_path):
    slurm.clean()
    return Ensemble(slurm, tmp_path)


def alive(pids):
    return pids & {pid for pid, _ in environments()}


def content(paths):
    """All that was trained, byte for byte; a line that was under way may still come into the log."""
    return {path: path.read_bytes() for path in [paths.results, *paths.models.rglob("*")] if path.is_file()}


def test_a_node_that_slurm_gave_up_and_that_goes_on_destroys_nothing(ensemble):
    """Its ranks stand still while the job, put back into the queue, is finished on other nodes."""
    slurm, paths = ensemble.slurm, ensemble.paths
    ensemble.submit()
    ensemble.wait_until_it_trains()
    stopped = slurm.cut_off(ensemble.nodes()[0])
    ensemble.wait_for_end()
    ensemble.check(again=len(MODELS))
    before = content(paths)
    assert alive(stopped)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    slurm.wait_until("nothing is left of the node", lambda: not alive(stopped), ensemble.report, seconds=60)
    assert content(paths) == before, ensemble.report()
    assert newest_generation(paths.lease) == 2
    for model in MODELS:
        state = read_state(paths.last(model["name"]))
        assert (state.generation, state.epoch) == (2, PLANNED)
    logs = "".join(path.read_text() for path in (paths.root / "logs").glob("*.log"))
    assert "has been taken over by another launch" in logs


def test_a_job_that_stands_still_keeps_its_folder_as_long_as_slurm_knows_it(ensemble):
    slurm = ensemble.slurm
    program = shlex.join([*mpirun(2), "-m", "fleet.run", str(ensemble.launcher.write(ensemble.content))])
    script = f"#!/bin/sh\ncd {shlex.quote(str(ROOT))} && exec {program}\n"
    options = {"FLEET_LEASE": LEASE, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(ensemble.folder / "cache")}
    first = slurm.submit(script, "--nodes=1", "--ntasks-per-node=2", **options)
    ensemble.wait_until_it_trains()
    ranks = {pid for pid, variables in environments()
             if {f"SLURM_JOB_ID={first}", f"SLURM_CONF={slurm.configuration}"} <= variables
             and any(variable.startswith("OMPI_COMM_WORLD_RANK=") for variable in variables)}
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    second = slurm.wait_for(slurm.submit(script, "--nodes=1", "--ntasks-per-node=2", **options))
    assert second.state == "FAILED"
    assert "slurm still knows its job" in second.output
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    ensemble._gate.touch()
    assert slurm.wait_for(first).state == "COMPLETED"
