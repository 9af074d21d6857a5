"""Measurement of training rates on synthetic samples."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

import numpy as np

from fleet.domain.network import StepRate
from fleet.runtime.training.agreement import TrainingFailed
from fleet.runtime.training.clocks import StepClock
from fleet.runtime.training.network import Training
from fleet.spec import Profile
from preprocess.deferred_augmentation import pack_rows
from preprocess.sample import SampleSpec

log = logging.getLogger("fleet.runtime.training.rate_measurement")

_MIN_STEPS = 5  # smallest number of steps that give a spread


def measure_batches(
    training: Training, sample: SampleSpec, profile: Profile, batches: Sequence[int]
) -> list[StepRate]:
    """Measure the rate with each batch size that fits; collective over the group.

    If a step with a batch fails, this batch and larger ones do not fit into the GPUs' memory.

    Args:
        batches: batch sizes in ascending order.

    Raises:
        TrainingFailed: on all ranks, when a step with the first batch failed on one.
    """
    rates: list[StepRate] = []
    for size in batches:
        try:
            rates.append(measure_rate(training, sample, profile, size))
        except TrainingFailed as failure:
            if not rates:
                raise
            log.info(
                "%s: a batch of %d does not fit: %s", training.network.name, size, failure.reason
            )
            break
    return rates


def measure_rate(training: Training, sample: SampleSpec, profile: Profile, size: int) -> StepRate:
    """Measure the rate of the whole group; collective over the group.

    It ends after the configured number of steps, or earlier once the rate is precise enough or the
    time is over. The master announces the end with a step, so that all ranks take the same last
    step.

    Args:
        size: number of rows of the global batch.

    Raises:
        TrainingFailed: on all ranks, when a step failed on one.
    """
    group = training.group
    inputs, targets = make_samples(sample, rows=len(range(group.rank, size, group.size)))
    if training.batch_transforms is not None:
        inputs, targets = training.batch_transforms(inputs, targets, epoch=0, step=0)
    clock = StepClock(warm_up=profile.batches - profile.timed)
    start = time.perf_counter()
    for _ in range(profile.batches):
        began = time.perf_counter()
        if began - start >= profile.seconds / 2:
            clock.end_warm_up()
        is_over = began - start >= profile.seconds or _is_precise(clock.rate, profile.spread)
        sums = training.step(inputs, targets, size, group.is_master and is_over)
        clock.add(size, time.perf_counter() - began)
        if sums.stop:
            break
    return clock.rate


def _is_precise(rate: StepRate, spread: float) -> bool:
    """Return True if more steps would hardly change a rate."""
    return rate.steps >= _MIN_STEPS and rate.spread / math.sqrt(rate.steps) <= spread


def make_samples(sample: SampleSpec, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make synthetic samples: inputs (rows, ...) and targets (rows,), of the sample's dtypes."""
    array = sample.deferred_input or sample.input
    random = np.random.default_rng(0)
    inputs = array.random_inputs(random, rows)
    if sample.deferred_input is not None:
        inputs = pack_rows(inputs, np.zeros((rows, 4)))
    return inputs, sample.target.random_targets(random, rows)
