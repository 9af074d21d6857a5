"""Modules are exported as safetensors, notes, ensembles and ONNX, and start from safetensors."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import load_ensemble, make_engine, write_onnx
from fleet.errors import ModelError, SettingError, UserError
from fleet.spec import parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from preprocess.target_kinds import KINDS
from tests.fleet.engines.async_steps import take_step
from tests.refusals import refused

pytestmark = pytest.mark.torch

CNN = {"family": "cnn", "args": {"filters": [4], "dense": [6]}}
NET = {"build": "starting_modules:net", "args": {"width": 4}}
SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))
MODULES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten()
        )
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(self.drop(self.body(images)))

def net(input_shape, classes, width=4):
    return Net(classes, width)

def tied(input_shape, outputs):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.head = nn.Linear(4, outputs)

        def forward(self, rows):
            return self.head(self.second(self.first(rows)))
    return Tied()

def forgetful(input_shape, classes):
    net = Net(classes, 4)
    net.drop = Added()
    return net

class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.number = torch.rand(()) + torch.tensor(float(id(self) % 97))

    def forward(self, x):
        return x + self.number

def pixels(input_shape, classes):
    return nn.Conv2d(input_shape[2], classes, 1)
"""


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    (tmp_path / "starting_modules.py").write_text(MODULES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("starting_modules", None)


def spec_of(model, **train):
    return parse(
        {
            "models": [{**model, "name": "a"}],
            "resources": {"engine": "torch"},
            "output": "run",
            "data": {"source": "image_folder", "path": "x", "transforms": ["decode", "scale"]},
            "train": train,
        }
    )


def built(model, sample=SAMPLE, seed=0, **train):
    spec = spec_of(model, **train)
    return make_engine(spec, sample, None, 0, 1).build(
        replace(spec.networks[0], seed=seed), SingleRankGroup()
    )


def trained(network, steps=2):
    random = np.random.default_rng(0)
    for _ in range(steps):
        take_step(network, random.integers(0, 255, (6, 8, 8, 1), np.uint8), np.arange(6) % 3, 6)
    return network


def outputs_of(network, images):
    return network.predict(images, np.zeros(len(images), np.int64))[1]


@pytest.mark.parametrize("model", [CNN, NET])
@pytest.mark.parametrize("train", [{}, {"optimizer": {"use_ema": True, "ema_momentum": 0.5}}])
def test_export_writes_state_dict_and_note(tmp_path, model, train):
    from safetensors.numpy import load_file

    network, path = trained(built(model, **train)), tmp_path / "best.safetensors"
    network.export(network.state(), path)
    assert set(load_file(path)) == set(network.module.state_dict())
    note = json.loads((tmp_path / "best.json").read_text())
    assert note["classes"] == ["0", "1", "2"]
    assert (note["input"]["shape"], note["input"]["dtype"], note["transforms"]) == (
        [8, 8, 1],
        "uint8",
        ["decode", "scale"],
    )
    assert note.get("build", note.get("family")) == model.get("build", model.get("family"))
    assert (
        note["args"].items()
        >= {key: value for key, value in model["args"].items() if key == "width"}.items()
    )
    images = np.random.default_rng(1).integers(0, 255, (300, 8, 8, 1), np.uint8)
    logits = outputs_of(network, images)
    ensemble = load_ensemble(spec_of(model), [path, path], [0.25, 0.75], "class")
    assert ensemble.predict(images) == pytest.approx(KINDS["class"].predictions(logits), abs=1e-6)
    ensemble.save(tmp_path / "mean.safetensors")
    assert {name.partition(".")[0] for name in load_file(tmp_path / "mean.safetensors")} == {
        "0",
        "1",
    }
    assert [
        entry["weight"] for entry in json.loads((tmp_path / "mean.json").read_text())["mean_of"]
    ] == [0.25, 0.75]


def test_export_writes_transposed_buffers(tmp_path):
    from safetensors.numpy import load_file

    network = built({"build": "tests.torch_modules:transposed"})
    path = tmp_path / "best.safetensors"
    network.export(network.state(), path)
    assert np.array_equal(load_file(path)["transposed"], network.module.transposed.numpy())


def test_load_ensemble_predicts_masks_and_values(tmp_path):
    mask = SampleSpec(
        ArraySpec((4, 6, 3), "uint8"), 3, None, target=TargetSpec("mask", 3, size=(4, 6))
    )
    network = built({"build": "starting_modules:pixels"}, mask)
    network.export(network.state(), tmp_path / "best.safetensors")
    ensemble = load_ensemble(spec_of(CNN), [tmp_path / "best.safetensors"], [1.0], "mask")
    result = ensemble.predict(np.ones((2, 4, 6, 3), np.uint8))
    assert (result.shape, result.sum(-1)) == (
        (2, 4, 6, 3),
        pytest.approx(np.ones((2, 4, 6)), abs=1e-5),
    )
    rows = SampleSpec(ArraySpec((4,), "float32"), 2, target=TargetSpec("value", 2))
    network = built({"build": "starting_modules:tied"}, rows)
    network.export(network.state(), tmp_path / "best.safetensors")
    ensemble = load_ensemble(spec_of(CNN), [tmp_path / "best.safetensors"], [1.0], "value")
    inputs = np.ones((2, 4), np.float32)
    assert ensemble.predict(inputs) == pytest.approx(
        network.predict(inputs, np.zeros((2, 2), np.float32))[1]
    )


def test_load_ensemble_names_missing_or_changed_code(tmp_path, monkeypatch):
    network = built(NET)
    network.export(network.state(), tmp_path / "best.safetensors")
    (tmp_path / "starting_modules.py").rename(tmp_path / "elsewhere.py")
    sys.modules.pop("starting_modules")
    with refused(UserError, "needs the code of starting_modules:net", str(tmp_path)):
        load_ensemble(spec_of(CNN), [tmp_path / "best.safetensors"], [1.0], "class")
    (tmp_path / "starting_modules.py").write_text(
        MODULES.replace("nn.Linear(width, classes)", "nn.Linear(width, 9)")
    )
    with refused(UserError, "best.safetensors", "outputs of shape (None, 9)"):
        load_ensemble(spec_of(CNN), [tmp_path / "best.safetensors"], [1.0], "class")
    sys.modules.pop("starting_modules")
    (tmp_path / "starting_modules.py").write_text(MODULES.replace("self.body", "self.trunk"))
    with refused(UserError, "best.safetensors", "starting_modules:net", "its code has changed"):
        load_ensemble(spec_of(CNN), [tmp_path / "best.safetensors"], [1.0], "class")
    (tmp_path / "best.json").unlink()
    with refused(UserError, "best.safetensors cannot be loaded"):
        load_ensemble(spec_of(CNN), [tmp_path / "best.safetensors"], [1.0], "class")


def test_try_export_names_code_and_refuses_unsaved_tensors(tmp_path):
    assert (
        built(NET).try_export(tmp_path)
        == "loading best.safetensors requires the module starting_modules"
    )
    colours = SampleSpec(ArraySpec((8, 8, 3), "uint8"), 3)
    assert built({"build": "tests.torch_modules:viewing"}, colours).try_export(tmp_path)
    with refused(ModelError, "neither a parameter nor a buffer", "register_buffer"):
        built({"build": "starting_modules:forgetful"}).try_export(tmp_path)


def test_write_onnx_takes_samples_as_the_stream_has_them(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx.reference import ReferenceEvaluator

    network = trained(built(NET))
    network.export(network.state(), tmp_path / "best.safetensors")
    write_onnx(spec_of(NET).engine, tmp_path / "best.safetensors", tmp_path / "best.onnx")
    onnx.checker.check_model(str(tmp_path / "best.onnx"))
    images = np.random.default_rng(1).integers(0, 255, (5, 8, 8, 1), np.uint8)
    [result] = ReferenceEvaluator(str(tmp_path / "best.onnx")).run(None, {"samples": images})
    assert result == pytest.approx(outputs_of(network, images), abs=1e-4)


@pytest.mark.parametrize("exporter", ["newer", "tracing"])
@pytest.mark.parametrize("name", ["viewing", "adding_zeros"])
def test_write_onnx_allows_len_in_modules(tmp_path, monkeypatch, name, exporter):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from onnx.reference import ReferenceEvaluator

    if exporter == "tracing":
        without_onnxscript(monkeypatch)
    model = {"build": f"tests.torch_modules:{name}"}
    network = built(model)
    network.export(network.state(), tmp_path / "best.safetensors")
    write_onnx(spec_of(model).engine, tmp_path / "best.safetensors", tmp_path / "best.onnx")
    images = np.random.default_rng(1).integers(0, 255, (5, 8, 8, 1), np.uint8)
    [result] = ReferenceEvaluator(str(tmp_path / "best.onnx")).run(None, {"samples": images})
    assert result == pytest.approx(outputs_of(network, images), abs=1e-4)


@pytest.mark.parametrize("exporter", ["newer", "tracing"])
def test_write_onnx_refuses_fixed_number_of_rows(tmp_path, monkeypatch, exporter):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    if exporter == "tracing":
        without_onnxscript(monkeypatch)
    model = {"build": "tests.torch_modules:row_by_row"}
    network = built(model)
    network.export(network.state(), tmp_path / "best.safetensors")
    with refused(UserError, "best.safetensors", "use x.shape[0]"):
        write_onnx(spec_of(model).engine, tmp_path / "best.safetensors", tmp_path / "best.onnx")
    assert not (tmp_path / "best.onnx").exists()


def without_onnxscript(monkeypatch):
    import torch

    plain = torch.onnx.export

    def export(*arguments, dynamo, **options):
        if dynamo:
            raise ImportError("no onnxscript")
        plain(*arguments, dynamo=False, **options)

    monkeypatch.setattr("torch.onnx.export", export)


# ---- pretrained weights ----


def test_load_pretrained_skips_the_head_and_freezes_the_body(tmp_path):
    first = trained(built(NET))
    first.export(first.state(), tmp_path / "best.safetensors")
    start = {"file": "best.safetensors", "skip": ["head.*"], "freeze": ["body.*"]}
    second = built(NET, SampleSpec(SAMPLE.input, 5, SAMPLE.affine), seed=1, start=start)
    second.load_pretrained(tmp_path / "best.safetensors", ["head.*"])
    started = second.state()
    assert all(
        np.array_equal(started[name], array)
        for name, array in first.state().items()
        if "model/body" in name
    )
    trained(second, 3)
    changed = {
        name for name, array in second.state().items() if not np.array_equal(array, started[name])
    }
    assert {name for name in changed if name.startswith("model/")} == {
        "model/head.weight",
        "model/head.bias",
    }


def test_load_pretrained_names_what_does_not_fit(tmp_path):
    first = built(NET)
    first.export(first.state(), tmp_path / "best.safetensors")
    wider = built({**NET, "args": {"width": 5}})
    with refused(
        SettingError,
        "best.safetensors",
        "body.0.weight has shape (4, 1, 3, 3) in the file and (5, 1, 3, 3) in the network",
        "body.0.bias has",
        "head.weight has",
    ) as caught:
        wider.load_pretrained(tmp_path / "best.safetensors", ())
    assert "num_batches" not in str(caught.value)
    with refused(SettingError, "the file has no ", "the network has no body.0.bias"):
        built(CNN).load_pretrained(tmp_path / "best.safetensors", ())
    with refused(SettingError, "'tail' matches no weight", "body.0.weight, "):
        built(NET).load_pretrained(tmp_path / "best.safetensors", ["tail"])
    with refused(SettingError, "the patterns freeze all weights"):
        built(NET, start={"file": "best.safetensors", "freeze": ["*"]})
    (tmp_path / "best.pt").write_bytes(b"pickled")
    with refused(SettingError, "best.pt is not a .safetensors file"):
        built(NET).load_pretrained(tmp_path / "best.pt", ())


def test_load_pretrained_allows_missing_second_names(tmp_path):
    from safetensors.torch import save_file

    rows = SampleSpec(ArraySpec((4,), "float32"), 2, target=TargetSpec("value", 2))
    first = built({"build": "starting_modules:tied"}, rows)
    state = {
        name: entry.clone()
        for name, entry in first.module.state_dict().items()
        if name != "second.weight"
    }
    save_file(state, tmp_path / "tied.safetensors")
    second = built({"build": "starting_modules:tied"}, rows, seed=1)
    second.load_pretrained(tmp_path / "tied.safetensors", ())
    assert all(np.array_equal(array, first.state()[name]) for name, array in second.state().items())


def test_export_predicts_in_float64(tmp_path):
    affine = Affine((1.7e9, 2.0), (100.0, 1.0), 1.0, precise=True)
    rows = np.array(affine.mean) + np.arange(10).reshape(5, 2)
    sample = SampleSpec(ArraySpec((2,), "float64"), 3, affine)
    spec = parse({"models": [{"family": "softmax"}], "resources": {"engine": "torch"}})
    trainable = make_engine(spec, sample, None, 0, 1).build(spec.networks[0], SingleRankGroup())
    outputs = trainable.predict(rows, np.zeros(5, np.int64))[1]
    trainable.export(trainable.state(), tmp_path / "best.safetensors")
    result = load_ensemble(spec, [tmp_path / "best.safetensors"], [1.0], "class").predict(rows)
    np.testing.assert_allclose(result, KINDS["class"].predictions(outputs), atol=1e-6)
    assert len(np.unique(result, axis=0)) == 5
