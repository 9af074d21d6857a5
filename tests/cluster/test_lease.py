"""Ranks on a real Slurm that are stopped for longer than the lease of their launch."""

import os
import shlex
import signal

import pytest

from fleet.api import mpirun
from fleet.storage.checkpoint import read_state
from fleet.storage.lease import newest_generation
from tests.cluster.slurm import environments
from tests.cluster.test_chain import MODELS, Ensemble
from tests.mpi.conftest import ROOT

pytestmark = pytest.mark.cluster
RANKS, NODES, LEASE = 4, 2, "3s"


@pytest.fixture
def ensemble(slurm, tmp_path):
    slurm.clean()
    return Ensemble(slurm, tmp_path)


def start(ensemble, *options):
    """Submit a job on two nodes that is one launch of the ensemble; return its id."""
    program = shlex.join(
        [*mpirun(RANKS), "-m", "fleet.run", str(ensemble.launcher.write(ensemble.content))]
    )
    return ensemble.slurm.submit(
        f"#!/bin/sh\ncd {shlex.quote(str(ROOT))} && exec {program}\n",
        f"--nodes={NODES}",
        f"--ntasks-per-node={RANKS // NODES}",
        *options,
        FLEET_LEASE=LEASE,
        PYTHONPATH=str(ROOT),
        XDG_CACHE_HOME=str(ensemble.folder / "cache"),
    )


def send(number, pids):
    for pid in pids & alive():
        os.kill(pid, number)


def alive():
    """Return the processes that have not ended; zombies have no environment."""
    return {pid for pid, variables in environments() if any(variables)}


def test_lease_outlasts_a_stopped_rank_0_while_its_job_exists(ensemble):
    slurm = ensemble.slurm
    ensemble.job = start(ensemble)
    ensemble.wait_until_it_trains()
    first_rank = {slurm.rank_of(ensemble.job, 0)}
    send(signal.SIGSTOP, first_rank)
    second = slurm.wait_for(start(ensemble))
    assert second.state == "FAILED", second.output
    assert "it has shown no sign of life for 3 s, but slurm still knows its job" in second.output
    send(signal.SIGCONT, first_rank)
    ensemble.wait_for_end()
    ensemble.check_epochs()
    assert newest_generation(ensemble.paths.lease) == 1


def test_ranks_that_outlive_their_job_destroy_no_checkpoint(ensemble):
    """Both nodes of a job are cut off and come back while another launch trains instead."""
    slurm, paths = ensemble.slurm, ensemble.paths
    first = start(ensemble, "--no-requeue")
    ensemble.wait_until_it_trains()
    ranks = {slurm.rank_of(first, rank) for rank in range(RANKS)}
    stopped = slurm.cut_off(*slurm.nodes_of(first))
    assert ranks < stopped
    assert slurm.wait_for(first).state == "NODE_FAIL"
    before = len(ensemble.epochs())
    ensemble.job = start(ensemble)
    ensemble.wait_until_it_trains(before + 4)
    assert ranks <= alive()
    send(signal.SIGCONT, ranks)
    slurm.wait_until(
        "the first rank has noticed",
        lambda: "has been taken over by another launch" in paths.log(0).read_text(),
        lambda: slurm.output(first),
    )
    send(signal.SIGCONT, stopped)
    slurm.wait_until(
        "all stopped processes have ended",
        lambda: not stopped & alive(),
        lambda: slurm.output(first),
    )
    ensemble.wait_for_end()
    ensemble.check_epochs(again=len(MODELS))
    ensemble.check_replays()
    assert newest_generation(paths.lease) == 2
    assert {read_state(paths.last(model["name"])).generation for model in MODELS} == {2}
