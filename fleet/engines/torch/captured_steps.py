"""Take the steps of a compiled network alone on a GPU by graphs of kernels.

Python queues each kernel of a small network in about the time in which the GPU computes it. A graph
has all kernels from a batch to its gradients, which the driver starts at once: see "Getting Started
with CUDA Graphs" (NVIDIA, 2019) and ``torch.cuda.CUDAGraph``. A graph reads the batch from its own
memory, so each batch is copied there. The optimizer's kernels are queued one by one, because its
options change from step to step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fleet.engines.torch import devices
from fleet.engines.torch.recorded_steps import SUMS, StepRecording
from fleet.engines.torch.recording import Batch, recording
from fleet.engines.torch.steps import TorchSteps
from preprocess.user_code import exclusive_generators

# The first step with a shape of batches compiles the module, and libraries choose kernels in it.
AFTER_STEPS_OF_GPU = 3

# Kernels that add in any order differ in the last bits.
_TOLERANCE = 1e-2  # of the largest number


class Capture(StepRecording):
    """A graph of the kernels of a step, up to its gradients.

    Weights, statistics, gradients and the numbers of the step stay where they are in memory.

    Args:
        steps: the steps of the network, on CUDA or ROCm; networks that are compiled are not fused,
            so their weights do not move.
        batch: a batch.

    Raises:
        CannotRecord: the kernels cannot be captured.
    """

    def __init__(self, steps: TorchSteps, batch: Batch) -> None:
        super().__init__(steps, batch)
        self._batch = batch.clone()
        self._seed = self._make_seed()
        self._sums = torch.zeros_like(steps.flat.totals[SUMS])
        self._sums[-1].fill_(self._size)
        self._outputs: Tensor | None = None
        with (
            self._keeping_state(),
            recording(steps.exported, True, batch),
            exclusive_generators(),
        ):
            self._replay = devices.capture(self._queue)
            steps.flat.restore_weights()

    def _queue(self) -> None:
        """Queue the kernels that write the sums and gradients of the batch of the graph."""
        steps = self._steps
        flat = steps.flat
        batch = self._batch
        outputs = steps.outputs_of(batch.samples)
        parameters = list(flat.parameters.values())
        sums, gradients = self._differentiate(outputs, batch, parameters, self._seed)
        with torch.no_grad():
            flat.gradients.zero_()
            pairs = [
                (view, gradient.to_dense())
                for view, gradient in zip(flat.gradient_views, gradients, strict=True)
                if gradient is not None
            ]
            torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))
            self._sums[0].copy_(sums.loss)
            self._sums[1].copy_(sums.correct)
        if self._returns_outputs:
            self._outputs = outputs.detach()

    def compute(self, batch: Batch, totals: Tensor) -> None:
        """See :meth:`StepRecording.compute`."""
        if not self._steps.updates.has_constant_scale:
            self._seed.copy_(self._make_seed())
        with torch.no_grad():
            torch._foreach_copy_(self._batch.tensors, batch.tensors)
            with self._steps.seeded_generators():
                self._replay()
            totals[SUMS].copy_(self._sums, non_blocking=True)
            if self._outputs is not None:
                self._write_metrics(self._outputs, batch, totals)

    def _equals(self, computed: Tensor, expected: Tensor) -> bool:
        if not expected.is_floating_point():
            return torch.equal(computed, expected)
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        return torch.allclose(computed, expected, 0.0, _TOLERANCE * largest, equal_nan=True)
