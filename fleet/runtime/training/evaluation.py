"""Evaluation and predictions of a network, divided among the ranks of its group."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fleet.engines.base import StepTotals, SupportsPrediction
from fleet.engines.steps import user_steps_of
from fleet.prediction.saved_predictions import Outputs, should_save
from fleet.runtime.training.agreement import all_or_none
from fleet.runtime.training.network import Training
from fleet.stream.batch import split_rows
from fleet.stream.validation import Validation

_CHECK_EVERY_S = 1.0  # whether the run ends


def evaluate(
    training: Training, validation: Validation | None, ends: Callable[[], bool]
) -> StepTotals | None:
    """Return sums over all validation samples; collective over the group.

    Args:
        validation: the samples; None without validation data, then the sums are 0.
        ends: returns whether the run ends; called on the master.

    Returns:
        The sums, equal on every rank; None if the run ends before the evaluation does.

    Raises:
        TrainingFailed: on all ranks, when evaluation failed on one.
    """
    if validation is None:
        return StepTotals()
    return _sum_over(training, validation, training.evaluate, ends)


def can_predict(training: Training, samples: Validation) -> bool:
    """Return True if the engine can predict and predictions are worth keeping."""
    user_steps = user_steps_of(training.trainable)
    if user_steps is not None and not user_steps.has_predictions:
        return False
    return isinstance(training.trainable, SupportsPrediction) and should_save(
        training.target, samples.samples
    )


def predict(training: Training, samples: Validation) -> tuple[StepTotals, Outputs]:
    """Return sums, predictions and targets of samples; collective over the group.

    Returns:
        The sums and outputs, equal on every rank.

    Raises:
        TrainingFailed: on all ranks, when it failed on one.
    """
    trainable = training.trainable
    target = training.target
    group = training.group
    assert isinstance(trainable, SupportsPrediction)  # see can_predict()
    predictions = Outputs(
        np.zeros((samples.samples, *target.output_shape), np.float32),
        np.zeros((samples.samples, *target.shape), target.dtype),
        None if target.is_plain else np.zeros(samples.samples, np.float32),
    )
    position, _ = split_rows(0, samples.samples, group.rank, group.size)

    def fill(inputs: np.ndarray, targets: np.ndarray, indices: np.ndarray) -> StepTotals:
        nonlocal position
        inputs = training.cut(inputs)
        values, *weights = target.split(targets)
        sums, outputs = trainable.predict(inputs, values, *weights)
        user_steps = user_steps_of(trainable)
        if user_steps is not None:
            sums = user_steps.evaluate((inputs, values, *weights), indices)
        rows = slice(position, position + len(targets))
        position += len(targets)
        predictions.outputs[rows] = outputs
        predictions.targets[rows] = values
        if predictions.weights is not None:
            predictions.weights[rows] = weights[0]
        return sums

    summed = _sum_over(training, samples, fill, lambda: False)
    assert summed is not None
    for array in predictions.arrays.values():  # each row is 0 on all ranks except one
        for column in columns_of(array):
            total = np.ascontiguousarray(column)
            group.sum(total)
            column[...] = total
    return summed, predictions


def columns_of(array: np.ndarray) -> list[np.ndarray]:
    """Return the fields of records as views; other arrays as they are."""
    if array.dtype.names is None:
        return [array]
    return [array[name] for name in array.dtype.names]


def _sum_over(
    training: Training,
    samples: Validation,
    evaluate_batch: Callable[[np.ndarray, np.ndarray, np.ndarray], StepTotals],
    ends: Callable[[], bool],
) -> StepTotals | None:
    """Sum over all samples, each rank over its share; collective over the group.

    Args:
        evaluate_batch: (inputs, targets, rows in the data set) of a batch -> sums.
        ends: returns whether the run ends; called on the master.

    Returns:
        The sums over all samples; None if the run ends before.
    """
    group = training.group
    local_sums = StepTotals()
    batches = samples.batches(training.network.train.batch.bounds[0], group.rank, group.size)
    numbers = samples.numbers
    position, _ = split_rows(0, samples.samples, group.rank, group.size)

    def evaluate_for_a_while() -> bool:
        """Evaluate some batches; returns True once this rank's share is done."""
        nonlocal local_sums, position
        began = time.perf_counter()
        for inputs, targets in batches:
            indices = numbers[position : position + len(targets)]
            position += len(targets)
            local_sums += evaluate_batch(inputs, targets, indices)
            if time.perf_counter() - began >= _CHECK_EVERY_S:
                return False
        return True

    while True:  # equally often on each rank
        is_done = all_or_none(group, evaluate_for_a_while)
        is_ending = group.is_master and not is_done and ends()
        shares = group.allgather((local_sums, is_done, is_ending))
        if all(is_done for _, is_done, _ in shares):
            return sum((sums for sums, _, _ in shares), StepTotals())
        if any(is_ending for _, _, is_ending in shares):
            return None
