"""Training steps of the user in Keras: totals, metrics, groups, mistakes."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext, collect_warnings
from fleet.engines.steps import StepBatches
from fleet.errors import SettingError
from fleet.spec import Resources, parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.examples import long_but_first
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))
CNN = {"family": "cnn", "args": {"filters": [4], "dense": [8]}}
HEADS = {"build": "tests.keras_steps:two_heads"}


def built(step=None, model=CNN, sample=SAMPLE, group=None, monitor="val_loss", **train):
    from fleet.engines.keras.engine import KerasEngine

    train = {
        "optimizer": {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9},
        "stopping": {"monitor": monitor, "direction": "min"},
        **({} if step is None else {"step": f"tests.keras_steps:{step}"}),
        **train,
    }
    [network] = parse({"models": [model], "train": train}).networks
    engine = KerasEngine(EngineContext(sample, Resources(exchange="mpi")))
    return engine.build(replace(network, seed=0), group or SingleRankGroup())


def rows_of(count=12, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 8, 8, 1)).astype(np.uint8), random.integers(0, 3, count)


def take_step(trainable, rows, indices=None):
    size = [len(rows[1])]
    return trainable.user_steps.begin(StepBatches(rows, size, size), indices)().sums[0]


@pytest.mark.filterwarnings("ignore::fleet.errors.NetworkWarning")
@pytest.mark.parametrize("step", long_but_first("with_branch", "classify", "one_number"))
def test_own_step_equals_the_named_loss(step):
    by_user, named = built(step), built()
    for seed in range(3):
        rows = rows_of(seed=seed)
        expected = named.begin_steps(StepBatches(rows, [12], [12]))().sums[0]
        assert take_step(by_user, rows).loss == pytest.approx(expected.loss, rel=1e-5)
    for (name, value), expected in zip(
        by_user.state().items(), named.state().values(), strict=True
    ):
        if value.dtype.kind == "f":
            assert value == pytest.approx(expected, abs=1e-6), name
    assert by_user.user_steps.returns_accuracy == (step == "classify")


def test_own_step_returns_metrics_by_name(tmp_path):
    trainable = built("reconstruct", HEADS, monitor="val_penalty")
    rows = rows_of()
    trained = trainable.scores(take_step(trainable, rows).metric_totals)
    assert set(trained) == {"penalty"}
    evaluated = trainable.scores(trainable.user_steps.evaluate(rows, np.arange(12)).metric_totals)
    assert set(evaluated) == {"penalty", "largest"}
    assert not trainable.user_steps.has_predictions
    assert trainable.try_export(tmp_path) == ""


@pytest.mark.long
def test_own_step_leaves_out_unreadable_rows():
    inputs, labels = rows_of()
    labels[3] = -1
    trainable, reference = built("classify"), built("classify")
    readable = np.arange(12) != 3
    totals = take_step(trainable, (inputs, labels))
    expected = take_step(reference, (inputs[readable], labels[readable]))
    assert totals.as_tuple == pytest.approx(expected.as_tuple, rel=1e-5)
    assert totals.count == 11


def test_own_step_receives_index_and_weights():
    sample = replace(SAMPLE, target=TargetSpec("class", 3, weighted=True))
    trainable = built("index_as_loss", sample=sample)
    weights = np.arange(12, dtype=np.float32)
    weights[5] = -1  # unreadable
    indices = np.arange(100, 112)
    expected = float((weights * indices)[weights >= 0].sum())
    rows = (*rows_of(), weights)
    assert take_step(trainable, rows, indices).loss == pytest.approx(expected)
    assert trainable.user_steps.evaluate(rows, indices).loss == pytest.approx(expected)


def test_own_step_of_one_number_warns_of_ranks():
    with collect_warnings() as warnings:
        built("one_number")
    [warning] = warnings
    assert "number of ranks" in warning


@pytest.mark.parametrize(
    ("step", "names"),
    [
        ("missing_name", ["'image'", "input, target, weight, index", "keras_steps.py, line"]),
        ("wrong_shape", ["(2, 3)", "(2,)", "'loss'"]),
        ("no_loss", ["'error'", "'loss'"]),
        ("detached", ["gradient"]),
    ],
)
def test_own_step_refuses_mistakes(step, names):
    with refused(SettingError, *names) as refusal:
        built(step)
    assert refusal.value.setting == ("train", "step")


def test_check_learns_refuses_losses_that_are_no_number():
    with refused(SettingError, "nan"):
        built("not_a_number").check_learns(*rows_of())


@pytest.mark.long
def test_own_step_resumes_from_a_state():
    trainable, resumed = built("reconstruct", HEADS), built("reconstruct", HEADS)
    take_step(trainable, rows_of())
    resumed.load(trainable.state())
    following = rows_of(seed=1)
    assert take_step(resumed, following) == take_step(trainable, following)
