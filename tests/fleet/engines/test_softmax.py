"""Softmax regression matches results that are derived by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import PeerFailed
from fleet.engines.softmax import NumpyEngine
from fleet.errors import CheckpointError, ModelError
from fleet.stream.batch import split_rows
from preprocess.sample import Affine, ArraySpec
from tests.examples import examples
from tests.fleet.histories import SAMPLE, spec
from tests.fleet.one_process import Launch
from tests.refusals import refused

RATE, MOMENTUM = 0.1, 0.5


def network(sample=SAMPLE, group=None, **train):
    built = spec(
        {"family": "softmax"},
        train={"optimizer": {"learning_rate": RATE, "momentum": MOMENTUM}, **train},
    )
    return NumpyEngine(sample).build(built.networks[0], group or SingleRankGroup())


def samples(count, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, *SAMPLE.input.shape), np.uint8), random.integers(
        0, SAMPLE.classes, count
    )


def mean_loss(weights, images, labels):
    """Return the cross entropy by its plain formula."""
    inputs = np.concatenate(
        [images.reshape(len(images), -1).astype(float), np.ones((len(images), 1))], axis=1
    )
    logits = inputs @ weights
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels])


def test_step_follows_numeric_gradient_and_momentum():
    trainable, (images, labels) = network(), samples(6)
    images = images // 64  # small numbers: the plain formula overflows with large ones
    velocity = np.zeros_like(trainable.state()["weights"])
    for _ in range(3):
        weights, gradient = trainable.state()["weights"], np.empty_like(velocity)
        for index in np.ndindex(weights.shape):
            step = np.zeros_like(weights)
            step[index] = 1e-5
            gradient[index] = (
                mean_loss(weights + step, images, labels)
                - mean_loss(weights - step, images, labels)
            ) / 2e-5
        result = trainable.step(images, labels, 6)
        assert result.loss / 6 == pytest.approx(mean_loss(weights, images, labels))
        velocity = MOMENTUM * velocity - RATE * gradient
        np.testing.assert_allclose(trainable.state()["velocity"], velocity, atol=1e-7)
        np.testing.assert_allclose(trainable.state()["weights"], weights + velocity, atol=1e-7)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_step_of_any_group_matches_single_rank(rows, size, seed):
    images, labels = samples(rows, seed)
    labels[seed % rows] = -1  # one unreadable sample
    alone = network()
    expected = alone.step(images, labels, rows)
    results, weights = {}, {}

    def rank_main(world):
        trainable = network(group=world.group(range(size), 1))
        actual = slice(*split_rows(0, rows, world.rank, size))
        results[world.rank] = trainable.step(images[actual], labels[actual], rows)
        weights[world.rank] = trainable.state()["weights"]

    assert Launch(size, seed).run(rank_main)
    for rank in range(size):
        np.testing.assert_allclose(results[rank].pack(), expected.pack(), rtol=1e-12)
        np.testing.assert_allclose(weights[rank], alone.state()["weights"], rtol=1e-12)


def test_batch_without_readable_samples_changes_nothing():
    trainable, (images, labels) = network(), samples(4)
    trainable.step(images, labels, 4)  # now the velocity is not zero
    before = trainable.state()
    result = trainable.step(images, np.full(4, -1), 4)
    assert (result.loss, result.correct, result.count) == (0, 0, 0)
    for name, array in trainable.state().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("wrong", ["images", "labels"])
def test_step_failure_on_one_rank_raises_on_all(wrong):
    raised = {}

    def rank_main(world):
        trainable = network(group=world.group([0, 1], 1))
        images, labels = samples(2)
        if world.rank == 1:
            images, labels = (images[:, :2], labels) if wrong == "images" else (images, labels + 7)
        with pytest.raises((PeerFailed, ValueError, IndexError)) as caught:
            trainable.step(images, labels, 4)
        raised[world.rank] = caught.type

    assert Launch(2, 0).run(rank_main)
    assert raised[0] is PeerFailed
    assert raised[1] in (ValueError, IndexError)


def test_stop_flag_of_one_rank_reaches_all():
    stops = {}

    def rank_main(world):
        trainable = network(group=world.group([0, 1, 2], 1))
        stops[world.rank] = [
            trainable.step(*samples(2), 6, stop=stop).stop for stop in (False, world.rank == 2)
        ]

    assert Launch(3, 0).run(rank_main)
    assert set(map(tuple, stops.values())) == {(False, True)}


def test_scaling_left_to_the_engine_is_applied_first():
    images, labels = samples(5)
    scaled = network(dataclasses.replace(SAMPLE, affine=Affine(mean=0.5, std=0.25)))
    plain = network(dataclasses.replace(SAMPLE, input=ArraySpec((4, 4, 1), "float32")))
    trainable, reference = (
        scaled.step(images, labels, 5),
        plain.step((images / np.float32(255) - 0.5) / 0.25, labels, 5),
    )
    assert trainable.pack() == pytest.approx(reference.pack(), rel=1e-5)


def test_network_resumes_from_its_state():
    trainable, reference = network(), network()
    trainable.step(*samples(4), 4)
    reference.load(trainable.state())
    assert trainable.step(*samples(4, 1), 4) == reference.step(*samples(4, 1), 4)
    assert trainable.evaluate(*samples(9, 2)) == reference.evaluate(*samples(9, 2))


def test_state_is_a_copy():
    trainable = network()
    state = trainable.state()
    trainable.step(*samples(4), 4)
    assert (state["velocity"] == 0).all()


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"weights": np.zeros((17, 3))},
        {"weights": np.zeros((2, 3)), "velocity": np.zeros((2, 3))},
    ],
)
def test_checkpoint_of_another_network_is_refused(arrays):
    with refused(CheckpointError, "another network", "velocity"):
        network().load(arrays)


def test_initial_weights_of_wrong_shape_are_refused():
    built = spec({"build": "tests.sources:zeros"})
    wrong = dataclasses.replace(
        built.networks[0],
        architecture=dataclasses.replace(
            built.networks[0].architecture, target="tests.fleet.engines.test_softmax:two_weights"
        ),
    )
    with refused(ModelError, "test_softmax:two_weights", "(2,)", "(17, 3)"):
        NumpyEngine(SAMPLE).build(wrong, SingleRankGroup())


def two_weights(input_shape, classes):
    return np.zeros(2)
