"""What must stand in the files of a run once all is done."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleet.domain.events import LaunchStarted, SampleSkipped
from fleet.domain.network import SCORES, EpochRecord
from fleet.storage.event_log import read_events
from fleet.storage.results import NetworkResult, Status
from tests.simulate.lone_training import LoneTraining

_ROUNDED = 1e-3  # relative difference of a number in a table


def check_row(
    row: NetworkResult,
    network: Any,
    history: Sequence[EpochRecord],
    lone: LoneTraining,
    saved: Path,
    is_undisturbed: bool,
) -> Iterator[str]:
    """Yield what is wrong in the row of a finished network.

    Args:
        row: the row.
        network: its spec.
        history: its epochs.
        lone: the network, trained alone.
        saved: the file of its outputs, which may be missing.
        is_undisturbed: whether there were no faults.
    """
    stopping = network.train.stopping
    best = history[row.best_epoch - 1]
    for name in SCORES:
        if not _is_close(row.value(name), best.value(name)):
            yield f"{name} is {row.value(name)} in the results; epoch {best.epoch} has {best}"
    scores = [stopping.sign * record.value(stopping.metric) for record in history]
    if not all(math.isnan(score) for score in scores):
        highest = max(score for score in scores if not math.isnan(score))
        if stopping.sign * best.value(stopping.metric) < highest - stopping.min_delta:
            yield f"epoch {best.epoch} is not the best one: {scores}"
    # A fault may lose the report of a network that needed no more training.
    is_lost = row.parameters is None and not is_undisturbed
    if row.parameters != lone.weights[-1]["weights"].size and not is_lost:
        yield f"it has {row.parameters} parameters in the results"
    seconds = sum(record.seconds for record in history)
    if not math.isclose(row.seconds, seconds, abs_tol=0.06, rel_tol=0.01):
        yield f"it took {row.seconds} s in the results, and {seconds} s by its epochs"
    epoch = row.best_epoch if lone.keeps_best else len(history)
    for value, alone in zip((row.test_loss, row.test_accuracy), lone.tests[epoch - 1], strict=True):
        if not _is_close(value, alone):
            yield f"the test data gave {value} in the results; alone: {alone}"
    measured = ["", "val_"] if math.isnan(row.test_loss) else ["", "val_", "test_"]
    metrics = {str(name) for name in network.train.metrics} - {"accuracy"}
    missing = {f"{part}{name}" for part in measured for name in metrics} - row.metrics.keys()
    if missing:
        yield f"the results lack {missing}"
    extra = {name for name in row.metrics if name.removeprefix("test_") in SCORES}
    if extra:
        yield f"the results have {extra} twice"
    outputs = lone.outputs[epoch - 1]
    if saved.exists() and outputs is not None:
        with np.load(saved) as file:
            if not np.allclose(file["outputs"], outputs, rtol=1e-4, atol=1e-5, equal_nan=True):
                yield f"{saved.name} has other outputs than epoch {epoch} of the training alone"
    rate = row.drawn.get("train.optimizer.learning_rate", row.drawn.get("learning_rate"))
    if rate is not None and not _is_close(float(rate), network.train.optimizer.learning_rate):
        yield f"the results have {row.drawn}, and the spec {network.train.optimizer}"


def check_means(rows: Sequence[NetworkResult]) -> Iterator[str]:
    """Yield what is wrong in the rows of folds and repeats."""
    for mean in rows:
        if not mean.is_mean:
            continue
        pattern = re.compile(rf"{mean.name}-{'fold' if mean.folds else 'repeat'}\d+")
        parts = [row for row in rows if pattern.fullmatch(row.name)]
        if len(parts) != mean.folds + mean.repeats:
            yield f"{mean.name} stands for {mean.folds + mean.repeats} of {len(parts)} networks"
        counted = [row for row in parts if row.status is not Status.FAILED]
        for name in SCORES:
            values = [row.value(name) for row in counted if not math.isnan(row.value(name))]
            expected = statistics.fmean(values) if values else math.nan
            if not math.isclose(mean.value(name), expected, abs_tol=2e-3) and values:
                yield f"{mean.name}: {name} is {mean.value(name)}; the mean is {expected}"


def check_order(rows: Sequence[NetworkResult], networks: Mapping[str, Any]) -> Iterator[str]:
    """Yield a finished network that stands below a worse one."""
    single = [row for row in rows if row.status is Status.FINISHED and not row.is_mean]
    if len(single) != len(rows) or len({networks[row.name].train.stopping for row in rows}) > 1:
        return
    stopping = networks[rows[0].name].train.stopping
    scores = [stopping.sign * row.value(stopping.metric) for row in rows]
    numbers = [score for score in scores if not math.isnan(score)]
    if numbers != sorted(numbers, reverse=True):
        yield f"rows are not in the order of {stopping.metric}: {scores}"


def check_files(prepared: Any, rows: Sequence[NetworkResult]) -> Iterator[str]:
    """Yield what is wrong in other files of a run."""
    paths = prepared.paths
    spec = prepared.spec
    trained = {row.name for row in rows if row.epochs and not row.is_mean}
    report = paths.report.read_text() if paths.report.exists() else ""
    missing = [name for name in trained if name not in report]
    if missing:
        yield f"the report lacks {missing}"
    if trained and paths.profile.exists():
        models = json.loads(paths.profile.read_text())["models"]
        rates = [rate for model in models for rate in model["rates"]]
        if not all(0 < rate < math.inf for rate in rates):
            yield f"the profile has {models}"
    if paths.unreadable_samples.exists():
        with paths.unreadable_samples.open(newline="") as file:
            names = [tuple(line) for line in csv.reader(file)]
        if len(set(names)) != len(names):
            yield f"unreadable samples are listed twice: {names}"
    for log in paths.event_logs():
        skipped = set[str]()
        for _, event in read_events(log, kinds=(LaunchStarted, SampleSkipped)):
            if isinstance(event, LaunchStarted):
                skipped.clear()
            elif event.name in skipped:
                yield f"the sample {event.name} was reported twice"
            else:
                skipped.add(event.name)
    quota = spec.checkpoint.quota
    if quota:
        used = sum(file.stat().st_size for file in paths.root.glob("models/*/*.h5"))
        if used > quota:
            yield f"checkpoints take {used} bytes, more than the quota of {quota}"
    for stem, entry in spec.searches.items():
        trials = {row.name.partition("-repeat")[0] for row in rows if row.name in spec.by_name}
        count = sum(name.rpartition("-")[0] == stem and name[-1].isdigit() for name in trials)
        limit = entry.search.max_trials
        if limit is not None and count > limit:
            yield f"{stem} has {count} trials, more than {limit}"


def _is_close(value: float, expected: float) -> bool:
    return bool(np.isclose(value, expected, rtol=_ROUNDED, atol=1e-4, equal_nan=True))
