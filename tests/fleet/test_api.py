"""What search scripts are told about a run."""

import pytest

from fleet.api import run, write_spec
from fleet.errors import InfrastructureError


def test_a_launch_that_ends_well_without_reaching_its_end_is_an_error(tmp_path):
    spec = tmp_path / "spec.yaml"
    write_spec({"output": str(tmp_path / "run"), "data": {"source": "builtin:digits"},
                "models": [{"family": "softmax"}]}, spec)
    with pytest.raises(InfrastructureError, match="broke off"):
        run(spec, 1, launcher=["true"])  # as mpirun does when a node dies
