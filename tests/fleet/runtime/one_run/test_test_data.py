"""Whole runs whose networks are evaluated on test data and as ensembles."""

import dataclasses

import pytest

from fleet.domain import events as ev
from fleet.errors import ExitStatus
from fleet.prediction.ensembles import read_ensembles
from fleet.storage.results import Status
from tests.fleet.runtime.one_run.runner import Case, Runner, shaky


def test_test_share_is_held_out_first_and_never_trained_on(folders):
    content = {
        "models": [{"family": "softmax", "name": "n0"}],
        "resources": {"engine": "numpy"},
        "data": {
            "source": "tests.sources:unvalidated",
            "path": "40",
            "validation": "20%",
            "test": "25%",
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "train": {"batch": {"size": 8}, "stopping": {"max_epochs": 2}},
        "schedule": {"policy": "baseline"},
    }
    runner = Runner(Case(content, (0, 0), 4, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    parts = {
        name: {source.name(index) for index in range(len(source))}
        for name, source in runner.prepared.inputs.data.splits().items()
    }
    assert {name: len(samples) for name, samples in parts.items()} == {
        "train": 24,
        "validation": 6,
        "test": 10,
    }
    assert len(set.union(*parts.values())) == 40
    assert {f"sample {number}" for noted in runner.notes.values() for _, number in noted} == parts[
        "train"
    ]
    runner.check_tests()


@pytest.mark.long
def test_finished_networks_are_tested_on_new_test_data(folders):
    folder = folders()
    before = shaky(folder, failures=0, retries=0, epochs=2)
    assert before.launch() is ExitStatus.OK
    for test, judged in [("9", 1), ("9", 1), ("12", 2)]:
        content = {**before.case.content, "data": {**before.case.content["data"], "test": test}}
        runner = Runner(dataclasses.replace(before.case, content=content), folder)
        assert runner.launch() is ExitStatus.OK
        assert len(runner.events(ev.NetworkTested)) == judged
        assert runner.history("n0") == before.history("n0")
    assert runner.results()["n0"].test_accuracy >= 0


@pytest.mark.long
def test_network_trained_further_is_tested_again(folders):
    folder = folders()
    for epochs in (2, 4):
        runner = further(folder, epochs)
        assert runner.launch() is ExitStatus.OK
        assert len(runner.events(ev.NetworkTested)) == epochs / 2
    runner.prepared.paths.test_result("n0").write_text("{")  # damaged, or lost with a killed launch
    assert runner.launch() is ExitStatus.OK
    assert len(runner.events(ev.NetworkTested)) == 3


def test_finished_networks_keep_predictions_for_ensembles(
    folders,
):
    content = {
        **further(folders(), 2).case.content,
        "models": [
            {
                "family": "softmax",
                "count": 3,
                "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.5}},
            }
        ],
    }
    runner = Runner(Case(content, (0, 0, 0), 4, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    runner.check_predictions()
    rows, together = (
        list(runner.results().values()),
        {row.name: row for row in read_ensembles(runner.folder / "run")},
    )
    assert list(together) == ["single", "top 2", "top 3", "greedy"]
    assert list(together["top 2"].members) == [row.name for row in rows[:2]]
    single, best = together["single"], rows[0]
    assert (single.validation.accuracy, single.test.accuracy) == pytest.approx(
        (best.val_accuracy, best.test_accuracy)
    )
    assert (single.validation.log_loss, single.test.log_loss) == pytest.approx(
        (best.val_loss, best.test_loss)
    )
    assert together["greedy"].validation.accuracy >= single.validation.accuracy


def further(folder, epochs):
    """A run with test data in a folder where there may be one already."""
    content = {
        "models": [{"family": "softmax", "name": "n0"}],
        "resources": {"engine": "numpy"},
        "data": {
            "source": "tests.sources:numbered",
            "path": "12",
            "test": "9",
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "train": {"batch": {"size": 4}, "stopping": {"max_epochs": epochs}},
        "schedule": {"policy": "baseline"},
    }
    return Runner(Case(content, (0, 0), 4, 1, 0), folder)


@pytest.mark.long
def test_pruned_network_started_over_is_trained_fully(folders):
    content = {
        "models": [
            {
                "family": "softmax",
                "count": 4,
                "space": {"train.optimizer.learning_rate": [0.001, 0.01, 0.1, 1.0]},
            }
        ],
        "resources": {"engine": "numpy"},
        "prune": {"rule": "asha", "min_epochs": 1, "factor": 2},
        "data": {
            "source": "tests.sources:numbered",
            "path": "12",
            "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        },
        "train": {"batch": {"size": 4}, "stopping": {"max_epochs": 4}},
        "schedule": {},
    }
    runner = Runner(Case(content, (0, 0), 4, 1, 0), folders())
    assert runner.launch() is ExitStatus.OK
    name = next(row.name for row in runner.results().values() if row.status is Status.PRUNED)
    assert runner.launch(fresh_network=(name,)) is ExitStatus.OK
    assert (runner.results()[name].status, runner.results()[name].epochs) == (Status.FINISHED, 4)
    assert runner.launch() is ExitStatus.OK
    assert runner.results()[name].status is Status.FINISHED
