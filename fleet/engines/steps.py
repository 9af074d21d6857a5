"""Train a network step by step: one protocol for all engines, and an adapter for simpler forms.

The training loop knows only :class:`SupportsSteps`. An engine that does nothing special implements
``step`` instead, and a user's engine may implement another form of ``docs/extending.md``;
:func:`steps_of` adapts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from fleet.engines.base import Rows, StepResult, StepTotals
from preprocess.sample import cut_rows, longest_rows, round_length

MAX_STEPS = 32  # largest number of steps of a call


@dataclass(frozen=True)
class StepCapabilities:
    """How a trainable takes steps in its present group.

    Attributes:
        max_steps_per_call: largest number of steps of a call; several reduce the overhead of short
            steps.
        can_overlap: True if it computes while the next batch is prepared, so that the totals are
            read after the next steps have begun.
        lengths: what it takes of inputs of unequal length: rows of one length in all batches
            (``one``), batches cut to their longest row (``any``), or to a few lengths, because it
            compiles for each (``few``). If batches are cut, a call takes one step.
    """

    max_steps_per_call: int = 1
    can_overlap: bool = False
    lengths: Literal["one", "few", "any"] = "one"

    def cut(self, inputs: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Return rows as it takes them, cut to the longest of them; see :func:`cut_rows`.

        Args:
            inputs: (n, ...) rows.
            names: inputs of unequal length; empty if there are none.
        """
        if self.lengths == "one" or not names or not len(inputs):
            return inputs
        lengths = longest_rows(inputs, names)
        if self.lengths == "few":
            lengths = {name: round_length(length) for name, length in lengths.items()}
        return cut_rows(inputs, lengths)


class StepBatches(NamedTuple):
    """The batches of a call, one step each.

    Attributes:
        local_rows: this rank's rows of all batches, concatenated: inputs (rows, ...) as they
            travel; targets (rows, ...) as :class:`preprocess.target.TargetSpec` describes, (rows,)
            int64 for classes; and weights (rows,) float32, omitted for classes without weights.
        sizes: number of rows of each global batch, at least one batch.
        counts: number of this rank's rows in each batch, possibly 0.
        flags: what this rank adds to the totals of each batch, besides those of its rows: whether
            the group stops after this call, and the number of steps of a later one.
    """

    local_rows: Rows
    sizes: Sequence[int]
    counts: Sequence[int]
    flags: StepTotals = StepTotals()


class SupportsSteps(Protocol):
    """A trainable's steps."""

    @property
    def capabilities(self) -> StepCapabilities:
        """How it takes steps in its present group, equal on all ranks."""

    def begin_steps(self, batches: StepBatches) -> Callable[[], StepResult]:
        """Begin to train on batches, with all ranks of the group.

        The loss of a batch is the weighted sum over the readable samples of the global batch,
        divided by their number. An unreadable sample has a label below 0 or, if there are weights,
        a weight below 0.

        The previous steps may be completed here, including their collective operations. The arrays
        are valid only until this method returns: they may lie in the stream's memory, which is then
        reused for another step. Copy what is needed later, including what a device still reads.

        Returns:
            A function that waits for the totals of the whole batches, the same on every rank. It is
            called once, before the second ``begin_steps`` after this one and before any other
            method. If the steps do not overlap, they have been computed when this returns.

        Raises:
            Exception: any error of the network, now or while waiting, in these steps or earlier
                ones; :class:`fleet.engines.base.PeerFailed` on the ranks that did not fail.
        """


@dataclass(frozen=True)
class UserSteps:
    """The steps of a network whose losses a function of the user computes (``train.step``).

    A trainable with such steps has them as its attribute ``user_steps``.

    Attributes:
        returns_accuracy: whether the function returns an accuracy.
        has_predictions: whether the network, called with an input, returns predictions.
        begin: begins steps as :meth:`SupportsSteps.begin_steps` does, from batches and (rows,)
            int64, the samples' rows in the data set, or None for made-up samples.
        evaluate: returns totals as :meth:`fleet.engines.base.Trainable.evaluate` does, from rows
            and the samples' rows in the data set.
    """

    returns_accuracy: bool
    has_predictions: bool
    begin: Callable[[StepBatches, np.ndarray | None], Callable[[], StepResult]]
    evaluate: Callable[[Rows, np.ndarray], StepTotals]


def user_steps_of(trainable: Any) -> UserSteps | None:
    """Return the steps of a trainable by a function of the user; None if there is no function."""
    user_steps: UserSteps | None = getattr(trainable, "user_steps", None)
    return user_steps


class AdaptedSteps:
    """The steps of a trainable that implements a simpler form than :class:`SupportsSteps`.

    The forms are, in the order in which they are looked for: ``begin_together`` (several
    overlapping steps in groups), ``begin`` (overlapping steps, with ``stop``), and ``step`` (one
    step). ``can_stride`` says whether several steps per call are possible; except with
    ``begin_together``, only for a single rank, and if there is ``stride``, which takes them.

    Args:
        is_alone: True if the group has one rank.
    """

    def __init__(self, trainable: Any, is_alone: bool) -> None:
        self._trainable = trainable
        together = hasattr(trainable, "begin_together")
        strides = together or (is_alone and hasattr(trainable, "stride"))
        can_stride = strides and getattr(trainable, "can_stride", bool)()
        self.capabilities = StepCapabilities(
            MAX_STEPS if can_stride else 1, can_overlap=together or hasattr(trainable, "begin")
        )

    def begin_steps(self, batches: StepBatches) -> Callable[[], StepResult]:  # noqa: D102
        trainable = self._trainable
        (inputs, targets, *optional), sizes, counts, flags = batches
        weights = optional[0] if optional else None
        if hasattr(trainable, "begin_together"):
            wait = trainable.begin_together(inputs, targets, sizes, counts, flags, weights)
        elif hasattr(trainable, "begin"):
            wait = trainable.begin(inputs, targets, sizes, flags.stop, weights)
        elif len(sizes) == 1:
            wait = finished([trainable.step(inputs, targets, sizes[0], flags.stop, *optional)])
        else:
            wait = finished(trainable.stride(inputs, targets, sizes, weights))
        result: Callable[[], StepResult] = wait
        return result


def finished(sums: list[StepTotals]) -> Callable[[], StepResult]:
    """Return a function that waits for steps that have been computed."""
    result = StepResult(sums, time.perf_counter())
    return lambda: result


def steps_of(trainable: Any, is_alone: bool) -> SupportsSteps:
    """Return a trainable's steps.

    Args:
        trainable: implements :class:`SupportsSteps`, or a form that :class:`AdaptedSteps` adapts.
        is_alone: True if the group has one rank.
    """
    if hasattr(trainable, "begin_steps"):
        steps: SupportsSteps = trainable
        return steps
    return AdaptedSteps(trainable, is_alone)
