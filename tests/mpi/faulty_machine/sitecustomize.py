"""Imitate a faulty machine in every Python process that has this folder in its path.

``WRONG_BY_S`` sets the wall clock off by this many seconds. The monotonic clock is right, and so
are the dates of files, which a file server sets. ``WITHOUT_LOCKS`` makes all file locks fail, in
Python and in C: the kernel filters the system calls.
"""

import ctypes
import datetime
import errno
import fcntl
import os
import platform
import struct
import time

# Architecture, and the numbers of flock and fcntl.
_CALLS = {"x86_64": (0xC000003E, 73, 72), "aarch64": (0xC00000B7, 32, 25)}
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of BPF
_NUMBER, _ARCHITECTURE, _SECOND_ARGUMENT = 0, 4, 24  # offsets in the filter's view of a call
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_LOCKING = (fcntl.F_SETLK, fcntl.F_SETLKW, 37, 38)  # and the same of open files
_NO_NEW_PRIVILEGES, _SET_FILTER, _FILTER_MODE = 38, 22, 2  # of prctl


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _set_clock(wrong_s):
    now, now_ns = time.time, time.time_ns

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(seconds=wrong_s)

    time.time = lambda: now() + wrong_s
    time.time_ns = lambda: now_ns() + wrong_s * 10**9
    datetime.datetime = Datetime


def _refuse_locks():
    architecture, flock, control = _CALLS[platform.machine()]
    # Each step has the number of steps to skip if the values are equal, and if they differ.
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 0, 8, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 7, 0, flock),
        (_JUMP_IF_EQUAL, 0, 5, control),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        *((_JUMP_IF_EQUAL, 4 - index, 0, command) for index, command in enumerate(_LOCKING)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | errno.ENOLCK),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if system.prctl(_SET_FILTER, _FILTER_MODE, ctypes.byref(_Filter(len(steps), code))):
        raise OSError(ctypes.get_errno(), "no filter can be set")


if "WRONG_BY_S" in os.environ:
    _set_clock(int(os.environ["WRONG_BY_S"]))
if "WITHOUT_LOCKS" in os.environ:
    _refuse_locks()
