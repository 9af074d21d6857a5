"""What a network must have become: it is trained again, alone and undisturbed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fleet.comm.single_rank import SingleRankGroup
from fleet.domain.network import EpochRecord
from fleet.engines.base import StepTotals
from fleet.engines.emulated import WEIGHTS
from fleet.spec import NetworkSpec, Stopping
from fleet.storage.checkpoint import read_state
from fleet.stream.order import Epoch, parse_path
from tests.simulate.engines import OwnEngine


@dataclass
class LoneTraining:
    """A network after each epoch of its history.

    Attributes:
        weights: its arrays.
        scores: loss and accuracy of training, then of validation.
        tests: loss and accuracy on the test data; NaN without any.
        outputs: outputs for the validation samples; None without any.
        keeps_best: whether the best epoch is tested, rather than the last.
    """

    weights: list[dict[str, np.ndarray]]
    scores: list[tuple[float, float, float, float]]
    tests: list[tuple[float, float]]
    outputs: list[np.ndarray | None]
    keeps_best: bool


def train_alone(prepared: Any, name: str, history: Sequence[EpochRecord]) -> LoneTraining:
    """Train a network on the same epochs of the stream as in its history.

    Args:
        prepared: the launch, as rank 0 prepares it.
        name: the network.
        history: its epochs.
    """
    network = prepared.spec.by_name[name]
    trainable: Any = (
        _Emulated()
        if prepared.spec.resources.engine == "emulated"
        else OwnEngine(prepared.sample).build(network, SingleRankGroup())
    )
    start = network.train.initial_weights
    if start is not None:
        trainable.load_pretrained(Path(start.file), start.skip)
    inputs = prepared.inputs.by_pipeline
    part = inputs.get(network.pipeline, inputs.get(""))
    if not part.matches_stream:  # all transforms at once
        part = replace(part, stream_target=None, packed_slice=None)
    training = part.pipeline("train", prepared.spec.seed)
    validation = part.pipeline("validation", prepared.spec.seed)
    folds = None if network.fold is None else prepared.inputs.folds
    tested = part.pipeline("test", prepared.spec.seed)
    result = LoneTraining([], [], [], [], "best" in prepared.spec.checkpoint.keep)
    if history and history[0].parent:
        trainable.load(read_state(prepared.paths.first(name)).arrays)
    for record in history:
        plan = prepared.order(training).plan_epoch(
            Epoch(record.stream_epoch, parse_path(record.path))
        )
        used = np.arange(len(plan.indices))
        if folds is not None:
            used = np.flatnonzero(folds[plan.indices] != network.fold)
        if record.cut_at:
            used = used[: record.cut_at]
        trainable.scale_learning_rate(_rate_factor(network, record))
        sums = np.zeros(3)
        for first in range(0, len(used), record.batch):
            parts = [
                _load(training, [plan.indices[row]], int(plan.productions[row]), True)
                for row in used[first : first + record.batch]
            ]
            images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            totals = trainable.step(images, labels, len(labels))
            sums += (totals.loss, totals.correct, totals.count)
        rows = None if folds is None else np.flatnonzero(folds == network.fold)
        score = _evaluate(trainable, validation, rows)
        result.tests.append(_evaluate(trainable, tested, None))
        result.outputs.append(_predict(trainable, validation, rows))
        result.weights.append({key: np.array(array) for key, array in trainable.state().items()})
        result.scores.append((*sums[:2] / sums[2], *score))
    return result


class _Emulated:
    """Counts the samples of each label, as the emulated engine does, without its losses."""

    def __init__(self) -> None:
        self._seen = np.zeros(WEIGHTS)

    def load(self, arrays: Any) -> None:
        self._seen = np.array(arrays["weights"])

    def scale_learning_rate(self, factor: float) -> None:
        """Do nothing."""

    def step(self, inputs: Any, targets: Any, size: int) -> StepTotals:
        self._seen = self._seen + np.bincount(targets[targets >= 0], minlength=WEIGHTS)
        return StepTotals(math.nan, math.nan, 1)

    def evaluate(self, *rows: Any) -> StepTotals:
        return StepTotals(math.nan, math.nan, 1)

    def state(self) -> dict[str, Any]:
        return {"weights": self._seen}


def _rate_factor(network: NetworkSpec, record: EpochRecord) -> float:
    """Return the factor of the learning rate in an epoch."""
    batch = network.train.batch
    if batch.when_scaled == "per_gpu":
        return record.gpus
    if batch.is_elastic:
        return batch.learning_rate_scale(record.batch)
    return 1.0


def _evaluate(trainable: Any, pipeline: Any, rows: np.ndarray | None) -> tuple[float, float]:
    """Return loss and accuracy on some rows of a split, or on all; NaN without the split."""
    if pipeline is None:
        return math.nan, math.nan
    if rows is None:
        rows = np.arange(pipeline.samples)
    totals = trainable.evaluate(*_load(pipeline, rows, 0, False))
    return totals.loss / totals.count, totals.correct / totals.count


def _predict(trainable: Any, pipeline: Any, rows: np.ndarray | None) -> np.ndarray | None:
    """Return the outputs for some rows of a split, or for all; None if there are none."""
    if pipeline is None or isinstance(trainable, _Emulated):
        return None
    if rows is None:
        rows = np.arange(pipeline.samples)
    _, outputs = trainable.predict(*_load(pipeline, rows, 0, False))
    return np.asarray(outputs)


def _load(pipeline: Any, indices: Any, epoch: int, training: bool) -> Any:
    inputs, targets = pipeline.empty(len(indices))
    pipeline.load(indices, epoch, inputs, targets, training)
    return inputs, targets


def last_epoch(history: Sequence[EpochRecord], stopping: Stopping) -> int:
    """Return the epoch after which training must have ended, by its stopping rule."""
    best = -math.inf
    improved = 0
    seconds = 0.0
    for record in history:
        seconds += record.seconds
        score = stopping.sign * record.value(stopping.metric)
        if score > best + stopping.min_delta or record.epoch == 1:
            best, improved = score, record.epoch
        if stopping.stop_at is not None and best >= stopping.sign * stopping.stop_at:
            return record.epoch
        if stopping.patience is not None and record.epoch - improved >= stopping.patience:
            return record.epoch
        if stopping.max_time is not None and seconds >= stopping.max_time:
            return record.epoch
    return stopping.max_epochs
