"""Targets of every kind under TensorFlow: groups of two ranks match one rank."""

import pytest

from fleet.runtime.replay import largest_difference
from tests.mpi.conftest import Launcher
from tests.mpi.test_keras import keras_spec

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

MEASURES = {  # metrics that are not means over samples, and losses with weights, of Keras and FLEET
    "class": {"metrics": ["AUC", "f1_score"], "class_weights": "balanced", "label_smoothing": 0.1},
    "weighted": {"metrics": [{"AUC": {"curve": "PR", "name": "auc_pr"}}]},
    "multilabel": {"metrics": ["AUC", "F1Score"], "loss": "binary_focal_crossentropy"},
    "value": {"metrics": ["r2_score", "RootMeanSquaredError"], "loss": {"huber": {"delta": 0.5}}},
    "mask": {
        "metrics": ["MeanIoU"],
        "loss": "dice",
        "optimizer": {"name": "adam", "use_ema": True},
        "batch": {"size": 8, "accumulate": 2},
    },
}


@pytest.mark.parametrize("kind", MEASURES)
def test_targets_group_of_two_matches_one_rank(kind, tmp_path):
    matches = {}
    for gpus in (1, 2):
        folder = tmp_path / str(gpus)
        folder.mkdir()
        content = keras_spec(
            folder,
            [{"family": "softmax", "name": "one", "gpus": gpus}],
            data={
                "source": "tests.fleet.runtime.test_targets:synthetic_images",
                "path": kind,
                "transforms": [],
                "max_unreadable": 0.5,
                "test": 0.2,
            },
        )
        content["train"] = {
            "batch": {"size": 8},
            "stopping": {"max_epochs": 3},
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            **MEASURES[kind],
        }
        run = Launcher(folder)(1 if gpus == 1 else 3, content, timeout=240)
        assert run.status == 0, run.output
        matches[gpus] = run
    alone, both = (matches[gpus].history("one") for gpus in (1, 2))
    assert {record.gpus for record in both} == {2}
    assert largest_difference(alone, both) < 1e-4
    rows = [matches[gpus].results()["one"] for gpus in (1, 2)]
    metrics = {name for name in rows[0].metrics if name.startswith("test_")}
    assert len(metrics) == len(MEASURES[kind]["metrics"])
    assert all(
        rows[0].metrics[name] == pytest.approx(rows[1].metrics[name], rel=1e-4) for name in metrics
    )
