"""What networks gave when they were exported, for the validation samples and the test samples: small files beside them.

A file has ``outputs``, (n, outputs) float32: the logits, or the values, of all samples in their order; ``targets``
(n, ...), and ``weights`` (n,) where targets travel with them. So networks can be compared and joined without their
data, and without TensorFlow. It is of the export beside it: that takes away an earlier one before it is made.
"""

from __future__ import annotations

import logging
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleet.prediction.scores import Truth
from fleet.storage.paths import RunPaths
from fleet.storage.writer import CheckpointWriter
from preprocess.target import TargetSpec

log = logging.getLogger("fleet.prediction.kept")

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
class Predicted:
    """What a network predicts for the samples that could be read.

    Attributes:
        values: (n, outputs) float32: probabilities of classes or labels; or values.
        truth: of these samples.
    """

    values: np.ndarray
    truth: Truth


def is_kept(target: TargetSpec, samples: int) -> bool:
    """Whether outputs for so many samples are worth their place: not those of masks, nor what takes over 256 MiB."""
    return target.kind != "mask" and 0 < 4 * samples * target.outputs <= MOST_BYTES


def keep_outputs(writer: CheckpointWriter, path: Path, found: Outputs) -> None:
    """Keep what a network gave, where ``checkpoint.quota`` has room.

    Raises:
        StorageError: the disk is full, ...
    """
    wanted = sum(array.nbytes for array in found.arrays.values())
    writer.keep(path, wanted, lambda file: np.savez(file, allow_pickle=False, **found.arrays))


def read_predicted(paths: RunPaths, name: str, part: str, kind: str) -> Predicted | None:
    """What a network predicts; None where nothing was kept, or what is there is damaged.

    Args:
        part: ``validation`` or ``test``.
        kind: of the targets.
    """
    path = paths.predictions(name, part)
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            outputs, targets = file["outputs"], file["targets"]
            weights = file.get("weights")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        log.warning("%s is damaged: %s", path, error)
        return None
    usable = (targets if weights is None else weights) >= 0
    return Predicted(probabilities(outputs[usable], kind),
                     Truth(kind, targets[usable], None if weights is None else weights[usable]))


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
        return (0.5 * (1 + np.tanh(logits / 2))).astype(np.float32)  # the logistic function, without overflow
    risen = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (risen / risen.sum(axis=-1, keepdims=True)).astype(np.float32)
