"""Apply deferred crops and flips to tensors (:mod:`preprocess.deferred_augmentation`)."""

from __future__ import annotations

import torch
from torch import Tensor

from preprocess.sample import CROP_BYTES, SampleSpec

# Types for indexing, by item size; PyTorch cannot index some types, such as uint16.
_INDEXED_AS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def augment_deferred(rows: Tensor, sample: SampleSpec) -> Tensor:
    """Return network inputs (n, height, width, channels), not yet scaled, from samples.

    Args:
        rows: (n, bytes) uint8 if the samples have deferred augmentation, else (n, ...).
        sample: shape and type of the samples.
    """
    if sample.deferred_input is None:
        return rows
    height, width, channels = sample.deferred_input.shape
    dtype = getattr(torch, sample.deferred_input.dtype)
    pixels, crops = rows.split([sample.deferred_input.nbytes, CROP_BYTES], dim=1)
    # Copy even a single contiguous row: after an odd number of bytes it is not aligned for int32.
    top, first_column, flip_vertical, flip_horizontal = (
        crops.clone(memory_format=torch.contiguous_format).view(torch.int32).long().unbind(1)
    )
    y, is_y = _crop_indices(top, flip_vertical, sample.input.shape[0], height)
    x, is_x = _crop_indices(first_column, flip_horizontal, sample.input.shape[1], width)
    row_index = torch.arange(len(rows), device=rows.device)[:, None, None]
    images = pixels.contiguous().view(_INDEXED_AS[dtype.itemsize])
    images = images.view(-1, height, width, channels)
    gathered = images[row_index, y[:, :, None], x[:, None, :]]
    return gathered.masked_fill_(~(is_y[:, :, None] & is_x[:, None, :])[..., None], 0).view(dtype)


def _crop_indices(
    first: Tensor, is_flipped: Tensor, count: int, available: int
) -> tuple[Tensor, Tensor]:
    """Return the rows or columns of a crop, clipped, and True if inside the image: (n, count)."""
    forward = torch.arange(count, device=first.device)
    indices = first[:, None] + torch.where(is_flipped[:, None] > 0, count - 1 - forward, forward)
    return indices.clamp(0, available - 1), (indices >= 0) & (indices < available)
