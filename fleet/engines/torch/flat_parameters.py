"""Store the weights of a module as views of one buffer, and their gradients as views of another.

The gradients are followed by the totals of a step (:class:`fleet.engines.base.StepTotals`) and by a
flag per parameter that has a gradient. So ranks sum everything in one call, and an optimizer
updates all weights with a few operations on whole buffers. Each parameter begins at a multiple of
64 bytes; the gaps are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from fleet.engines.base import WIDTH, StepTotals
from fleet.errors import ModelError

_ALIGNED = 16  # elements


class FlatParameters:
    """All trainable parameters of a module.

    Args:
        metric_width: number of metric totals.

    Attributes:
        weights: (n,) float32, weights of all parameters.
        gradients: (n,) float32, followed in memory by the totals.
        parameters: trainable parameters by name.
        buffer: gradients, totals and flags, which ranks sum.
        totals: (6 + metrics,) float32.
        weight_views, gradient_views: views of weights and gradients, one per parameter.
    """

    def __init__(self, module: nn.Module, metric_width: int) -> None:
        self.parameters = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        if not self.parameters:
            raise ModelError("the module has no trainable parameter")
        ends = np.cumsum(
            [-(-parameter.numel() // _ALIGNED) * _ALIGNED for parameter in self.parameters.values()]
        ).tolist()
        self._firsts = [0, *ends[:-1]]
        device = next(iter(self.parameters.values())).device
        self._sizes = [ends[-1], WIDTH + metric_width, len(self.parameters)]
        self._versions: list[int] = []
        self.weights = torch.zeros(ends[-1], device=device)
        self.buffer = torch.zeros(sum(self._sizes), device=device)
        self._use(self.weights, self.buffer)

    def move(self, weights: torch.Tensor, buffer: torch.Tensor) -> None:
        """Move all weights and gradients to other memory.

        Args:
            weights: (n,) as long as :attr:`weights`.
            buffer: as long as :attr:`buffer`.
        """
        weights.zero_()  # also the gaps
        buffer.copy_(self.buffer)
        self._use(weights, buffer)

    def _use(self, weights: torch.Tensor, buffer: torch.Tensor) -> None:
        """Make the parameters and their gradients views of some memory."""
        self.weights = weights
        self.buffer = buffer
        self.gradients, self.totals, self._flags = buffer.split(self._sizes)
        self._head = self.totals[:2]
        self._counts = self.totals[2:5]
        self._metric_totals = self.totals[WIDTH:]
        # A view of ``data`` has its own version counter, which a backward pass increments.
        self.gradient_views = [view.data for view in self.split(self.gradients)]
        self.weight_views = self.split(self.weights)
        self._pointers = [weight_view.data_ptr() for weight_view in self.weight_views]
        for parameter, weight_view, view in zip(
            self.parameters.values(), self.weight_views, self.gradient_views, strict=True
        ):
            weight_view.copy_(parameter.data)
            parameter.data = weight_view
            parameter.grad = view

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return a view per parameter, in its shape, of a vector as long as all weights."""
        return [
            vector[first : first + parameter.numel()].view(parameter.shape)
            for first, parameter in zip(self._firsts, self.parameters.values(), strict=True)
        ]

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First and last element of each parameter."""
        return [
            (first, first + parameter.numel())
            for first, parameter in zip(self._firsts, self.parameters.values(), strict=True)
        ]

    def split_gradients(self, min_bytes: int) -> list[tuple[int, int, int]]:
        """Split the gradients into parts, in the order in which a backward pass finishes them.

        Args:
            min_bytes: minimum size of a part.

        Returns:
            First and last element and number of parameters of each part. The last part is first in
            the buffer.
        """
        parts = []
        last = len(self.gradients)
        count = 0
        for first in reversed(self._firsts):
            count += 1
            if 4 * (last - first) >= min_bytes or first == 0:
                parts.append((first, last, count))
                last = first
                count = 0
        return parts

    def detach_gradients(self) -> None:
        """Prepare a backward pass that creates new gradients, for :meth:`gather_gradients`.

        Adding to each existing gradient would cost more.
        """
        self.totals.zero_()
        for parameter in self.parameters.values():
            parameter.grad = None

    def gather_gradients(self) -> list[int]:
        """Copy the gradients that a backward pass has created into the buffer.

        Returns:
            The indices of parameters without a gradient.
        """
        pairs = [
            (view, parameter.grad)
            for parameter, view in zip(self.parameters.values(), self.gradient_views, strict=True)
        ]
        for view, gradient in pairs:
            if gradient is None:
                view.zero_()
        present = [(view, gradient.to_dense()) for view, gradient in pairs if gradient is not None]
        torch._foreach_copy_([view for view, _ in present], [gradient for _, gradient in present])
        for parameter, view in zip(self.parameters.values(), self.gradient_views, strict=True):
            parameter.grad = view
        return [index for index, (_, gradient) in enumerate(pairs) if gradient is None]

    def find_untouched(self) -> list[int]:
        """Return the indices of parameters whose gradients are unchanged since they were zeroed."""
        return [
            index
            for index, (view, version) in enumerate(
                zip(self.gradient_views, self._versions, strict=True)
            )
            if view._version == version
        ]

    def flag_unused(self, unused: Sequence[int]) -> None:
        """Write the flags that tell the group which parameters have no gradient on this rank."""
        self._flags.fill_(1.0)
        if unused:
            self._flags[list(unused)] = 0.0

    def find_unused(self) -> list[int]:
        """Return the indices of parameters without a gradient on any rank, after the reduction."""
        return torch.nonzero(self._flags == 0).flatten().tolist()

    def restore_weights(self) -> None:
        """Copy weights that a module has replaced, as in ``weight.data``, to the buffer."""
        for parameter, weight_view, pointer in zip(
            self.parameters.values(), self.weight_views, self._pointers, strict=True
        ):
            if parameter.data_ptr() != pointer:
                weight_view.copy_(parameter.data)
                parameter.data = weight_view

    def check_parameters(self, module: nn.Module) -> None:
        """Check that the module still has the parameters that are trained, and no others.

        Raises:
            ModelError: the module has replaced or added parameters.
        """
        current = dict(module.named_parameters())
        for name, parameter in self.parameters.items():
            if current.get(name) is not parameter:
                raise ModelError(
                    f"the module has replaced its parameter {name}, so no optimizer trains it; "
                    "change the existing parameter, under torch.no_grad()"
                )
        trainable = [name for name, parameter in current.items() if parameter.requires_grad]
        added = set(trainable).difference(self.parameters)
        if added:
            raise ModelError(
                f"the module has created the parameter {min(added)} in its first step, so no "
                "optimizer trains it; create it in __init__"
            )

    def check_gradients(self) -> None:
        """Check that the gradients of all parameters are still views of the buffer.

        Raises:
            ModelError: the module has replaced a gradient.
        """
        for (name, parameter), view in zip(
            self.parameters.items(), self.gradient_views, strict=True
        ):
            if parameter.grad is None or parameter.grad.data_ptr() != view.data_ptr():
                raise ModelError(
                    f"the module has replaced the gradient of {name}; change it in place instead"
                )

    def zero_gradients(self) -> None:
        """Prepare a backward pass that adds to the gradients."""
        self.buffer.zero_()
        for parameter, view in zip(self.parameters.values(), self.gradient_views, strict=True):
            parameter.grad = view  # a custom optimizer may have set it to None
        self._versions = [view._version for view in self.gradient_views]

    def write_totals(
        self,
        loss: torch.Tensor,
        correct: torch.Tensor,
        count: int,
        stop: bool,
        metric_totals: torch.Tensor | None,
    ) -> None:
        """Write the totals of this rank's rows.

        Args:
            loss: summed loss, a scalar.
            correct: number of correct samples, a scalar.
            count: number of samples.
            stop: True if this rank asks the group to stop.
            metric_totals: (metrics,); None without metrics.
        """
        torch.stack((loss, correct), out=self._head)
        self._write_counts(count, stop, failed=False)
        if metric_totals is not None:
            self._metric_totals.copy_(metric_totals)

    def write_empty_totals(self, stop: bool, failed: bool) -> None:
        """Write zeros, for a rank that has no rows or has failed.

        Args:
            stop: True if this rank asks the group to stop.
            failed: True if this rank has failed.
        """
        self.buffer.zero_()
        self._write_counts(0, stop, failed)

    def _write_counts(self, count: int, stop: bool, failed: bool) -> None:
        if self._counts.device.type == "cpu":  # writing through an array is faster
            self._counts.numpy()[:] = count, stop, failed
        else:
            for index, value in enumerate((count, stop, failed)):
                self._counts[index].fill_(value)  # asynchronous, unlike a copy from the host

    def read_totals(self) -> StepTotals:
        """Return the current totals."""
        return StepTotals.unpack(self.totals.tolist())

    def gradient_norms(self) -> list[torch.Tensor]:
        """Return the norm of the gradient of each parameter."""
        return list(torch._foreach_norm(self.gradient_views))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares the memory of an array, if possible."""
    array = np.asarray(array)  # a checkpoint may hold a NumPy scalar
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy an array to a device; to a GPU asynchronously, through pinned memory.

    Without a GPU the tensor shares the array's memory, if possible.

    Args:
        array: array to copy.
        device: device to copy it to.
    """
    tensor = as_tensor(array)
    if device.type != "cuda":
        return tensor
    return (
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        .copy_(tensor)
        .to(device, non_blocking=True)
    )


def samples_to_device(
    inputs: np.ndarray, device: torch.device
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Copy samples to a device; see :func:`to_device`.

    Returns:
        (n, ...) of one input; of several, by name.
    """
    if inputs.dtype.names is None:
        return to_device(inputs, device)
    return {name: to_device(inputs[name], device) for name in inputs.dtype.names}


def targets_to_device(
    targets: np.ndarray, device: torch.device
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Copy targets to a device; see :func:`to_device`.

    Args:
        targets: (n, ...), perhaps not contiguous; of several targets, (n,) records.
        device: device to copy them to.

    Returns:
        (n, ...) of one target; of several, by name.
    """
    if targets.dtype.names is None:
        return to_device(np.ascontiguousarray(targets), device)
    return {
        name: to_device(np.ascontiguousarray(targets[name]), device) for name in targets.dtype.names
    }


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return copies of tensors as arrays."""
    return {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
