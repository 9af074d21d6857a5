"""TensorFlow groups change their ranks while they train: losses equal those of one rank."""

import json
import re

import pytest

from fleet.domain.events import GroupChanged
from tests.mpi.conftest import ROOT, spec

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

# Without batch normalization and dropout, a split changes only the order of
# sums.
PLAIN = {"filters": [4], "dense": [8], "norm": "none"}


def test_eight_networks_on_four_trainers_train_as_if_alone(launch, tmp_path):
    adam, sgd = (
        {"name": "adam", "learning_rate": 0.01},
        {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9},
    )
    models = [
        {
            "family": "cnn",
            "name": f"n{index}",
            "args": PLAIN,
            "train": {"optimizer": adam if index % 2 else sgd, "stopping": {"max_epochs": epochs}},
        }
        for index, epochs in enumerate([1, 1, 1, 1, 2, 2, 7, 9])
    ]
    rates = [{"name": model["name"], "rates": [100.0, 190.0, 270.0, 340.0]} for model in models]
    (tmp_path / "rates.json").write_text(
        json.dumps({"samples_per_epoch": 384, "gpus_per_node": 4, "models": rates})
    )
    content = spec(
        tmp_path,
        models,
        samples=384,
        source="slow",
        train={"batch": {"size": 16}},
        resources={"engine": "keras"},
        schedule={"policy": "adaptive", "rates": str(tmp_path / "rates.json")},
    )
    run = launch(5, content, timeout=240, program=(str(ROOT / "tests/mpi/multi_step_calls.py"),))
    assert run.status == 0, run.output
    regroups = run.events(GroupChanged)
    assert len(regroups) >= 2
    assert any(event.position for event in regroups)
    assert any(
        int(calls) > 9
        for calls in re.findall(r"(\d+) calls of several steps in groups", run.output)
    )

    names = [model["name"] for model in models]
    again = launch(
        1,
        content,
        str(run.paths.root),
        *names,
        timeout=240,
        program=(str(ROOT / "tests/mpi/replay_networks.py"),),
        environment={"TF_NUM_INTRAOP_THREADS": "2"},
    )
    assert again.status == 0, again.output
    for name in names:
        assert run.differs(name) < 1e-4
