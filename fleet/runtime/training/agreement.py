"""Agreement on failures: an error on one rank of a group fails all, with one reason."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fleet.comm.protocols import Group
from fleet.engines.base import PeerFailed, PeersFailed
from fleet.engines.failure_reason import describe_failure, is_out_of_memory
from fleet.errors import InfrastructureError, ModelError
from preprocess.transient_errors import is_transient

T = TypeVar("T")


class TrainingFailed(ModelError):
    """The network of this group failed; every rank of the group raises it, with the same reason.

    Attributes:
        reason: the reason in one line.
        detail: the traceback; empty without one.
        may_pass: whether another attempt may succeed.
        out_of_memory: whether it ran out of memory.
    """

    def __init__(
        self, reason: str, detail: str = "", may_pass: bool = False, out_of_memory: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        self.may_pass = may_pass
        self.out_of_memory = out_of_memory


def all_or_none(group: Group, action: Callable[[], T]) -> T:
    """Run an action on every rank of a group; if it fails on one, it fails on all.

    Raises:
        TrainingFailed: on every rank, with the reason of the first that failed.
        InfrastructureError: the error is not the network's and ends the run.
    """
    error: Exception | SystemExit | None = None
    try:
        result = action()
    except InfrastructureError:
        raise
    except PeersFailed as caught:  # raised on all ranks
        raise _make_failure(caught.reports) from caught
    except (Exception, SystemExit) as caught:  # users' functions may call sys.exit
        error = caught
    reports = group.allgather(
        None if error is None else (isinstance(error, PeerFailed), *_describe(error))
    )
    if any(report is not None for report in reports):
        raise _make_failure(reports) from error
    return result


def fail_together(group: Group, error: Exception | SystemExit | None) -> None:
    """Raise one rank's error on all ranks of the group."""

    def fail() -> None:
        if error is not None:
            raise error

    all_or_none(group, fail)


def _make_failure(reports: Sequence[Any]) -> TrainingFailed:
    """Make a failure from the reports of all ranks: the first with its own reason."""
    return TrainingFailed(
        *min(
            (report for report in reports if report is not None), key=lambda report: bool(report[0])
        )[1:]
    )


def _describe(error: Exception | SystemExit) -> tuple[str, str, bool, bool]:
    """Describe an error: reason, traceback, is transient, is out of memory."""
    if isinstance(error, TrainingFailed):
        return error.reason, error.detail, error.may_pass, error.out_of_memory
    return (
        describe_failure(error),
        "".join(traceback.format_exception(error)),
        is_transient(error),
        is_out_of_memory(error),
    )
