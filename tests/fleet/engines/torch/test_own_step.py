"""Training steps of the user in PyTorch: totals, metrics, groups, mistakes."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import collect_warnings
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches
from fleet.errors import SettingError
from fleet.spec import parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.fleet.one_process import Launch
from tests.refusals import refused

pytestmark = pytest.mark.torch

SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))
CNN = {"family": "cnn", "args": {"filters": [4], "dense": [8]}}
HEADS = {"build": "tests.torch_steps:two_heads"}


def built(step=None, model=CNN, sample=SAMPLE, group=None, monitor="val_loss", **train):
    train = {
        "optimizer": {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9},
        "stopping": {"monitor": monitor, "direction": "min"},
        **({} if step is None else {"step": f"tests.torch_steps:{step}"}),
        **train,
    }
    spec = parse({"models": [model], "resources": {"engine": "torch"}, "train": train})
    return make_engine(spec, sample, None, 0, 1).build(
        replace(spec.networks[0], seed=0), group or SingleRankGroup()
    )


def rows_of(count=12, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 8, 8, 1)).astype(np.uint8), random.integers(0, 3, count)


def take_step(trainable, rows, size=None, indices=None):
    size = size or len(rows[1])
    batches = StepBatches(rows, [size], [len(rows[1])])
    if trainable.user_steps is None:
        return trainable.begin_steps(batches)().sums[0]
    return trainable.user_steps.begin(batches, indices)().sums[0]


@pytest.mark.filterwarnings("ignore::fleet.errors.NetworkWarning")
@pytest.mark.parametrize("step", ["classify", "one_number"])
def test_own_step_equals_the_named_loss(step):
    by_user, named = built(step), built()
    for seed in range(4):
        rows = rows_of(seed=seed)
        totals, expected = take_step(by_user, rows), take_step(named, rows)
        assert totals.loss == pytest.approx(expected.loss, rel=1e-6)
    for name, value in named.state().items():
        assert by_user.state()[name] == pytest.approx(value, abs=1e-6)
    assert by_user.user_steps.returns_accuracy == (step == "classify")


def test_own_step_returns_metrics_by_name():
    trainable = built("reconstruct", HEADS, monitor="val_penalty")
    rows = rows_of()
    trained = trainable.scores(take_step(trainable, rows).metric_totals)
    assert set(trained) == {"penalty"}
    evaluated = trainable.scores(trainable.user_steps.evaluate(rows, np.arange(12)).metric_totals)
    assert set(evaluated) == {"penalty", "largest"}
    assert not trainable.user_steps.has_predictions


def test_own_step_leaves_out_unreadable_rows():
    inputs, labels = rows_of()
    inputs[3] = 0  # its loss is infinite
    labels[3] = -1
    trainable, reference = built("infinite_if_black"), built("infinite_if_black")
    readable = np.arange(12) != 3
    totals = take_step(trainable, (inputs, labels))
    assert totals == take_step(reference, (inputs[readable], labels[readable]))
    assert totals.count == 11
    for name, value in reference.state().items():
        assert trainable.state()[name] == pytest.approx(value, abs=1e-6)
    assert np.isfinite(trainable.user_steps.evaluate((inputs, labels), np.arange(12)).loss)


def test_own_step_is_exact_in_groups_of_uneven_shares():
    rows = rows_of(10)
    alone = built("reconstruct", HEADS)
    expected = [take_step(alone, rows) for _ in range(3)]
    results = {}

    def rank_main(world):
        trainable = built("reconstruct", HEADS, group=world.group(range(3), 1))
        share = slice(*((0, 1, 1, 10)[world.rank : world.rank + 2]))  # rank 1 has no rows
        results[world.rank] = (
            [take_step(trainable, tuple(part[share] for part in rows), 10) for _ in range(3)],
            trainable.state(),
        )

    assert Launch(3, 0).run(rank_main)
    for totals, state in results.values():
        for step, reference in zip(totals, expected, strict=True):
            assert step.as_tuple == pytest.approx(reference.as_tuple, rel=1e-5)
        for name, value in alone.state().items():
            assert state[name] == pytest.approx(value, abs=1e-6)


def test_own_step_receives_index_and_weights():
    sample = replace(SAMPLE, target=TargetSpec("class", 3, weighted=True))
    trainable = built("index_as_loss", sample=sample)
    weights = np.arange(12, dtype=np.float32)
    weights[5] = -1  # unreadable
    indices = np.arange(100, 112)
    expected = sum(
        weight * index for weight, index in zip(weights, indices, strict=True) if weight >= 0
    )
    rows = (*rows_of(), weights)
    assert take_step(trainable, rows, indices=indices).loss == pytest.approx(float(expected))
    assert trainable.user_steps.evaluate(rows, indices).loss == pytest.approx(float(expected))


def test_own_step_may_call_parts_of_a_module(tmp_path):
    model = {"build": "tests.torch_steps:parts"}
    trainable = built("classify_with_parts", model)
    first, *_, last = [take_step(trainable, rows_of()).loss for _ in range(9)]
    assert last < first
    assert trainable.row_bytes() > 0
    assert "tests.torch_steps" in trainable.try_export(tmp_path)


def test_own_step_is_queued_in_several_steps_a_call():
    rows = rows_of(24)
    indices = np.arange(24)
    together, alone = built("index_as_loss"), built("index_as_loss")
    sums = together.user_steps.begin(StepBatches(rows, [12, 12], [12, 12]), indices)().sums
    for part, totals in zip((slice(12), slice(12, 24)), sums, strict=True):
        assert totals == take_step(
            alone, tuple(array[part] for array in rows), indices=indices[part]
        )


def test_own_step_of_one_number_warns_of_ranks():
    with collect_warnings() as warnings:
        built("one_number")
    [warning] = warnings
    assert "number of ranks" in warning


@pytest.mark.parametrize(
    ("step", "names"),
    [
        ("missing_name", ["'image'", "input, target, weight, index", "torch_steps.py, line"]),
        ("wrong_shape", ["(2, 3)", "(2,)", "'loss'"]),
        ("no_loss", ["'error'", "'loss'"]),
        ("no_number", ["'note'", "str"]),
        ("taken_name", ["'seconds'"]),
        ("detached", ["gradient", "detach()"]),
        ("two_arguments", ["(model, batch)", "(model, batch, training)"]),
    ],
)
def test_own_step_refuses_mistakes(step, names):
    with refused(SettingError, *names) as refusal:
        built(step)
    assert refusal.value.setting == ("train", "step")


def test_own_step_refuses_monitors_it_does_not_return():
    with refused(SettingError, "val_kl", "loss, accuracy") as refusal:
        built("classify", monitor="val_kl")
    assert refusal.value.setting == ("train", "stopping", "monitor")


@pytest.mark.parametrize(
    ("step", "name"), [("not_a_number", "nan"), ("constant", "does not depend on the weights")]
)
def test_check_learns_refuses_unusable_losses(step, name):
    with refused(SettingError, name):
        built(step).check_learns(*rows_of())


def test_check_learns_leaves_statistics_alone():
    trainable = built("classify", {"build": "tests.torch_modules:convolutional"})
    before = trainable.state()
    trainable.check_learns(*rows_of())
    for name, value in trainable.state().items():
        assert np.array_equal(value, before[name])


def test_own_step_resumes_from_a_state():
    trainable, resumed = built("reconstruct", HEADS), built("reconstruct", HEADS)
    take_step(trainable, rows_of())
    resumed.load(trainable.state())
    assert take_step(resumed, rows_of(seed=1)) == take_step(trainable, rows_of(seed=1))
