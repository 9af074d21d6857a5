"""What networks gave when they were exported, for the validation samples and the test samples: small files beside them.

A file has ``outputs``, (n, outputs) float32: the logits, or the values, of all samples in their order; ``targets``
(n, ...), ``rows`` (n,) int64, where each sample lies in the data set (:func:`preprocess.base.row_numbers`), and
``weights`` (n,) where targets travel with them. A file of an earlier version has no ``rows``. So networks can be
compared and joined without their data, and without TensorFlow. It is of the export beside it: that takes away an
earlier one before it is made.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleet.prediction.scores import Truth
from fleet.storage.paths import RunPaths
from fleet.storage.writer import CheckpointWriter
from preprocess.target import TargetSpec

log = logging.getLogger("fleet.prediction.saved_predictions")

MOST_BYTES = 256 << 20  # of what is kept of one network for one part of the data


@dataclass(frozen=True)
class Outputs:
    """What a network gave for some samples.

    Attributes:
        outputs: (n, outputs) float32, logits or values.
        targets: (n, ...), as :class:`preprocess.target.TargetSpec` has them.
        weights: (n,) float32; None for classes without weights.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All that there are, by name."""
        weights = {} if self.weights is None else {"weights": self.weights}
        return {"outputs": self.outputs, "targets": self.targets, **weights}


@dataclass(frozen=True)
class Predictions:
    """What a network predicts for the samples that could be read.

    Attributes:
        values: (n, outputs) float32: probabilities of classes or labels; or values.
        truth: of these samples.
        rows: (n,) where they lie in the data set; None where an earlier version has not kept it.
    """

    values: np.ndarray
    truth: Truth
    rows: np.ndarray | None = None

    def is_comparable(self, other: Predictions) -> bool:
        """Whether both are of the same samples, as far as that is known."""
        is_known = self.rows is not None and other.rows is not None
        return self.truth.matches(other.truth) and not (
            is_known and np.any(self.rows != other.rows)
        )


def should_save(target: TargetSpec, samples: int) -> bool:
    """Whether outputs for so many samples are worth their place: not those of masks, nor what takes over 256 MiB."""
    return target.kind != "mask" and 0 < 4 * samples * target.outputs <= MOST_BYTES


def save_outputs(writer: CheckpointWriter, path: Path, outputs: Outputs, rows: np.ndarray) -> None:
    """Keep what a network gave, where ``checkpoint.quota`` has room.

    Args:
        rows: (n,) where each of the samples lies in the data set.

    Raises:
        StorageError: the disk is full, ...
    """
    arrays = {**outputs.arrays, "rows": rows}
    # Not by its argument allow_pickle: before NumPy 2.1 savez takes it for an array. None of these holds objects.
    writer.write_optional(
        path, sum(array.nbytes for array in arrays.values()), lambda file: np.savez(file, **arrays)
    )


def read_predictions(paths: RunPaths, name: str, part: str, kind: str) -> Predictions | None:
    """What a network predicts; None where nothing was kept, or what is there is damaged.

    Args:
        part: ``validation`` or ``test``.
        kind: of the targets.
    """
    path = paths.predictions(name, part)
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            outputs = file["outputs"]
            targets = file["targets"]
            weights = file.get("weights")
            rows = file.get("rows")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        log.warning("%s is damaged: %s", path, error)
        return None
    usable = (targets if weights is None else weights) >= 0
    return Predictions(
        probabilities(outputs[usable], kind),
        Truth(kind, targets[usable], None if weights is None else weights[usable]),
        None if rows is None else rows[usable],
    )


def concatenate(parts: Sequence[Predictions]) -> Predictions:
    """What several networks predict, each for samples of its own, in the order of the data set where that is known."""
    if len(parts) == 1:
        return parts[0]
    values, targets = (
        np.concatenate([getattr(part, name) for part in sources])
        for name, sources in (("values", parts), ("targets", [part.truth for part in parts]))
    )
    first = parts[0].truth
    weights = [part.truth.weights for part in parts]
    rows = [part.rows for part in parts]
    if first.weights is None:
        weighed = None
    else:
        weighed = np.concatenate([part for part in weights if part is not None])
    if any(part is None for part in rows):
        return Predictions(values, Truth(first.kind, targets, weighed))
    lie = np.concatenate([part for part in rows if part is not None])
    order = np.argsort(lie, kind="stable")
    return Predictions(
        values[order],
        Truth(first.kind, targets[order], None if weighed is None else weighed[order]),
        lie[order],
    )


def probabilities(outputs: np.ndarray, kind: str) -> np.ndarray:
    """What logits stand for, float32; values stand for themselves.

    Args:
        outputs: (..., outputs).
        kind: of the targets.

    >>> probabilities(np.array([[0.0, 0.0]]), "class").tolist()
    [[0.5, 0.5]]
    """
    if kind == "value":
        return outputs.astype(np.float32)
    logits = outputs.astype(np.float64)
    if kind == "multilabel":
        return (0.5 * (1 + np.tanh(logits / 2))).astype(
            np.float32
        )  # the logistic function, without overflow
    risen = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (risen / risen.sum(axis=-1, keepdims=True)).astype(np.float32)
