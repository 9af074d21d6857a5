"""Examine PyTorch on this node, for ``fleet doctor``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fleet.spec.model import one_line
from launch.devices import find_maker
from launch.errors import pluralize

_INSTALL = "install it on every node: pip install torch safetensors, or load the PyTorch module"
# Names of PyTorch's builds, by devices.
_BUILDS = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU"}


def find_problems(gpus: Sequence[str], exchange: str) -> list[tuple[str, str]]:
    """Return problems of PyTorch; see :attr:`fleet.spec.engines.EngineInfo.problems`.

    Args:
        gpus: names of the GPUs of this node.
        exchange: ``resources.exchange`` of the spec.
    """
    try:
        import torch

        import fleet.engines.torch.engine  # noqa: F401 - imports everything that a run imports
    except Exception as error:  # an incompatible library may raise anything
        return [(f"PyTorch cannot be imported: {one_line(error)[:200]}", _INSTALL)]
    problems = []
    if gpus and not torch.accelerator.device_count():
        maker = find_maker(os.environ)
        build = "this driver" if maker is None else f"{_BUILDS[maker.device]} and this driver"
        problems.append(
            (
                f"this node has {pluralize(len(gpus), 'GPU')}, but PyTorch {torch.__version__} "
                "sees none",
                f"install a build for {build}: https://pytorch.org/get-started/locally",
            )
        )
    if exchange == "horovod":
        problems.append(
            (
                "the torch engine does not use Horovod",
                "set resources.exchange: auto, mpi or library",
            )
        )
    return problems
