"""With equal weights and batches, the PyTorch and Keras engines compute equal losses."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.fleet.engines.torch.keras_parity import cases
from tests.places import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.long]


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Return the results of both engines, each from a separate process."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    folder = tmp_path_factory.mktemp("keras_parity")
    for engine in ("keras", "torch"):
        process = subprocess.run(
            [sys.executable, "-m", "tests.fleet.engines.torch.keras_parity", engine, str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-3000:]
    return [json.loads((folder / f"{engine}.json").read_text()) for engine in ("keras", "torch")]


@pytest.mark.parametrize("name", cases("torch"))
def test_engines_compute_equal_losses(losses, name):
    keras, torch = (entry[name] for entry in losses)
    assert torch["losses"] == pytest.approx(keras["losses"], rel=1e-5, abs=1e-4)
    # PyTorch stores the unbiased variance, Keras the variance of the batch.
    tolerance = 1e-3 if name == "normalized" else 1e-4
    assert torch["evaluations"] == pytest.approx(keras["evaluations"], rel=1e-5, abs=tolerance)
    assert torch["correct"] == pytest.approx(keras["correct"], abs=0.1)
    assert torch["scores"] == pytest.approx(keras["scores"], abs=1e-4)
