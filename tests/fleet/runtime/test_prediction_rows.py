"""Saved predictions of finished networks, joined with the rows of a table."""

import csv

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.softmax import NumpyEngine
from fleet.errors import ExitStatus
from fleet.prediction.sample_file import read_columns
from fleet.storage.checkpoint import find_best
from tests.fleet.runtime.runs import launch, write

ROWS = 47

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def features():
    return np.random.default_rng(7).normal(size=(ROWS, 3)).astype(np.float32)


@pytest.fixture
def table(tmp_path, features):
    """A table whose targets differ in each row."""

    def write(name, rows=range(ROWS), parts=None):
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["a", "b", "c", "target", *(["part"] if parts else [])])
            writer.writerows(
                [*map(repr, features[row].tolist()), row + 0.5, *([parts(row)] if parts else [])]
                for row in rows
            )
        return str(tmp_path / name)

    return write


def run_predictions(folder, data, ranks=2, cache="none"):
    """Run a launch; return the saved arrays by network and split, and the prepared launch."""
    path = write(
        folder,
        [{"family": "softmax", "name": "net"}],
        schedule={"policy": "baseline"},
        data={"source": "table", "transforms": [], **data, "cache": cache},
        resources={"engine": "numpy"},
        train={"batch": {"size": 8}, "stopping": {"max_epochs": 1}},
    )
    status, prepared = launch(path, ranks)
    assert status is ExitStatus.OK
    results = {}
    for path in prepared.paths.all_predictions():
        with np.load(path) as file:
            results[path.parent.name, path.stem] = dict(file)
    return results, prepared


def by_hand(prepared, name, features):
    """Return the outputs of an exported network."""
    network = prepared.spec.by_name[name]
    trainable = NumpyEngine(prepared.sample).build(network, SingleRankGroup())
    trainable.load(find_best(prepared.paths, name, network.train.stopping, "best").state.arrays)
    return trainable.predict(
        features, np.zeros((len(features), 1), np.float32), np.ones(len(features), np.float32)
    )[1]


@pytest.mark.parametrize(
    ("ranks", "cache", "data"), [(1, "memory", {}), (3, "none", {}), (2, "none", {"test": 0.2})]
)
def test_rows_of_folds_join_predictions_with_the_table(
    tmp_path, table, features, ranks, cache, data
):
    data = {"path": table("t.csv"), "folds": 3, **data}
    predictions, prepared = run_predictions(tmp_path, data, ranks, cache)
    by_fold = {
        name: arrays for (name, split), arrays in predictions.items() if split == "validation"
    }
    assert len(by_fold) == 3
    rows = np.concatenate([arrays["rows"] for arrays in by_fold.values()])
    tested = predictions["net-fold0", "test"]["rows"] if "test" in data else []
    assert sorted([*rows, *tested]) == list(range(ROWS))
    assert len(tested) > 0 or "test" not in data
    for name, arrays in by_fold.items():
        assert set(arrays) == {"outputs", "targets", "weights", "rows"}
        assert arrays["targets"].ravel().tolist() == [row + 0.5 for row in arrays["rows"]]
        np.testing.assert_allclose(
            arrays["outputs"], by_hand(prepared, name, features[arrays["rows"]]), rtol=1e-5
        )


def test_rows_are_those_of_the_file_of_the_split(tmp_path, table):
    def part(row):
        return ("train", "validation", "test")[row % 3]

    results, _ = run_predictions(
        tmp_path, {"path": table("t.csv", parts=part), "options": {"split": "part"}}
    )
    assert results["net", "validation"]["rows"].tolist() == list(range(1, ROWS, 3))
    assert results["net", "test"]["rows"].tolist() == list(range(2, ROWS, 3))


def test_rows_of_other_data_and_shares_fit_their_table(tmp_path, table):
    held_out = table("v.csv", range(40, ROWS))
    results, _ = run_predictions(
        tmp_path, {"path": table("t.csv", range(40)), "validation": held_out, "test": 0.25}
    )
    assert results["net", "validation"]["rows"].tolist() == list(range(ROWS - 40))
    tested = results["net", "test"]
    assert tested["targets"].ravel().tolist() == [row + 0.5 for row in tested["rows"]]
    assert len(tested["rows"]) >= 10


def test_rows_columns_of_the_table_are_saved(tmp_path, table):
    _, prepared = run_predictions(
        tmp_path, {"path": table("t.csv"), "folds": 2, "test": 0.2, "target": "value"}
    )
    columns = read_columns(prepared.paths)
    assert (columns.inputs, columns.targets, columns.is_paths) == (
        ("a", "b", "c"),
        ("target",),
        False,
    )
