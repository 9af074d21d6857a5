"""Batch transforms that a spec may name: Mixup and CutMix.

A batch is a mapping of names to NumPy arrays with rows first. Shares of classes, labels and values
are mixed like inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

NOT_MIXED = ("weight", "index")  # arrays of a batch that stay with their rows


def mixup(
    batch: dict[str, np.ndarray],
    rng: np.random.Generator,
    alpha: float = 0.2,
    probability: float = 1.0,
) -> dict[str, np.ndarray]:
    """Replace each row by a mean of itself and another row; one share for the batch.

    Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.

    Args:
        batch: arrays of floats, (n, ...).
        rng: draws the share and the partners of the rows.
        alpha: both parameters of the beta distribution of the share.
        probability: share of the batches that are mixed.

    Raises:
        ValueError: an argument is out of range, or an array holds whole numbers.
    """
    share, partners, is_mixed = _draw(batch, rng, alpha, probability)
    for name, values in _mixed_arrays(batch).items():
        if values.dtype.kind != "f":
            raise ValueError(
                f"{name} holds whole numbers ({values.dtype}), which have no mean; use cutmix for "
                "masks"
            )
        if is_mixed:
            batch[name] = _mean(values, values[partners], share)
    return batch


def cutmix(
    batch: dict[str, np.ndarray],
    rng: np.random.Generator,
    alpha: float = 1.0,
    probability: float = 1.0,
) -> dict[str, np.ndarray]:
    """Paste a box of another image into each image; one box for the batch.

    Targets are mixed by the area of the box; masks are pasted like images. Yun et al., CutMix:
    Regularization Strategy to Train Strong Classifiers with Localizable Features, ICCV 2019.

    Args:
        batch: images and masks (n, height, width, ...), and targets (n, outputs) of floats.
        rng: draws the box and the partners of the rows.
        alpha: both parameters of the beta distribution of the share that an image keeps.
        probability: share of the batches that are mixed.

    Raises:
        ValueError: an argument is out of range, or there is no image.
    """
    share, partners, is_mixed = _draw(batch, rng, alpha, probability)
    arrays = _mixed_arrays(batch)
    images = [values for values in arrays.values() if values.ndim == 4]
    if not images:
        raise ValueError("the batch has no images (n, height, width, channels)")
    height, width = images[0].shape[1:3]
    row, column = rng.integers(height), rng.integers(width)
    ratio = np.sqrt(1 - share)
    rows = slice(max(0, int(row - height * ratio / 2)), int(row + height * ratio / 2))
    columns = slice(max(0, int(column - width * ratio / 2)), int(column + width * ratio / 2))
    if not is_mixed:
        return batch
    pasted = np.zeros((height, width), bool)
    pasted[rows, columns] = True
    for name, values in arrays.items():
        if values.shape[1:3] == (height, width):
            batch[name] = values.copy()
            batch[name][:, rows, columns] = values[partners, rows, columns]
        elif values.dtype.kind == "f":
            batch[name] = _mean(values, values[partners], 1 - pasted.mean())
    return batch


def _draw(
    batch: dict[str, np.ndarray], rng: np.random.Generator, alpha: float, probability: float
) -> tuple[float, np.ndarray, bool]:
    """Return the share that a row keeps, the partner of each row, and whether the batch is mixed.

    The same numbers are drawn whether it is mixed or not.
    """
    if not alpha > 0:
        raise ValueError(f"alpha is {alpha}; it should be a number above 0")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability is {probability}; it should be a number from 0 to 1")
    rows = len(next(iter(batch.values())))
    share = float(rng.beta(alpha, alpha))
    partners = rng.permutation(rows)
    return share, partners, bool(rng.random() < probability)


def _mixed_arrays(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values for name, values in batch.items() if name not in NOT_MIXED}


def _mean(values: np.ndarray, partners: np.ndarray, share: float) -> np.ndarray:
    mean: np.ndarray = values * np.float32(share) + partners * np.float32(1 - share)
    return mean


BATCH_TRANSFORMS: dict[str, Callable[..., Any]] = {"mixup": mixup, "cutmix": cutmix}
