"""The script that makes the environment."""

import os
import subprocess
import sys

from tests.places import ROOT

ENV = ROOT / "tools/env.sh"


def test_a_folder_that_is_no_environment_is_not_emptied(tmp_path):
    (tmp_path / "mine").touch()
    done = subprocess.run(["bash", ENV], env={**os.environ, "VENV": str(tmp_path), "PYTHON": sys.executable},
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "holds something else than a virtual environment" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
