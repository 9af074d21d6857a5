"""Steps of trainables of each form that an engine may implement."""

import time

import numpy as np
import pytest

from fleet.engines.base import StepResult, StepTotals
from fleet.engines.steps import (
    MAX_STEPS,
    StepBatches,
    StepCapabilities,
    steps_of,
)
from tests.fleet.engines.async_steps import take_step

IMAGES, TARGETS = np.zeros((5, 2)), np.arange(5)


class Single:
    """Takes one step a call; its totals have the arguments of the step."""

    def step(self, images, targets, size, stop=False):
        assert len(images) == len(targets)
        return StepTotals(float(targets.sum()), size, len(targets), stop)


class Weighted(Single):
    def step(self, images, targets, size, stop=False, weights=None):
        return StepTotals(0.0 if weights is None else float(weights.sum()))


class Striding(Single):
    def can_stride(self):
        return True

    def stride(self, images, targets, sizes, weights):
        assert weights is None
        return [StepTotals(steps=len(sizes)) for _ in sizes]


class Overlapping(Striding):
    def begin(self, images, targets, sizes, stop, weights):
        return lambda: StepResult([StepTotals(count=size, stop=stop) for size in sizes], 0.0)


class Together(Single):
    def can_stride(self):
        return True

    def begin_together(self, images, targets, sizes, rows, local_flags, weights):
        assert weights is None
        return lambda: StepResult([local_flags + StepTotals(count=count) for count in rows], 0.0)


class Door(Single):
    """Implements the protocol itself."""

    capabilities = StepCapabilities()

    def begin_steps(self, batches):
        return lambda: StepResult([batches.flags for _ in batches.sizes], 0.0)


@pytest.mark.parametrize(
    ("trainable", "alone", "in_a_group"),
    [
        (Single(), (1, False), (1, False)),
        (Striding(), (MAX_STEPS, False), (1, False)),
        (Overlapping(), (MAX_STEPS, True), (1, True)),
        (Together(), (MAX_STEPS, True), (MAX_STEPS, True)),
        (Door(), (1, False), (1, False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_steps_of_a_form_have_capabilities(trainable, alone, in_a_group):
    for is_alone, values in ((True, alone), (False, in_a_group)):
        expected = StepCapabilities(*values)
        assert steps_of(trainable, is_alone).capabilities == expected


def test_steps_of_an_engine_that_refuses_strides(monkeypatch):
    monkeypatch.setattr(Together, "can_stride", lambda trainable: False)
    assert steps_of(Together(), is_alone=True).capabilities.max_steps_per_call == 1


def sums_of(trainable, sizes, flags=StepTotals(stop=True, steps=4)):
    """Return the totals of a call of a single rank."""
    batches = StepBatches((IMAGES, TARGETS), sizes, sizes, flags)
    return steps_of(trainable, is_alone=True).begin_steps(batches)().sums


def test_adapted_step_gets_rows_size_and_stop():
    assert sums_of(Single(), [5]) == [StepTotals(10.0, 5, 5, stop=True)]


def test_adapted_step_gets_weights_only_if_there_are_any():
    weights = np.ones(5, np.float32)
    assert take_step(Weighted(), IMAGES, TARGETS, 5).loss == 0
    assert take_step(Weighted(), IMAGES, TARGETS, 5, weights=weights).loss == 5


def test_adapted_stride_takes_several_steps():
    assert sums_of(Striding(), [2, 3]) == 2 * [StepTotals(steps=2)]
    assert sums_of(Striding(), [5]) == [StepTotals(10.0, 5, 5, stop=True)]


def test_adapted_begin_gets_sizes_and_stop():
    assert sums_of(Overlapping(), [2, 3]) == [StepTotals(count=size, stop=True) for size in (2, 3)]


def test_adapted_begin_together_gets_rows_and_flags():
    assert sums_of(Together(), [2, 3]) == [
        StepTotals(count=count, stop=True, steps=4) for count in (2, 3)
    ]


def test_steps_of_the_protocol_are_not_adapted():
    assert sums_of(Door(), [2, 3]) == 2 * [StepTotals(stop=True, steps=4)]


def test_adapted_step_has_finished_when_it_was_computed():
    began = time.perf_counter()
    batches = StepBatches((IMAGES, TARGETS), [5], [5])
    wait = steps_of(Single(), is_alone=True).begin_steps(batches)
    ended = time.perf_counter()
    assert began <= wait().finished_at <= ended
