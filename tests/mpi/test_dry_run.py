"""``fleet dry-run``: a run of a spec with emulated training on this machine."""

import json
import subprocess
import sys

import pytest
import yaml

from scheduler.ensemble.policies import POLICIES
from tests.mpi.conftest import ROOT

RATES = {
    "samples_per_epoch": 1,
    "gpus_per_node": 2,
    "models": [
        {"name": f"n{i}", "rates": [rate, 1.9 * rate], "epochs": 1 + i % 3}
        for i, rate in enumerate([50.0, 40.0, 20.0, 10.0])
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("policy", ["global", "adaptive"])
def test_dry_run_of_spec_covers_pretended_nodes(launch, tmp_path, policy):
    spec = {
        "models": [{"family": "resnet", "name": network["name"]} for network in RATES["models"]],
        "data": {"source": "builtin:noise", "options": {"samples": 500, "size": 32}},
        "schedule": {"policy": policy},
        "output": str(tmp_path / "real"),
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fleet",
            "dry-run",
            str(tmp_path / "spec.yaml"),
            "--gpus",
            "4",
            "--gpus-per-node",
            "2",
            "--rates",
            str(tmp_path / "rates.json"),
            "--time-scale",
            "0.02",
            "--output",
            str(tmp_path / "kept"),
            "--json",
        ],
        cwd=ROOT,
        env=launch.environment({}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert (results["networks"], results["gpus"], results["gpus_per_node"]) == (4, 4, 2)
    assert set(results["predicted_s"]) == set(POLICIES)
    assert results["measured_s"] > 0.9 * results["lower_bound_s"] * 0.02
    assert (tmp_path / "kept" / "report.html").exists()
    assert not (tmp_path / "real").exists()
