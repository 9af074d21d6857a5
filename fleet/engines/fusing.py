"""Define how an engine trains several networks of equal architecture as one.

An engine that can has a method ``fuse`` (:class:`SupportsFusing`), and its record says so
(``fuses`` in :class:`fleet.spec.engines.Known`). [HFTA] Wang et al., MLSys 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fleet.engines.steps import StepBatches, StepCapabilities


class CannotFuse(Exception):
    """Networks cannot be trained as one program; the text is the reason, for users."""


class FusedResult(NamedTuple):
    """The result of steps of several networks.

    Attributes:
        totals: (steps, networks, 6 + metrics) float64, as
            :meth:`fleet.engines.base.StepTotals.pack` orders them.
        finished_at: time at which they were available, by ``time.perf_counter``.
    """

    totals: np.ndarray
    finished_at: float


class Fused(Protocol):
    """Several networks that train as one, each alone in its group.

    The trainables stay usable between steps, after :meth:`synchronize`.
    """

    @property
    def capabilities(self) -> StepCapabilities:
        """How they take steps."""

    def begin_steps(self, batches: StepBatches) -> Callable[[], FusedResult]:
        """Begin to train on batches; as :meth:`fleet.engines.steps.SupportsSteps.begin_steps`.

        Raises:
            CannotFuse: the first step shows that they cannot be fused; nothing has changed.
        """

    def evaluate(self, *rows: np.ndarray) -> np.ndarray:
        """Return (networks, 6 + metrics) totals; as :meth:`fleet.engines.base.Trainable.evaluate`.

        Raises:
            CannotFuse: they cannot be evaluated together.
        """

    def synchronize(self) -> None:
        """Prepare the trainables for being saved or evaluated one by one."""

    def release(self) -> None:
        """Give each trainable its own memory; no other method is called afterwards."""


@runtime_checkable
class SupportsFusing(Protocol):
    """An engine that can train several networks as one."""

    def enter_thread(self) -> None:
        """Prepare this thread for calls of the engine and its trainables."""

    def fuse(self, trainables: Sequence[Any], key: str) -> Fused:
        """Fuse trainables of equal architecture, on the same device.

        Args:
            trainables: at least two.
            key: equal for networks of equal architecture, and only for these.

        Raises:
            CannotFuse: they cannot be fused; nothing has changed.
        """
