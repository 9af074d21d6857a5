"""Apply deferred crops and flips to tensors (:mod:`preprocess.deferred_augmentation`)."""

from __future__ import annotations

import torch
from torch import Tensor

from preprocess.sample import CROP_BYTES, SampleSpec

_MOVED_AS = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}  # not all types can be indexed


def augment_deferred(rows: Tensor, sample: SampleSpec) -> Tensor:
    """Return network inputs (n, height, width, channels) from what travels.

    Args:
        rows: (n, bytes) or (n, ...), samples as they travel.
        sample: their shape and type.
    """
    if sample.deferred_input is None:
        return rows
    (height, width, channels), kind = (
        sample.deferred_input.shape,
        getattr(torch, sample.deferred_input.dtype),
    )
    pixels, places = rows.split([sample.deferred_input.nbytes, CROP_BYTES], dim=1)
    # Copied, also where one row is contiguous: behind an odd number of bytes they are no
    # integers yet.
    top, first_column, upside, mirror = (
        places.clone(memory_format=torch.contiguous_format).view(torch.int32).long().unbind(1)
    )
    y, is_y = _lines(top, upside, sample.image.shape[0], height)
    x, is_x = _lines(first_column, mirror, sample.image.shape[1], width)
    row_index = torch.arange(len(rows), device=rows.device)[:, None, None]
    images = pixels.contiguous().view(_MOVED_AS[kind.itemsize]).view(-1, height, width, channels)
    gathered = images[row_index, y[:, :, None], x[:, None, :]]
    return gathered.masked_fill_(~(is_y[:, :, None] & is_x[:, None, :])[..., None], 0).view(kind)


def _lines(first: Tensor, is_back: Tensor, count: int, have: int) -> tuple[Tensor, Tensor]:
    """Return which lines of an image a crop shows, and whether each exists: (n, count)."""
    forth = torch.arange(count, device=first.device)
    lines = first[:, None] + torch.where(is_back[:, None] > 0, count - 1 - forth, forth)
    return lines.clamp(0, have - 1), (lines >= 0) & (lines < have)
