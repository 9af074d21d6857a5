"""User-defined modules are isolated from each other and from the process, and complete."""

import os
import sys

import numpy as np
import pytest

from fleet.errors import ModelError
from tests.fleet.engines.async_steps import take_step
from tests.fleet.engines.torch.test_network import built
from tests.refusals import refused

pytestmark = pytest.mark.torch

OWN = """
import functools, os, random
import numpy as np
import torch
from torch import nn

BODY = nn.Linear(64, 6)

@functools.cache
def body():
    return nn.Linear(64, 6)

def shared(input_shape, classes, cached=False):
    return nn.Sequential(nn.Flatten(), body() if cached else BODY, nn.Linear(6, classes))

class Listed(nn.Module):
    def __init__(self, classes, location):
        super().__init__()
        layers = [nn.Linear(64, 6), nn.ReLU()]
        if location == "list":
            self.layers = layers
        else:
            self.call = lambda x: layers[0](x)
        self.head = nn.Linear(6, classes)
    def forward(self, x):
        x = x.flatten(1)
        return self.head(self.layers[0](x) if hasattr(self, "layers") else self.call(x))

def listed(input_shape, classes, location="list"):
    return Listed(classes, location)

class Table(nn.Module):
    def __init__(self, classes, is_drawn):
        super().__init__()
        self.table = torch.randn(64, 6) if is_drawn else torch.ones(64, 6)
        self.head = nn.Linear(6, classes)
    def forward(self, x):
        return self.head(x.flatten(1) @ self.table)

def table(input_shape, classes, is_drawn):
    return Table(classes, is_drawn)

class Noisy(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)
    def forward(self, x):
        noise = np.random.normal(0, 1, x.shape).astype("float32")
        return self.head((x + torch.from_numpy(noise) + random.random()).flatten(1))

def noisy(input_shape, classes):
    return Noisy(classes)

def rude(input_shape, classes):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    np.random.seed(1)
    os.chdir("/")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture
def custom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_modules.py").write_text(OWN)
    yield "own_modules"
    sys.modules.pop("own_modules", None)


@pytest.mark.parametrize("args", [{}, {"cached": True}])
def test_networks_that_share_layers_are_isolated(custom, batch, args):
    model = {"build": f"{custom}:shared", "args": args}
    first = built(model, seed=1)
    before = first.state()
    take_step(first, *batch, 12)
    second = built(model, seed=1)
    assert all(np.array_equal(array, before[name]) for name, array in second.state().items())
    trained = first.state()
    take_step(second, *batch, 12)
    assert all(np.array_equal(array, trained[name]) for name, array in first.state().items())


@pytest.mark.parametrize("location", ["list", "closure"])
def test_layers_that_are_no_parameters_are_refused(custom, location):
    with refused(ModelError, f"{custom}:listed", "not among its parameters"):
        built({"build": f"{custom}:listed", "args": {"location": location}})


def test_tensors_that_a_rebuilt_module_lacks_are_refused(custom):
    with refused(ModelError, "table of Table", "register_buffer"):
        built({"build": f"{custom}:table", "args": {"is_drawn": True}})
    assert built({"build": f"{custom}:table", "args": {"is_drawn": False}}).count_parameters() == 21


def test_random_numbers_follow_from_seed_and_step(custom, batch):
    model = {"build": f"{custom}:noisy"}
    first, reference = built(model), built(model, seed=1)
    expected = []
    for _ in range(3):
        expected.append((take_step(first, *batch, 12), first.evaluate(*batch)))
        take_step(reference, *batch, 12)
        np.random.rand()
    second = built(model)
    assert (take_step(second, *batch, 12), second.evaluate(*batch)) == expected[0]
    resumed = built(model)
    resumed.load(second.state())
    for totals in expected[1:]:
        assert (take_step(resumed, *batch, 12), resumed.evaluate(*batch)) == totals


def test_process_settings_of_user_code_are_restored(custom, batch):
    before = os.getcwd(), np.random.get_state()[2]
    rude = built({"build": f"{custom}:rude"})
    import torch

    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float32, True)
    assert not torch.backends.cudnn.benchmark
    assert (os.getcwd(), np.random.get_state()[2]) == before
    losses = [take_step(rude, *batch, 12).loss for _ in range(10)]
    assert losses[-1] < losses[0]
