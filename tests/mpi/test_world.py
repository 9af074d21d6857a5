"""Ranks of MPI keep the promises of the protocols; with ULFM they survive a dead rank."""

import subprocess

import pytest

from fleet.api import mpirun
from tests.examples import long_but_first
from tests.fleet.comm.world_contract import CHECKS
from tests.places import ROOT


def run(launch, ranks, program, survive, *arguments):
    ended = subprocess.run(
        [*mpirun(ranks, survive), str(ROOT / "tests/mpi" / program), *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env=launch.environment({}),
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("ranks", "survive"),
    [
        pytest.param(3, True, marks=pytest.mark.open_mpi),  # ULFM
        *long_but_first((3, False), (1, False), (2, False), (5, False)),
    ],
)
def test_world_of_mpi_passes_all_checks(launch, ranks, survive):
    kind = "ULFMWorld" if survive else "MPIWorld"
    assert f"{kind} of {ranks} ranks passes {len(CHECKS)} checks" in run(
        launch, ranks, "world_checks.py", survive
    )


@pytest.mark.open_mpi
def test_world_death_fails_group_on_all_other_ranks(launch):
    assert "the other ranks continued" in run(launch, 4, "rank_death.py", survive=True)


@pytest.mark.open_mpi
@pytest.mark.long_but_first
@pytest.mark.parametrize("how", ["by-mpi", "by-memory"])
@pytest.mark.parametrize(("ranks", "after_s"), long_but_first((3, "0.3"), (2, "0.1"), (4, "0.05")))
def test_world_death_in_a_large_sum_ends_it_everywhere(launch, ranks, after_s, how):
    assert "the other ranks continued" in run(launch, ranks, "death_in_sum.py", True, after_s, how)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "survive"), long_but_first((4, False), (1, False), (4, True)))
def test_world_exit_status_reaches_mpirun_silently(launch, ranks, survive):
    ended = subprocess.run(
        [*mpirun(ranks, survive), str(ROOT / "tests/mpi/late_exit.py"), "75"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env=launch.environment({}),
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (75, "", "")
