"""Load weights from a ``.safetensors`` file by the module's own names, and freeze some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fleet.engines.initial_weights import match_patterns, match_weights
from fleet.errors import SettingError
from fleet.spec.model import wrapping_errors


def load_pretrained(module: nn.Module, file: Path, skip: Sequence[str]) -> None:
    """Load weights; see :meth:`fleet.engines.base.SupportsPretrained.load_pretrained`.

    Args:
        module: module to load into.
        file: path of the weights.
        skip: patterns of weight names to leave out.
    """
    with wrapping_errors(
        f"{file} is not a .safetensors file, such as safetensors.torch.save_file writes from a "
        "state_dict:",
        SettingError,
        "train",
        "start",
    ):
        weights = load_file(file)
    state = module.state_dict()
    pointers = {
        state[name].data_ptr() for name in state.keys() & weights.keys() if state[name].numel()
    }
    # A file may lack counts of batches, which are not needed, and the second names of shared
    # weights, which safetensors omits.
    network_weights = {
        name: weight
        for name, weight in state.items()
        if name in weights
        or not (name.rpartition(".")[2] == "num_batches_tracked" or weight.data_ptr() in pointers)
    }
    network_shapes, file_shapes = (
        {name: weight.shape for name, weight in named.items()}
        for named in (network_weights, weights)
    )
    with torch.no_grad():
        for name in match_weights(str(file), network_shapes, file_shapes, skip):
            network_weights[name].copy_(weights[name])


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the weights that patterns match from training.

    Batch normalization whose statistics are among them behaves in training as in evaluation.

    Args:
        module: module to change.
        patterns: patterns of weight names.

    Raises:
        SettingError: a pattern matches nothing, or no weight is left to train.
    """
    frozen = match_patterns(patterns, module.state_dict(), "freeze")
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in frozen:
            parameter.requires_grad_(False)
    for name in frozen:
        owner = module.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, _NormBase) and name.rpartition(".")[2] in dict(
            owner.named_buffers(recurse=False)
        ):
            owner.eval()
            owner.train = lambda mode=True, owner=owner: owner  # module.train() has no effect
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise SettingError(
            "the patterns freeze all weights; at least one must be trained",
            "train",
            "start",
            "freeze",
        )
