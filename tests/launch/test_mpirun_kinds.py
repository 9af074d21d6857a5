"""Which MPI an mpirun belongs to, by what it prints."""

import signal

import pytest

from launch.mpirun_kinds import is_mpich, is_open_mpi, stop_signal

MPICH = "HYDRA build details:\n    Version:                                 5.0.2"
OPEN_MPI = "mpirun (Open MPI) 5.0.11"
PALS = "mpiexec version 1.4.0"


@pytest.fixture
def program(tmp_path):
    """Make a program that prints a text."""

    def make(text, name="mpirun"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        path.chmod(0o700)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("text", "is_mpich_s", "is_open_mpi_s"),
    [(MPICH, True, False), (OPEN_MPI, False, True), (PALS, False, False), ("", False, True)],
)
def test_kinds_are_told_by_the_version(program, text, is_mpich_s, is_open_mpi_s):
    path = program(text)
    assert is_mpich(path) is is_mpich_s
    assert is_open_mpi(path) is is_open_mpi_s


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (MPICH, "mpiexec", signal.SIGTERM),
        (OPEN_MPI, "mpirun", signal.SIGUSR2),
        (PALS, "mpiexec", signal.SIGUSR2),
        (MPICH, "srun", signal.SIGUSR2),  # other launchers are not asked
    ],
)
def test_stop_signal_is_passed_on_by_the_launcher(program, text, name, expected):
    assert stop_signal(program(text, name)) == expected


def test_a_program_that_does_not_exist_counts_as_open_mpi(tmp_path):
    assert is_open_mpi(str(tmp_path / "mpirun"))
    assert stop_signal(str(tmp_path / "mpirun")) == signal.SIGUSR2
