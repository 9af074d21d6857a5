"""Compute metrics of torchmetrics from states that add up over steps and ranks.

A metric's own states are used: each step computes the states of its rows, and the value follows
from the sums. So a metric whose states are not summed, such as one that keeps all predictions, is
refused.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fleet.errors import SettingError
from preprocess.target import TargetSpec

_MODULES = ("", ".classification", ".regression", ".segmentation")
# Kind of target -> the task of torchmetrics, and the parameter with the number of outputs.
_TASKS = {
    "class": ("multiclass", "num_classes"),
    "mask": ("multiclass", "num_classes"),
    "multilabel": ("multilabel", "num_labels"),
    "value": ("", "num_outputs"),
}


@dataclass(frozen=True)
class Rows:
    """Some samples, or the counted pixels of some masks.

    Attributes:
        predicted: (n, outputs) probabilities or values.
        dense_targets: (n, outputs) float32; classes are one-hot.
        targets: targets for user functions: (n,) classes, or (n, outputs) float32.
    """

    predicted: Tensor
    dense_targets: Tensor
    targets: Tensor


# The number of elements of a state; what some rows add to it; the value of a state.
Kind: TypeAlias = tuple[int, Callable[[Rows], Tensor], Callable[[np.ndarray], float]]


def is_torchmetrics(value: Any) -> bool:
    """Return True for a class of torchmetrics, or one that is derived from its ``Metric``."""
    library = sys.modules.get("torchmetrics")  # imported, if there is such a class
    return library is not None and isinstance(value, type) and issubclass(value, library.Metric)


def find_torchmetric(name: str) -> Any:
    """Return the class of torchmetrics with a name such as ``AUROC``.

    Raises:
        SettingError: torchmetrics is not installed, or this version lacks the class.
    """
    short = name.rpartition(".")[2]
    try:
        modules = [importlib.import_module(f"torchmetrics{module}") for module in _MODULES]
    except ImportError as error:
        raise SettingError(
            f"the metric {name} is one of torchmetrics, which cannot be imported ({error}); "
            "install it: pip install torchmetrics",
            "train",
            "metrics",
        ) from error
    for module in modules:
        metric = getattr(module, short, None)
        if metric is not None:
            return metric
    raise SettingError(
        f"torchmetrics {modules[0].__version__} has no metric {short}", "train", "metrics"
    )


def make_torchmetric(factory: Any, target: TargetSpec, arguments: Mapping[str, Any]) -> Kind:
    """Return a metric of torchmetrics.

    Args:
        factory: its class.
        target: target of a sample.
        arguments: arguments of the class. The task and the number of classes or labels follow from
            the target if they are missing.

    Raises:
        SettingError: its states cannot be added up.
    """
    metric = factory(**_with_task(factory, target, arguments))
    name = factory.__name__
    _check_states(name, metric)
    dtypes = {key: default.dtype for key, default in metric._defaults.items()}
    is_binary = type(metric).__name__.startswith("Binary")

    def states(rows: Rows) -> dict[str, Tensor]:
        predicted = rows.predicted
        expected = rows.targets
        if is_binary and predicted.shape[-1] == 2:
            predicted = predicted[:, 1]
        elif predicted.shape[-1] == 1:
            predicted = predicted[:, 0]
            expected = expected.reshape(len(expected))
        elif target.semantics.has_label_sets:
            expected = expected.long()
        metric.to(predicted.device)
        metric.reset()
        metric.update(predicted.clone(), expected.clone())
        summed = {key: getattr(metric, key) for key in dtypes}
        metric.reset()
        return summed

    # The shape of a state may follow from the first rows.
    shapes = {key: state.shape for key, state in states(some_rows(target)).items()}
    sizes = [shape.numel() for shape in shapes.values()]

    def batch_state(rows: Rows) -> Tensor:
        if not len(rows.predicted):
            return rows.predicted.new_zeros(sum(sizes))
        return torch.cat([state.reshape(-1).double() for state in states(rows).values()])

    def result(state: np.ndarray) -> float:
        metric.cpu()
        metric.reset()
        parts = np.split(state, np.cumsum(sizes)[:-1])
        for (key, shape), part in zip(shapes.items(), parts, strict=True):
            setattr(metric, key, torch.from_numpy(part.copy()).reshape(shape).to(dtypes[key]))
        metric._update_count = 1  # otherwise compute() warns
        value = metric.compute()
        metric.reset()
        return float(torch.as_tensor(value).double().mean())

    return sum(sizes), batch_state, result


def some_rows(target: TargetSpec) -> Rows:
    """Return made-up predictions and targets."""
    random = np.random.default_rng(0)
    predicted = torch.from_numpy(random.uniform(0.1, 1, (4, target.outputs)).astype(np.float32))
    predicted = predicted / predicted.sum(-1, keepdim=True)
    if target.semantics.has_classes:
        classes = torch.from_numpy(random.integers(0, target.outputs, 4))
        return Rows(predicted, torch.nn.functional.one_hot(classes, target.outputs), classes)
    values = torch.from_numpy(random.integers(0, 2, (4, target.outputs)).astype(np.float32))
    return Rows(predicted, values, values)


def _with_task(factory: Any, target: TargetSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the task and the number of outputs, if the class takes them."""
    chooses_task = "__new__" in vars(factory)  # AUROC, which makes a MulticlassAUROC
    accepted = inspect.signature(factory.__new__ if chooses_task else factory).parameters
    completed = dict(arguments)
    task, count = _TASKS[target.kind]
    if "task" in accepted:
        completed.setdefault("task", task)
    if count in accepted and completed.get("task") != "binary":
        completed.setdefault(count, target.outputs)
    return completed


def _check_states(name: str, metric: Any) -> None:
    """Check that each state of a metric is a tensor that is summed."""
    for key, default in metric._defaults.items():
        if isinstance(default, Tensor) and metric._reductions[key] is _sum():
            continue
        advice = "name another metric"
        if "thresholds" in inspect.signature(type(metric).__init__).parameters:
            advice = f"give it thresholds, as in {{{name}: {{thresholds: 200}}}}"
        raise SettingError(
            f"the metric {name} keeps {key} of all samples, which ranks cannot add up; {advice}",
            "train",
            "metrics",
        )
    if not metric._defaults:
        raise SettingError(
            f"the metric {name} has no states that ranks could add up; name another metric",
            "train",
            "metrics",
        )


def _sum() -> Any:
    """Return the function by which torchmetrics sums states."""
    return importlib.import_module("torchmetrics.utilities.data").dim_zero_sum
