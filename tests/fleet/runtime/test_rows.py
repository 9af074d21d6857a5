"""What finished networks have kept is joined with the rows of a table."""

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
    """A table whose target is another one in each row."""

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


def kept(folder, data, ranks=2, cache="none"):
    """The arrays of each network and part, by name."""
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
    """What a network gives, as it is exported."""
    network = prepared.spec.by_name[name]
    trainable = NumpyEngine(prepared.sample).build(network, SingleRankGroup())
    trainable.load(find_best(prepared.paths, name, network.train.stopping, "best").state.arrays)
    return trainable.predict(
        features, np.zeros((len(features), 1), np.float32), np.ones(len(features), np.float32)
    )[1]


@pytest.mark.parametrize(
    ("ranks", "cache", "more"), [(1, "memory", {}), (3, "none", {}), (2, "none", {"test": 0.2})]
)
def test_rows_of_folds_join_predictions_with_the_table(
    tmp_path, table, features, ranks, cache, more
):
    matches, prepared = kept(tmp_path, {"path": table("t.csv"), "folds": 3, **more}, ranks, cache)
    parts = {name: arrays for (name, part), arrays in matches.items() if part == "validation"}
    assert len(parts) == 3
    rows = np.concatenate([arrays["rows"] for arrays in parts.values()])
    tested = matches["net-fold0", "test"]["rows"] if more else []
    assert sorted([*rows, *tested]) == list(range(ROWS))
    assert len(tested) > 0 or not more
    for name, arrays in parts.items():
        assert set(arrays) == {"outputs", "targets", "weights", "rows"}
        assert arrays["targets"].ravel().tolist() == [row + 0.5 for row in arrays["rows"]]
        np.testing.assert_allclose(
            arrays["outputs"], by_hand(prepared, name, features[arrays["rows"]]), rtol=1e-5
        )


def test_rows_are_those_of_the_file_that_holds_the_part(tmp_path, table):
    def part(row):
        return ("train", "validation", "test")[row % 3]

    results, _ = kept(tmp_path, {"path": table("t.csv", parts=part), "options": {"split": "part"}})
    assert results["net", "validation"]["rows"].tolist() == list(range(1, ROWS, 3))
    assert results["net", "test"]["rows"].tolist() == list(range(2, ROWS, 3))


def test_rows_of_other_data_and_shares_fit_their_table(tmp_path, table):
    held_out = table("v.csv", range(40, ROWS))
    results, _ = kept(
        tmp_path, {"path": table("t.csv", range(40)), "validation": held_out, "test": 0.25}
    )
    assert results["net", "validation"]["rows"].tolist() == list(range(ROWS - 40))
    tested = results["net", "test"]
    assert tested["targets"].ravel().tolist() == [row + 0.5 for row in tested["rows"]]
    assert len(tested["rows"]) >= 10


def test_the_run_keeps_what_its_table_was(tmp_path, table):
    _, prepared = kept(
        tmp_path, {"path": table("t.csv"), "folds": 2, "test": 0.2, "target": "value"}
    )
    kept_of_it = read_columns(prepared.paths)
    assert (kept_of_it.inputs, kept_of_it.targets, kept_of_it.is_paths) == (
        ("a", "b", "c"),
        ("target",),
        False,
    )
