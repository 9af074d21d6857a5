"""Evaluation of a network on samples shared by its group, and its predictions."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fleet.engines.base import StepTotals, SupportsPrediction
from fleet.prediction.saved_predictions import Outputs, should_save
from fleet.runtime.training.agreement import all_or_none
from fleet.runtime.training.network import Training
from fleet.stream.batch import split_rows
from fleet.stream.validation import Validation

_CHECK_EVERY_S = 1.0  # then a group looks whether the run ends


def evaluate(
    training: Training, validation: Validation | None, ends: Callable[[], bool]
) -> StepTotals | None:
    """Return sums over all validation samples; collective over the group.

    Args:
        validation: None where there is none; then the sums are 0.
        ends: whether the run ends; the master is asked.

    Returns:
        The same on every rank; None where the run ends before all is judged.

    Raises:
        TrainingFailed: on all ranks, when judging failed on one.
    """
    if validation is None:
        return StepTotals()
    return _sum_over(training, validation, training.evaluate, ends)


def can_predict(training: Training, samples: Validation) -> bool:
    """Return True if the engine can predict and predictions are worth keeping."""
    return isinstance(training.trainable, SupportsPrediction) and should_save(
        training.target, samples.samples
    )


def predict(training: Training, samples: Validation) -> tuple[StepTotals, Outputs]:
    """Return sums, predictions and targets of samples; collective over the group.

    Returns:
        The same on every rank.

    Raises:
        TrainingFailed: on all ranks, when it failed on one.
    """
    trainable = training.trainable
    target = training.target
    group = training.group
    assert isinstance(trainable, SupportsPrediction)  # the caller has asked
    predictions = Outputs(
        np.zeros((samples.samples, target.outputs), np.float32),
        np.zeros((samples.samples, *target.shape), target.dtype),
        None if target.is_plain else np.zeros(samples.samples, np.float32),
    )
    position, _ = split_rows(0, samples.samples, group.rank, group.size)

    def fill(images: np.ndarray, targets: np.ndarray) -> StepTotals:
        nonlocal position
        values, weights = target.split(targets)
        sums, outputs = trainable.predict(images, values, *([] if weights is None else [weights]))
        rows = slice(position, position := position + len(targets))
        predictions.outputs[rows] = outputs
        predictions.targets[rows] = values
        if predictions.weights is not None:
            predictions.weights[rows] = weights
        return sums

    summed = _sum_over(training, samples, fill, lambda: False)
    assert summed is not None  # nothing ends it
    for part in predictions.arrays.values():  # each row is 0 on all ranks but one
        group.sum(part)
    return summed, predictions


def _sum_over(
    training: Training,
    samples: Validation,
    look: Callable[[np.ndarray, np.ndarray], StepTotals],
    ends: Callable[[], bool],
) -> StepTotals | None:
    """Sum over all samples, each rank its share; collective over the group.

    Args:
        look: at a batch of inputs and targets.
        ends: whether the run ends; the master is asked.

    Returns:
        The sums over all of them; None where the run ends before all are looked at.
    """
    group = training.group
    local_sums = StepTotals()
    batches = samples.batches(training.network.train.batch.bounds[0], group.rank, group.size)

    def go_on() -> bool:
        """Evaluate for a while; returns True once this rank's share is done."""
        nonlocal local_sums
        began = time.perf_counter()
        for images, targets in batches:
            local_sums += look(images, targets)
            if time.perf_counter() - began >= _CHECK_EVERY_S:
                return False
        return True

    while True:  # as often on each rank: those that are done wait for the others
        is_done = all_or_none(group, go_on)
        is_ending = group.is_master and not is_done and ends()
        shares = group.allgather((local_sums, is_done, is_ending))
        if all(is_done for _, is_done, _ in shares):
            return sum((sums for sums, _, _ in shares), StepTotals())
        if any(is_ending for _, _, is_ending in shares):
            return None
