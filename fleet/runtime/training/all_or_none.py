"""Failing together: what fails on one rank of a group fails on all, with one reason."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from fleet.comm.base import Group
from fleet.engines.base import PeerFailed
from fleet.errors import FleetError, InfrastructureError, ModelError
from fleet.spec.model import one_line
from preprocess.passing import may_pass

T = TypeVar("T")


class NetworkFailed(ModelError):
    """The network of this group failed; every rank of the group raises it, with the same reason.

    Attributes:
        reason: in one line.
        detail: a traceback, where there is one.
        may_pass: whether trying again may help.
    """

    def __init__(self, reason: str, detail: str = "", may_pass: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.detail, self.may_pass = reason, detail, may_pass


def all_or_none(group: Group, action: Callable[[], T]) -> T:
    """Do something on every rank of a group; when it fails on one, it fails on all.

    Raises:
        NetworkFailed: on every rank, with the reason of the first that failed.
        InfrastructureError: this is no fault of the network, and ends the run.
    """
    error: Exception | None = None
    try:
        result = action()
    except InfrastructureError:
        raise
    except Exception as caught:
        error = caught
    if (failure := _agreed(group, error)) is not None:
        raise failure from error
    return result


def agree(group: Group, error: Exception) -> NetworkFailed:
    """What all ranks of a group say after a step that raised on all of them."""
    if isinstance(error, InfrastructureError):
        raise error
    failure = _agreed(group, error)
    assert failure is not None  # this rank failed, so there is one
    return failure


def _agreed(group: Group, error: Exception | None) -> NetworkFailed | None:
    said = None
    if error is not None:
        said = (isinstance(error, PeerFailed), *_said(error))
    failures = sorted((failure for failure in group.exchange(said) if failure is not None), key=lambda f: f[0])
    return NetworkFailed(*failures[0][1:]) if failures else None


def _said(error: Exception) -> tuple[str, str, bool]:
    """What there is to say of an error: the reason, its traceback, whether it may pass."""
    if isinstance(error, NetworkFailed):
        return error.reason, error.detail, error.may_pass
    return reason_of(error), "".join(traceback.format_exception(error)), may_pass(error)


def reason_of(error: Exception) -> str:
    """An exception in one line, in words that a user of the network understands."""
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return "out of memory: " + one_line(error)[:300]
    if isinstance(error, FleetError):
        return str(error)
    return f"{type(error).__name__}: {_without_frames(str(error))}".removesuffix(": ")[:500]


def _without_frames(text: str) -> str:
    """An error's own words in one line: those that TensorFlow and Keras repeat from the traceback are in the log."""
    kept, skips = [], 0
    for line in text.partition("Arguments received by")[0].splitlines():
        if line.lstrip().startswith("File "):
            skips = 2  # the frame, and the code that stands under it
        if skips:
            skips -= 1
        elif line.strip() and line.strip() != "in user code:":
            kept.append(line.strip())
    return " ".join(kept)
