"""Steps by recordings, compared bit for bit with steps by modules and autograd."""

import numpy as np
import pytest

from fleet.engines.steps import StepBatches
from tests.fleet.engines.torch.test_fused import (
    BATCH,
    CNN,
    DENSE,
    TRANSFORMER,
    batches,
    network,
    networks,
    optimizers,
)

pytestmark = pytest.mark.torch

SETTINGS = [
    *optimizers("adam", count=1, weight_decay=0.01, global_clipnorm=1.0),
    *optimizers("adamw", count=1, use_ema=True, ema_momentum=0.8),
    *optimizers("rmsprop", count=1, momentum=0.5),
    {"batch": {"accumulate": 2}},
    {"precision": "mixed_bfloat16"},
    {"precision": "mixed_float16"},
    {"metrics": ["AUC", "f1_score"], "label_smoothing": 0.1},
    {"class_weights": {"0": 1, "1": 2, "2": 3}},
]


def recorded_network(model, train, after=2, record_step=None):
    from fleet.engines.torch.recorded_steps import RecordedSteps, Recording

    _, trainable = network(model, 0, **train)
    trainable.steps.recorded = RecordedSteps(trainable.steps, record_step or Recording, after)
    return trainable


def unrecorded_network(model, train):
    _, trainable = network(model, 0, **train)
    trainable.steps.recorded = None
    return trainable


def compare(model, train, steps, after=2, record_step=None):
    """Take the same steps with and without recordings; return the recordings."""
    recorded = recorded_network(model, train, after, record_step)
    plain = unrecorded_network(model, train)
    for step in steps:
        assert recorded.begin_steps(step)().sums == plain.begin_steps(step)().sums
    expected = plain.state()
    for name, value in recorded.state().items():
        assert value.tobytes() == expected[name].tobytes(), name
    return list(recorded.steps.recorded.recordings.values())


def joined(steps):
    """Return one call for several steps."""
    columns = zip(*(step.local_rows for step in steps), strict=True)
    sizes = [size for step in steps for size in step.sizes]
    return StepBatches(tuple(map(np.concatenate, columns)), sizes, sizes)


@pytest.mark.parametrize("model", [DENSE, CNN, TRANSFORMER], ids=["dense", "cnn", "transformer"])
def test_recorded_steps_equal_those_of_modules(model):
    [train] = optimizers("sgd", count=1, momentum=0.9)
    recordings = compare(model, train, batches(10))
    assert len(recordings) == 2  # of whole batches, and of the last of an epoch
    assert None not in recordings


@pytest.mark.parametrize("train", SETTINGS)
def test_recorded_steps_keep_all_settings(train):
    assert all(compare(DENSE, train, batches(3)))


def test_call_of_several_steps_takes_each_by_its_recording():
    [train] = optimizers("sgd", count=1, momentum=0.9)
    calls = [joined(list(batches(2))), joined(list(batches(2)))]
    assert all(compare(DENSE, train, calls, after=1))


def test_batches_with_unreadable_rows_are_taken_by_the_module():
    [train] = optimizers("sgd", count=1)
    inputs, targets = next(batches(1)).local_rows
    bad = np.where(np.arange(BATCH) < 3, -1, targets)
    steps = [StepBatches((inputs, rows), [BATCH], [BATCH]) for rows in (targets, bad, targets)]
    [recording] = compare(DENSE, train, steps, after=1)
    assert recording is not None


@pytest.mark.parametrize("function", ["branching", "counting", "shuffling"])
def test_modules_that_cannot_be_recorded_train_as_before(function):
    [train] = optimizers("sgd", count=1)
    recorded = recorded_network({"build": f"tests.fusing_modules:{function}"}, train)
    for step in batches(2):
        recorded.begin_steps(step)()
    assert set(recorded.steps.recorded.recordings.values()) == {None}


def test_recording_that_computes_other_bits_is_not_used(monkeypatch):
    import torch

    from fleet.engines.torch import recorded_steps

    drawn = iter(range(100))
    monkeypatch.setattr(recorded_steps, "is_random", lambda node: False)
    monkeypatch.setattr(
        recorded_steps.Recording,
        "_make_seed",
        lambda recording: torch.tensor(1.0 + next(drawn)),
    )
    [train] = optimizers("sgd", count=1)
    assert compare(DENSE, train, batches(2)) == [None]


def test_resumed_network_continues_by_its_recording():
    [train] = optimizers("adam", count=1)
    steps = list(batches(4))
    first = recorded_network(DENSE, train)
    for step in steps[:6]:
        first.begin_steps(step)()
    second = unrecorded_network(DENSE, train)
    second.load(first.state())
    first.load(first.state())
    for step in steps[6:]:
        assert first.begin_steps(step)().sums == second.begin_steps(step)().sums


def test_network_is_recorded_before_it_is_fused_and_afterwards():
    from fleet.engines.torch.recorded_steps import RecordedSteps, Recording

    trains = optimizers("adam", count=2)
    _, alone = networks(DENSE, trains)
    engine, together = networks(DENSE, trains)
    for member in together:
        member.steps.recorded = RecordedSteps(member.steps, Recording, after=2)
    steps = list(batches(4))
    for step in steps[:5]:
        for member in (*alone, *together):
            member.begin_steps(step)()
    fused = engine.fuse(together, "key")
    for step in steps[5:8]:
        fused.begin_steps(step)()
        for trainable in alone:
            trainable.begin_steps(step)()
    fused.release()
    for step in steps[8:]:
        for member in (*alone, *together):
            member.begin_steps(step)()
    for trainable, member in zip(alone, together, strict=True):
        expected = trainable.state()
        for name, value in member.state().items():
            assert value == pytest.approx(expected[name], abs=1e-5), name


DEEP = {"family": "mlp", "args": {"hidden": 60 * [4]}}


def test_network_of_a_family_is_recorded():
    _, trainable = network(DENSE, 0)
    assert trainable.steps.recorded is not None


@pytest.mark.parametrize("model", [CNN, DEEP], ids=["user code", "deep"])
def test_user_code_and_large_networks_are_not_recorded(model):
    _, trainable = network(model, 0)
    assert trainable.steps.recorded is None
