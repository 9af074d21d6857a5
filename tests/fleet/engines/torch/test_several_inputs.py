"""Modules of several inputs, which they take by keyword."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches
from fleet.errors import ModelError
from fleet.spec import parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import class_target
from tests.fleet.engines.torch.test_export import without_onnxscript
from tests.refusals import refused

pytestmark = pytest.mark.torch

PARTS = {
    "image": SampleSpec(ArraySpec((4, 4, 1), "uint8"), 3, Affine(0.5, 0.5)),
    "facts": SampleSpec(ArraySpec((5,), "float32"), 3, Affine((1.0,) * 5, (2.0,) * 5, 1.0)),
    "tokens": SampleSpec(ArraySpec((3,), "int64"), 3),
}
SAMPLE = SampleSpec.of_parts(PARTS, class_target(3))
RATE = 0.05


def built(model="three_inputs"):
    spec = parse(
        {
            "models": [{"build": f"tests.torch_modules:{model}"}],
            "resources": {"engine": "torch"},
            "train": {"optimizer": {"name": "sgd", "learning_rate": RATE}},
        }
    )
    engine = make_engine(spec, SAMPLE, None, 0, 1)
    return engine.build(replace(spec.networks[0], seed=0), SingleRankGroup())


def rows_of(seed, count=12):
    random = np.random.default_rng(seed)
    return SAMPLE.input.random_inputs(random, count), random.integers(0, 3, count)


def tensors_of(inputs):
    import torch

    scaled = SAMPLE.scale(inputs)
    image = torch.from_numpy(np.moveaxis(scaled["image"], -1, 1).copy())
    return {
        "image": image,
        "facts": torch.from_numpy(scaled["facts"]),
        "tokens": torch.from_numpy(scaled["tokens"].copy()),
    }


def test_network_of_several_inputs_equals_a_plain_loop():
    import torch

    trainable, plain = built(), built().module
    optimizer = torch.optim.SGD(plain.parameters(), RATE)
    for seed in range(10):
        inputs, labels = rows_of(seed)
        totals = trainable.begin_steps(StepBatches((inputs, labels), [12], [12]))().sums[0]
        loss = torch.nn.functional.cross_entropy(
            plain(**tensors_of(inputs)), torch.from_numpy(labels)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert totals.loss / 12 == pytest.approx(float(loss.detach()), abs=1e-6)
    for weight, expected in zip(trainable.module.parameters(), plain.parameters(), strict=True):
        assert weight.detach().numpy() == pytest.approx(expected.detach().numpy(), abs=1e-6)


def test_network_of_several_inputs_is_exported(tmp_path):
    import torch

    from fleet.engines.torch.ensemble_model import EnsembleModule
    from fleet.engines.torch.export import load

    trainable = built()
    assert "tests.torch_modules" in trainable.try_export(tmp_path)
    _, note = load(tmp_path / "best.safetensors")
    assert {name: part["called_with"] for name, part in note["inputs"].items()} == {
        "image": "float32",
        "facts": "float32",
        "tokens": "int64",
    }
    inputs, labels = rows_of(0)
    _, outputs = trainable.predict(inputs, labels)
    joined = EnsembleModule([tmp_path / "best.safetensors"], [1.0], "class").predict(inputs)
    expected = torch.from_numpy(outputs).softmax(-1).numpy()
    assert joined == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("exporter", ["newer", "tracing"])
def test_onnx_of_several_inputs_takes_them_by_name(tmp_path, monkeypatch, exporter):
    pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx.reference import ReferenceEvaluator

    from fleet.engines.torch.export import to_onnx

    if exporter == "tracing":
        without_onnxscript(monkeypatch)
    else:
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    trainable = built()
    trainable.export(trainable.state(), tmp_path / "best.safetensors")
    to_onnx(tmp_path / "best.safetensors", tmp_path / "best.onnx")
    inputs, labels = rows_of(1, count=5)
    _, outputs = trainable.predict(inputs, labels)
    by_name = {name: np.ascontiguousarray(inputs[name]) for name in inputs.dtype.names}
    [result] = ReferenceEvaluator(str(tmp_path / "best.onnx")).run(None, by_name)
    assert result == pytest.approx(outputs, abs=1e-4)


def test_network_of_several_inputs_tells_rows_and_parameters():
    trainable = built()
    assert trainable.row_bytes() > 0
    trainable.check_learns(*rows_of(0))


def test_build_names_the_inputs_that_a_module_lacks():
    with refused(ModelError, "image 2x1x4x4, facts 2x5, tokens 2x3", "by keyword"):
        built("one_of_three_inputs")
