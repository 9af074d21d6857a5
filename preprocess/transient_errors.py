"""What file systems and networks say in a bad moment: it may pass when one tries again."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from preprocess.base import UnreadableSample

T = TypeVar("T")

# What they say of a name (no such file), or of what somebody may do, stays as it is until somebody changes it.
_TRANSIENT = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.ENOLCK,
    errno.ENFILE,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOTCONN,
    errno.EREMOTEIO,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EPIPE,
}

# What they say to whoever writes, until others have deleted something, or the file system is back.
_OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.ESHUTDOWN}

PAUSES_S = (0.1, 0.5, 2.0)  # between the tries to read a sample


def is_transient_for_writer(error: OSError) -> bool:
    """Whether writing a file again may help: there may be room by then, or the file system may be back."""
    # Whoever read our end of a pipe has gone for good: the launcher was killed, or `| head` has seen enough.
    return error.errno != errno.EPIPE and (is_out_of_space(error) or is_transient(error))


def is_out_of_space(error: OSError) -> bool:
    """Whether there was no room for a file, or nobody to take it: no fault of what was to be written."""
    return error.errno in _OUT_OF_SPACE


def is_transient(error: BaseException | None) -> bool:
    """Whether trying again may help: something between us and our files went wrong, and nothing in a network.

    A network that is out of memory, whose loss is no number or whose model function is wrong will be so again.

    Args:
        error: with what it came from, for libraries put errors of their own around those of the system.
    """
    while error is not None:
        cause = getattr(error, "reason", None)  # where urllib's errors keep what they came from
        for candidate in (error, cause):
            if isinstance(candidate, TimeoutError) or (
                isinstance(candidate, OSError) and candidate.errno in _TRANSIENT
            ):
                return True
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    return False


def read_file(file: str, name: Callable[[], str]) -> bytes:
    """The bytes of a sample that is a file, or a part of one; see :func:`read_with_retries`."""
    return read_with_retries(lambda: _content(file), name)


def _content(file: str) -> bytes:
    with open(file, "rb", buffering=0) as opened:
        return opened.read()


def read_with_retries(
    read: Callable[[], T], name: Callable[[], str], again: Callable[[], object] = lambda: None
) -> T:
    """Read a sample, a few times where an error may pass.

    Args:
        read: does it once.
        name: of the sample.
        again: called before another try; what was open may be stale.

    Raises:
        BadSample: it cannot be read, and never will.
        OSError: what may pass has not: that says nothing of the sample, so nobody should do without it.
    """
    for pause_s in (*PAUSES_S, None):
        try:
            return read()
        except OSError as error:
            if not is_transient(error):
                raise UnreadableSample(
                    name(), f"cannot be read: {error.strerror or error}"
                ) from error
            if pause_s is None:
                raise OSError(error.errno, error.strerror or str(error), name()) from error
        time.sleep(pause_s)
        again()
    raise AssertionError("the last try returns or raises")
