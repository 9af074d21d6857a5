"""The benchmark of searches on recorded curves: its files, its simulation and its rows."""

import gzip
import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def files(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("search_files")


def write_accuracies(path, tasks=2, networks=6, epochs=4):
    rng = np.random.default_rng(0)
    ends = rng.uniform(0.5, 0.9, (tasks, networks, 1))
    value = ends * (1 - 0.5 ** np.arange(1, epochs + 1))
    np.savez(
        path,
        value=value.astype(np.float32),
        epoch_s=rng.uniform(1, 2, (tasks, networks)),
        config=rng.uniform(0, 1, (tasks, networks, 2)),
        config_names=np.array(["depth", "width"]),
        tasks=np.array([f"t{task}" for task in range(tasks)]),
    )
    return path


def test_accuracies_come_with_their_seconds_and_settings(files, tmp_path):
    first, second = files.read_tasks(write_accuracies(tmp_path / "a.npz"))
    assert (first.name, second.name, first.mode, first.max_epochs) == ("t0", "t1", "max", 4)
    assert set(first.curves[0].config) == {"depth", "width"}
    assert first.total_s == pytest.approx(4 * sum(curve.epoch_s[0] for curve in first.curves))


def test_losses_leave_out_the_untrained_network(files, tmp_path):
    loss = np.array([[[0.7, 0.5, 0.4], [0.7, np.nan, np.nan]]])
    np.savez(tmp_path / "l.npz", loss=loss, config=json.dumps([[{"lr": 1}, {"lr": 2}]]))
    [task] = files.read_tasks(tmp_path / "l.npz")
    assert task.curves[0].values == (0.5, 0.4)
    assert task.curves[0].measured == (-0.5, -0.4)
    assert task.best == -0.4
    assert task.curves[1].config == {"lr": 2}


def test_trials_differ_in_length_and_skip_the_first_step(files, tmp_path):
    trials = [
        {"steps": [1, 10, 20], "seconds": [2, 12, 25], "value": [0, 0.5, 0.6], "hparams": {}},
        {"steps": [5, 10], "seconds": [4, 9], "value": [0.2, None], "hparams": {}},
    ]
    with gzip.open(tmp_path / "a.json.gz", "wt") as file:
        json.dump({"wmt": {"metric": "bleu", "mode": "max", "trials": trials}}, file)
    [task] = files.read_tasks(tmp_path / "a.json.gz")
    assert [curve.epoch_s for curve in task.curves] == [(12, 13), (4, 5)]
    assert task.curves[0].values == (0.5, 0.6)
    assert math.isnan(task.curves[1].values[1])


@pytest.mark.parametrize("content", ["[]", "{", '{"a": {"mode": "up", "trials": []}}', '{"a": 1}'])
def test_other_files_are_refused_with_what_is_read(files, tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(files.WrongFile, match=r"a\.json: .*expected an \.npz file"):
        files.read_tasks(tmp_path / "a.json")


def test_a_loss_is_judged_as_a_share_of_the_lowest(files):
    task = files.Task("t", "min", (files.RecordedCurve(0, (0.5,), (-0.5,), (1.0,), {}),))
    assert task.share_of_best(-0.5) == 1.0
    assert task.share_of_best(-1.0) == 0.5
    assert task.share_of_best(-math.inf) == 0.0


def test_networks_are_drawn_once_each_and_by_the_seed(files, tmp_path):
    [task, _] = files.read_tasks(write_accuracies(tmp_path / "a.npz"))
    drawn = [curve.number for curve in task.draw(4, 1).curves]
    assert len(set(drawn)) == 4
    assert drawn == [curve.number for curve in task.draw(4, 1).curves]
    assert len(task.draw(100, 1).curves) == 6
    assert any(drawn != [curve.number for curve in task.draw(4, seed).curves] for seed in (2, 3))


def test_a_search_that_prunes_nothing_costs_all(files, tmp_path):
    tables = importlib.import_module("search_tables")
    [task, _] = files.read_tasks(write_accuracies(tmp_path / "a.npz"))
    search = tables.make_fleet_search(task, 2, rule="none")
    result = files.simulate_task(search, task, 2)
    assert result.share == pytest.approx(1)
    assert result.best == 1
    assert 0 < result.until_near <= 1


def test_rows_have_the_keys_and_every_rule(tmp_path):
    path = write_accuracies(tmp_path / "a.npz")
    command = [sys.executable, BENCHMARKS / "search.py", "--curves", path, "--tasks", "1"]
    command += ["--networks", "5", "--gpus", "2", "--without-ray", "--json"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(process.stdout)
    assert all(
        list(row)
        == [
            "curves",
            "rule",
            "tasks",
            "near",
            "times_fewer",
            "best_median",
            "best_worst",
            "until_near",
        ]
        for row in rows
    )
    assert {"asha", "hyperband", "median", "learning_curve"} <= {row["rule"] for row in rows}
    assert any(row["rule"].endswith("in hindsight") for row in rows)
    assert {row["tasks"] for row in rows} == {1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--networks", "0"], "--networks is 0"), (["--gpus", "0"], "--gpus is 0"), ([], "a.txt")],
)
def test_wrong_arguments_end_with_status_2(tmp_path, arguments, message):
    (tmp_path / "a.txt").write_text("none")
    command = [sys.executable, BENCHMARKS / "search.py", "--curves", tmp_path / "a.txt"]
    process = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert message in process.stderr
