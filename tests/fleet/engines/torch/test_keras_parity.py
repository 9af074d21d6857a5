"""From equal weights and equal batches the engines for PyTorch and for Keras come to equal losses."""

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
    """What either engine has told, each in a process of its own."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    folder = tmp_path_factory.mktemp("keras_parity")
    for engine in ("keras", "torch"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.fleet.engines.torch.keras_parity", engine, str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{engine}.json").read_text()) for engine in ("keras", "torch")]


@pytest.mark.parametrize("name", cases("torch"))
def test_both_engines_come_to_the_same_losses(losses, name):
    keras, torch = (entry[name] for entry in losses)
    assert torch["losses"] == pytest.approx(keras["losses"], rel=1e-5, abs=1e-4)
    # PyTorch keeps the variance of the population, Keras that of the batch.
    near = 1e-3 if name == "normalised" else 1e-4
    assert torch["judged"] == pytest.approx(keras["judged"], rel=1e-5, abs=near)
    assert torch["right"] == pytest.approx(keras["right"], abs=0.1)
    assert torch["scores"] == pytest.approx(keras["scores"], abs=1e-4)
