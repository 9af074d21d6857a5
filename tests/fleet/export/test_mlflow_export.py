"""Tests of the MLflow export, read back by MLflow."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fleet.__main__ import main
from fleet.api import read_history, read_results
from fleet.domain.network import NetworkStatus, Outcome
from fleet.export.tracked_run import read_tracked_run
from fleet.export.trackers import write
from fleet.prediction.sample_file import write_sample
from fleet.spec import parse
from fleet.storage.paths import RunPaths
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.fleet.export.conftest import CHANGED, EARLY, LATE, RATE
from tests.fleet.histories import apply_status, results_of
from tests.fleet.logs import LOG, as_text

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


def test_mlflow_parent_has_numbers_of_the_best_network(path):
    best = replace(
        LATE.networks[0],
        facts={"reason": "4 epochs", "best_epoch": 4, "parameters": 1234, "test_accuracy": 0.9},
    )
    networks = (best, *LATE.networks[1:])
    for run in (replace(EARLY, best=""), replace(LATE, networks=networks), LATE):
        write("mlflow", run, path)
    write("mlflow", replace(LATE, networks=networks), path)
    store = Store(path)
    parent, children = store.runs("digits")
    numbers = {"best_epoch": 4, "parameters": 1234, "test_accuracy": 0.9}
    assert numbers.items() <= children["net-0"].data.metrics.items()
    assert parent.data.metrics == {
        **numbers,
        "loss": 0.25,
        "val_accuracy": 0.4,
        "networks": 5,
        "networks_finished": 3,
        "networks_pruned": 1,
        "networks_failed": 1,
    }
    assert [step for step, *_ in store.epochs(parent, "val_accuracy")] == [11]
    assert (parent.data.tags["fleet.best"], parent.data.tags[f"fleet.best.{RATE}"]) == (
        "net-0",
        "0.01",
    )


def test_mlflow_runs_have_user_and_source(path):
    write("mlflow", LATE, path)
    parent, children = Store(path).runs("digits")
    for run in (parent, *children.values()):
        assert run.info.user_id == run.data.tags["mlflow.user"] == "me"
        assert run.data.tags["mlflow.source.name"] == LATE.facts["command"]
        assert run.data.tags["mlflow.source.type"] == "LOCAL"
    assert parent.data.tags["fleet.host"] == "node1"


def exported_run(folder):
    """Write a run with a finished network, which Keras exported; return the network and paths."""
    keras = pytest.importorskip("keras")
    paths = RunPaths(folder / "run")
    sample = SampleSpec(ArraySpec((3,), "float32"), 2, target=TargetSpec("class", 2))
    paths.root.mkdir()
    paths.spec.write_text("models: [{family: softmax, name: a}]\n")
    write_sample(paths, sample, {"": ("cat", "dog")})
    spec = parse({"models": [{"family": "softmax", "name": "a"}]})
    apply_status(results_of(spec, paths), "a", NetworkStatus((), Outcome("2 epochs")))
    log = [event for event in LOG if getattr(event.event, "network", "a") == "a"]
    paths.events.write_text(as_text(log))
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    paths.model("a").mkdir(parents=True, exist_ok=True)
    model.save(paths.exported("a", ".keras"))
    return model, paths


def test_mlflow_has_the_best_network_as_a_model(path, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    model, paths = exported_run(tmp_path)
    run = read_tracked_run(paths)
    assert (run.best, run.model.network) == ("a", "a")
    write("mlflow", run, path)
    monkeypatch.setattr(tracking.MlflowClient, "log_artifacts", None)
    write("mlflow", run, path)  # it is not copied again
    monkeypatch.undo()
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{path}/mlflow.db")
    number = (
        Store(path)
        .client.search_runs(
            [Store(path).client.get_experiment_by_name(run.name).experiment_id],
            "tags.fleet.best = 'a'",
        )[0]
        .info.run_id
    )
    inputs = np.random.default_rng(0).random((4, 3), np.float32)
    logits = model.predict(inputs, verbose=0)
    keras_model = mlflow.keras.load_model(f"runs:/{number}/model")
    np.testing.assert_allclose(keras_model.predict(inputs, verbose=0), logits, rtol=1e-5)
    odds = np.exp(logits)
    predicted = mlflow.pyfunc.load_model(f"runs:/{number}/model").predict(inputs)
    np.testing.assert_allclose(predicted, odds / odds.sum(axis=1, keepdims=True), rtol=1e-5)
    paths.exported("a", ".keras").write_bytes(b"another network")
    write("mlflow", read_tracked_run(paths), path)
    (copied,) = path.rglob("model/run/models/a/best.keras")
    assert copied.read_bytes() == b"another network"


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
