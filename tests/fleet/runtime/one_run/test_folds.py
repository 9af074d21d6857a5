"""Whole runs in which networks are trained on folds of the data."""

import numpy as np
import pytest

from fleet.errors import ExitStatus
from fleet.storage.leaderboard import leaderboard
from fleet.storage.results import Status, read_results
from tests.fleet.runtime.one_run.runner import Case, Runner


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "data", [{"cache": "none"}, {"order": "ring", "shards": 5}, {"cache": "memory"}]
)
def test_folds_network_equals_one_given_those_samples(folders, data):
    """The data of the second run is one fold: its training and its validation samples."""

    def spec(name, **data):  # each network on its own rank from the first stream epoch on
        return {
            "seed": 5,
            "models": [{"family": "softmax", "name": name, "gpus": 1}],
            "resources": {"engine": "numpy", "preprocessors": 1},
            "data": {"transforms": [{"scale": {"mean": 0.5, "std": 0.5}}], **data},
            "train": {"batch": {"size": 7}, "stopping": {"max_epochs": 3}},
            "schedule": {"policy": "global"},
        }

    runner = Runner(
        Case(
            spec("n", source="tests.sources:unvalidated", path="41", folds=3, **data),
            (0,) * 4,
            4,
            3,
            0,
        ),
        folders(),
    )
    assert runner.launch() is ExitStatus.OK
    if "order" in data:  # the order of samples depends on the available chunks
        runner.check_epochs()
        return
    for fold in range(3):
        name = f"n-fold{fold}"
        alone = Runner(
            Case(
                spec(
                    name,
                    source="tests.sources:one_fold",
                    path="41",
                    options={"folds": 3, "fold": fold, "seed": 5},
                ),
                (0,) * 4,
                4,
                3,
                0,
            ),
            folders(),
        )
        assert alone.launch() is ExitStatus.OK
        fleet_value, expected = (
            [(record.loss, record.val_loss, record.val_accuracy) for record in entry.history(name)]
            for entry in (runner, alone)
        )
        assert fleet_value == expected
        assert len(fleet_value) == 3


def test_folds_row_has_their_mean_and_comes_first(folders):
    content = {
        "models": [{"family": "softmax", "name": name} for name in ("a", "b")],
        "resources": {"engine": "numpy"},
        "data": {
            "source": "tests.sources:unvalidated",
            "path": "40",
            "folds": 4,
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "train": {"batch": {"size": 8}, "stopping": {"max_epochs": 2}},
        "schedule": {"policy": "baseline"},
    }
    runner = Runner(Case(content, (0, 0), 4, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    rows = read_results(runner.folder / "run")
    assert [row.folds for row in rows] == [4, 0, 0, 0, 0] * 2
    for mean, folds in ((rows[0], rows[1:5]), (rows[5], rows[6:])):
        assert [row.name for row in folds] == [f"{mean.name}-fold{fold}" for fold in range(4)]
        losses = [row.val_loss for row in folds]
        assert mean.val_loss == pytest.approx(np.mean(losses))
        assert mean.deviation["val_loss"] == pytest.approx(np.std(losses, ddof=1))
        assert (mean.status, mean.epochs) == (Status.FINISHED, 2)
        judged = [record.val_accuracy * 10 for row in folds for record in runner.history(row.name)]
        assert judged == pytest.approx(np.round(judged))  # of ten samples each
    headers, printed = leaderboard(rows)
    assert (
        printed[0][headers.index("val loss")]
        == f"{rows[0].val_loss:.4f} ± {rows[0].deviation['val_loss']:.4f}"
    )
    assert "±" not in printed[1][headers.index("val loss")]
