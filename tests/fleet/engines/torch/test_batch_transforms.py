"""Batch transforms with PyTorch: equal to a plain loop, for every kind of target."""

import numpy as np
import pytest

from fleet.engines.batch_transforms import BatchTransforms
from fleet.vocabulary.batch_transforms import mixup
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.fleet.engines.async_steps import take_step
from tests.fleet.engines.torch.test_network import built

pytestmark = pytest.mark.torch

SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))
SOFTMAX = {"family": "softmax"}


def step_with(network, transforms, rows, epoch, step):
    inputs, targets = transforms(*rows, epoch, step)
    return take_step(network, inputs, targets["target"], len(inputs), weights=targets["weight"])


def test_training_with_mixup_equals_a_plain_loop(batch):
    import torch

    images, labels = batch
    network = built(SOFTMAX, SAMPLE, seed=5, batch_transforms=["mixup"])
    transforms = BatchTransforms.of(["mixup"], SAMPLE, 5)
    state = network.state()
    module = torch.nn.Linear(64, 3)
    bias, weight = sorted(
        (array for name, array in state.items() if name.startswith("model/")),
        key=lambda array: array.ndim,
    )
    module.load_state_dict(
        {"weight": torch.from_numpy(weight.reshape(3, 64)), "bias": torch.from_numpy(bias)}
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    scaled = SAMPLE.affine.apply(images)
    for epoch in range(10):
        totals = step_with(network, transforms, batch, epoch, 0)
        rng = np.random.default_rng([5, 6, epoch, 0])
        mixed = mixup({"input": scaled, "target": np.eye(3, dtype=np.float32)[labels]}, rng)
        inputs = torch.from_numpy(np.moveaxis(mixed["input"], 3, 1).reshape(12, 64).copy())
        loss = torch.nn.functional.cross_entropy(module(inputs), torch.from_numpy(mixed["target"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert totals.loss / totals.count == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize(
    "loss", [None, "CrossEntropyLoss", "huber", "categorical_focal_crossentropy"]
)
def test_losses_take_shares_of_classes(batch, loss):
    network = built(
        SOFTMAX,
        SAMPLE,
        loss=loss,
        batch_transforms=["mixup"],
        metrics=["AUC"],
        class_weights={"0": 2.0, "1": 1.0, "2": 1.0},
    )
    transforms = BatchTransforms.of(["mixup"], SAMPLE, 0)
    assert np.isfinite(step_with(network, transforms, batch, 0, 0).loss)
    assert network.evaluate(*batch).count == 12


@pytest.mark.parametrize("kind", ["multilabel", "value", "mask"])
def test_batches_of_every_kind_of_target_are_transformed(batch, kind):
    target = TargetSpec(kind, 3, size=(8, 8) if kind == "mask" else None)
    sample = SampleSpec(SAMPLE.input, 3, SAMPLE.affine, target=target)
    transform = "cutmix" if kind == "mask" else "mixup"
    network = built(SOFTMAX, sample, batch_transforms=[transform])
    rows = batch[0], target.random_targets(np.random.default_rng(0), 12)
    transforms = BatchTransforms.of([transform], sample, 0)
    assert np.isfinite(step_with(network, transforms, rows, 0, 0).loss)


def test_unreadable_rows_of_a_transformed_batch_do_not_count(batch):
    images, labels = batch
    marked = labels.copy()
    marked[[1, 4]] = -1
    network = built(SOFTMAX, SAMPLE, batch_transforms=["mixup"])
    transforms = BatchTransforms.of(["mixup"], SAMPLE, 0)
    assert step_with(network, transforms, (images, marked), 0, 0).count == 10


def test_class_weights_of_shares_are_their_mean(batch):
    images, labels = batch
    shares = np.full((12, 3), 1 / 3, np.float32)
    weights_of_one = np.ones(12, np.float32)
    plain, weighted = (
        built(SOFTMAX, SAMPLE, batch_transforms=["mixup"], **train)
        for train in ({}, {"class_weights": {"0": 4.0, "1": 1.0, "2": 1.0}})
    )
    inputs = SAMPLE.affine.apply(images)
    losses = [
        take_step(network, inputs, shares, 12, weights=weights_of_one).loss
        for network in (plain, weighted)
    ]
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-6)
