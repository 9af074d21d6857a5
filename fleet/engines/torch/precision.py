"""Compute in 16 bits where that is safe, and keep gradients in the range of float16.

Gradients below 6e-8 are zero in float16. So a loss is multiplied by a scale before it is
differentiated, and gradients are divided by it before they are used. The rules and the numbers are
those of ``torch.amp.GradScaler``: where a gradient is infinite or NaN, its optimizer skips the
update and the scale is halved; after 2000 updates without such gradients it is doubled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_DTYPES = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}
_INITIAL_SCALE = 2.0**16
_GROWTH = 2.0
_BACKOFF = 0.5
_GROWTH_INTERVAL = 2000  # updates


def autocasting(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a network computes.

    Args:
        precision: ``train.precision`` of a spec.
        device: device of the network.
    """
    if precision in _DTYPES:
        return torch.autocast(device.type, _DTYPES[precision])
    return nullcontext()


class GradientScaler:
    """The scale of the losses of a network.

    Args:
        parts: indices of the parameters of each optimizer.
        accumulate: number of steps whose gradients are averaged before each update; their losses
            are divided by it first, so that averages do not overflow earlier than gradients.

    Attributes:
        scale: the scale, a scalar on the host.
        good_updates: number of updates without an infinite gradient since the scale changed.
    """

    def __init__(self, parts: Sequence[Sequence[int]], accumulate: int = 1) -> None:
        self._parts = parts
        self._accumulate = accumulate
        self.scale = torch.tensor(_INITIAL_SCALE)
        self.good_updates = torch.tensor(0)
        self._has_overflowed = False

    @classmethod
    def of(
        cls, precision: str, parts: Sequence[Sequence[int]], accumulate: int = 1
    ) -> GradientScaler | None:
        """Return a scaler; None for a precision that needs none.

        Args:
            precision: ``train.precision`` of a spec.
            parts: indices of the parameters of each optimizer.
            accumulate: number of steps whose gradients are averaged.
        """
        return cls(parts, accumulate) if precision == "mixed_float16" else None

    def scaled(self, loss: Tensor) -> Tensor:
        """Return a scaled loss."""
        return loss * (self.scale.item() / self._accumulate)

    def unscale(self, gradients: Tensor, views: Sequence[Tensor]) -> set[int]:
        """Divide gradients by the scale, and find unusable ones.

        Args:
            gradients: all gradients, (n,).
            views: the gradient of each parameter.

        Returns:
            The indices of all parameters of an optimizer of which a gradient is infinite or NaN.
            Their gradients are 0 now.
        """
        gradients.mul_(self._accumulate / self.scale.item())
        if bool(gradients.isfinite().all()):
            return set()
        self._has_overflowed = True
        skipped: set[int] = set()
        for part in self._parts:
            if not all(bool(views[index].isfinite().all()) for index in part):
                skipped.update(part)
        for index in skipped:
            views[index].zero_()
        return skipped

    def update(self) -> None:
        """Adapt the scale after an update of all optimizers."""
        if self._has_overflowed:
            self.scale.mul_(_BACKOFF)
            self.good_updates.zero_()
        else:
            self.good_updates.add_(1)
            if self.good_updates.item() == _GROWTH_INTERVAL:
                if math.isfinite(self.scale.item() * _GROWTH):
                    self.scale.mul_(_GROWTH)
                self.good_updates.zero_()
        self._has_overflowed = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name."""
        return {"loss_scale/scale": self.scale, "loss_scale/good_updates": self.good_updates}
