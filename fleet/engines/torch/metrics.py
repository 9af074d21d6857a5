"""Compute metrics by names of Keras or torchmetrics, and custom ones, from states that add up.

The state of a metric is a few numbers that grow with each batch: a total and a count, hits and
misses, a confusion matrix. Ranks add up their states, so AUC, F1 or IoU are exact in a group of any
size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleet.engines.custom import ArgumentOrder, find_argument_order, load_custom
from fleet.engines.measures import Measures, Metrics
from fleet.engines.several_targets import MetricsOfTargets, metrics_by_target
from fleet.engines.tensor_ops import scalar_result_error
from fleet.engines.torch.losses import OF_LOGITS, OF_PREDICTIONS, OPS, make_losses
from fleet.engines.torch.torchmetrics import (
    Kind as _Kind,
)
from fleet.engines.torch.torchmetrics import (
    Rows,
    find_torchmetric,
    is_torchmetrics,
    make_torchmetric,
    some_rows,
)
from fleet.errors import SettingError
from fleet.spec import Train
from fleet.spec.engines import find_engine
from fleet.spec.measures import Measure, label_of, name_of, parameters_of
from fleet.spec.model import wrapping_errors
from fleet.vocabulary.measures import LOSSES, METRICS, canonical_name
from fleet.vocabulary.torch_measures import TORCH_METRICS
from preprocess.record_target import record_of
from preprocess.target import TargetSpec

_TINY = 1e-7


@dataclass(frozen=True)
class _Metric:
    """One metric.

    Attributes:
        name: column of the results.
        width: number of elements of its state.
        batch_state: returns what some rows add to the state: (width,).
        result: returns the value of a state.
    """

    name: str
    width: int
    batch_state: Callable[[Rows], Tensor]
    result: Callable[[np.ndarray], float]


class MetricSet(Metrics):
    """The metrics of a network."""

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return what readable samples add to the states of all metrics: (width,) float32.

        Args:
            outputs: (n, ...) logits or values.
            targets: (n, ...).
        """
        if not self._metrics:
            return None
        rows = _rows(outputs, targets, self._target)
        return torch.cat([metric.batch_state(rows).reshape(-1).float() for metric in self._metrics])


def _rows(outputs: Tensor, targets: Tensor, target: TargetSpec) -> Rows:
    if target.semantics.is_of_pixels:
        labels, counted = OPS.pixels(targets, target)
        outputs = outputs[counted > 0]
        targets = labels[counted > 0]
    custom_targets = targets if target.semantics.has_classes else targets.float()
    return Rows(
        OPS.probabilities(outputs, target.kind), OPS.to_dense(targets, target), custom_targets
    )


def make_measures(
    train: Train, target: TargetSpec, device: torch.device, outputs_first: bool = True
) -> Measures:
    """Return the losses and metrics of a network.

    Args:
        train: training settings.
        target: target of a sample.
        device: device of class weights.
        outputs_first: True if a function whose parameters do not tell takes (outputs, targets).

    Raises:
        SettingError: a loss or metric does not exist, or is not for such targets.
    """
    losses = make_losses(train, target, device, outputs_first)
    if not target.parts:
        return Measures(losses, make_metrics(train, target, outputs_first))
    metrics = metrics_by_target(
        train,
        record_of(target),
        find_engine("torch").words.metrics,
        lambda settings, part: make_metrics(settings, part, outputs_first),
    )
    return Measures(
        losses,
        MetricsOfTargets(record_of(target), metrics, losses, torch.reshape, _join_states),
    )


def _join_states(states: Sequence[Tensor]) -> Tensor:
    """Concatenate scalars and vectors as float32."""
    return torch.cat([state.reshape(-1).float() for state in states])


def make_metrics(train: Train, target: TargetSpec, outputs_first: bool = True) -> MetricSet:
    """Return the metrics of a network; see :meth:`fleet.engines.measures.Metrics.of`.

    Args:
        train: training settings.
        target: target of a sample.
        outputs_first: True if a function whose parameters do not tell takes (outputs, targets).
    """
    return MetricSet.of(train, target, partial(_make_metric, outputs_first=outputs_first))


def _make_metric(measure: Measure, target: TargetSpec, outputs_first: bool) -> _Metric:
    name = name_of(measure)
    arguments = {key: value for key, value in parameters_of(measure).items() if key != "name"}
    with wrapping_errors(
        f"the metric {name} cannot be computed for {target}:", SettingError, "train", "metrics"
    ):
        if ":" in name:
            function = load_custom(name, "metric", "metrics")
            if is_torchmetrics(function):
                kind = make_torchmetric(function, target, arguments)
            else:
                kind = _mean(_make_custom(name, function, arguments, target, outputs_first))
        elif canonical_name(name) in TORCH_METRICS:
            kind = make_torchmetric(find_torchmetric(name), target, arguments)
        else:
            kind = _KINDS[canonical_name(name)](target, **arguments)
        metric = _Metric(label_of(measure), *kind)
        _check_computable(metric, target)
    return metric


def _check_computable(metric: _Metric, target: TargetSpec) -> None:
    """Check that a metric can be computed for random samples."""
    random = np.random.default_rng(0)
    targets = torch.from_numpy(np.array(target.split(target.random_targets(random, 4))[0]))
    outputs = random.uniform(0.1, 2, (4, *target.output_shape)).astype(np.float32)
    MetricSet([metric], target).sums(torch.from_numpy(outputs), targets)


def _mean(per_sample: Callable[[Rows], Tensor], finish: Callable[[float], float] = float) -> _Kind:
    def batch_state(rows: Rows) -> Tensor:
        values = per_sample(rows).float()
        return torch.stack((values.sum(), values.new_tensor(len(values))))

    return 2, batch_state, lambda state: finish(state[0] / state[1]) if state[1] else 0.0


def _make_custom(
    name: str,
    function: Any,
    arguments: Mapping[str, Any],
    target: TargetSpec,
    outputs_first: bool,
) -> Callable[[Rows], Tensor]:
    def works(order: ArgumentOrder) -> bool:
        rows = some_rows(target)
        try:
            with torch.random.fork_rng(devices=[]):
                values = torch.as_tensor(
                    order.as_targets_first(function)(rows.targets, rows.predicted, **arguments)
                )
        except Exception:  # the function may raise anything
            return False
        return values.dim() > 0 and bool(values.float().isfinite().all())

    order = find_argument_order(function, works, outputs_first)
    function = order.as_targets_first(function)

    def compute(rows: Rows) -> Tensor:
        # The function may write into its arguments.
        inputs = rows.targets.clone(), rows.predicted.clone()
        values = torch.as_tensor(function(*inputs, **arguments))
        if values.dim() == 0:
            raise scalar_result_error(f"the metric {name}", "metrics")
        if values.dim() > 1:
            return values.flatten(1).float().mean(1)
        return values

    return compute


def _of_loss(
    name: str, sign: float = 1.0, finish: Callable[[float], float] = float
) -> Callable[..., _Kind]:
    """Return the mean of a loss over samples as a metric."""

    def kind(target: TargetSpec, **options: Any) -> _Kind:
        if name in OF_LOGITS and "hinge" not in name:  # turn probabilities into logits
            if name == "binary_crossentropy":
                logits: Callable[[Any], Any] = partial(torch.logit, eps=_TINY)
            else:
                logits = _log
            return _mean(
                lambda rows: OF_LOGITS[name](rows.dense_targets, logits(rows.predicted), **options),
                finish,
            )
        function = OF_PREDICTIONS.get(name) or OF_LOGITS[name]
        return _mean(
            lambda rows: sign * function(rows.dense_targets, rows.predicted, **options), finish
        )

    return kind


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=_TINY).log()


def _binary_accuracy(target: TargetSpec, threshold: float = 0.5) -> _Kind:
    return _mean(
        lambda rows: ((rows.predicted > threshold) == (rows.dense_targets > 0)).float().mean(-1)
    )


def _categorical_accuracy(target: TargetSpec) -> _Kind:
    return _mean(lambda rows: rows.predicted.argmax(-1) == rows.dense_targets.argmax(-1))


def _top_k(target: TargetSpec, k: int = 5) -> _Kind:
    def is_in_top(rows: Rows) -> Tensor:
        target_score = rows.predicted.gather(1, rows.dense_targets.argmax(1, keepdim=True))
        return (rows.predicted > target_score).sum(1) < k

    return _mean(is_in_top)


def _counts(
    finish: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Any],
    is_per_class: bool = False,
) -> Callable[..., _Kind]:
    """Return a metric of true and false positives, and false and true negatives, per output.

    Args:
        finish: computes the value from the four counts, in this order.
        is_per_class: True if ``finish`` takes counts of each output, False for sums over outputs.
    """

    def kind(
        target: TargetSpec,
        thresholds: float | None = None,
        class_id: int | None = None,
        **options: Any,
    ) -> _Kind:
        if is_per_class:
            threshold = options.pop("threshold", None)
        elif thresholds is None:
            threshold = 0.5
        else:
            threshold = thresholds
        if is_per_class and target.semantics.has_label_sets and threshold is None:
            threshold = 0.5  # without a threshold only the most likely label counts
        finish_with_options = partial(finish, **options)

        def batch_state(rows: Rows) -> Tensor:
            predicted = rows.predicted
            if threshold is not None:
                positive = predicted > threshold
            else:
                positive = predicted >= predicted.amax(-1, keepdim=True)
            expected = rows.dense_targets > 0
            return torch.stack(
                [
                    (positive & expected).sum(0),
                    (positive & ~expected).sum(0),
                    (~positive & expected).sum(0),
                    (~positive & ~expected).sum(0),
                ]
            )

        def result(state: np.ndarray) -> float:
            counts = state.reshape(4, -1)
            if not is_per_class:
                counts = counts.sum(1) if class_id is None else counts[:, class_id]
            return float(finish_with_options(*counts))

        # Raise now if the metric lacks a parameter.
        finish_with_options(*np.ones((4, target.outputs)))
        return 4 * target.outputs, batch_state, result

    return kind


def _ratio(part: Any, total: Any) -> Any:
    return np.where(total > 0, part / np.maximum(total, _TINY), 0.0)


def _f_score(
    tp: np.ndarray,
    fp: np.ndarray,
    fn: np.ndarray,
    tn: np.ndarray,
    beta: float = 1.0,
    average: str | None = "macro",
) -> Any:
    if average == "micro":
        tp = tp.sum()
        fp = fp.sum()
        fn = fn.sum()
    scores = _ratio((1 + beta**2) * tp, (1 + beta**2) * tp + beta**2 * fn + fp)
    if average == "weighted":
        return float((scores * _ratio(tp + fn, (tp + fn).sum())).sum())
    return scores.mean()


def _f1(
    tp: np.ndarray,
    fp: np.ndarray,
    fn: np.ndarray,
    tn: np.ndarray,
    average: str | None = "macro",
) -> Any:
    return _f_score(tp, fp, fn, tn, 1.0, average)


def _auc(target: TargetSpec, curve: str = "ROC", num_thresholds: int = 200) -> _Kind:
    """Return the area under the curve of all outputs, by trapezoids.

    A PR curve is interpolated as Davis and Goadrich (2006) describe.
    """
    if curve not in ("ROC", "PR"):
        raise SettingError(
            f"the metric AUC has no curve {curve}; its curves are ROC and PR", "train", "metrics"
        )
    thresholds = torch.linspace(0, 1, num_thresholds)
    thresholds[0] = -_TINY
    thresholds[-1] = 1 + _TINY

    def batch_state(rows: Rows) -> Tensor:
        # Number of thresholds below each prediction, which is positive at these thresholds.
        below = torch.searchsorted(
            thresholds.to(rows.predicted.device), rows.predicted.reshape(-1).contiguous()
        )
        is_true = rows.dense_targets.reshape(-1) > 0
        return torch.stack(
            [
                torch.bincount(below[part], minlength=num_thresholds + 1)
                for part in (is_true, ~is_true)
            ]
        )

    def result(state: np.ndarray) -> float:
        # Counts of true and false positives at each threshold.
        tp, fp = np.cumsum(state.reshape(2, -1)[:, ::-1], axis=1)[:, ::-1][:, 1:]
        positives = tp[0]
        negatives = fp[0]
        if curve == "ROC":
            y = _ratio(tp, positives)
            x = _ratio(fp, negatives)
            return float(((x[:-1] - x[1:]) * (y[:-1] + y[1:]) / 2).sum())
        predicted = tp + fp
        slope = _ratio(tp[:-1] - tp[1:], predicted[:-1] - predicted[1:])
        start = tp[1:] - slope * predicted[1:]
        ratio = np.where(
            (predicted[:-1] > 0) & (predicted[1:] > 0),
            predicted[:-1] / np.maximum(predicted[1:], _TINY),
            1.0,
        )
        return float(_ratio(slope * (tp[:-1] - tp[1:] + start * np.log(ratio)), positives).sum())

    return 2 * (num_thresholds + 1), batch_state, result


def _mean_io_u(target: TargetSpec) -> _Kind:
    size = target.outputs

    def batch_state(rows: Rows) -> Tensor:
        return torch.bincount(
            rows.dense_targets.argmax(-1) * size + rows.predicted.argmax(-1), minlength=size**2
        )

    def result(state: np.ndarray) -> float:
        table = state.reshape(size, size)
        union = table.sum(0) + table.sum(1) - table.diagonal()
        is_present = union > 0
        if is_present.any():
            return float((table.diagonal()[is_present] / union[is_present]).mean())
        return 0.0

    return size**2, batch_state, result


def _r2(target: TargetSpec) -> _Kind:
    """Return the mean over values of 1 - residuals / variance.

    Values are centered before they are squared, to keep precision.
    """
    center = torch.tensor(target.center or [0.0] * target.outputs, dtype=torch.float64)

    def batch_state(rows: Rows) -> Tensor:
        centered = rows.dense_targets.double() - center.to(rows.dense_targets.device)
        error = rows.dense_targets.double() - rows.predicted.double()
        if len(centered):
            count = torch.full_like(centered[:1], float(len(centered))).sum(0)
        else:
            count = centered.sum(0)
        return torch.stack(
            [count, centered.sum(0), centered.square().sum(0), error.square().sum(0)]
        )

    def result(state: np.ndarray) -> float:
        count, total, squares, errors = state.reshape(4, -1)
        spread = squares - total**2 / np.maximum(count, 1)
        return float(np.where(spread > 0, 1 - errors / np.maximum(spread, _TINY), 0.0).mean())

    return 4 * target.outputs, batch_state, result


_KINDS: dict[str, Callable[..., _Kind]] = {
    "binary_accuracy": _binary_accuracy,
    "categorical_accuracy": _categorical_accuracy,
    "sparse_categorical_accuracy": _categorical_accuracy,
    "top_k_categorical_accuracy": _top_k,
    "sparse_top_k_categorical_accuracy": _top_k,
    "auc": _auc,
    "mean_io_u": _mean_io_u,
    "r2_score": _r2,
    "f1_score": _counts(_f1, is_per_class=True),
    "f_beta_score": _counts(_f_score, is_per_class=True),
    "precision": _counts(lambda tp, fp, fn, tn: _ratio(tp, tp + fp)),
    "recall": _counts(lambda tp, fp, fn, tn: _ratio(tp, tp + fn)),
    "true_positives": _counts(lambda tp, fp, fn, tn: np.sum(tp)),
    "false_positives": _counts(lambda tp, fp, fn, tn: np.sum(fp)),
    "false_negatives": _counts(lambda tp, fp, fn, tn: np.sum(fn)),
    "true_negatives": _counts(lambda tp, fp, fn, tn: np.sum(tn)),
    "cosine_similarity": _of_loss("cosine_similarity", sign=-1.0),
    "log_cosh_error": _of_loss("log_cosh"),
    "root_mean_squared_error": _of_loss("mean_squared_error", finish=math.sqrt),
}
_KINDS |= {name: _of_loss(name) for name in METRICS if name in LOSSES and name not in _KINDS}
