"""Find the GPUs that a rank may use: from the environment, or all GPUs of the node."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from launch.base import call
from launch.binding import by_node
from launch.errors import InputError

# Variables by which launchers and users choose GPUs: NVIDIA, AMD (two names), Intel.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)


def visible_gpus(environment: Mapping[str, str], device_files: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs that this rank may use, by the system's names.

    Args:
        environment: the variables of the process.
        device_files: names in ``/dev``.

    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3"}, ["nvidia0", "nvidia1", "nvidia2", "nvidia3"])
    ('2', '3')
    >>> visible_gpus({}, ["nvidia0", "nvidia1", "nvidiactl"])
    ('0', '1')
    """
    for variable in VARIABLES:
        if variable in environment:
            names = [name.strip() for name in environment[variable].split(",")]
            # CUDA stops at the first invalid name: -1 and an empty list hide all GPUs.
            cut = next(
                (index for index, name in enumerate(names) if name in ("", "-1")), len(names)
            )
            return tuple(names[:cut])
    matches = (re.fullmatch(r"nvidia([0-9]+)", file) for file in device_files)
    return tuple(sorted((match[1] for match in matches if match), key=int))


def memory_mib(gpu: str, ask: Callable[[list[str]], str] = call) -> int | None:
    """Return the memory of a GPU in MiB; None if its driver does not report it.

    Args:
        gpu: the name of the GPU, as returned by :func:`visible_gpus`.
        ask: runs a command and returns its output.

    >>> memory_mib("1", ask=lambda command: "81559\\n")
    81559
    >>> memory_mib("0", ask=lambda command: "[N/A]")
    """
    try:
        text = ask(
            [
                "nvidia-smi",
                f"--id={gpu}",
                "--query-gpu=memory.total",
                "--format=csv,noheader,nounits",
            ]
        ).strip()
    except (InputError, OSError):
        return None
    if text.isdecimal():
        return int(text)
    return None


def gpus_per_node(visible: Sequence[Sequence[str]], node_of: Sequence[int]) -> int | None:
    """Return the number of GPUs of a node that its ranks see together; None if there are none.

    >>> gpus_per_node([["0"], ["1"], ["0"], ["1"]], [0, 0, 1, 1])
    2
    """
    return max((len(set().union(*names)) for names in by_node(visible, node_of)), default=0) or None
