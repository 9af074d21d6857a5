"""Binding of ranks to CPUs."""

import os
import subprocess
import sys

import pytest

from launch.environment import find_launcher, launched_ranks, local_rank

SHOW = ["python", "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
ALLOWED = sorted(os.sched_getaffinity(0))


def started(lists, rank):
    """Return the CPUs of a program that was placed as a rank of a node."""
    environment = {
        **os.environ,
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": str(rank),
        "PATH": os.path.dirname(sys.executable),
    }
    environment = {
        key: value for key, value in environment.items() if not key.startswith(("OMPI_", "PMI"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "launch.place", lists, *SHOW],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="wants two CPUs")
@pytest.mark.parametrize("rank", [0, 1])
def test_place_binds_a_rank_to_its_cpus(rank):
    assert started(f"{ALLOWED[0]}:{ALLOWED[1]}", rank) == [ALLOWED[rank]]


def test_place_leaves_ranks_without_usable_cpus_unbound():
    assert started("4000", 0) == ALLOWED
    assert started(f"{ALLOWED[0]}", 1) == ALLOWED


def test_place_prefers_mpirun_to_srun():
    environment = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": "0",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    }
    assert (launched_ranks(environment), local_rank(environment)) == (8, 3)


@pytest.mark.parametrize("environment", [{}, {"SLURM_STEP_NUM_TASKS": "many"}, {"PMI_SIZE": ""}])
def test_find_launcher_is_none_without_a_launcher(environment):
    assert find_launcher(environment) is None
    assert launched_ranks(environment) is None
    assert local_rank(environment) is None
