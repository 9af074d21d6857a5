"""The weights of a module as views of one buffer, and their gradients as views of another.

Behind the gradients lie the sums of a step (:class:`fleet.engines.base.Sums`), so ranks add up both by one call, and
an optimizer changes all weights by a few operations on whole buffers. Each parameter begins at a multiple of 64 bytes;
the gaps are zero, and stay so.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from fleet.engines.base import WIDTH, Sums
from fleet.errors import ModelError

_ALIGNED = 16  # numbers


class Flat:
    """All parameters of a module that are trained.

    Args:
        more: numbers of the metrics' sums.

    Attributes:
        weights: of all parameters.
        gradients: of the same length, followed in memory by the sums.
        parameters: by name.
        whole: gradients and sums, as ranks add them up.
        tail: the sums, (6 + more,).
    """

    def __init__(self, module: nn.Module, more: int) -> None:
        self.parameters = {
            name: one for name, one in module.named_parameters() if one.requires_grad
        }
        if not self.parameters:
            raise ModelError("the module has no parameter to train")
        ends = np.cumsum(
            [-(-one.numel() // _ALIGNED) * _ALIGNED for one in self.parameters.values()]
        ).tolist()
        self._firsts = [0, *ends[:-1]]
        device = next(iter(self.parameters.values())).device
        self.weights = torch.zeros(ends[-1], device=device)
        self.whole = torch.zeros(ends[-1] + WIDTH + more, device=device)
        self.gradients, self.tail = self.whole[: ends[-1]], self.whole[ends[-1] :]
        self._head, self._known, self._more = self.tail[:2], self.tail[2:5], self.tail[WIDTH:]
        self.views = self.split(self.gradients)
        for one, place, view in zip(
            self.parameters.values(), self.split(self.weights), self.views, strict=True
        ):
            place.copy_(one.data)
            one.data = place
            one.grad = view

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """A view for each parameter, of its shape, of a vector as long as all weights."""
        return [
            vector[first : first + one.numel()].view(one.shape)
            for first, one in zip(self._firsts, self.parameters.values(), strict=True)
        ]

    def named(self, vector: torch.Tensor, prefix: str) -> dict[str, torch.Tensor]:
        """The same by name."""
        return {
            f"{prefix}/{name}": view
            for name, view in zip(self.parameters, self.split(vector), strict=True)
        }

    def pieces(self, least: int) -> list[tuple[int, int, int]]:
        """The gradients in pieces of so many bytes or more, in the order in which a backward pass ends with them.

        Returns:
            First and last number of each, and how many parameters it has. All but the last end before the sums; the
            last is first in the buffer.
        """
        found, last, count = [], len(self.gradients), 0
        for first in reversed(self._firsts):
            count += 1
            if 4 * (last - first) >= least or first == 0:
                found.append((first, last, count))
                last, count = first, 0
        return found

    def let_go(self) -> None:
        """Before a backward pass that makes gradients of its own, for :meth:`gather`: to add to each costs more."""
        self.tail.zero_()
        for one in self.parameters.values():
            one.grad = None

    def gather(self) -> None:
        """Take over the gradients that a backward pass has made, all at once."""
        made = [
            (view, one.grad) for one, view in zip(self.parameters.values(), self.views, strict=True)
        ]
        for view, gradient in made:
            if gradient is None:
                view.zero_()
        found = [(view, gradient.to_dense()) for view, gradient in made if gradient is not None]
        torch._foreach_copy_([view for view, _ in found], [gradient for _, gradient in found])
        for one, view in zip(self.parameters.values(), self.views, strict=True):
            one.grad = view

    def check(self) -> None:
        """See that the gradients are where they should be.

        Raises:
            ModelError: the module has put others in their place.
        """
        for name, one, view in zip(
            self.parameters, self.parameters.values(), self.views, strict=True
        ):
            if one.grad is None or one.grad.data_ptr() != view.data_ptr():
                raise ModelError(
                    f"the module has put another gradient of {name} in the place of the one that it had"
                )

    def clear(self) -> None:
        """Before a backward pass, which adds to the gradients."""
        self.whole.zero_()

    def note(
        self,
        loss: torch.Tensor,
        right: torch.Tensor,
        count: int,
        stop: bool,
        more: torch.Tensor | None,
    ) -> None:
        """Write the sums of this rank's rows."""
        torch.stack((loss, right), out=self._head)
        self._tell(count, stop, failed=False)
        if more is not None:
            self._more.copy_(more)

    def say(self, stop: bool, failed: bool) -> None:
        """Nothing but zeros, of a rank without rows, or one that has failed."""
        self.whole.zero_()
        self._tell(0, stop, failed)

    def _tell(self, count: int, stop: bool, failed: bool) -> None:
        if self._known.device.type == "cpu":  # an array of the same memory is written to sooner
            self._known.numpy()[:] = count, stop, failed
        else:
            for place, value in enumerate((count, stop, failed)):
                self._known[place].fill_(value)  # nothing waits for it, as for a copy from here

    def sums(self) -> Sums:
        """What there is of them now."""
        return Sums.unpack(self.tail.tolist())

    def norms(self) -> list[torch.Tensor]:
        """Of the gradient of each parameter."""
        return list(torch._foreach_norm(self.views))


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same memory, where that is possible."""
    array = np.asarray(array)  # a number of a checkpoint is none
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def placed(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array on a device; a GPU's copy is made while it computes, by way of memory that its driver knows of.

    Without a GPU it is the same memory, where that is possible.
    """
    found = tensor_of(array)
    if device.type != "cuda":
        return found
    return (
        torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        .copy_(found)
        .to(device, non_blocking=True)
    )


def copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Copies of tensors as arrays."""
    return {name: np.array(one.detach().cpu().numpy()) for name, one in tensors.items()}
