"""Tests of the MLflow export, read back by MLflow."""

import json
from dataclasses import replace

import pytest

from fleet.__main__ import main
from fleet.api import read_history, read_results
from fleet.export.trackers import write
from tests.fleet.export.conftest import CHANGED, EARLY, LATE, RATE

tracking = pytest.importorskip(
    "mlflow.tracking", reason="MLflow is not installed: make test-track has it"
)
pytestmark = pytest.mark.filterwarnings("ignore")  # of its database


class Store:
    """The contents of a store."""

    def __init__(self, path):
        self.client = tracking.MlflowClient(f"sqlite:///{path}/mlflow.db")

    def runs(self, name):
        """Return the parent of a run, and its children by name."""
        experiment = self.client.get_experiment_by_name(name)
        runs = self.client.search_runs([experiment.experiment_id])
        (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        children = {run.info.run_name: run for run in runs if run is not parent}
        assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {
            parent.info.run_id
        }
        assert len(children) == len(runs) - 1
        return parent, children

    def epochs(self, run, metric):
        return [
            (point.step, point.value, point.timestamp)
            for point in self.client.get_metric_history(run.info.run_id, metric)
        ]


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """Make a store without runs, because creating its tables takes seconds."""
    path = tmp_path_factory.mktemp("empty")
    Store(path).client.search_experiments()
    return path


@pytest.fixture
def path(empty, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/mlflow.db").write_bytes((empty / "mlflow.db").read_bytes())
    return tmp_path / "store"


@pytest.mark.parametrize("before", [[], [LATE], [EARLY], [EARLY, CHANGED]])
def test_mlflow_run_is_a_parent_with_a_child_per_network(path, before):
    for run in [*before, LATE, LATE]:
        write("mlflow", run, path)
    store = Store(path)
    parent, children = store.runs("digits")
    assert (parent.info.run_name, parent.info.status, parent.data.params) == (
        "digits",
        "FINISHED",
        {"policy": "adaptive"},
    )
    assert {name: run.info.status for name, run in children.items()} == {
        "net-0": "FINISHED",
        "net-1": "KILLED",
        "net-2": "FAILED",
        "net-3": "FINISHED",
        "plain": "FINISHED",
    }
    first = children["net-0"]
    assert first.data.params == {"model": "cnn", RATE: "0.01"}
    assert store.epochs(first, "val_accuracy") == [
        (epoch, epoch / 10, (1000 + 60 * epoch) * 1000) for epoch in (1, 2, 3, 4)
    ]
    assert [step for step, *_ in store.epochs(children["plain"], "loss")] == [1, 2]
    assert (first.info.start_time, first.info.end_time) == (1_000_000, 1_240_000)
    assert children["net-2"].data.tags["fleet.reason"] == "failed"


def test_mlflow_tags_of_restarted_network_are_updated(path):
    failed = replace(LATE.networks[0], facts={"reason": "failed", "diverged": "loss is NaN"})
    for network in (failed, LATE.networks[0]):
        write("mlflow", replace(LATE, networks=(network,)), path)
    tags = Store(path).runs("digits")[1]["net-0"].data.tags
    assert "fleet.diverged" not in tags
    assert (tags["fleet.reason"], tags["fleet.key"]) == ("finished", "key-net-0")


def test_mlflow_adds_facts_after_the_last_epoch(path, tmp_path):
    first = LATE.networks[0]
    tested = replace(
        first,
        facts={**first.facts, "test_accuracy": 0.9},
        files={"best.keras": tmp_path / "best.keras"},
    )
    for network in (first, tested):
        write("mlflow", replace(LATE, networks=(network,)), path)
    store = Store(path)
    child = store.runs("digits")[1]["net-0"]
    assert child.data.tags["fleet.test_accuracy"] == "0.9"
    assert child.data.tags["fleet.file.best.keras"].startswith("file://")
    assert len(store.epochs(child, "val_accuracy")) == 4


def test_mlflow_store_equals_tables_after_resume(searched, path, capsys):
    run = searched.folder / "run"
    command = ["export", str(run), "--mlflow", str(path)]
    assert main(command) == 0
    assert searched.launch() == 0
    assert main(command) == main(command) == 0
    assert f"mlflow ui --backend-store-uri sqlite:///{path}/mlflow.db" in capsys.readouterr().out
    store = Store(path)
    parent, children = store.runs("ensemble")
    rows = {row.name: row for row in read_results(run)}
    assert sorted(children) == sorted(rows)
    assert {
        name: float(child.data.params[RATE]) for name, child in children.items() if name != "plain"
    } == {name: row.drawn[RATE] for name, row in rows.items() if name != "plain"}
    rates = {
        (name, step): value
        for name, child in children.items()
        for step, value, _ in store.epochs(child, "val_loss")
    }
    assert rates == {(row.network, row.epoch): row.val_loss for row in read_history(run)}
    files = {artifact.path for artifact in store.client.list_artifacts(parent.info.run_id)}
    assert files == {"files.json"}
    assert parent.data.tags["fleet.file.results.csv"] == (run / "results.csv").as_uri()
    uri_file = path / "artifacts" / children["net-0"].info.run_id / "artifacts/files.json"
    assert (
        json.loads(uri_file.read_text())["history.csv"]
        == (run / "models/net-0/history.csv").as_uri()
    )
