"""Means and standard deviations of a data set, in one pass.

Blocks of samples are merged by the formula of Chan, Golub and LeVeque (Updating formulae and a
pairwise algorithm for computing sample variances, 1979), in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from launch.errors import InputError
from preprocess.pipeline import Pipeline
from preprocess.sample import FLOAT32_LIMIT, Affine
from preprocess.transforms.color import ScaleByData, Standardize

_BLOCK = 1024  # samples
_BLOCK_NUMBERS = 8_000_000  # at most, of samples in a block
_IMAGES = 2048  # whose means and deviations are as good as those of all


@dataclass(frozen=True)
class Moments:
    """Mean and variance of rows of numbers.

    Attributes:
        count: number of rows.
        mean: (features,) float64.
        squares: (features,) float64, the sum of squared distances from the mean.
        low: (features,) float64, the smallest numbers.
        high: (features,) float64, the largest numbers.

    >>> (Moments.of(np.array([[1.0], [2]])) + Moments.of(np.array([[6.0]]))).affine()
    Affine(mean=(3.0,), std=(2.160246899469287,), unit=1.0)
    """

    count: int
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> Moments:
        """Compute the moments of rows (n, features), n >= 1."""
        rows = rows.astype(np.float64)
        mean = rows.mean(axis=0)
        squares = ((rows - mean) ** 2).sum(axis=0)
        return cls(len(rows), mean, squares, rows.min(axis=0), rows.max(axis=0))

    def __add__(self, more: Moments) -> Moments:
        count = self.count + more.count
        apart = more.mean - self.mean
        return Moments(
            count,
            self.mean + apart * more.count / count,
            self.squares + more.squares + apart**2 * self.count * more.count / count,
            np.minimum(self.low, more.low),
            np.maximum(self.high, more.high),
        )

    def affine(self) -> Affine:
        """Return the standardization to mean 0, deviation 1; a constant feature becomes 0."""
        is_constant = self.low == self.high
        deviation = np.where(is_constant, 1.0, np.sqrt(self.squares / self.count))
        mean = np.where(is_constant, self.low, self.mean)
        precise = bool((~is_constant & (np.abs(mean) > FLOAT32_LIMIT * deviation)).any())
        return Affine(tuple(mean.tolist()), tuple(deviation.tolist()), 1.0, precise)


@dataclass(frozen=True)
class Standardization:
    """The means and deviations with which networks standardize their inputs.

    Attributes:
        transforms: the spec's list as text; the numbers are valid for this list only.
        affine: the scale of networks that train on all samples.
        folds: the scale of the networks of each fold; empty without folds.
    """

    transforms: str
    affine: Affine
    folds: tuple[Affine, ...] = ()


def compute_standardization(
    transforms: str,
    pipeline: Pipeline,
    how: Standardize,
    folds: np.ndarray | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> Standardization:
    """Compute means and deviations of the training samples; skip unreadable ones.

    Of images, whose many pixels differ little from image to image, 2048 are read at most, spread
    over the data.

    Args:
        transforms: see :class:`Standardization`.
        pipeline: prepares the samples, without randomness.
        how: per feature or over the whole array.
        folds: (samples,) integers, the fold of each; None without folds.
        progress: called with the number of samples just read.

    Raises:
        InputError: no sample can be read.
    """
    number_of = np.zeros(pipeline.samples, np.int64) if folds is None else folds
    moments: dict[int, Moments] = {}
    rows = pipeline.samples
    if isinstance(how, ScaleByData):
        rows = min(rows, _IMAGES)
    chosen = np.linspace(0, pipeline.samples - 1, rows).astype(np.int64)
    block = max(1, min(_BLOCK, _BLOCK_NUMBERS // max(1, pipeline.sample.input.size)))
    for first in range(0, rows, block):
        indices = chosen[first : first + block]
        inputs, targets = pipeline.empty(len(indices))
        pipeline.load(indices, 0, inputs, targets, training=False)
        usable = pipeline.sample.target.is_usable(targets)
        for number in np.unique(number_of[indices][usable]).tolist():
            numbers = inputs[usable & (number_of[indices] == number)]
            added = Moments.of(numbers.reshape(-1, how.features(pipeline.sample.input.shape)))
            if number in moments:
                added = moments[number] + added
            moments[number] = added
        progress(len(indices))
    if len(moments) < (1 if folds is None else 2):
        raise InputError(f"transforms: {how.written}: no training sample can be read")
    affine = reduce(Moments.__add__, (moments[number] for number in sorted(moments))).affine()
    if folds is None:
        return Standardization(transforms, affine)
    of_folds = (
        reduce(Moments.__add__, (moments[number] for number in sorted(moments) if number != fold))
        for fold in range(int(folds.max()) + 1)
    )
    return Standardization(
        transforms,
        affine,
        tuple(replace(other_folds.affine(), precise=affine.precise) for other_folds in of_folds),
    )
