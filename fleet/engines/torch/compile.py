"""Compile the calls of a module in training with ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fleet.engines.torch.models import Samples
from fleet.errors import SettingError
from fleet.spec.model import one_line

# Packages whose errors mean that the module cannot be compiled, or not on this machine.
_COMPILERS = ("torch._dynamo", "torch._inductor", "triton")


def compile_module(module: nn.Module) -> Callable[..., Tensor]:
    """Return a function that calls an exported network, compiled at its first call.

    Raises:
        SettingError: by the function, if the module cannot be compiled.
    """
    # Processes that compile would be forked from ranks of MPI.
    torch._inductor.config.compile_threads = 1
    compiled = torch.compile(module)

    def call(samples: Samples, is_scaled: bool = False) -> Tensor:
        try:
            outputs: Tensor = compiled(samples, is_scaled)
        except Exception as error:
            if type(error).__module__.startswith(_COMPILERS):
                raise SettingError(
                    f"torch.compile cannot compile the module: {one_line(error)[:300]}; leave "
                    "train.compile out",
                    "train",
                    "compile",
                ) from error
            raise
        return outputs

    return call
