"""Describe in one line why a network failed."""

from __future__ import annotations

import re

from fleet.errors import FleetError, exit_reason
from fleet.spec.engines import ENGINES
from fleet.spec.model import COLOR, one_line

# What CUDA and its libraries say, in errors of any type, and what those of our engines say.
_NO_MEMORY = (
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    *(word for engine in ENGINES.values() for word in engine.no_memory),
)

_FRAMES = re.compile(r"^(\s*File .*\n)+.*", re.MULTILINE)  # and the code that stands under each
_OF_AUTOGRAPH = re.compile(
    r"outer_factory\.<locals>\.inner_factory\.<locals>\.tf__"
)  # before names of functions


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
    """Return an error's message in one line, without traceback frames; these are in the log."""
    message = _FRAMES.sub("", COLOR.sub("", text).partition("Arguments received by")[0])
    return _OF_AUTOGRAPH.sub("", " ".join(message.replace("in user code:", "").split()))
