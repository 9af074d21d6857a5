"""Modules in training that ``torch.compile`` compiles."""

import pytest

from fleet.errors import SettingError, SpecError
from fleet.spec import parse
from tests.fleet.engines.async_steps import take_step
from tests.fleet.engines.torch.test_network import FLAT, FLAT_MODEL, built, flat_batch
from tests.refusals import refused

pytestmark = pytest.mark.torch


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # by PyTorch itself
@pytest.mark.long
def test_compiled_module_equals_the_module():
    networks = [built(FLAT_MODEL, FLAT, compile=is_compiled) for is_compiled in (False, True)]
    losses = [
        [take_step(trainable, *flat_batch(step), 12).loss for step in range(4)]
        for trainable in networks
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert networks[1].steps.compiled is not None


def test_module_that_cannot_be_compiled_is_refused(monkeypatch):
    import torch

    def fail(*_):
        raise torch._dynamo.exc.Unsupported("a call of C")

    monkeypatch.setattr(torch, "compile", lambda module: fail)
    with refused(SettingError, "cannot compile the module", "a call of C", "leave train.compile"):
        take_step(built(FLAT_MODEL, FLAT, compile=True), *flat_batch(), 12)


@pytest.mark.parametrize("engine", ["keras", "numpy"])
def test_compile_is_refused_by_other_engines(engine):
    with refused(SpecError, f"the {engine} engine does not support torch.compile"):
        parse(
            {
                "models": [{"family": "softmax"}],
                "resources": {"engine": engine},
                "train": {"compile": True},
            }
        )
