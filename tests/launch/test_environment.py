"""What the variables of launchers say."""

import pytest

from launch.environment import LAUNCHERS, ends_with_any_rank


@pytest.mark.parametrize(
    ("environment", "ends"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "8", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_MCA_mpi_ft_enable": "1"}, False),
        *(({launcher.size: "8"}, False) for launcher in LAUNCHERS[1:]),
    ],
)
def test_only_some_launchers_surely_end_with_any_rank(environment, ends):
    assert ends_with_any_rank(environment) == ends
