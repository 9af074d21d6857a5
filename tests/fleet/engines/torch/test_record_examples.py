"""The example of several inputs equals a plain loop of PyTorch, over ten epochs."""

import copy
import sys

import numpy as np
import pytest

from tests.fleet.engines.record_examples import (
    FOLDER,
    RATE,
    build_example,
    scaled_batches,
    train_example,
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _import_examples(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    sys.modules.pop("two_inputs", None)


def test_two_inputs_equal_a_plain_loop():
    import torch

    trainable = build_example("two_inputs", "torch")
    plain = copy.deepcopy(trainable.module)
    train_example(trainable)
    optimizer = torch.optim.Adam(plain.parameters(), lr=RATE)
    for photos, facts, weights in scaled_batches():
        photo = torch.from_numpy(np.moveaxis(photos, -1, 1).copy())
        predicted = plain(photo=photo, facts=torch.from_numpy(facts))
        loss = torch.nn.functional.mse_loss(predicted, torch.from_numpy(weights))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        trained = trainable.module.state_dict()[name].numpy()
        assert trained == pytest.approx(value.numpy(), abs=1e-5), name
