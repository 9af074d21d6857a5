"""The last line of a launch names the command that resumes its run."""

import pytest

from fleet.runtime import resume_command
from fleet.runtime.resume_command import resume_command_of

MPI = {"OMPI_COMM_WORLD_SIZE": "3"}


@pytest.mark.parametrize(
    ("environment", "started", "expected"),
    [
        ({"FLEET_COMMAND": "fleet run a.yaml -n 3", **MPI}, "", "fleet run a.yaml -n 3"),
        (
            MPI,
            "/env/bin/mpirun -n 3 python -m fleet.run 'a b.yaml' --fresh",
            "mpirun -n 3 python -m fleet.run 'a b.yaml'",
        ),
        ({}, "/env/bin/python -m fleet.run a.yaml", "python -m fleet.run a.yaml"),
        ({"SLURM_STEP_NUM_TASKS": "3"}, "python -m fleet.run a.yaml", "the same command"),
        (MPI, "", "the same command"),
    ],
)
def test_resume_command_is_that_of_the_launch(monkeypatch, environment, started, expected):
    monkeypatch.setattr(resume_command, "command_of", lambda pid: started)
    assert resume_command_of(environment) == expected
