"""Several equal networks that train as one program, compared with each of them alone."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import INDEX, EpochProgress
from fleet.engines.fusing import CannotFuse
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches
from fleet.spec import parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from tests.refusals import refused

pytestmark = pytest.mark.torch

SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))
ROWS = 24
BATCH = 10  # the last batch of an epoch has 4 rows
DENSE = {"family": "mlp", "args": {"hidden": [12], "dropout": 0.3}}
CNN = {"build": "tests.fusing_modules:normalized"}
TRANSFORMER = {"build": "tests.fusing_modules:transformer"}


def batches(epochs):
    random = np.random.default_rng(0)
    inputs = random.integers(0, 256, (ROWS, 8, 8, 1), np.uint8)
    targets = random.integers(0, 3, ROWS)
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(ROWS)
        for first in range(0, ROWS, BATCH):
            rows = order[first : first + BATCH]
            yield StepBatches((inputs[rows], targets[rows]), [len(rows)], [len(rows)])


def network(model, seed, **train):
    spec = parse({"models": [model], "resources": {"engine": "torch"}, "train": train})
    engine = make_engine(spec, SAMPLE, None, 0, 1)
    return engine, engine.build(replace(spec.networks[0], seed=seed), SingleRankGroup())


def networks(model, trains):
    built = [network(model, seed, **train) for seed, train in enumerate(trains)]
    return built[0][0], [trainable for _, trainable in built]


def optimizers(name, count=3, **settings):
    return [
        {"optimizer": {"name": name, "learning_rate": 0.01 * (1 + number), **settings}}
        for number in range(count)
    ]


def difference(first, second):
    """Return the largest difference of two states, of large values relative to the largest."""
    assert first.keys() == second.keys()
    return max(
        float(np.abs(first[name].astype(float) - second[name].astype(float)).max())
        / max(1.0, float(np.abs(first[name]).max()))
        for name in first
    )


def largest_difference(model, trains, epochs):
    """Train networks alone and fused; return the largest difference of states and losses."""
    _, alone = networks(model, trains)
    engine, fused_networks = networks(model, trains)
    fused = engine.fuse(fused_networks, "key")
    worst = 0.0
    for step in batches(epochs):
        together = fused.begin_steps(step)().totals[0]
        for row, trainable in zip(together, alone, strict=True):
            totals = trainable.begin_steps(step)().sums[0]
            worst = max(worst, abs(totals.loss - row[INDEX["loss"]]) / totals.count)
            assert (totals.correct, totals.count) == tuple(row[1:3])
    rows = next(batches(1)).local_rows
    for row, trainable in zip(fused.evaluate(*rows), alone, strict=True):
        totals = trainable.evaluate(*rows)
        worst = max(worst, abs(totals.loss - row[INDEX["loss"]]) / totals.count)
    fused.synchronize()
    for trainable, member in zip(alone, fused_networks, strict=True):
        worst = max(worst, difference(trainable.state(), member.state()))
    fused.release()
    for trainable, member in zip(alone, fused_networks, strict=True):
        worst = max(worst, difference(trainable.state(), member.state()))
    return worst


@pytest.mark.parametrize("model", [DENSE, CNN, TRANSFORMER], ids=["dense", "cnn", "transformer"])
def test_ten_epochs_equal_those_of_networks_alone(model):
    assert largest_difference(model, optimizers("sgd", momentum=0.9), epochs=10) < 1e-5


@pytest.mark.parametrize(
    "trains",
    [
        optimizers("sgd", momentum=0.5, nesterov=True, weight_decay=0.01),
        optimizers("adam", weight_decay=0.01),
        optimizers("adamw", use_ema=True, ema_momentum=0.8, global_clipnorm=1.0),
        optimizers("rmsprop", momentum=0.5, clipvalue=0.01),
        optimizers("nadam", clipnorm=0.1),
        optimizers("adam", amsgrad=True),
        [{**train, "batch": {"accumulate": 2}} for train in optimizers("sgd", momentum=0.9)],
        [
            {
                "optimizer": {
                    "name": "adam",
                    "learning_rate": {
                        "name": "CosineDecay",
                        "initial_learning_rate": rate,
                        "decay_steps": 9,
                    },
                    "weight_decay": rate,
                    "betas": [0.9 - rate, 0.99],
                }
            }
            for rate in (0.01, 0.02)
        ],
        [{**train, "label_smoothing": 0.1, "metrics": ["AUC"]} for train in optimizers("sgd")],
    ],
)
def test_settings_apply_to_each_network(trains):
    assert largest_difference(DENSE, trains, epochs=2) < 1e-5


def test_statistics_of_running_means_equal_those_alone():
    trains = optimizers("sgd", use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=3)
    assert largest_difference(CNN, trains, epochs=2) < 1e-5


def test_mixed_precision_trains_each_network():
    trains = [{**train, "precision": "mixed_bfloat16"} for train in optimizers("sgd")]
    assert largest_difference(DENSE, trains, epochs=1) < 0.05


def test_network_that_diverges_leaves_others_as_they_are():
    trains = [*optimizers("sgd", count=2), {"optimizer": {"name": "sgd", "learning_rate": 1e30}}]
    _, alone = networks(DENSE, trains)
    engine, together = networks(DENSE, trains)
    fused = engine.fuse(together, "key")
    for step in batches(3):
        totals = fused.begin_steps(step)().totals[0]
        for trainable in alone[:2]:
            trainable.begin_steps(step)()
    assert not np.isfinite(totals[2, INDEX["loss"]])
    fused.release()
    for trainable, member in zip(alone[:2], together, strict=False):
        assert difference(trainable.state(), member.state()) < 1e-5


def test_networks_continue_alone_and_with_others():
    trains = optimizers("adam", count=3)
    _, alone = networks(DENSE, trains)
    engine, together = networks(DENSE, trains)
    steps = list(batches(3))
    for number, members in enumerate(([0, 1, 2], [1, 2], [2, 0, 1])):
        fused = engine.fuse([together[index] for index in members], "key")
        for step in steps[3 * number : 3 * number + 3]:
            fused.begin_steps(step)()
        fused.release()
        for step in steps[3 * number : 3 * number + 3]:
            for index in {0, 1, 2}.difference(members):
                together[index].begin_steps(step)()
    for step in steps:
        for trainable in alone:
            trainable.begin_steps(step)()
    for trainable, member in zip(alone, together, strict=True):
        assert difference(trainable.state(), member.state()) < 1e-5


def test_resumed_network_continues_fused():
    trains = optimizers("adam", count=2)
    _, alone = networks(DENSE, trains)
    engine, together = networks(DENSE, trains)
    steps = list(batches(2))
    for step in steps[:3]:
        for trainable in alone:
            trainable.begin_steps(step)()
    for trainable, member in zip(alone, together, strict=True):
        member.load(trainable.state())
        member.begin_epoch(EpochProgress(1, 0, 3))
    fused = engine.fuse(together, "key")
    for step in steps[3:]:
        fused.begin_steps(step)()
        for trainable in alone:
            trainable.begin_steps(step)()
    fused.synchronize()
    for trainable, member in zip(alone, together, strict=True):
        assert difference(trainable.state(), member.state()) < 1e-5


def test_unreadable_rows_change_nothing():
    trains = optimizers("sgd")
    _, alone = networks(DENSE, trains)
    engine, together = networks(DENSE, trains)
    fused = engine.fuse(together, "key")
    inputs, targets = next(batches(1)).local_rows
    for bad in (targets * 0 - 1, np.where(np.arange(BATCH) < 3, -1, targets)):
        step = StepBatches((inputs, bad), [BATCH], [BATCH])
        totals = fused.begin_steps(step)().totals[0]
        for row, trainable in zip(totals, alone, strict=True):
            assert trainable.begin_steps(step)().sums[0].count == row[INDEX["count"]]
    fused.synchronize()
    for trainable, member in zip(alone, together, strict=True):
        assert difference(trainable.state(), member.state()) < 1e-5


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("branching", "depends on values"),
        ("counting", "attribute"),
        ("shuffling", "random numbers of Python or NumPy"),
    ],
)
def test_module_that_cannot_be_recorded_is_named(function, reason):
    engine, together = networks(
        {"build": f"tests.fusing_modules:{function}"}, optimizers("sgd", count=2)
    )
    before = [trainable.state() for trainable in together]
    fused = engine.fuse(together, "key")
    with refused(CannotFuse, reason):
        fused.begin_steps(next(batches(1)))
    fused.release()
    for state, trainable in zip(before, together, strict=True):
        assert difference(state, trainable.state()) == 0


def test_networks_of_different_shapes_are_refused():
    engine, first = network(DENSE, 0)
    _, second = network({"family": "mlp", "args": {"hidden": [13], "dropout": 0.3}}, 1)
    with refused(CannotFuse, "differ between networks"):
        engine.fuse([first, second], "key")
