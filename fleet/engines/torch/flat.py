"""The weights of a module as views of one buffer, and their gradients as views of another.

Behind the gradients lie the sums of a step (:class:`fleet.engines.base.Sums`), and a flag for each parameter that has
a gradient, so ranks add up all of them by one call, and an optimizer changes all weights by a few operations on whole
buffers. Each parameter begins at a multiple of 64 bytes;
the gaps are zero, and stay so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from fleet.engines.base import WIDTH, StepTotals
from fleet.errors import ModelError

_ALIGNED = 16  # numbers


class FlatParameters:
    """All parameters of a module that are trained.

    Args:
        more: numbers of the metrics' sums.

    Attributes:
        weights: of all parameters.
        gradients: of the same length, followed in memory by the sums.
        parameters: by name.
        whole: gradients, sums and flags, as ranks add them up.
        tail: the sums, (6 + more,).
    """

    def __init__(self, module: nn.Module, more: int) -> None:
        self.parameters = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        if not self.parameters:
            raise ModelError("the module has no parameter to train")
        ends = np.cumsum(
            [-(-parameter.numel() // _ALIGNED) * _ALIGNED for parameter in self.parameters.values()]
        ).tolist()
        self._firsts = [0, *ends[:-1]]
        device = next(iter(self.parameters.values())).device
        self.weights = torch.zeros(ends[-1], device=device)
        sizes = [ends[-1], WIDTH + more, len(self.parameters)]
        self.buffer = torch.zeros(sum(sizes), device=device)
        self.gradients, self.totals, self._flags = self.buffer.split(sizes)
        self._head = self.totals[:2]
        self._counts = self.totals[2:5]
        self._metric_totals = self.totals[WIDTH:]
        # Each has a version of its own, which tells whether a backward pass has added to it.
        self.gradient_views = [view.data for view in self.split(self.gradients)]
        self.weight_views = self.split(self.weights)
        self._pointers = [weight_view.data_ptr() for weight_view in self.weight_views]
        self._versions: list[int] = []
        for parameter, weight_view, view in zip(
            self.parameters.values(), self.weight_views, self.gradient_views, strict=True
        ):
            weight_view.copy_(parameter.data)
            parameter.data = weight_view
            parameter.grad = view

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """A view for each parameter, of its shape, of a vector as long as all weights."""
        return [
            vector[first : first + parameter.numel()].view(parameter.shape)
            for first, parameter in zip(self._firsts, self.parameters.values(), strict=True)
        ]

    def slice_of(self, vector: torch.Tensor, index: int) -> torch.Tensor:
        """The numbers of one parameter in a vector as long as all weights."""
        first = self._firsts[index]
        return vector[first : first + self.gradient_views[index].numel()]

    def named_views(self, vector: torch.Tensor, prefix: str) -> dict[str, torch.Tensor]:
        """The same by name."""
        return {
            f"{prefix}/{name}": view
            for name, view in zip(self.parameters, self.split(vector), strict=True)
        }

    def split_gradients(self, min_bytes: int) -> list[tuple[int, int, int]]:
        """The gradients in pieces of so many bytes or more, in the order in which a backward pass ends with them.

        Returns:
            First and last number of each, and how many parameters it has. All but the last end before the sums; the
            last is first in the buffer.
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
        """Before a backward pass that makes gradients of its own, for :meth:`gather`: to add to each costs more."""
        self.totals.zero_()
        for parameter in self.parameters.values():
            parameter.grad = None

    def gather_gradients(self) -> list[int]:
        """Take over the gradients that a backward pass has made, all at once.

        Returns:
            The places of the parameters that have none.
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

    def untouched(self) -> list[int]:
        """The places of the parameters to whose gradients nothing was added since :meth:`clear`."""
        return [
            index
            for index, (view, version) in enumerate(
                zip(self.gradient_views, self._versions, strict=True)
            )
            if view._version == version
        ]

    def flag_unused(self, unused: Sequence[int]) -> None:
        """Tell the ranks of the group which parameters have no gradient on this one."""
        self._flags.fill_(1.0)
        if unused:
            self._flags[list(unused)] = 0.0

    def unused(self) -> list[int]:
        """The places of the parameters that have no gradient on any rank, once the flags are added up."""
        return torch.nonzero(self._flags == 0).flatten().tolist()

    def restore_weights(self) -> None:
        """Take over the weights that a module has replaced, as by ``weight.data = ...``."""
        for parameter, weight_view, pointer in zip(
            self.parameters.values(), self.weight_views, self._pointers, strict=True
        ):
            if parameter.data_ptr() != pointer:
                weight_view.copy_(parameter.data)
                parameter.data = weight_view

    def check_parameters(self, module: nn.Module) -> None:
        """See that the parameters are those that are trained.

        Raises:
            ModelError: the module has put others in their place.
        """
        now = dict(module.named_parameters())
        for name, parameter in self.parameters.items():
            if now.get(name) is not parameter:
                raise ModelError(
                    f"the module has put another parameter in the place of {name}, which no optimizer "
                    "trains; it should change the one that it has, under torch.no_grad()"
                )
        late = [name for name, parameter in now.items() if parameter.requires_grad]
        late_names = set(late).difference(self.parameters)
        if late_names:
            raise ModelError(
                f"the module has made the parameter {min(late_names)} in its first step, which no optimizer "
                "trains; it should make it in __init__"
            )

    def check_gradients(self) -> None:
        """See that the gradients are where a backward pass should add to them.

        Raises:
            ModelError: the module has put others in their place.
        """
        for (name, parameter), view in zip(
            self.parameters.items(), self.gradient_views, strict=True
        ):
            if parameter.grad is None or parameter.grad.data_ptr() != view.data_ptr():
                raise ModelError(
                    f"the module has put another gradient of {name} in the place of the one that it had"
                )

    def zero_gradients(self) -> None:
        """Before a backward pass, which adds to the gradients."""
        self.buffer.zero_()
        for parameter, view in zip(self.parameters.values(), self.gradient_views, strict=True):
            parameter.grad = view  # an optimizer of the user's own may have let go of it
        self._versions = [view._version for view in self.gradient_views]

    def write_totals(
        self,
        loss: torch.Tensor,
        right: torch.Tensor,
        count: int,
        stop: bool,
        more: torch.Tensor | None,
    ) -> None:
        """Write the sums of this rank's rows."""
        torch.stack((loss, right), out=self._head)
        self._write_counts(count, stop, failed=False)
        if more is not None:
            self._metric_totals.copy_(more)

    def write_empty_totals(self, stop: bool, failed: bool) -> None:
        """Nothing but zeros, of a rank without rows, or one that has failed."""
        self.buffer.zero_()
        self._write_counts(0, stop, failed)

    def _write_counts(self, count: int, stop: bool, failed: bool) -> None:
        if self._counts.device.type == "cpu":  # an array of the same memory is written to sooner
            self._counts.numpy()[:] = count, stop, failed
        else:
            for index, value in enumerate((count, stop, failed)):
                self._counts[index].fill_(value)  # nothing waits for it, as for a copy from here

    def read_totals(self) -> StepTotals:
        """What there is of them now."""
        return StepTotals.unpack(self.totals.tolist())

    def gradient_norms(self) -> list[torch.Tensor]:
        """Of the gradient of each parameter."""
        return list(torch._foreach_norm(self.gradient_views))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same memory, where that is possible."""
    array = np.asarray(array)  # a number of a checkpoint is none
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array on a device; a GPU's copy is made while it computes, by way of memory that its driver knows of.

    Without a GPU it is the same memory, where that is possible.
    """
    tensor = as_tensor(array)
    if device.type != "cuda":
        return tensor
    return (
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        .copy_(tensor)
        .to(device, non_blocking=True)
    )


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Copies of tensors as arrays."""
    return {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
