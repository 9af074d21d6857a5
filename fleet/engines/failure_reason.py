"""Describe in one line why a network failed."""

from __future__ import annotations

import re

from fleet.errors import FleetError, exit_reason
from fleet.spec.engines import ENGINES
from fleet.spec.model import COLOR, one_line

# Words of CUDA, its libraries and the engines in errors that mean a lack of memory.
_NO_MEMORY = (
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    *(word for engine in ENGINES.values() for word in engine.no_memory),
)

# Frames of a traceback, each with its line of code.
_FRAMES = re.compile(r"^(\s*File .*\n)+.*", re.MULTILINE)
# The prefix that AutoGraph gives to names of functions.
_OF_AUTOGRAPH = re.compile(r"outer_factory\.<locals>\.inner_factory\.<locals>\.tf__")


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that the GPU or the machine ran out of memory."""
    text = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or any(word in text for word in _NO_MEMORY)


def describe_failure(error: BaseException) -> str:
    """Return a one-line reason for an error of a network's code."""
    if is_out_of_memory(error):
        return "out of memory: " + one_line(error)[:300]
    if isinstance(error, FleetError):
        return str(error)
    if isinstance(error, SystemExit):
        return exit_reason(error)
    raised = "" if isinstance(error, Exception) else "it raised "
    kind = f"{type(error).__name__}: "
    return f"{raised}{kind}{_without_frames(str(error)).removeprefix(kind)}".removesuffix(": ")[
        :500
    ]


def _without_frames(text: str) -> str:
    """Return an error's message in one line, without traceback frames, which the log has."""
    message = _FRAMES.sub("", COLOR.sub("", text).partition("Arguments received by")[0])
    return _OF_AUTOGRAPH.sub("", " ".join(message.replace("in user code:", "").split()))
