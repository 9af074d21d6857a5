"""Rules that update all parameters at once, compared bit for bit with ``torch.optim``."""

import numpy as np
import pytest

from tests.fleet.engines.torch.test_fused import CNN, DENSE, batches, network

pytestmark = pytest.mark.torch

OPTIMIZERS = [
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"name": "sgd", "momentum": 0.9, "dampening": 0.5},
    {"name": "adam", "weight_decay": 0.01},
    {"name": "adam", "betas": [0.8, 0.9], "eps": 1e-3},
    {"name": "adamw", "weight_decay": 0.1, "global_clipnorm": 0.5, "use_ema": True},
]


def pair(optimizer, model=CNN):
    """Return two equal networks; the second updates one parameter after another."""
    train = {"optimizer": {"learning_rate": 0.01, **optimizer}}
    _, flat = network(model, 0, **train)
    _, plain = network(model, 0, **train)
    plain.steps.updates.flat_optimizer.is_used = False
    return flat, plain


def assert_equal_states(first, second):
    expected = second.state()
    for name, value in first.state().items():
        assert value.tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_rule_computes_the_bits_of_the_optimizer(optimizer):
    flat, plain = pair(optimizer)
    for step in batches(4):
        assert flat.begin_steps(step)().sums == plain.begin_steps(step)().sums
        assert_equal_states(flat, plain)
    assert flat.steps.updates.flat_optimizer.rule is not None


@pytest.mark.parametrize("optimizer", OPTIMIZERS[-3:], ids=str)
def test_rule_continues_from_a_checkpoint_and_hands_over(optimizer):
    flat, plain = pair(optimizer)
    steps = list(batches(4))
    for step in steps[:4]:
        plain.begin_steps(step)()
    flat.load(plain.state())
    for number, step in enumerate(steps[4:]):
        if number == 3:  # one parameter has no gradient, so the optimizer updates each
            flat.steps.updates.flat_optimizer.end()
        flat.begin_steps(step)()
        plain.begin_steps(step)()
        assert_equal_states(flat, plain)


def test_parameters_with_fewer_steps_are_updated_one_by_one():
    flat, plain = pair({"name": "adam"}, DENSE)
    for trainable in (flat, plain):
        updates = trainable.steps.updates
        updates.flat.gradients.fill_(0.5)
        updates.step(1.0, unused=[1])
        updates.flat.gradients.fill_(0.25)
        updates.step(1.0)
    assert flat.steps.updates.flat_optimizer.rule is None
    assert_equal_states(flat, plain)


def test_parameter_without_gradient_ends_the_rule_for_this_step():
    flat, plain = pair({"name": "adam"}, DENSE)
    for trainable in (flat, plain):
        updates = trainable.steps.updates
        for unused in ([], [], [1]):
            updates.flat.gradients.fill_(0.5)
            updates.step(1.0, unused=unused)
    assert_equal_states(flat, plain)
    state = {name: np.asarray(value) for name, value in flat.state().items()}
    steps = {float(value) for name, value in state.items() if "/step/" in name}
    assert steps == {2.0, 3.0}


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adam", "amsgrad": True},
        {"name": "sgd", "maximize": True},
        {"name": "nadam"},
        {"name": "sgd", "groups": [{"match": "*bias", "learning_rate": 0.1}]},
    ],
    ids=str,
)
def test_other_optimizers_update_one_parameter_after_another(optimizer):
    flat, plain = pair(optimizer, DENSE)
    for step in batches(1):
        flat.begin_steps(step)()
        plain.begin_steps(step)()
    assert flat.steps.updates.flat_optimizer.rule is None
    assert_equal_states(flat, plain)
