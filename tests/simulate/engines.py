"""Engines of a user, which do what the numpy engine lacks: metrics, steps and weights of their own.

A lone training with the numpy engine gives the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fleet.comm.protocols import Group
from fleet.engines.base import Arrays, EngineContext, Rows, StepResult, StepTotals
from fleet.engines.softmax import NumpyEngine, SoftmaxRegression
from fleet.engines.steps import StepBatches, UserSteps, finished
from fleet.spec import NetworkSpec
from fleet.spec.engines import ENGINES, EngineInfo
from fleet.spec.model import load_function
from tests.simulate import kernel as k
from tests.sources import Numbered

ERROR = "mean_absolute_error"  # of the probabilities of classes
STEPS = f"{__name__}:rows_match"
FAILING_EXPORT = f"{__name__}:LASTING"
FAILING_STEPS = f"{__name__}:unlucky"
_SLOW_S = 1.2


class Network(SoftmaxRegression):
    """A network whose short steps can be taken together, if it has one rank."""

    def __init__(
        self, network: NetworkSpec, group: Group, sample: Any, weights: np.ndarray
    ) -> None:
        super().__init__(_without_metrics(network), group, sample, weights)
        if network.train.metrics:
            self._metrics = {ERROR: lambda outputs: np.abs(outputs.residuals).mean(axis=1)}
            self._zero_totals = (0.0, 0.0)
        if network.train.step is not None:
            self._function = load_function(network.train.step)
            self.user_steps = UserSteps(True, True, self._begin, self._evaluate)

    def can_stride(self) -> bool:
        """Return True: several steps can be taken in one call."""
        return True

    def stride(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        weights: np.ndarray | None = None,
    ) -> list[StepTotals]:
        """Take several steps."""
        k.KERNEL.counts["stride"] += 1
        ends = np.cumsum(sizes)
        rows = [inputs, targets, *([] if weights is None else [weights])]
        parts = zip(*(np.split(part, ends[:-1]) for part in rows), strict=True)
        return [
            self.step(part[0], part[1], size, False, *part[2:])
            for part, size in zip(parts, sizes, strict=True)
        ]

    def load_pretrained(self, file: Path, skip: Sequence[str]) -> None:
        """Start from the weights in a file."""
        self._weights = np.loadtxt(file)

    def _begin(self, batches: StepBatches, indices: np.ndarray | None) -> Callable[[], StepResult]:
        if hasattr(self, "simulated"):  # no made-up samples
            self._function(batches.local_rows[0], indices, True)
        return self._take(batches.local_rows, batches.sizes, batches.flags.stop)

    def _take(
        self, rows: Sequence[np.ndarray], sizes: Sequence[int], stop: bool
    ) -> Callable[[], StepResult]:
        """Take one step or several now."""
        inputs, targets, *optional = rows
        if len(sizes) > 1:
            return finished(self.stride(inputs, targets, sizes, *optional))
        return finished([self.step(inputs, targets, sizes[0], stop, *optional)])

    def _evaluate(self, rows: Rows, indices: np.ndarray) -> StepTotals:
        self._function(rows[0], indices, False)
        return self.evaluate(*rows)


class LateNetwork(Network):
    """A network whose steps go on after they have returned."""

    def begin(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        stop: bool,
        weights: np.ndarray | None,
    ) -> Callable[[], StepResult]:
        """Begin steps, which are taken when somebody waits for them."""
        rows = [np.array(part) for part in (inputs, targets, weights) if part is not None]
        return lambda: self._take(rows, sizes, stop)()


class LastingNetwork(Network):
    """A network that cannot be exported."""

    def export(self, arrays: Arrays, path: Path) -> None:
        """Fail."""
        raise ValueError("no export")


class OwnEngine(NumpyEngine):
    """Builds such networks."""

    def __init__(self, sample: Any, kind: type[Network] = Network) -> None:
        super().__init__(sample)
        self._kind = kind

    def build(self, network: NetworkSpec, group: Group) -> Network:
        """Build a network with the weights that the numpy engine gives it."""
        built = super().build(_without_metrics(network), group)
        sample = self._sample.for_pipeline(network.pipeline, network.fold)
        return self._kind(network, group, sample, built.state()["weights"])


def _without_metrics(network: NetworkSpec) -> NetworkSpec:
    return replace(network, train=replace(network.train, metrics=()))


def _make(setup: EngineContext) -> OwnEngine:
    return OwnEngine(setup.sample)


def _make_late(setup: EngineContext) -> OwnEngine:
    return OwnEngine(setup.sample, LateNetwork)


def _make_lasting(setup: EngineContext) -> OwnEngine:
    return OwnEngine(setup.sample, LastingNetwork)


_NUMPY = ENGINES["numpy"]
PROMPT: EngineInfo = replace(
    _NUMPY, make=_make, knows=replace(_NUMPY.knows, own_steps=True, starts=True)
)
LATE: EngineInfo = replace(PROMPT, make=_make_late)
LASTING: EngineInfo = replace(PROMPT, make=_make_lasting)


def takes_together(content: dict[str, Any]) -> bool:
    """Return True if networks with one rank have short steps that can be taken together."""
    step = content["train"].get("step", STEPS)
    return content["resources"]["engine"] == f"{__name__}:PROMPT" and step == STEPS


# ---- what a user may do at each step ----


def rows_match(inputs: np.ndarray, rows: np.ndarray, training: bool) -> None:
    """Check that the rows of samples are those of the data set."""
    numbers = [Numbered.number(image) for image in inputs]
    if numbers != list(rows):
        raise ValueError(f"samples {numbers} are said to be {rows}")


def slow(inputs: np.ndarray, rows: np.ndarray, training: bool) -> None:
    """Take a second."""
    if training:
        time.sleep(_SLOW_S)


def unlucky(inputs: np.ndarray, rows: np.ndarray, training: bool) -> None:
    """Fail in the validation, after a while."""
    if not training:
        time.sleep(0.5)
        raise ValueError("an unlucky validation")
