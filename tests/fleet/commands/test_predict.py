"""Tests of ``fleet predict``, with a stand-in for Keras that joins the networks."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fleet import predictor
from fleet.api import Predictor
from fleet.domain.network import EpochRecord, NetworkStatus, Outcome
from fleet.errors import UserError
from fleet.prediction.sample_file import read_sample, write_sample
from fleet.spec import dump, parse
from fleet.storage.paths import RunPaths
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec, class_target
from preprocess.target_kinds import KINDS
from tests.fleet.histories import apply_status, results_of
from tests.fleet.prediction.saved_predictions import keep
from tests.places import ROOT
from tests.refusals import refused

NAMES = ("cat", "dog")
DATA = {
    "source": "image_folder",
    "path": "gone",
    "transforms": ["decode", {"resize": {"size": [4, 4]}}, "scale"],
}


class StandIn:
    """Networks that score the mean of an image; each file has the score of a white image."""

    def __init__(self, files, weights, kind):
        self._logits = [float(file.read_text()) for file in files]
        self._weights, self._kind = weights, kind

    def predict(self, images):
        white = images.astype(float).mean(axis=(1, 2, 3)) / 255
        return sum(
            weight
            * KINDS[self._kind].predictions(np.stack([0 * white, logit * (2 * white - 1)], 1))
            for weight, logit in zip(self._weights, self._logits, strict=True)
        )

    def save(self, path):
        path.write_text(json.dumps(self._weights))


FOLDED = {
    "a-fold0": (0.99, 1.0),
    "a-fold1": (0.3, 1.0),
    "a-fold2": (0.3, 1.0),
    "b-fold0": (0.6, 5.0),
    "b-fold1": (0.7, 2.0),
    "b-fold2": (0.8, 3.0),
}  # accuracies and logits


def folded_run(folder, unfinished=()):
    """Make a run of two networks with three folds; the worse network has the best fold."""
    paths = RunPaths(folder / "run")
    spec = parse(
        {
            "models": [{"family": "softmax", "name": name} for name in "ab"],
            "data": {**DATA, "folds": 3},
        }
    )
    results, targets = results_of(spec, paths), np.array([0, 0, 1, 1])
    for name, (accuracy, logit) in FOLDED.items():
        record = EpochRecord(1, 0, 1.0, 0.5, 1.0, accuracy, 0.1, 100, 1, 1.0, 0.0)
        apply_status(
            results,
            name,
            NetworkStatus((record,), None if name in unfinished else Outcome("1 epoch")),
        )
        paths.exported(name, ".keras").parent.mkdir(parents=True, exist_ok=True)
        paths.exported(name, ".keras").write_text(str(logit))
        keep(
            paths,
            name,
            np.stack([0 * targets, logit * (2 * targets - 1)], axis=1),
            targets,
            rows=int(name[-1]) + 3 * np.arange(4),
        )
    paths.spec.write_text(dump(spec.document))
    write_sample(
        paths, SampleSpec(ArraySpec((4, 4, 3), "uint8"), 2, target=class_target(NAMES)), {"": NAMES}
    )
    return paths


def made_run(folder, target=None, data=DATA, engine="keras"):
    """Make a run of three finished networks, the best first, with predictions for four samples."""
    paths = RunPaths(folder / "run")
    spec = parse(
        {
            "models": [{"family": "softmax", "name": name} for name in "abc"],
            "data": data,
            "resources": {"engine": engine},
        }
    )
    results, targets = results_of(spec, paths), np.array([0, 0, 1, 1])
    for name, accuracy, logit in (("a", 0.9, 1.0), ("b", 0.8, 3.0), ("c", 0.7, -1.0)):
        record = EpochRecord(1, 0, 1.0, 0.5, 1.0, accuracy, 0.1, 100, 1, 1.0, 0.0)
        apply_status(results, name, NetworkStatus((record,), Outcome("1 epoch")))
        paths.exported(name, ".keras").parent.mkdir(parents=True, exist_ok=True)
        paths.exported(name, ".keras").write_text(str(logit))
        keep(paths, name, np.stack([0 * targets, logit * (2 * targets - 1)], axis=1), targets)
    paths.spec.write_text(dump(spec.document))
    target = class_target(NAMES) if target is None else target
    write_sample(
        paths,
        SampleSpec(ArraySpec((4, 4, 3), "uint8"), target.outputs, target=target),
        {"": target.names},
    )
    return paths


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        predictor, "load_ensemble", lambda spec, files, weights, kind: StandIn(files, weights, kind)
    )
    return made_run(tmp_path)


@pytest.fixture
def images(tmp_path):
    """Write a white image and, in a subfolder, a black one, in sizes that need resizing."""
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    Image.new("RGB", (20, 10), "white").save(folder / "white.png")
    Image.new("L", (7, 7), "black").save(folder / "deep/black.png")
    return folder


def test_predict_uses_the_best_network(run, images, fleet):
    status, result, _ = fleet("predict", run.root, images / "white.png", images, "--json")
    assert status == 0
    assert (result["networks"], result["names"]) == ({"a": 1.0}, list(NAMES))
    assert [(line["image"], line["class"]) for line in result["images"]] == [
        (str(images / "white.png"), "dog"),
        (str(images / "deep/black.png"), "cat"),
        (str(images / "white.png"), "dog"),
    ]
    first = result["images"][0]
    assert first["probabilities"] == pytest.approx(
        {"cat": 1 / (1 + np.e), "dog": np.e / (1 + np.e)}
    )
    assert first["probability"] == first["probabilities"]["dog"]


def test_json_is_alone_on_stdout(run, images, fleet, monkeypatch):
    plain = StandIn.predict

    def predict(self, images):
        print("forward")
        return plain(self, images)

    monkeypatch.setattr(StandIn, "predict", predict)
    _, result, error = fleet("predict", run.root, images / "white.png", "--json")
    assert [line["class"] for line in result["images"]] == ["dog"]
    assert "forward" in error


def test_predict_averages_top_networks_or_a_greedy_selection(run, images, fleet):
    _, result, _ = fleet("predict", run.root, images / "white.png", "--top", 3, "--json")
    assert result["networks"] == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    share = sum(1 / (1 + np.exp(-logit)) for logit in (1.0, 3.0, -1.0)) / 3
    assert result["images"][0]["probability"] == pytest.approx(share)
    _, result, _ = fleet("predict", run.root, images / "white.png", "--select", "greedy", "--json")
    assert result["networks"] == {"b": 1.0}


def share(*logits):
    return np.mean([1 / (1 + np.exp(-logit)) for logit in logits])


def test_predict_averages_the_folds_of_the_best_network(tmp_path, run, images, fleet):
    run = folded_run(tmp_path / "folded")
    _, result, error = fleet("predict", run.root, images / "white.png", "--json")
    assert result["networks"] == pytest.approx({f"b-fold{fold}": 1 / 3 for fold in range(3)})
    assert result["images"][0]["probability"] == pytest.approx(share(5, 2, 3))
    assert error == ""
    assert "With b, the mean of its 3 folds:" in fleet("predict", run.root, images / "white.png")[1]


def test_predict_top_counts_networks_not_folds(tmp_path, run, images, fleet):
    run = folded_run(tmp_path / "folded")
    _, result, _ = fleet("predict", run.root, images / "white.png", "--json", "--top", 2)
    assert result["networks"] == pytest.approx(dict.fromkeys(FOLDED, 1 / 6))
    assert result["images"][0]["probability"] == pytest.approx(share(5, 2, 3, 1, 1, 1))
    assert (
        "With b 50%, a 50%, each the mean of its 3 folds:"
        in fleet("predict", run.root, images, "--top", 2)[1]
    )
    assert (
        "--top 3: only 2 networks can be combined"
        in fleet("predict", run.root, images, "--top", 3)[2]
    )
    _, result, _ = fleet("predict", run.root, images / "white.png", "--json", "--select", "greedy")
    assert result["networks"] == pytest.approx({f"b-fold{fold}": 1 / 3 for fold in range(3)})


def test_predict_ignores_networks_with_unfinished_folds(tmp_path, run, images, caplog):
    run = folded_run(tmp_path / "folded", ["b-fold1"])
    predictor = Predictor(run.root)
    assert predictor.folds == {"a": ("a-fold0", "a-fold1", "a-fold2")}
    assert "only 2 of the 3 folds of b have finished; a network can be combined once" in caplog.text


def test_predict_prints_a_table(run, images, fleet):
    status, text, _ = fleet("predict", run.root, images, "--top", 2)
    assert status == 0
    assert "With a 50%, b 50%:" in text
    assert "probability" in text
    assert "probabilities" not in text


def test_save_writes_one_network(run, tmp_path, fleet):
    status, text, _ = fleet("predict", run.root, "--top", 2, "--save", tmp_path / "two.keras")
    assert (status, json.loads((tmp_path / "two.keras").read_text())) == (0, [0.5, 0.5])
    assert "two.keras" in text


def test_rows_of_npy_files_are_prepared_like_samples(run, tmp_path, fleet):
    np.save(tmp_path / "rows.npy", np.full((2, 6, 6, 3), 255, np.uint8))
    status, result, _ = fleet("predict", run.root, tmp_path / "rows.npy", "--json")
    assert status == 0
    assert [line["image"] for line in result["images"]] == [
        f"{tmp_path}/rows.npy[{row}]" for row in (0, 1)
    ]


def test_predict_names_labels_and_values(tmp_path, images, fleet, monkeypatch):
    monkeypatch.setattr(
        predictor, "load_ensemble", lambda spec, files, weights, kind: StandIn(files, weights, kind)
    )
    labels = made_run(tmp_path, TargetSpec("multilabel", 2, ("red", "round")))
    _, result, _ = fleet("predict", labels.root, images / "white.png", "--json")
    assert result["images"][0]["labels"] == ["round"]
    assert result["images"][0]["probabilities"]["red"] == 0.5
    values = made_run(tmp_path, TargetSpec("value", 2))
    _, result, _ = fleet("predict", values.root, images / "white.png", "--json")
    assert result["images"][0]["values"] == {"0": 0.0, "1": 1.0}


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["{run}"], "give images, tables or arrays, or a file to --save"),
        (["{run}", "{images}", "--top", "4"], "--top 4: only 3 networks can be combined"),
        (["{run}", "{images}", "--top", "0"], "--top"),
        (["{run}", "{images}", "--top", "2", "--select", "greedy"], "not allowed with"),
        (["{run}", "{images}", "--select", "best"], "invalid choice"),
        (["{run}", "nowhere.png"], "nowhere.png: file or folder not found"),
        (["{run}", "{run}/models"], "no images in this folder"),
        (["{run}", "{run}/spec.yaml"], "spec.yaml"),
        (["{run}", "{images}", "--save", "one.h5"], "the name of the file should end in .keras"),
        (["{images}", "{images}"], "is not the folder of a run"),
    ],
)
def test_invalid_input_is_one_line_and_status_2(run, images, fleet, words, wrong):
    status, out, error = fleet(
        "predict", *(word.format(run=run.root, images=images) for word in words)
    )
    assert (status, out) == (2, None)
    assert wrong in error
    assert error.count("\n") == 1


def test_predict_names_missing_files_of_a_run(run, images, fleet):
    run.exported("a", ".keras").unlink()
    assert "a was not exported" in fleet("predict", run.root, images)[2]
    for name in "abc":
        run.predictions(name, "validation").unlink()
    status, _, error = fleet("predict", run.root, images, "--select", "greedy")
    assert (status, "no network has saved predictions" in error) == (2, True)
    run.sample.unlink()
    status, _, error = fleet("predict", run.root, images)
    assert (status, "has no sample.json" in error) == (2, True)


def test_predict_refuses_masks_and_engines_without_exports(tmp_path, images, fleet, monkeypatch):
    numpy = made_run(tmp_path / "numpy", engine="numpy")
    status, _, error = fleet("predict", numpy.root, images)
    assert (status, "exports of the engine numpy cannot be loaded" in error) == (2, True)
    monkeypatch.setattr(
        predictor, "load_ensemble", lambda spec, files, weights, kind: StandIn(files, weights, kind)
    )
    masks = made_run(tmp_path, TargetSpec("mask", 2, size=(4, 4)))
    status, _, error = fleet("predict", masks.root, images)
    assert (status, "masks cannot be printed" in error) == (2, True)


def test_predict_decodes_images_for_runs_on_image_arrays(tmp_path, images, monkeypatch):
    monkeypatch.setattr(
        predictor, "load_ensemble", lambda spec, files, weights, kind: StandIn(files, weights, kind)
    )
    arrays = {"source": "npz", "path": "gone.npz", "transforms": [{"resize": {"size": [4, 4]}}]}
    run = made_run(tmp_path, data=arrays)
    assert Predictor(run.root).predict_files([images])[1].shape == (2, 2)
    write_sample(run, SampleSpec(ArraySpec((12,), "float32"), 2), {"": ()})
    with refused(UserError, "12 float32", "images"):
        Predictor(run.root).predict_files([images])
    with refused(UserError, "(3, 5)", "(n, 12)"):
        Predictor(run.root).predict(np.zeros((3, 5)))
    assert Predictor(run.root).names == ("0", "1")
    assert read_sample(run).input.shape == (12,)


# ---- fleet export --onnx -----------------------------------------------------------------------


def test_export_writes_onnx_next_to_the_export_or_to_a_file(run, tmp_path, fleet, monkeypatch):
    monkeypatch.setattr(
        "fleet.commands.export.write_onnx", lambda engine, file, path: path.write_text(file.name)
    )
    for words, path in (
        ([], run.exported("b", ".onnx")),
        ([tmp_path / "b.onnx"], tmp_path / "b.onnx"),
    ):
        assert fleet("export", run.root, "b", "--onnx", *words)[:2] == (0, f"{path}\n")
        assert path.read_text() == "best.keras"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["z", "--onnx"], "z was not exported; exported networks: a, b, c"),
        (["--onnx"], "--onnx and NAME, the name of a network, go together"),
        (["a", "--csv"], "--onnx and NAME, the name of a network, go together"),
    ],
)
def test_export_onnx_refuses_unknown_networks(run, fleet, words, wrong):
    status, _, err = fleet("export", run.root, *words)
    assert (status, wrong in err) == (2, True)


def test_export_onnx_refuses_engines_without_onnx(tmp_path, fleet):
    paths = made_run(tmp_path, engine="numpy")
    status, _, err = fleet("export", paths.root, "a", "--onnx")
    assert (status, "the numpy engine cannot write ONNX" in err) == (2, True)


PRINTING = """
import atexit, json, os, sys
atexit.register(print, "goodbye")
from fleet.commands import predict
from fleet.__main__ import main
from preprocess.target import class_target

class Loud:
    weights, names, folds = {"a": 1.0}, ("cat", "dog"), {}
    target_column = None
    class sample:
        target = class_target(("cat", "dog"))
    def __init__(self, *_):
        print("hello")
        os.system("echo from a child")
    def is_table(self, file):
        return file.endswith(".csv")
    def predict_files(self, files):
        import numpy
        sys.__stdout__.write("from Python\\n")
        return list(files), numpy.full((1, 2), 0.5)

predict.Predictor = Loud
main(sys.argv[1:])
"""


@pytest.mark.long_but_first
@pytest.mark.parametrize("options", [["x.png", "--json"], ["x.csv", "--json"], ["x.csv"]])
def test_predict_prints_results_alone(tmp_path, options):
    printed = subprocess.run(
        [sys.executable, "-c", PRINTING, "predict", "run", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "hello" in printed.stderr
    assert "goodbye" in printed.stderr
    if "--json" in options:
        assert json.loads(printed.stdout)["names"] == ["cat", "dog"]
    else:
        assert printed.stdout.splitlines() == ["row,class,cat,dog", "0,cat,0.5,0.5"]
