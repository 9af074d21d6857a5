"""Means and standard deviations of a data set, in one pass.

Blocks of samples are joined by the formula of Chan, Golub and LeVeque (Updating formulae and a pairwise algorithm for
computing sample variances, 1979), in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from preprocess.base import InputError
from preprocess.pipeline import Pipeline
from preprocess.sample import LOSES, Affine
from preprocess.transforms.color import Standardize

_BLOCK = 1024  # samples


@dataclass(frozen=True)
class Moments:
    """Of some rows of numbers.

    Attributes:
        count: of rows.
        mean: (features,) float64.
        squares: (features,) float64, the sum of the squared distances from the mean.
        low, high: (features,) float64, the smallest and the largest number.

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
        """Of rows (n, features), at least one."""
        rows = rows.astype(np.float64)
        mean = rows.mean(axis=0)
        return cls(
            len(rows), mean, ((rows - mean) ** 2).sum(axis=0), rows.min(axis=0), rows.max(axis=0)
        )

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        apart = other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def affine(self) -> Affine:
        """What brings the rows to mean 0 and standard deviation 1; a feature that is always the same, to 0."""
        is_constant = self.low == self.high
        deviation = np.where(is_constant, 1.0, np.sqrt(self.squares / self.count))
        mean = np.where(is_constant, self.low, self.mean)
        precise = bool((~is_constant & (np.abs(mean) > LOSES * deviation)).any())
        return Affine(tuple(mean.tolist()), tuple(deviation.tolist()), 1.0, precise)


@dataclass(frozen=True)
class Standardized:
    """By which means and deviations networks standardize their inputs.

    Attributes:
        transforms: all of the spec's; with others it says nothing.
        affine: of networks that train on all samples.
        folds: of those of each fold, where there are folds.
    """

    transforms: str
    affine: Affine
    folds: tuple[Affine, ...] = ()


def standardized(
    transforms: str,
    pipeline: Pipeline,
    how: Standardize,
    folds: np.ndarray | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> Standardized:
    """What brings the training samples to mean 0 and standard deviation 1; samples that cannot be read are left out.

    Args:
        transforms: as in :class:`Standardized`.
        pipeline: prepares them; nothing is random.
        folds: (samples,) the fold of each; None where there are none.
        progress: called with the number of samples that have just been read.

    Raises:
        InputError: no sample can be read.
    """
    number_of = np.zeros(pipeline.samples, np.int64) if folds is None else folds
    found: dict[int, Moments] = {}
    for first in range(0, pipeline.samples, _BLOCK):
        indices = np.arange(first, min(first + _BLOCK, pipeline.samples))
        inputs, targets = pipeline.empty(len(indices))
        pipeline.load(indices, 0, inputs, targets, training=False)
        usable = pipeline.sample.target.usable(targets)
        for number in np.unique(number_of[indices][usable]).tolist():
            rows = inputs[usable & (number_of[indices] == number)]
            more = Moments.of(rows.reshape(-1, how.features(pipeline.sample.image.shape)))
            found[number] = found[number] + more if number in found else more
        progress(len(indices))
    if len(found) < (1 if folds is None else 2):
        raise InputError("transforms: standardize: no training sample can be read")
    whole = reduce(Moments.__add__, (found[number] for number in sorted(found))).affine()
    if folds is None:
        return Standardized(transforms, whole)
    of_folds = (
        reduce(Moments.__add__, (found[number] for number in sorted(found) if number != fold))
        for fold in range(int(folds.max()) + 1)
    )
    return Standardized(
        transforms,
        whole,
        tuple(replace(one.affine(), precise=whole.precise) for one in of_folds),
    )
