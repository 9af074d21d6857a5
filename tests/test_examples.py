"""Every example runs and prints the output in the file beside it."""

import csv
import doctest
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fleet.engines.base import PeerFailed
from fleet.engines.registry import make_engine
from fleet.spec import parse
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status, read_results
from fleet.stream.batch import split_rows
from preprocess.probe import infer_sample_spec
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.source import open_data
from preprocess.target import TargetSpec, target_of
from preprocess.transforms import parse_transform
from tests.fakes import put_programs
from tests.fleet.one_process import Launch
from tests.places import ON_ONE_MACHINE, ROOT

EXAMPLES = ROOT / "examples"


def printed(folder, *command, program=sys.executable, **variables):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder),
        "COLUMNS": "160",
        **ON_ONE_MACHINE,
        **variables,
    }
    done = subprocess.run(
        [program, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def same(expected, got):
    """Return True if the output is as expected; `...` matches anything, and spaces any spaces."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, got, flags)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("plan.py", []),
        ("simulate.py", []),
        pytest.param(
            "random_search.py",
            ["--engine", "numpy", "--ranks", "3", "--networks", "3"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_example_scripts_print_the_expected_output(tmp_path, name, arguments):
    got = printed(tmp_path, str(EXAMPLES / name), *arguments)
    assert same((EXAMPLES / name).with_suffix(".out").read_text(), got), got


@pytest.mark.long
def test_example_notebook_runs_to_the_best_ensemble(tmp_path):
    code = "".join(
        re.findall(r"```python\n(.*?)```", (ROOT / "docs/notebook.md").read_text(), re.DOTALL)
    )
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    cells = printed(tmp_path, "-c", code)
    assert re.search(r"^greedy .*%$", cells, re.MULTILINE)
    assert float(re.search(r"together: (.*)% of new digits", cells)[1]) > 70
    assert (tmp_path / "runs/notebook/report.html").exists()


@pytest.mark.long
def test_example_digits_prints_the_expected_list(tmp_path):
    got = printed(tmp_path, "-m", "fleet", "check", str(EXAMPLES / "digits.yaml"))
    assert same((EXAMPLES / "digits.out").read_text(), got), got


@pytest.fixture
def with_targets(tmp_path):
    """Copy the examples of targets, with their data."""
    shutil.copytree(
        EXAMPLES / "targets", tmp_path / "targets", ignore=shutil.ignore_patterns("__pycache__")
    )
    printed(tmp_path / "targets", "make_data.py")
    return tmp_path / "targets"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "networks", "has_learned"),
    [
        # the targets' variance: 0.59
        (
            "regression",
            2,
            lambda row: row.val_loss < 0.42 and math.isnan(row.val_accuracy),
        ),
        ("segmentation", 1, lambda row: row.metrics["val_mean_io_u"] > 0.8),
        ("labels", 1, lambda row: row.val_accuracy > 0.9 and row.val_loss < 0.3),
    ],
)
def test_values_masks_and_labels_are_learned(with_targets, name, networks, has_learned):
    printed(with_targets, "-m", "fleet.run", f"{name}.yaml")
    rows = read_results(with_targets / "runs" / name)
    assert [row.status for row in rows] == [Status.FINISHED] * networks
    assert all(map(has_learned, rows)), rows
    if name == "regression":
        check_predicted(with_targets, "regression", rows[0].name, "diabetes.csv", "target")


def check_predicted(folder, run, name, table, target):
    """Check that predicted rows equal the saved predictions of validation rows."""
    text = printed(folder, "-m", "fleet", "predict", f"runs/{run}", table)
    values = np.array([float(answer[target]) for answer in csv.DictReader(text.splitlines())])
    with np.load(RunPaths(folder / "runs" / run).predictions(name, "validation")) as saved:
        np.testing.assert_allclose(
            values[saved["rows"]], saved["outputs"][:, 0], rtol=1e-4, atol=1e-5
        )


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("two_inputs", marks=pytest.mark.torch),
        pytest.param("keras_two_inputs", marks=pytest.mark.tensorflow),
    ],
)
def test_photo_and_numbers_are_learned_and_predicted(tmp_path, name):
    folder = tmp_path / "records"
    shutil.copytree(
        EXAMPLES / "records", folder, ignore=shutil.ignore_patterns("__pycache__", "photos")
    )
    printed(folder, "make_data.py")
    printed(folder, "-m", "fleet.run", f"{name}.yaml")
    rows = read_results(folder / "runs" / name)
    assert [row.status for row in rows] == [Status.FINISHED] * 2
    assert rows[0].val_loss < 0.1  # the variance of the weights is 0.25
    check_predicted(folder, name, rows[0].name, "fish.csv", "weight")


@pytest.mark.long
def test_example_of_a_table_runs_to_the_end(with_targets):
    spec = (with_targets / "wine.yaml").read_text()
    assert spec.partition("\n\n")[2] in (ROOT / "docs/data.md").read_text(encoding="utf-8")
    printed(with_targets, "-m", "fleet.run", "wine.yaml")
    mean, *_ = read_results(with_targets / "runs/wine")
    assert (mean.folds, mean.val_accuracy > 0.9) == (3, True)
    with open(with_targets / "wine.csv", newline="") as file:
        wines = list(csv.DictReader(file))
    columns = [name for name in reversed(wines[0]) if name != "cultivar"]
    with open(with_targets / "new.csv", "w", newline="") as file:
        table = csv.DictWriter(file, ["number", *columns], extrasaction="ignore")
        table.writeheader()
        table.writerows(wine | {"number": row} for row, wine in enumerate(wines))
    answers = list(
        csv.DictReader(
            printed(with_targets, "-m", "fleet", "predict", "runs/wine", "new.csv").splitlines()
        )
    )
    assert list(answers[0]) == ["row", "cultivar", "Barbera", "Barolo", "Grignolino"]
    assert [answer["row"] for answer in answers] == [str(row) for row in range(178)]
    right = [
        answer["cultivar"] == wine["cultivar"] for answer, wine in zip(answers, wines, strict=True)
    ]
    assert np.mean(right) > 0.95


# ---- custom parts ------------------------------------------------------------------------

EXTENDING = EXAMPLES / "extending"
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


def test_extending_page_shows_the_files():
    blocks = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    files = [path.read_text(encoding="utf-8") for path in EXTENDING.iterdir() if path.is_file()]
    assert [block for block in blocks if not any(block in text for text in files)] == []
    assert len(blocks) >= 9
    assert all(path.stem in PAGE for path in EXTENDING.glob("*.py"))


@pytest.fixture
def extending_folder(tmp_path):
    """Copy the example's folder, with images to train on."""
    shutil.copytree(EXTENDING, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    printed(tmp_path / "own", "my_source.py", "squares")
    return tmp_path / "own"


@pytest.mark.long
def test_custom_parts_train_in_a_job_of_a_custom_batch_system(extending_folder, tmp_path):
    put_programs(tmp_path, {"qsub": f'echo "$@" > {tmp_path}/called; echo 17'})
    path = f"{tmp_path}:{os.environ['PATH']}"
    message = printed(
        extending_folder,
        "-m",
        "fleet",
        "submit",
        "own.yaml",
        "--system",
        "my_batch_system:GRID_ENGINE",
        "--walltime",
        "1h",
        "--chain",
        "--ranks-per-node",
        "3",
        PATH=path,
    )
    paths = RunPaths(extending_folder / "runs/own")
    assert message == "17\n"
    assert (tmp_path / "called").read_text() == f"-terse {paths.job_script}\n"
    script = paths.job_script.read_text().splitlines()
    assert script[:3] == ["#!/bin/bash", "#$ -S /bin/bash", "#$ -N own"]
    assert {"#$ -l h_rt=01:00:00", "#$ -r y", "#$ -pe mpi 3", "#$ -l exclusive=true"} <= set(script)

    # as the batch system does
    printed(extending_folder, paths.job_script, program="bash", JOB_ID="17", PATH=path)
    rows = {row.name: row for row in read_results(paths.root)}
    assert {name: row.status for name, row in rows.items()} == dict.fromkeys(
        ("logistic-0", "logistic-1", "shared"), Status.FINISHED
    )
    assert all(row.val_accuracy > 0.8 and row.parameters == 65 * 4 for row in rows.values())
    start = json.loads(paths.events.read_text().splitlines()[0])
    assert (start["policy"], start["samples"]) == ("my_policy:POLICY", 360)
    stops = [json.loads(line) for line in paths.stops.read_text().splitlines()]
    assert [(stop["event"], stop["job"]) for stop in stops] == [
        ("submitted", "17"),
        ("begun", "17"),
        ("stopped", "17"),
    ]
    assert (stops[-1]["status"], stops[-1]["then"]) == (0, "all networks finished")


def test_custom_policy_starts_the_slowest_network_first(extending_folder):
    (extending_folder / "rates.json").write_text(
        json.dumps(
            {
                "samples_per_epoch": 100,
                "gpus_per_node": 1,
                "models": [
                    {"name": name, "rates": [rate], "epochs": 1}
                    for name, rate in (("fast", 9.0), ("slow", 2.0), ("mean", 4.0))
                ],
            }
        )
    )
    simulated = json.loads(
        printed(
            extending_folder,
            "-m",
            "fleet",
            "simulate",
            "ensemble",
            "rates.json",
            "--gpus",
            "1",
            "--policy",
            "my_policy:POLICY",
            "--json",
        )
    )
    assert [network["members"][0]["name"] for network in simulated["rounds"]] == [
        "slow",
        "mean",
        "fast",
    ]


def test_custom_rule_stops_networks_that_fall_behind(extending_folder):
    (extending_folder / "rule.yaml").write_text("""
data: {source: 'builtin:digits'}
models:
- family: softmax
  space: {train.optimizer.learning_rate: [1.0e-5, 1.0e-12]}
  search: {sampler: grid, max_concurrent: 1}
train: {stopping: {max_epochs: 3}}
prune: {rule: 'my_rule:RULE', min_epochs: 2}
resources: {engine: numpy}
""")
    printed(extending_folder, "-m", "fleet.run", "rule.yaml")
    assert [
        (row.status, row.epochs) for row in read_results(extending_folder / "runs/ensemble")
    ] == [
        (Status.FINISHED, 3),
        (Status.PRUNED, 2),
    ]


def test_custom_transform_covers_a_square_in_training_only(monkeypatch):
    monkeypatch.syspath_prepend(EXTENDING)
    cover = parse_transform({"my_transform:cover": {"size": 3}})
    image = np.full((8, 6, 1), 7, np.uint8)
    covered = cover.apply(image, np.random.default_rng(1), training=True)
    assert (covered == 0).sum() == 9
    assert (cover.apply(image, np.random.default_rng(1), training=False) == image).all()


def test_custom_source_returns_signals_values_and_weights(monkeypatch):
    monkeypatch.syspath_prepend(EXTENDING)
    data = open_data("my_signals:waves", None, 0.25, 0, {"count": 40})
    assert [len(part) for part in data.splits().values()] == [30, 10]
    assert target_of(data.train) == TargetSpec("value", 1, ("swings",), weighted=True)
    sample = infer_sample_spec(pickle.loads(pickle.dumps(data.train)), [], 0)
    assert (sample.input.shape, sample.input.dtype) == ((64, 1), "float32")


RATE = 0.5


def own_network(group):
    spec = parse(
        {
            "models": [{"family": "softmax", "train": {"optimizer": {"learning_rate": RATE}}}],
            "resources": {"engine": "my_engine:ENGINE"},
        }
    )
    sample = SampleSpec(ArraySpec((2, 2, 1), "uint8"), classes=3)
    return make_engine(spec, sample, None, 0, 1).build(spec.networks[0], group)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_custom_engine_follows_the_gradient_on_any_ranks(monkeypatch, ranks):
    monkeypatch.syspath_prepend(EXTENDING)
    images = np.random.default_rng(0).integers(0, 3, (5, 2, 2, 1)).astype(np.uint8)
    labels = np.array([0, 1, -1, 2, 1])  # one is unreadable
    before, after = {}, {}

    def rank_main(world):
        network = own_network(world.group(range(ranks), 1))
        batch = slice(*split_rows(0, 5, world.rank, ranks))
        network.step(images[batch], labels[batch], 5)
        before[world.rank] = network.state()["weights"]
        network.step(images[batch], labels[batch], 5)
        after[world.rank] = network.state()["weights"]

    def loss(weights):
        network = own_network(SimpleNamespace(size=1))
        network.load({"weights": weights})
        return network.evaluate(images, labels).loss / 4

    assert Launch(ranks, 0).run(rank_main)
    position = np.zeros_like(before[0])
    for index in np.ndindex(position.shape):
        position[index] = 1e-6
        slope = (loss(before[0] + position) - loss(before[0] - position)) / 2e-6
        assert {
            round(float(after[rank][index] - before[rank][index]), 6) for rank in range(ranks)
        } == {round(-RATE * slope, 6)}
        position[index] = 0


def test_custom_engine_fails_on_both_ranks(monkeypatch):
    monkeypatch.syspath_prepend(EXTENDING)

    def rank_main(world):
        network = own_network(world.group([0, 1], 1))
        wrong = 9 if world.rank == 1 else 0  # beyond the three classes
        with pytest.raises(IndexError if wrong else PeerFailed):
            network.step(np.zeros((1, 2, 2, 1), np.uint8), np.array([wrong]), 2)

    assert Launch(2, 0).run(rank_main)


@pytest.mark.torch
def test_modules_of_pytorch_are_tried(tmp_path):
    output = printed(tmp_path, "-m", "fleet", "check", str(EXAMPLES / "digits_torch.yaml"))
    assert "mixer-1: loading best.safetensors requires the module torch_modules" in output, output
