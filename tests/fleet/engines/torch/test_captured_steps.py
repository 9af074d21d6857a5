"""Steps by graphs of kernels, on CPUs by a stand-in, compared with steps by modules."""

import numpy as np
import pytest

from fleet.engines.steps import StepBatches
from tests.fleet.engines.torch.test_fused import (
    BATCH,
    CNN,
    DENSE,
    TRANSFORMER,
    batches,
    network,
    optimizers,
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def captures(monkeypatch):
    """Capture graphs by a stand-in; return the graphs of each test."""
    from fleet.engines.torch import devices
    from tests.fleet.engines.torch import operations

    replays = []

    def capture(function):
        replays.append(operations.capture(function))
        return replays[-1]

    monkeypatch.setattr(devices, "capture", capture)
    return replays


def built(model, train, is_captured):
    from fleet.engines.torch.captured_steps import Capture
    from fleet.engines.torch.recorded_steps import RecordedSteps

    _, trainable = network(model, 0, **train)
    steps = trainable.steps
    steps.recorded = RecordedSteps(steps, Capture, 2) if is_captured else None
    return trainable


def compare(model, train, steps):
    """Take the same steps with and without graphs; return the graphs."""
    captured, plain = (built(model, train, is_captured) for is_captured in (True, False))
    for step in steps:
        assert captured.begin_steps(step)().sums == plain.begin_steps(step)().sums
    expected = plain.state()
    for name, value in captured.state().items():
        assert value.tobytes() == expected[name].tobytes(), name
    return list(captured.steps.recorded.recordings.values())


@pytest.mark.parametrize("model", [DENSE, CNN, TRANSFORMER], ids=["dense", "cnn", "transformer"])
def test_captured_steps_equal_those_of_modules(model, captures):
    [train] = optimizers("sgd", count=1, momentum=0.9)
    graphs = compare(model, train, batches(10))
    assert None not in graphs
    assert len(captures) == len(graphs) == 2  # of whole batches, and of the last of an epoch


@pytest.mark.parametrize(
    "train",
    [
        *optimizers("adam", count=1, weight_decay=0.01, global_clipnorm=1.0),
        *optimizers("adamw", count=1, use_ema=True, ema_momentum=0.8),
        {"batch": {"accumulate": 2}},
        {"precision": "mixed_bfloat16"},
        {"precision": "mixed_float16"},
        {"metrics": ["AUC", "f1_score"], "label_smoothing": 0.1},
        {"class_weights": {"0": 1, "1": 2, "2": 3}},
    ],
)
def test_captured_steps_keep_all_settings(train):
    assert all(compare(DENSE, train, batches(3)))


def test_batches_with_unreadable_rows_are_taken_by_the_module():
    [train] = optimizers("sgd", count=1)
    inputs, targets = next(batches(1)).local_rows
    bad = np.where(np.arange(BATCH) < 3, -1, targets)
    rows = [targets, targets, targets, bad, targets]
    steps = [StepBatches((inputs, row), [BATCH], [BATCH]) for row in rows]
    assert all(compare(DENSE, train, steps))


@pytest.mark.parametrize("function", ["branching", "counting", "shuffling", "decaying"])
def test_modules_that_cannot_be_captured_train_as_before(function):
    [train] = optimizers("sgd", count=1)
    model = {"build": f"tests.fusing_modules:{function}"}
    assert set(compare(model, train, batches(3))) == {None}


def test_graph_that_computes_other_numbers_is_not_used(monkeypatch):
    from fleet.engines.torch import devices

    monkeypatch.setattr(devices, "capture", lambda function: function() or (lambda: None))
    [train] = optimizers("sgd", count=1)
    assert compare(DENSE, train, batches(3)) == [None, None]


def test_compiled_network_of_cuda_is_captured_and_others_are_not(monkeypatch):
    import torch

    from fleet.engines.torch import devices

    monkeypatch.setattr(torch, "compile", lambda module: module)
    monkeypatch.setattr(devices, "can_capture", lambda device: True)
    compiled = network(CNN, 0, compile=True)[1]
    plain = network(CNN, 0)[1]
    assert compiled.steps.recorded is not None
    assert plain.steps.recorded is None
