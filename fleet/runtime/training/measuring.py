"""How fast a network trains on a group, on samples made up: the stream has its own measure."""

from __future__ import annotations

import time

import numpy as np

from fleet.runtime.training.clocks import StepClock
from fleet.runtime.training.network import Training
from fleet.spec import Profile
from fleet.storage.state import StepRate
from preprocess.sample import SampleSpec


def measure_rate(training: Training, sample: SampleSpec, profile: Profile) -> StepRate:
    """The rate of the whole group, over the last steps of a few; collective over the group.

    Raises:
        NetworkFailed: on all ranks, when a step failed on one.
    """
    group, size = training.group, training.network.global_batch(training.group.size)
    images, targets = made_up(sample, rows=len(range(group.rank, size, group.size)))
    clock = StepClock(warm_up=profile.batches - profile.timed)
    for _ in range(profile.batches):
        began = time.perf_counter()
        training.step(images, targets, size)
        clock.add(size, time.perf_counter() - began)
    return clock.rate


def made_up(sample: SampleSpec, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of no meaning: inputs (rows, ...) of the sample's shape and type, targets (rows,) as they travel."""
    random, shape = np.random.default_rng(0), (rows, *sample.image.shape)
    if np.issubdtype(sample.image.dtype, np.integer):
        images = random.integers(0, 256, shape).astype(sample.image.dtype)
    else:
        images = random.random(shape, np.float32)
    return images, sample.target.made_up(random, rows)
