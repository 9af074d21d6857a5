"""The numpy engine trains on every kind of target.

It is compared with finite differences, closed forms and groups of other sizes.
"""

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.softmax import NumpyEngine
from fleet.errors import SettingError
from fleet.stream.batch import split_rows
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec, class_target
from tests.fleet.histories import spec
from tests.fleet.one_process import Launch
from tests.refusals import refused

TARGETS = {
    "class": class_target(3),
    "weighted": class_target(3, weighted=True),
    "multilabel": TargetSpec("multilabel", 3),
    "value": TargetSpec("value", 2),
    "mask": TargetSpec("mask", 3, size=(2, 3)),
}


def sample_of(kind):
    return SampleSpec(ArraySpec((2, 3, 2), "float32"), TARGETS[kind].outputs, target=TARGETS[kind])


def network(kind, group=None, **train):
    built = spec(
        {"family": "softmax"}, train={"optimizer": {"learning_rate": 0.1, "momentum": 0.5}, **train}
    )
    return NumpyEngine(sample_of(kind)).build(built.networks[0], group or SingleRankGroup())


def batch(kind, rows=7, unreadable=()):
    """Return inputs, targets and, unless the target is plain, weights; mark unreadable rows."""
    random, target = np.random.default_rng(1), TARGETS[kind]
    inputs = random.normal(size=(rows, 2, 3, 2)).astype(np.float32)
    packed = target.random_targets(random, rows)
    if not target.is_plain:
        packed["weight"] = random.uniform(0.5, 2, rows)
    if kind == "mask":
        packed["target"][0, 0, :] = target.void
    for row in unreadable:
        target.mark_unusable(packed, row)
    return (inputs, *target.split(packed))


def step(trainable, rows, size, **options):
    inputs, values, *weights = rows
    return trainable.step(inputs, values, size, False, *weights, **options)


@pytest.mark.parametrize(
    "train", [{}, {"label_smoothing": 0.2}, {"class_weights": {"0": 2.0, "1": 0.5, "2": 1.0}}]
)
@pytest.mark.parametrize("kind", TARGETS)
def test_step_follows_the_gradient_of_the_loss(kind, train):
    if (train and kind == "value") or ("class_weights" in train and kind == "multilabel"):
        return
    rows = batch(kind)
    trainable = network(kind, **train)
    start = trainable.state()
    loss = step(trainable, rows, 7).loss / 7
    slopes = (start["weights"] - trainable.state()["weights"]) / 0.1
    for position in [(0, 0), (1, 1), (slopes.shape[0] - 1, 1)]:
        nudged = start["weights"].copy()
        nudged[position] += 1e-6
        trainable.load({**start, "weights": nudged})
        assert (step(trainable, rows, 7).loss / 7 - loss) / 1e-6 == pytest.approx(
            slopes[position], abs=1e-4
        )


def test_losses_match_closed_forms():
    inputs, values, weights = batch("value")
    zero = np.zeros((13, 2))
    trainable = network("value", metrics=["mae", "MeanSquaredError"])
    trainable.load({"weights": zero, "velocity": zero})
    totals = trainable.evaluate(inputs, values, weights)
    assert totals.loss == pytest.approx(float((np.square(values).mean(axis=1) * weights).sum()))
    assert trainable.scores(totals.metric_totals) == pytest.approx(
        {"mae": np.abs(values).mean(), "MeanSquaredError": np.square(values).mean()}
    )
    inputs, values, weights = batch("mask")
    zero = np.zeros((3, 3))
    trainable = network("mask")
    trainable.load({"weights": zero, "velocity": zero})
    assert trainable.evaluate(inputs, values, weights).loss == pytest.approx(
        np.log(3) * weights.sum()
    )


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", TARGETS)
def test_group_of_any_size_gives_the_same_losses(kind, size):
    rows = batch(kind, unreadable=(3,))
    train = {"metrics": ["mae"]} if kind == "value" else {}
    alone = network(kind, **train)
    expected = [step(alone, rows, 7) for _ in range(3)]
    result, weights = {}, {}

    def rank_main(world):
        trainable = network(kind, world.group(range(size), 1), **train)
        local = slice(*split_rows(0, 7, world.rank, size))
        local_rows = tuple(array[local] for array in rows)
        result[world.rank] = [step(trainable, local_rows, 7) for _ in range(3)]
        weights[world.rank] = trainable.state()["weights"]

    assert Launch(size, 0).run(rank_main)
    for rank in range(size):
        for actual, reference in zip(result[rank], expected, strict=True):
            np.testing.assert_allclose(actual.pack(), reference.pack(), rtol=1e-9)
        np.testing.assert_allclose(weights[rank], alone.state()["weights"], rtol=1e-9)
    assert expected[0].count == 6


def test_linear_regression_converges_to_least_squares():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(40, 2, 3, 2)).astype(np.float32)
    values = random.normal(size=(40, 2)).astype(np.float32)
    trainable = network("value", optimizer={"learning_rate": 0.3, "momentum": 0.9})
    for _ in range(2000):
        trainable.step(inputs, values, 40, False, np.ones(40, np.float32))
    features = np.concatenate([inputs.reshape(40, -1), np.ones((40, 1))], axis=1)
    best, *_ = np.linalg.lstsq(features.astype(float), values.astype(float), rcond=None)
    np.testing.assert_allclose(trainable.state()["weights"], best, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "train", "names"),
    [
        ("value", {"metrics": [{"mae": {"name": "error"}}]}, ["metrics of the numpy engine"]),
        ("class", {"metrics": ["mae"]}, ["metric mae", "class targets", "accuracy only"]),
    ],
)
def test_unsupported_metrics_are_refused(kind, train, names):
    with refused(SettingError, *names):
        network(kind, **train)
