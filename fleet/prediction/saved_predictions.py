"""Save the outputs of exported networks for validation and test samples.

With these files, networks can be compared and combined without their data and without TensorFlow. A
file has ``outputs``, (n, outputs) float32: the logits or values of all samples in order;
``targets`` (n, ...); ``rows`` (n,) int64, the position of each sample in the data set
(:func:`preprocess.base.row_numbers`); and ``weights`` (n,) if targets have weights. A file belongs
to the export beside it: exporting removes an earlier file first.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from fleet.prediction.scores import Truth
from fleet.storage.paths import RunPaths
from fleet.storage.writer import CheckpointWriter
from preprocess.target import TargetSpec
from preprocess.target_kinds import TargetKind

log = logging.getLogger("fleet.prediction.saved_predictions")

MAX_BYTES = 256 << 20  # maximum size of the saved outputs of one network for one split


@dataclass(frozen=True)
class Outputs:
    """The outputs of a network for some samples.

    Attributes:
        outputs: (n, outputs) float32, logits or values.
        targets: (n, ...), as :class:`preprocess.target.TargetSpec` describes.
        weights: (n,) float32; None for classes without weights.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, without missing weights."""
        weights = {} if self.weights is None else {"weights": self.weights}
        return {"outputs": self.outputs, "targets": self.targets, **weights}


@dataclass(frozen=True)
class Predictions:
    """The predictions of a network for readable samples.

    Attributes:
        values: (n, outputs) float32: probabilities of classes or labels; or values.
        truth: truth of these samples.
        rows: (n,) positions in the data set.
    """

    values: np.ndarray
    truth: Truth
    rows: np.ndarray

    def is_comparable(self, predictions: Predictions) -> bool:
        """Return True if both cover the same samples."""
        return self.truth.matches(predictions.truth) and np.array_equal(self.rows, predictions.rows)


def should_save(target: TargetSpec, samples: int) -> bool:
    """Return True if outputs should be saved: no masks, and at most 256 MiB.

    Args:
        target: target of a sample.
        samples: number of samples.
    """
    return not target.semantics.is_of_pixels and 0 < 4 * samples * target.outputs <= MAX_BYTES


def save_outputs(writer: CheckpointWriter, path: Path, outputs: Outputs, rows: np.ndarray) -> None:
    """Save the outputs of a network if ``checkpoint.quota`` has room.

    Args:
        writer: writer of checkpoints.
        path: path of the file.
        outputs: outputs to save.
        rows: (n,) positions of the samples in the data set.

    Raises:
        StorageError: the file cannot be written, for example because the disk is full.
    """
    arrays = {**outputs.arrays, "rows": rows}
    size = sum(array.nbytes for array in arrays.values())
    writer.write_optional(path, size, lambda file: _write_arrays(file, arrays))


def _write_arrays(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as ``np.savez`` does, which leaves its archive open if the disk refuses."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, array, allow_pickle=False)


def read_predictions(
    paths: RunPaths, name: str, part: str, semantics: TargetKind
) -> Predictions | None:
    """Return the predictions of a network; None if they are missing or damaged.

    Args:
        paths: paths of the run.
        name: name of the network.
        part: ``validation`` or ``test``.
        semantics: what the kind of the targets means.
    """
    path = paths.predictions(name, part)
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            outputs = file["outputs"]
            targets = file["targets"]
            weights = file.get("weights")
            rows = file["rows"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        log.warning("%s is damaged: %s", path, error)
        return None
    is_readable = (targets if weights is None else weights) >= 0
    return Predictions(
        semantics.predictions(outputs[is_readable]),
        Truth(semantics, targets[is_readable], None if weights is None else weights[is_readable]),
        rows[is_readable],
    )


def concatenate(parts: Sequence[Predictions]) -> Predictions:
    """Concatenate predictions for different samples, in the order of the data set."""
    if len(parts) == 1:
        return parts[0]
    truths = [part.truth for part in parts]
    weights = [truth.weights for truth in truths if truth.weights is not None]
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    truth = Truth(
        truths[0].semantics,
        np.concatenate([truth.targets for truth in truths])[order],
        np.concatenate(weights)[order] if len(weights) == len(parts) else None,
    )
    values = np.concatenate([part.values for part in parts])[order]
    return Predictions(values, truth, rows[order])
