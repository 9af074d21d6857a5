"""Fused TensorFlow kernels compute what Keras computes with small operations."""

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.spec import parse
from preprocess.sample import ArraySpec, SampleSpec
from tests.examples import long_but_first
from tests.fleet.engines.async_steps import take_step

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ArraySpec((8, 8, 2), "float32"), 3)
CNN = {"family": "cnn", "args": {"filters": [4], "dense": [6]}}
PLAIN = {"family": "softmax"}


def train(monkeypatch, model, optimizer, by_kernels, precision="float32", accumulate=1):
    """Return the state after a few steps, one of another size, and the losses."""
    from fleet.engines.keras import engine

    with monkeypatch.context() as patch:
        if not by_kernels:
            patch.setattr(engine, "use_kernels", lambda model, optimizer: None)
        spec = parse(
            {
                "models": [model],
                "train": {
                    "optimizer": optimizer,
                    "precision": precision,
                    "batch": {"size": 12, "accumulate": accumulate},
                },
            }
        )
        trainable = make_engine(spec, SAMPLE, None, 0, 1).build(spec.networks[0], SingleRankGroup())
    random, losses = np.random.default_rng(0), []
    for size in (12, 12, 5, 12):
        images = random.normal(size=(size, 8, 8, 2)).astype(np.float32)
        losses.append(take_step(trainable, images, np.arange(size) % 3, size).loss)
    losses.append(trainable.evaluate(images, np.arange(size) % 3).loss)
    return trainable.state(), losses


@pytest.mark.parametrize(
    ("model", "optimizer", "precision"),
    long_but_first(
        (CNN, {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}, "float32"),
        (CNN, {"name": "adam", "learning_rate": 0.01}, "mixed_bfloat16"),
        (
            PLAIN,
            {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "nesterov": True},
            "float32",
        ),
        (PLAIN, {"name": "sgd", "learning_rate": 0.05}, "float32"),
        (
            PLAIN,
            {"name": "adam", "learning_rate": 0.01, "beta_2": 0.99, "epsilon": 1e-4},
            "float32",
        ),
        (PLAIN, {"name": "adam", "learning_rate": 0.01, "amsgrad": True}, "float32"),
        (PLAIN, {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.1}, "float32"),
    ),
)
def test_kernels_train_like_keras(monkeypatch, model, optimizer, precision):
    (state, losses), (expected, expected_losses) = (
        train(monkeypatch, model, optimizer, by_kernels, precision) for by_kernels in (True, False)
    )
    tolerance = 1e-5 if precision == "float32" else 2e-2
    np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            np.float64(state[name]), np.float64(value), rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("name", long_but_first("adam", "sgd"))
def test_kernels_accumulate_gradients_like_keras(monkeypatch, name):
    state, expected = (
        train(monkeypatch, PLAIN, {"name": name}, by_kernels, accumulate=2)[0]
        for by_kernels in (True, False)
    )
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(
            np.float64(state[key]), np.float64(value), rtol=1e-5, atol=1e-5, err_msg=key
        )


@pytest.mark.long
def test_kernels_save_a_third_of_the_operations(monkeypatch):
    """Only this test fails if the kernels are no longer used; each operation takes microseconds."""
    from fleet.engines.keras import engine
    from fleet.engines.keras.exchange import NoExchange

    spec = parse(
        {
            "models": [{"family": "resnet", "args": {"blocks": [1], "width": 4}}],
            "train": {"optimizer": {"name": "sgd", "momentum": 0.9}},
        }
    )
    counts = []
    for by_kernels in (True, False):
        with monkeypatch.context() as patch:
            if not by_kernels:
                patch.setattr(engine, "use_kernels", lambda model, optimizer: None)
            trainable = make_engine(spec, SAMPLE, None, 0, 1).build(
                spec.networks[0], SingleRankGroup()
            )
        graph = trainable.graphs.strides[NoExchange].get_concrete_function().graph.as_graph_def()
        counts.append(
            len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
        )
    assert counts[0] < 0.7 * counts[1]
