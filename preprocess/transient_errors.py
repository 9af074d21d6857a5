"""Errors of file systems and networks that may go away when a read or write is tried again."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from preprocess.base import UnreadableSample

T = TypeVar("T")

# Errors about names or permissions are not transient: they stay until somebody
# changes it.
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

# Errors of writing that end when space is freed or the file system returns.
_OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.ESHUTDOWN}

PAUSES_S = (0.1, 0.5, 2.0)  # between attempts to read a sample


def is_transient_for_writer(error: OSError) -> bool:
    """Return True if writing a file again may succeed."""
    # The reader of a pipe is gone for good: the launcher was killed, or `| head` has
    # seen enough.
    return error.errno != errno.EPIPE and (is_out_of_space(error) or is_transient(error))


def is_out_of_space(error: OSError) -> bool:
    """Return True if there was no space for a file, or its file system was shut down."""
    return error.errno in _OUT_OF_SPACE


def is_transient(error: BaseException | None) -> bool:
    """Return True if trying again may help: a file system or network failed.

    A network that is out of memory, whose loss is NaN or whose model function is wrong will fail
    again, so such errors are not transient.

    Args:
        error: an error with its causes, because libraries wrap errors of the system in their own.
    """
    while error is not None:
        cause = getattr(error, "reason", None)  # urllib's errors keep their cause here
        for candidate in (error, cause):
            if isinstance(candidate, TimeoutError) or (
                isinstance(candidate, OSError) and candidate.errno in _TRANSIENT
            ):
                return True
        if error.__suppress_context__:
            error = error.__cause__
        else:
            error = error.__context__
    return False


def read_file(file: str, name: Callable[[], str]) -> bytes:
    """Read the bytes of a sample that is a file; see :func:`read_with_retries`."""
    return read_with_retries(lambda: _content(file), name)


def _content(file: str) -> bytes:
    with open(file, "rb", buffering=0) as opened:
        return opened.read()


def read_with_retries(
    read: Callable[[], T], name: Callable[[], str], again: Callable[[], object] = lambda: None
) -> T:
    """Read a sample; retry transient errors.

    Args:
        read: reads it once.
        name: returns its name.
        again: called before each retry, because what was open may be stale.

    Raises:
        UnreadableSample: it cannot be read, and retrying would not help.
        OSError: a transient error persists. The sample may be fine, so it must not be skipped.
    """
    try:
        return retry_transient(read, again)
    except OSError as error:
        if not is_transient(error):
            raise UnreadableSample(name(), f"cannot be read: {error.strerror or error}") from error
        raise OSError(error.errno, error.strerror or str(error), name()) from error


def retry_transient(read: Callable[[], T], again: Callable[[], object] = lambda: None) -> T:
    """Read something; retry transient errors.

    Args:
        read: reads it once.
        again: called before each retry, because what was open may be stale.

    Raises:
        OSError: retrying would not help, or has not helped.
    """
    for pause_s in PAUSES_S:
        try:
            return read()
        except OSError as error:
            if not is_transient(error):
                raise
        time.sleep(pause_s)
        again()
    return read()
