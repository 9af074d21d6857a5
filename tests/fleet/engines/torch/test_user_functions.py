"""Losses, outputs and weights of user functions: order, choice, and what an export keeps."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import collect_warnings
from fleet.engines.registry import load_ensemble, make_engine
from fleet.errors import ModelError, SpecError
from fleet.spec import parse
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.fleet.engines.async_steps import take_step
from tests.refusals import refused

pytestmark = pytest.mark.torch

OWN = """
import torch
from collections import namedtuple
from torch import nn
from torch.nn import functional as F

def cross(a, b):                        # only (outputs, targets) works
    return F.cross_entropy(a, b, reduction="none")

def cross_of_targets(a, b):             # only (targets, outputs) works
    return F.cross_entropy(b, a, reduction="none")

def above(a, b):                        # both orders work, with other values
    return torch.where(a > b, 3 * (a - b), b - a).mean(-1)

def named(input, target):
    return above(input, target)

def targets_first(y_true, y_pred):
    return above(y_pred, y_true)

def higher(a, b):
    return (a > b + 0.2).float().mean(-1)

def output_is_higher(output, target):
    return higher(output, target)

Pair = namedtuple("Pair", "features logits")

class Several(nn.Module):
    def __init__(self, classes, kind):
        super().__init__()
        self.head = nn.Linear(4, classes)
        self.kind = kind

    def forward(self, rows):
        logits = self.head(rows)
        if self.kind == "mapping":
            return {"features": rows, "logits": logits}
        if self.kind == "named":
            return Pair(rows, logits)
        if self.kind == "training" and not self.training:
            return logits
        return rows, logits

def several(input_shape, classes, kind="mapping"):
    return Several(classes, kind)

class Picky(nn.Module):
    "Tokens of 40 to 49 only."
    def __init__(self, classes):
        super().__init__()
        self.table = nn.Embedding(10, 3)
        self.head = nn.Linear(15, classes)
    def forward(self, tokens):
        return self.head(self.table(tokens - 40).flatten(1))

def picky(input_shape, classes):
    return Picky(classes)

def loading(input_shape, classes, file="backbone.pt"):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, classes))
    net[0].load_state_dict(torch.load(file))
    return net
"""
ROWS = SampleSpec(ArraySpec((4,), "float32"), 3)
VALUES = SampleSpec(ArraySpec((4,), "float32"), 2, target=TargetSpec("value", 2))
LINEAR = {"family": "softmax"}


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_functions.py").write_text(OWN)
    yield
    sys.modules.pop("own_functions", None)


def spec_of(model, defaults="0.3", **train):
    return parse(
        {
            "models": [{**model, "name": "a"}],
            "resources": {"engine": "torch"},
            "train": train,
            "defaults": defaults,
        }
    )


def built(model, sample, **settings):
    spec = spec_of(model, **settings)
    network = replace(spec.networks[0], seed=0)
    return make_engine(spec, sample, None, 0, 1).build(network, SingleRankGroup())


def rows_of(sample, rows=6):
    random = np.random.default_rng(0)
    inputs = sample.input.random_inputs(random, rows)
    return inputs, *sample.target.split(sample.target.random_targets(random, rows))


def loss_of(sample, loss, **settings):
    """Return the mean loss of a linear network, and the warnings of ``fleet check``."""
    path = f"own_functions:{loss}" if loss else None
    network = built(LINEAR, sample, loss=path, **settings)
    rows = rows_of(sample)
    with collect_warnings() as warnings:
        network.check_learns(*rows[:2])
    totals = network.evaluate(*rows)
    return totals.loss / totals.count, warnings


# ---- the order of arguments ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "order"),
    [("cross", "(outputs, targets)"), ("cross_of_targets", "(targets, outputs)")],
)
def test_loss_without_names_takes_the_order_that_works(loss, order):
    value, warnings = loss_of(ROWS, loss)
    assert value == pytest.approx(loss_of(ROWS, None)[0], rel=1e-6)
    assert any(order in warning and "fails" in warning for warning in warnings)


def test_loss_without_names_takes_outputs_first_as_in_pytorch():
    value, warnings = loss_of(VALUES, "above")
    assert value == loss_of(VALUES, "named")[0] == loss_of(VALUES, "targets_first")[0]
    assert (
        "is called with (outputs, targets), as its parameter names are ambiguous, and both"
        in (warnings[0])
    )


def test_run_of_0_2_keeps_the_order_of_its_loss():
    value, warnings = loss_of(VALUES, "above", defaults="0.2")
    assert value != loss_of(VALUES, "named")[0]
    assert "(targets, outputs)" in warnings[0]


def test_metric_without_names_takes_outputs_first():
    network = built(
        LINEAR, VALUES, metrics=["own_functions:higher", "own_functions:output_is_higher"]
    )
    scores = network.scores(network.evaluate(*rows_of(VALUES)).metric_totals)
    assert scores["higher"] == scores["output_is_higher"] < 0.5


# ---- one of several outputs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "output"),
    [("mapping", "logits"), ("named", "logits"), ("named", 1), ("tuple", 1), ("training", 1)],
)
def test_output_of_a_module_is_trained_and_exported(tmp_path, kind, output):
    model = {"build": "own_functions:several", "args": {"kind": kind}, "output": output}
    network = built(model, ROWS)
    rows = rows_of(ROWS)
    assert take_step(network, *rows, 6).count == 6
    (tmp_path / "export").mkdir()
    network.try_export(tmp_path / "export")
    note = json.loads((tmp_path / "export/best.json").read_text())
    assert note["output"] == output
    file = tmp_path / "export/best.safetensors"
    predicted = load_ensemble(spec_of(model), [file], [1.0], "class").predict(rows[0])
    assert predicted.shape == (6, 3)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mapping", r"returns a mapping of outputs, features, logits; .* output: features"),
        ("named", "returns a Pair of outputs, features, logits"),
        ("tuple", r"returns a tuple of outputs, 0, 1; .* such as output: 0, or use train\.step"),
    ],
)
def test_several_outputs_without_a_choice_are_refused(kind, message):
    with pytest.raises(ModelError, match=message):
        built({"build": "own_functions:several", "args": {"kind": kind}}, ROWS)


def test_outputs_of_training_only_are_refused():
    network = built({"build": "own_functions:several", "args": {"kind": "training"}}, ROWS)
    with pytest.raises(ModelError, match="returns a tuple of outputs"):
        take_step(network, *rows_of(ROWS), 6)


@pytest.mark.parametrize("output", ["logit", 2])
def test_missing_output_lists_the_others(output):
    with pytest.raises(ModelError, match=f"no output {output!r}; .* features, logits"):
        built({"build": "own_functions:several", "output": output}, ROWS)


def test_output_goes_with_a_function():
    with refused(SpecError, "`output:` goes with `build:`"):
        parse({"models": [{"family": "softmax", "output": "logits"}]})


def test_networks_of_two_outputs_differ():
    first, second = (
        spec_of({"build": "own_functions:several", **output}).networks[0].architecture
        for output in ({}, {"output": "logits"})
    )
    assert first != second
    assert "output" not in json.loads(first.key)


# ---- tokens --------------------------------------------------------------------------------------


def test_tokens_are_probed_with_values_of_the_data():
    tokens = np.random.default_rng(0).integers(40, 50, (8, 5))
    sample = SampleSpec(ArraySpec.of(tokens[0]), 3)
    network = built({"build": "own_functions:picky"}, sample)
    assert take_step(network, tokens, np.arange(8) % 3, 8).count == 8


# ---- weights that a function loads ---------------------------------------------------------------


def test_export_keeps_the_weights_that_a_function_loads(tmp_path):
    import torch

    torch.save(torch.nn.Linear(4, 4).state_dict(), tmp_path / "backbone.pt")
    model = {"build": "own_functions:loading"}
    network = built(model, ROWS)
    folder = tmp_path / "export"
    folder.mkdir()
    network.export(network.state(), folder / ".1.tmp.fresh.safetensors")  # as runs do first
    for suffix in (".safetensors", ".json"):
        (folder / f".1.tmp.fresh{suffix}").rename(folder / f"best{suffix}")
    expected = network.predict(*rows_of(ROWS))[1]
    (tmp_path / "backbone.pt").unlink()
    moved = shutil.move(folder, tmp_path / "moved")
    loaded = load_ensemble(spec_of(model), [tmp_path / "moved/best.safetensors"], [1.0], "class")
    predicted = loaded.predict(rows_of(ROWS)[0])
    shares = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
    assert predicted == pytest.approx(shares, abs=1e-6)
    assert len(list((tmp_path / moved / "files").iterdir())) == 1


def test_loading_is_plain_again_after_a_build(tmp_path):
    import torch

    plain = torch.load
    torch.save(torch.nn.Linear(4, 4).state_dict(), tmp_path / "backbone.pt")
    built({"build": "own_functions:loading"}, ROWS)
    assert torch.load is plain
