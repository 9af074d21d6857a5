"""Sources of data that misbehave."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np

from preprocess.transient_errors import read_with_retries
from tests.simulate import kernel as k
from tests.sources import Numbered, noise


class _Flaky:
    """Raises an error that passes, or takes a while, for some samples."""

    def __call__(self, index: int) -> None:
        kernel = k.active()
        if kernel is not None and kernel.process.label != "observer":
            read_with_retries(lambda: self._read(kernel), lambda: f"sample {index}")

    def _read(self, kernel: k.Kernel) -> bytes:
        drawn = kernel.random.random()
        if drawn < 0.02:
            kernel.counts["error of a source"] += 1
            raise OSError(errno.EIO, "the file server does not answer")
        if drawn < 0.04:
            kernel.counts["slow sample"] += 1
            kernel.sleep(kernel.random.uniform(0, 0.3), "a slow sample")
        return b""


def flaky(path: str) -> Any:
    """Open the samples of ``tests.sources:numbered``, with errors that pass."""
    return Numbered(int(path), seed=1, before=_Flaky()), Numbered(20, seed=2)


class _Heavy:
    """Takes some milliseconds for each sample."""

    def __call__(self, index: int) -> None:
        kernel = k.active()
        if kernel is not None and kernel.process.label != "observer":
            kernel.sleep(kernel.random.uniform(1e-3, 3e-3), "a heavy sample")


def heavy(path: str) -> Any:
    """Open the samples of ``tests.sources:numbered``, which take a while."""
    return Numbered(int(path), seed=1, before=_Heavy()), Numbered(20, seed=2)


def _slow_noise(image: np.ndarray, rng: np.random.Generator, training: bool, seconds: float) -> Any:
    kernel = k.active()
    if kernel is not None and kernel.process.label != "observer":
        kernel.sleep(seconds, "a slow transform")
    return noise(image, rng, training)


def slow_noise(image: np.ndarray, rng: np.random.Generator, training: bool) -> Any:
    """Do as ``tests.sources:noise``, in two milliseconds."""
    return _slow_noise(image, rng, training, 2e-3)


def brisk_noise(image: np.ndarray, rng: np.random.Generator, training: bool) -> Any:
    """Do as ``tests.sources:noise``, in half a millisecond."""
    return _slow_noise(image, rng, training, 5e-4)
