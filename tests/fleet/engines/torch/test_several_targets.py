"""Networks of several targets with PyTorch: equal to plain loops, and to by_target target alone."""

import copy
import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import load_ensemble, make_engine, write_onnx
from fleet.engines.steps import StepBatches
from fleet.errors import ModelError, SettingError
from fleet.spec import parse
from preprocess.record_target import RecordTarget
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.places import ROOT

pytestmark = pytest.mark.torch

EPOCHS, BATCHES, ROWS = 10, 4, 16
EXAMPLE = {"digit": TargetSpec("class", 10), "ink": TargetSpec("value", 1)}
MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs, form):
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, n) for name, n in outputs.items()})
        self.form = form

    def forward(self, rows):
        found = {name: head(rows) for name, head in self.heads.items()}
        if self.form == "mapping":
            return dict(reversed(found.items()))
        if self.form == "probabilities":
            return {**found, "kind": found["kind"].softmax(1)}
        if self.form == "lacking":
            return {"kind": found["kind"]}
        if self.form == "wide":
            return {**found, "kind": found["price"]}
        return found["kind"] if self.form == "tensor" else tuple(found.values())

def network(input_shape, outputs, form="tuple"):
    return Net(outputs, form)

def step(model, batch, training):
    price, kind = model(batch["input"])
    return {
        "loss": (price - batch["price"]).square().mean(1) * batch["weight"],
        "hits": kind.argmax(1) == batch["kind"],
    }
"""
TARGETS = {"price": TargetSpec("value", 2), "kind": TargetSpec("class", 3)}


@pytest.fixture
def network_of(tmp_path, monkeypatch):
    """Return a function that builds a network of the module above."""
    (tmp_path / "two_targets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def build(args=None, targets=TARGETS, weighted=False, **train):
        sample = SampleSpec(
            ArraySpec((4,), "float32"), 5, target=RecordTarget.of(targets, weighted)
        )
        content = {
            "models": [{"build": "two_targets:network", "args": args or {}}],
            "resources": {"engine": "torch"},
            "train": {"stopping": {"monitor": "val_loss"}, **train},
        }
        spec = parse(content)
        [network] = spec.networks
        built = make_engine(spec, sample, None, 0, 1).build(network, SingleRankGroup())
        return built, sample, spec

    yield build
    sys.modules.pop("two_targets", None)


def rows_of(sample, count=8, seed=0):
    """Return random inputs, targets and weights."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 4)).astype(np.float32)
    return (inputs, *sample.target.split(sample.target.random_targets(random, count)))


def epochs(targets, inputs):
    """Yield the rows of all steps of ten epochs."""
    random = np.random.default_rng(1)
    for _ in range(EPOCHS):
        for rows in random.permutation(len(targets)).reshape(BATCHES, ROWS):
            yield inputs[rows], targets[rows]


def test_example_equals_a_plain_loop(monkeypatch):
    import torch
    from torch.nn.functional import cross_entropy, huber_loss

    monkeypatch.syspath_prepend(str(ROOT / "examples" / "steps"))
    target = RecordTarget.of(EXAMPLE)
    sample = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 11, Affine(0.0, 1.0), target=target)
    content = {
        "models": [{"build": "two_outputs:network", "args": {"width": 8}}],
        "resources": {"engine": "torch"},
        "train": {
            "loss": {"digit": "categorical_crossentropy", "ink": "huber"},
            "loss_weights": {"ink": 10},
            "optimizer": {"name": "adam", "learning_rate": 0.002},
        },
    }
    [network] = parse(content).networks
    engine = make_engine(parse(content), sample, None, 0, 1)
    trainable = engine.build(replace(network, seed=5), SingleRankGroup())
    module = copy.deepcopy(trainable.module)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (BATCHES * ROWS, 8, 8, 1)).astype(np.uint8)
    targets = target.random_targets(random, len(images))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.002)
    for inputs, rows in epochs(targets, images):
        trainable.begin_steps(
            StepBatches((inputs, rows["target"], rows["weight"]), [ROWS], [ROWS])
        )()
        outputs = module(torch.from_numpy(inputs).permute(0, 3, 1, 2) / 255)
        digit, ink = (torch.from_numpy(rows["target"][name].copy()) for name in EXAMPLE)
        loss = cross_entropy(outputs["digit"], digit) + 10 * huber_loss(outputs["ink"], ink)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    importlib.invalidate_caches()

    for trained, plain in zip(trainable.module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(trained, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["tuple", "mapping"])
def test_loss_is_the_weighted_sum_and_columns_are_by_target(network_of, form):
    built, sample, _ = network_of(
        {"form": form},
        metrics={"price": ["mae"], "kind": ["categorical_crossentropy"]},
        loss={"price": "mae", "kind": "categorical_crossentropy"},
        loss_weights={"kind": 0.25},
    )
    inputs, targets, weights = rows_of(sample)
    totals, outputs = built.predict(inputs, targets, weights)
    scores = built.scores(totals.metric_totals)
    assert list(scores) == [
        "price_loss",
        "price_mae",
        "kind_loss",
        "kind_accuracy",
        "kind_categorical_crossentropy",
    ]
    assert scores["price_mae"] == pytest.approx(abs(outputs[:, :2] - targets["price"]).mean())
    assert scores["price_loss"] == pytest.approx(scores["price_mae"])
    assert scores["kind_loss"] == pytest.approx(scores["kind_categorical_crossentropy"], rel=1e-5)
    hits = outputs[:, 2:].argmax(1) == targets["kind"]
    assert scores["kind_accuracy"] == pytest.approx(hits.mean())
    loss = scores["price_loss"] + 0.25 * scores["kind_loss"]
    assert totals.loss / totals.count == pytest.approx(loss, rel=1e-5)


def test_unreadable_rows_and_weights_count_in_all_targets(network_of):
    built, sample, _ = network_of(weighted=True)
    inputs, targets, weights = rows_of(sample)
    masked = weights.copy()
    masked[3] = -1
    targets["price"][3] = np.nan
    all_but_one = np.arange(8) != 3
    totals = built.predict(inputs, targets, masked)[0]
    expected = built.predict(inputs[all_but_one], targets[all_but_one], weights[all_but_one])[0]
    assert built.scores(totals.metric_totals) == built.scores(expected.metric_totals)
    doubled = built.predict(inputs[all_but_one], targets[all_but_one], 2 * weights[all_but_one])[0]
    assert doubled.loss == pytest.approx(2 * expected.loss)


def test_class_weights_and_label_smoothing_apply_to_their_target(network_of):
    import torch
    from torch.nn.functional import cross_entropy

    built, sample, _ = network_of(
        class_weights={"kind": {"0": 3.0, "1": 1.0, "2": 0.5}}, label_smoothing={"kind": 0.1}
    )
    inputs, targets, weights = rows_of(sample)
    module = copy.deepcopy(built.module)
    totals = built.begin_steps(StepBatches((inputs, targets, weights), [8], [8]))().sums[0]
    price, kind = module(torch.from_numpy(inputs))
    labels = torch.from_numpy(targets["kind"].copy())
    by_class = torch.tensor([3.0, 1.0, 0.5])[labels]
    loss = (price - torch.from_numpy(targets["price"].copy())).square().mean(1)
    loss = loss + by_class * cross_entropy(kind, labels, reduction="none", label_smoothing=0.1)
    assert totals.loss == pytest.approx(float(loss.sum().detach()), rel=1e-5)


def test_mask_among_targets_equals_the_mask_alone():
    import torch

    from fleet.engines.torch.losses import make_losses

    mask = TargetSpec("mask", 3, size=(2, 3))
    target = RecordTarget.of({"area": mask, "kind": TargetSpec("class", 2)})
    random = np.random.default_rng(0)
    outputs = torch.from_numpy(random.normal(size=(4, 20)).astype(np.float32))
    area = torch.from_numpy(random.integers(0, 3, (4, 2, 3)).astype(np.uint8))
    area[1, 0] = mask.void
    kind = torch.from_numpy(random.integers(0, 2, 4))
    train = parse({"models": [{"family": "softmax"}]}).networks[0].train
    losses = make_losses(train, target, torch.device("cpu"))
    by_target = losses.evaluation.by_target(outputs, {"area": area, "kind": kind})
    alone = make_losses(train, mask, torch.device("cpu")).evaluation
    expected = alone(outputs[:, :18].reshape(4, 2, 3, 3), area)
    torch.testing.assert_close(by_target["area"], expected)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("probabilities", "for the target kind, returns probabilities"),
        ("lacking", "nothing for the target price"),
        ("wide", "for the target kind, returns outputs of shape"),
        ("tensor", "as a tuple in this order, or as a mapping by name: price, kind"),
    ],
)
def test_wrong_outputs_are_refused(network_of, form, message):
    with pytest.raises(ModelError, match=message):
        network_of({"form": form})


def test_unusable_loss_names_its_target(network_of, tmp_path):
    (tmp_path / "my_losses.py").write_text("def zero(y_true, y_pred): return y_true[:, 0] * 0")
    built, sample, _ = network_of(loss={"price": "my_losses:zero", "kind": "hinge"})
    inputs, targets, _ = rows_of(sample)
    with pytest.raises(SettingError, match="target price: .* does not depend on the outputs"):
        built.check_learns(inputs, targets)


def test_step_of_the_user_gets_each_target(network_of):
    built, sample, _ = network_of(step="two_targets:step")
    inputs, targets, weights = rows_of(sample)
    totals = built.user_steps.evaluate((inputs, targets, weights), np.arange(8))
    outputs = built.predict(inputs, targets, weights)[1]
    hits = outputs[:, 2:].argmax(1) == targets["kind"]
    assert built.scores(totals.metric_totals)["hits"] == pytest.approx(hits.mean())
    assert built.user_steps.has_predictions


def test_export_and_ensembles_predict_each_target(network_of, tmp_path):
    built, sample, spec = network_of()
    path = tmp_path / "best.safetensors"
    built.export(built.state(), path)
    inputs, targets, weights = rows_of(sample)
    outputs = built.predict(inputs, targets, weights)[1]
    ensemble = load_ensemble(spec, [path, path], [0.5, 0.5], sample.target)
    expected = sample.target.semantics.predictions(outputs)
    np.testing.assert_allclose(ensemble.predict(inputs), expected, atol=1e-6)
    assert not built.try_export(tmp_path).startswith("error")


def test_onnx_has_an_output_for_each_target(network_of, tmp_path):
    onnx = pytest.importorskip("onnx")
    built, _, spec = network_of()
    path = tmp_path / "best.safetensors"
    built.export(built.state(), path)
    write_onnx(spec.engine, path, tmp_path / "best.onnx")
    outputs = onnx.load(tmp_path / "best.onnx").graph.output
    assert [output.name for output in outputs] == ["price", "kind"]
