"""Float16 with PyTorch: losses are scaled as torch.amp.GradScaler does."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from fleet.engines.steps import StepBatches
from tests.fleet.engines.async_steps import begin, take_step
from tests.fleet.engines.torch.test_network import SAMPLE, built, spec_of
from tests.fleet.engines.torch.test_several_optimizers import SIZES, batches
from tests.fleet.engines.torch.test_several_optimizers import built as built_with_optimizers
from tests.fleet.one_process import Launch

pytestmark = pytest.mark.torch

STEPS = 8
SOFTMAX = {"family": "softmax"}
SCALE = "optimizer/loss_scale/scale"


def rows_of(batch, weight=4):
    """Return images, labels and weights so large that float16 cannot hold the first gradients."""
    return (*batch, np.full(len(batch[1]), weight, np.float32))


def trained(trainable, batch, steps=STEPS, weight=4):
    images, labels, weights = rows_of(batch, weight)
    return [take_step(trainable, images, labels, 12, weights=weights).loss for _ in range(steps)]


def plain_loop(module, batch, accumulate=1, clip=None):
    """Train with GradScaler; return the loss of each step, and the scale."""
    import torch

    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    images, labels, weights = rows_of(batch)
    inputs = torch.from_numpy(np.moveaxis(SAMPLE.affine.apply(images), 3, 1).copy())
    losses = []
    for step in range(STEPS):
        with torch.autocast("cpu", torch.float16):
            outputs = module(inputs)
            row_losses = torch.nn.functional.cross_entropy(
                outputs, torch.from_numpy(labels).long(), reduction="none"
            )
            loss = (row_losses * torch.from_numpy(weights)).mean()
        losses.append(12 * loss.item())
        scaler.scale(loss / accumulate).backward()
        if (step + 1) % accumulate:
            continue
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses, scaler.get_scale()


@pytest.mark.parametrize(
    ("train", "arguments"),
    [
        ({}, {}),
        ({"batch": {"accumulate": 2}}, {"accumulate": 2}),
        (
            {
                "optimizer": {
                    "name": "sgd",
                    "learning_rate": 0.1,
                    "momentum": 0.9,
                    "global_clipnorm": 0.5,
                }
            },
            {"clip": 0.5},
        ),
    ],
    ids=["plain", "accumulated", "clipped"],
)
def test_float16_equals_a_plain_loop_with_grad_scaler(batch, train, arguments):
    trainable = built(precision="mixed_float16", **train)
    module = copy.deepcopy(trainable.module)
    losses, scale = plain_loop(module, batch, **arguments)
    assert trained(trainable, batch) == pytest.approx(losses, rel=1e-6)
    assert 2**10 < scale < 2**16
    assert losses[-1] != losses[0]
    assert trainable.state()[SCALE] == scale
    for name, value in module.state_dict().items():
        assert trainable.module.state_dict()[name].numpy() == pytest.approx(value.numpy(), abs=1e-6)


def test_gradient_scaler_follows_that_of_torch(monkeypatch):
    import torch

    from fleet.engines.torch import precision

    monkeypatch.setattr(precision, "_GROWTH_INTERVAL", 3)
    scaler = precision.GradientScaler([[0]])
    expected = torch.amp.GradScaler("cpu", growth_interval=3)
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter])
    for value in (1.0, 2.0, float("inf"), 1.0, 1.0, 1.0, float("nan"), *[1.0] * 7):
        parameter.grad = torch.tensor([value, 0.0])
        expected.scale(torch.zeros(1))
        expected.step(optimizer)
        expected.update()
        gradients = torch.tensor([value, 0.0])
        assert scaler.unscale(gradients, [gradients]) == (set() if np.isfinite(value) else {0})
        scaler.update()
        assert scaler.scale.item() == expected.get_scale()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of sums of NaN in NumPy
def test_float16_is_exact_in_groups(batch):
    settings = {"precision": "mixed_float16", "optimizer": {"name": "sgd", "lr": 1e-4}}
    alone = built(SOFTMAX, **settings)
    expected = trained(alone, batch, weight=100)
    states, losses = {}, {}

    def rank_main(world):
        from fleet.engines.registry import make_engine

        spec = spec_of(SOFTMAX, **settings)
        engine = make_engine(spec, SAMPLE, None, 0, 2)
        network = replace(spec.networks[0], seed=0)
        trainable = engine.build(network, world.group([0, 1], 1))
        share = slice(5) if world.rank == 0 else slice(5, None)
        images, labels, weights = (part[share] for part in rows_of(batch, 100))
        losses[world.rank] = [
            take_step(trainable, images, labels, 12, weights=weights).loss for _ in range(STEPS)
        ]
        states[world.rank] = trainable.state()

    assert Launch(2, 0).run(rank_main)
    for rank in range(2):
        assert losses[rank] == pytest.approx(expected, rel=2e-3)  # sums in float16 round
        assert states[rank][SCALE] == alone.state()[SCALE] < 2**16
    assert expected[-1] < 0.99 * expected[0]


def test_float16_resumes_with_its_scale(batch):
    first, second = (built(precision="mixed_float16") for _ in range(2))
    trained(first, batch)
    second.load(first.state())
    assert second.state()[SCALE] == first.state()[SCALE] < 2**16
    assert trained(second, batch) == trained(first, batch)


def test_several_steps_a_call_equal_single_steps_in_float16(batch):
    single, quadruple = (built(precision="mixed_float16") for _ in range(2))
    rows = rows_of(batch)
    expected = trained(single, batch, 4)
    images, labels, weights = (np.concatenate([part] * 4) for part in rows)
    sums = begin(quadruple, images, labels, [12] * 4, weights)().sums
    assert [part.loss for part in sums] == expected
    assert quadruple.state()[SCALE] == single.state()[SCALE]


def test_overflow_skips_only_its_optimizer():
    trainable = built_with_optimizers("overflow_of_head", precision="mixed_float16")
    before = trainable.state()
    rows = next(iter(batches()))
    trainable.user_steps.begin(StepBatches(rows, SIZES[:1], SIZES[:1]), None)()
    state = trainable.state()
    assert np.array_equal(state["model/head.weight"], before["model/head.weight"])
    assert not np.array_equal(state["model/body.1.weight"], before["model/body.1.weight"])
    assert state[SCALE] == 2**15
