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
from tests.fleet.engines.torch.test_recorded_steps import SETTINGS, compare

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


def compare_captured(model, train, steps):
    """Take the same steps with and without graphs; return the graphs."""
    from fleet.engines.torch.captured_steps import Capture

    return compare(model, train, steps, record_step=Capture)


@pytest.mark.parametrize("model", [DENSE, CNN, TRANSFORMER], ids=["dense", "cnn", "transformer"])
def test_captured_steps_equal_those_of_modules(model, captures):
    [train] = optimizers("sgd", count=1, momentum=0.9)
    graphs = compare_captured(model, train, batches(10))
    assert None not in graphs
    assert len(captures) == len(graphs) == 2  # of whole batches, and of the last of an epoch


@pytest.mark.parametrize("train", SETTINGS)
def test_captured_steps_keep_all_settings(train):
    assert all(compare_captured(DENSE, train, batches(3)))


def test_batches_with_unreadable_rows_are_taken_by_the_module():
    [train] = optimizers("sgd", count=1)
    inputs, targets = next(batches(1)).local_rows
    bad = np.where(np.arange(BATCH) < 3, -1, targets)
    rows = [targets, targets, targets, bad, targets]
    steps = [StepBatches((inputs, row), [BATCH], [BATCH]) for row in rows]
    assert all(compare_captured(DENSE, train, steps))


@pytest.mark.parametrize("function", ["branching", "counting", "shuffling", "decaying"])
def test_modules_that_cannot_be_captured_train_as_before(function):
    [train] = optimizers("sgd", count=1)
    model = {"build": f"tests.fusing_modules:{function}"}
    assert set(compare_captured(model, train, batches(3))) == {None}


def test_graph_that_computes_other_numbers_is_not_used(monkeypatch):
    from fleet.engines.torch import devices

    monkeypatch.setattr(devices, "capture", lambda function: function() or (lambda: None))
    [train] = optimizers("sgd", count=1)
    assert compare_captured(DENSE, train, batches(3)) == [None, None]


def test_compiled_network_of_cuda_is_captured_and_others_are_not(monkeypatch):
    import torch

    from fleet.engines.torch import devices

    monkeypatch.setattr(torch, "compile", lambda module: module)
    monkeypatch.setattr(devices, "can_capture", lambda device: True)
    compiled = network(CNN, 0, compile=True)[1]
    plain = network(CNN, 0)[1]
    assert compiled.steps.recorded is not None
    assert plain.steps.recorded is None
