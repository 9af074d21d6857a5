"""Take the steps of a network alone without the Python code of its modules and of autograd.

After some steps with batches of equal shape, what the network computes for such a batch is recorded
with its gradients: on CPUs as a list of operations (:mod:`fleet.engines.torch.recording`), on a GPU
as a graph of kernels (:mod:`fleet.engines.torch.captured_steps`). The recording calls the same
kernels in the same order. It is used if it computes the same numbers as the module for the batch of
the next step, on CPUs the same bits; otherwise the module goes on.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fleet.engines.base import INDEX, WIDTH, Rows, select_readable, split_batches
from fleet.engines.torch.flat_parameters import (
    samples_to_device,
    targets_to_device,
    to_device,
)
from fleet.engines.torch.recording import (
    Batch,
    CannotRecord,
    is_random,
    outputs_with,
    record,
    recording,
    simplify,
)
from fleet.engines.torch.steps import BatchSums, TorchSteps
from preprocess.user_code import exclusive_generators

log = logging.getLogger("fleet.engines.torch.recorded_steps")

# Recording takes about as long as it saves in so many steps.
AFTER_STEPS = 1000
_MAX_SHAPES = 8  # of batches, for which there are recordings

SUMS = slice(INDEX["loss"], INDEX["count"] + 1)


class RecordedSteps:
    """The recorded steps of a network that has one rank.

    Args:
        steps: the steps of the network.
        record_step: records a step with a batch; it raises :class:`CannotRecord`.
        after: number of steps with a shape of batches before it is recorded.
    """

    def __init__(
        self,
        steps: TorchSteps,
        record_step: Callable[[TorchSteps, Batch], StepRecording],
        after: int,
    ) -> None:
        self._steps = steps
        self._record_step = record_step
        self._after = after
        self._counts: dict[Any, int] = {}  # steps with each shape
        self.recordings: dict[Any, StepRecording | None] = {}

    def take(
        self, local_rows: Rows, sizes: Sequence[int], stop: bool, totals: Sequence[Tensor]
    ) -> None:
        """Take steps, by recordings where there are any.

        Args:
            local_rows: rows of all batches, concatenated.
            sizes: number of rows of each batch.
            stop: True to stop after these steps.
            totals: (6 + metrics,) of each step, whose sums of rows are overwritten.
        """
        steps = self._steps
        rows_of_steps = split_batches(local_rows, sizes)
        if not (local_rows[-1] >= 0).all():
            for rows, size, sums in zip(rows_of_steps, sizes, totals, strict=True):
                steps.step_alone(select_readable(rows), size, stop, sums)
            return
        kind = tuple((part.shape[1:], part.dtype) for part in local_rows)
        batches = _batches(steps, local_rows, sizes)
        for rows, batch, size, sums in zip(rows_of_steps, batches, sizes, totals, strict=True):
            recording = self._find((size, kind), batch, rows)
            if recording is None:
                steps.step_alone(rows, size, stop, sums)
                continue
            steps.evaluation_calls = 0
            recording.compute(batch, sums)
            steps.updates.step(1.0, recording.unused)

    def _find(self, shape: Any, batch: Batch, rows: Rows) -> StepRecording | None:
        """Return the recording for a batch; None if there is none, or not yet."""
        if shape in self.recordings:
            return self.recordings[shape]
        count = self._counts.get(shape, 0)
        self._counts[shape] = count + 1
        if count < self._after or len(self.recordings) == _MAX_SHAPES:
            return None
        recording: StepRecording | None
        try:
            recording = self._record_step(self._steps, batch)
            recording.check(batch, rows)
        except CannotRecord as failure:
            log.info("steps are not recorded: %s", failure)
            recording = None
        self.recordings[shape] = recording
        return recording


def _batches(steps: TorchSteps, local_rows: Rows, sizes: Sequence[int]) -> Iterator[Batch]:
    """Yield the batches of a call, whose rows share the memory of arrays."""
    counts = list(sizes)
    samples, targets = (
        _split(value, counts)
        for value in (
            samples_to_device(local_rows[0], steps.device),
            targets_to_device(local_rows[1], steps.device),
        )
    )
    weights: Iterable[Any] = itertools.repeat(None)
    if len(local_rows) > 2:
        weights = _split(to_device(local_rows[2], steps.device), counts)
    for part, *more in zip(samples, targets, weights, strict=False):
        yield Batch(steps.augmented(part), *more)


def _split(value: Any, counts: list[int]) -> Sequence[Any]:
    """Return parts of a tensor, or of each tensor of a mapping."""
    if not isinstance(value, dict):
        parts: Sequence[Any] = value.split(counts)
        return parts
    columns = [tensor.split(counts) for tensor in value.values()]
    return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]


class StepRecording:
    """What a network computes for batches of one shape in training.

    Args:
        steps: the steps of the network.
        batch: a batch.

    Attributes:
        unused: indices of parameters without a gradient.

    Raises:
        CannotRecord: the module cannot be recorded.
    """

    def __init__(self, steps: TorchSteps, batch: Batch) -> None:
        self._steps = steps
        # Metrics whose states depend on values of tensors cannot be recorded.
        self._returns_outputs = steps.measures.metrics.width > 0
        if not isinstance(batch.targets, Tensor):
            raise CannotRecord("it has several targets, and metrics of each")
        self._size = len(batch.targets)
        trained = steps.flat.parameters
        module = steps.exported.module
        self._untrained = {
            **{name: value for name, value in module.named_parameters() if name not in trained},
            **dict(module.named_buffers()),
        }
        self.unused: list[int] = []

    def compute(self, batch: Batch, totals: Tensor) -> None:
        """Write the gradients of a batch, and its sums; on a GPU, queue that.

        Args:
            batch: readable rows, of the shape for which it was recorded.
            totals: (6 + metrics,), partly overwritten.
        """
        raise NotImplementedError

    def _equals(self, computed: Tensor, expected: Tensor) -> bool:
        """Return True if a tensor is what the module computes."""
        return torch.equal(computed, expected)

    def _differentiate(
        self, outputs: Tensor, batch: Batch, parameters: Sequence[Tensor], seed: Tensor
    ) -> tuple[BatchSums, Sequence[Tensor | None]]:
        """Return the sums of a batch and its gradients; note the parameters that have none.

        Args:
            outputs: (n, ...) of the module.
            batch: the batch.
            parameters: the trained parameters from which the outputs were computed.
            seed: derivative of what is differentiated by the loss, a scalar.
        """
        sums = self._steps.sums(
            outputs,
            batch.targets,
            batch.weights,
            self._steps.measures.losses.training,
            has_metrics=False,
        )
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            sums.loss, parameters, seed.to(sums.loss), allow_unused=True
        )
        self.unused = [index for index, gradient in enumerate(gradients) if gradient is None]
        return sums, gradients

    def _write_metrics(self, outputs: Tensor, batch: Batch, totals: Tensor) -> None:
        """Write the totals of metrics of a batch, from the (n, ...) outputs for it."""
        sums = self._steps.measures.metrics.sums(outputs, batch.targets)
        totals[WIDTH:].copy_(sums, non_blocking=True)

    def _make_seed(self) -> Tensor:
        """Return the derivative of what is differentiated by the summed loss, as autograd does."""
        loss = torch.ones((), device=self._steps.device, requires_grad=True)
        scaled = self._steps.updates.scaled(loss / self._size)
        return torch.autograd.grad(scaled, loss)[0]

    def check(self, batch: Batch, rows: Rows) -> None:
        """Check that the recording computes what the module does; changes nothing.

        Args:
            batch: a batch.
            rows: its rows.

        Raises:
            CannotRecord: it does not.
        """
        steps = self._steps
        with self._keeping_state():
            steps.take_gradients(rows, self._size)
            expected = self._results(steps.flat.totals.clone())
        with self._keeping_state():
            totals = torch.zeros_like(steps.flat.totals)
            self.compute(batch, totals)
            computed = self._results(totals)
        if not all(map(self._equals, computed, expected)):
            raise CannotRecord("a recording computes other numbers than the module")

    def _results(self, totals: Tensor) -> list[Tensor]:
        return [totals, self._steps.flat.gradients.clone(), *self._copy_state()]

    @contextmanager
    def _keeping_state(self) -> Iterator[None]:
        """Restore what computing a batch may change, such as running statistics."""
        before = self._copy_state()
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in zip(self._state, before, strict=True):
                    tensor.copy_(value)

    @property
    def _state(self) -> list[Tensor]:
        return [self._steps.flat.weights, *self._untrained.values()]

    def _copy_state(self) -> list[Tensor]:
        return [value.detach().clone() for value in self._state]


class Recording(StepRecording):
    """A recording of the operations of a step, which are called one by one.

    Args:
        steps: the steps of the network, which runs on CPUs and has no user code.
        batch: a batch.

    Attributes:
        graph: returns the sums and gradients of a batch from :meth:`state` and its tensors.

    Raises:
        CannotRecord: the module cannot be recorded.
    """

    def __init__(self, steps: TorchSteps, batch: Batch) -> None:
        super().__init__(steps, batch)
        self._names = [*steps.flat.parameters, *self._untrained]
        self._seed = self._make_seed() if steps.updates.has_constant_scale else None
        with recording(steps.exported, True, batch), exclusive_generators():
            graph = record(
                partial(self._compute, batch),
                torch.ones((), device=steps.device),
                *(view.detach() for view in steps.flat.weight_views),
                *(value.detach().clone() for value in self._untrained.values()),
                *batch.tensors,
            )
        self._is_random = any(map(is_random, graph.graph.nodes))
        simplify(graph)
        self.graph: Callable[..., list[Tensor]] = graph.forward

    def _compute(self, template: Batch, seed: Tensor, *tensors: Tensor) -> list[Tensor]:
        """Return loss, correct and count, then outputs if there are metrics, then the gradients.

        Args:
            template: a batch of the same shape.
            seed: derivative of what is differentiated by the loss, a scalar.
            tensors: trained parameters, other parameters and buffers, and the batch.
        """
        steps = self._steps
        trained = list(steps.flat.parameters)
        leaves = [tensor.detach().requires_grad_() for tensor in tensors[: len(trained)]]
        count = len(self._names)
        named = dict(zip(self._names, [*leaves, *tensors[len(trained) : count]], strict=True))
        batch = _batch_of(template, tensors[count:])
        outputs = outputs_with(steps, named, batch.samples)
        sums, gradients = self._differentiate(outputs, batch, leaves, seed)
        size = torch.tensor(float(self._size), device=steps.device)
        return [
            torch.stack([sums.loss.detach().float(), sums.correct.float(), size]),
            *([outputs.detach()] if self._returns_outputs else []),
            *(gradient for gradient in gradients if gradient is not None),
        ]

    def compute(self, batch: Batch, totals: Tensor) -> None:
        """See :meth:`StepRecording.compute`."""
        steps = self._steps
        flat = steps.flat
        arguments = (*self.state(), *batch.tensors)
        with torch.no_grad():
            if self._is_random:
                with steps.seeded_generators():
                    sums, *gradients = self.graph(*arguments)
            else:
                sums, *gradients = self.graph(*arguments)
            totals[SUMS] = sums
            if self._returns_outputs:
                self._write_metrics(gradients.pop(0), batch, totals)
            views: Sequence[Tensor] = flat.gradient_views
            if self.unused:
                views = [view for index, view in enumerate(views) if index not in self.unused]
            # As autograd does it: -0.0 becomes 0.0.
            flat.gradients.zero_()
            torch._foreach_add_(views, gradients)

    def state(self) -> list[Tensor]:
        """Return the arguments of :attr:`graph` before those of the batch."""
        seed = self._seed if self._seed is not None else self._make_seed()
        return [seed, *self._steps.flat.weight_views, *self._untrained.values()]


def _batch_of(template: Batch, tensors: Sequence[Tensor]) -> Batch:
    """Return the batch of some tensors, in the order of :attr:`Batch.tensors`."""
    values = iter(tensors)

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: next(values) for name in part}
        return None if part is None else next(values)

    return Batch(*map(fill, template))
