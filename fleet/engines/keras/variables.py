"""The variables of a Keras model and its optimizer: saved, restored and averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from fleet.comm.protocols import Group
from fleet.engines.base import Arrays, check_arrays


class NetworkVariables:
    """The variables of a network.

    Attributes:
        inner: the optimizer that has the running means, without the one that scales the loss.
        statistics: statistics of batch normalization, each with its running mean; empty if running
            means are not kept.
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.inner = getattr(optimizer, "inner_optimizer", optimizer)
        self.statistics = _with_means(model) if self.inner.use_ema else []

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of all variables."""
        return {name: np.array(variable.numpy()) for name, variable in self._named()}

    def load(self, arrays: Arrays) -> None:
        """Restore all variables; see :meth:`fleet.engines.base.Trainable.load`."""
        named = dict(self._named())
        # A checkpoint of FLEET 0.2 has no running means of statistics; they begin with the
        # statistics.
        initial_means = {
            name: arrays.get(name.replace("statistics/", "model/", 1))
            for name in named
            if name.startswith("statistics/")
        }
        arrays = {
            **{name: array for name, array in initial_means.items() if array is not None},
            **arrays,
        }
        check_arrays({name: variable.shape for name, variable in named.items()}, arrays)
        for name, variable in named.items():
            variable.assign(arrays[name])

    def _named(self) -> list[tuple[str, Any]]:
        return named_variables(self.model, self.optimizer, self.statistics)

    def average_over(self, group: Group) -> None:
        """Average the untrained floating-point variables across the ranks of a group.

        These are the moving means and variances of batch normalization, which each rank collects on
        its own rows.
        """
        if group.size == 1:
            return
        means = [mean for _, mean in self.statistics]
        for variable in (*self.model.non_trainable_variables, *means):
            if "float" in variable.dtype:
                value = np.asarray(variable.numpy(), np.float64)
                group.sum(value)
                variable.assign(value / group.size)

    @contextmanager
    def running_means(self) -> Iterator[None]:
        """Use the running means of weights and statistics inside the context, if kept."""
        if not self.inner.use_ema:
            yield
            return
        weights = self.model.trainable_variables
        variables = [*weights, *(statistic for statistic, _ in self.statistics)]
        before = [np.array(variable.numpy()) for variable in variables]
        self.inner.finalize_variable_values(weights)
        for statistic, mean in self.statistics:
            statistic.assign(mean)
        try:
            yield
        finally:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)


def named_variables(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    statistics: Sequence[tuple[Any, Any]] = (),
) -> list[tuple[str, Any]]:
    """Return all variables with names that are equal in every process: index and path.

    Args:
        model: model of the network.
        optimizer: optimizer of the network.
        statistics: statistics of the model, each with its running mean.
    """
    pairs = [
        *(("model", variable) for variable in model.variables),
        *(("optimizer", variable) for variable in optimizer.variables),
    ]
    mean_of = {id(statistic): mean for statistic, mean in statistics}
    named = [
        (f"{owner}/{index:04d}/{variable.path}", variable)
        for index, (owner, variable) in enumerate(pairs)
    ]
    return named + [
        (name.replace("model/", "statistics/", 1), mean_of[id(variable)])
        for name, variable in named
        if id(variable) in mean_of
    ]


def _with_means(model: keras.Model) -> list[tuple[Any, Any]]:
    """Return the statistics of batch normalization, each with a variable for its mean."""
    return [
        (variable, keras.Variable(variable.numpy(), trainable=False))
        for variable in model.non_trainable_variables
        if variable.name in ("moving_mean", "moving_variance")
    ]
