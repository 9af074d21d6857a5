"""What a training step holds in memory."""

from __future__ import annotations

import torch
from torch import nn

_ROWS = 2


def kept_bytes(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> int | None:
    """Bytes for each row of a batch that the forward pass of a step keeps for the backward pass.

    These are the tensors that it keeps, each once, and twice the largest of them: its gradient, and the one that is
    computed from that.

    Args:
        shape: of a row, as the module takes it.

    Returns:
        None where nothing is kept.
    """
    kept: dict[int, int] = {}
    own = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes() // _ROWS
        return tensor

    device = next(module.parameters()).device
    rows = torch.zeros(_ROWS, *shape, dtype=dtype, device=device)
    was_training, held = module.training, []
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            held.append(module.eval()(rows))  # what is kept stays where it is, and no address is used twice
    finally:
        module.train(was_training)
    return sum(kept.values()) + 2 * max(kept.values()) if kept else None
