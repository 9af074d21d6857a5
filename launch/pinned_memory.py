"""Pin host memory, so that a GPU's driver transfers it without another copy.

(Tested with a fake library only, not on a GPU yet.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any

# The libraries that can pin memory, and the prefixes of their functions. An engine that uses the
# GPU has already loaded one of them.
LIBRARIES = (
    *((f"libcudart.so{version}", "cuda") for version in ("", ".13", ".12", ".11.0")),
    *((f"libamdhip64.so{version}", "hip") for version in ("", ".7", ".6", ".5")),
)
_PORTABLE = 1  # for all contexts of this process
_ALREADY = 712  # already registered: of CUDA and of HIP


class Pinning:
    """Pins memory for the GPU of this process; a failure is only a warning.

    Args:
        device: the GPU's number for this process; a context on another GPU would use memory there.
        warn: called once with a message if memory cannot be pinned.
        libraries: the libraries to try, each with the prefix of its functions.
    """

    def __init__(
        self,
        device: int,
        warn: Callable[[str], object],
        libraries: Iterable[tuple[str, str]] | None = None,
    ) -> None:
        self._device = device
        self._warn = warn
        self._has_warned = False
        self._libraries = LIBRARIES if libraries is None else libraries
        self._registered: list[Any] = []  # pinned memory must not be freed

    @cached_property
    def _register_function(self) -> tuple[str, Any]:
        """The pinning function and its name, looked up on first use; None if no library has it."""
        for name, begins in self._libraries:
            with suppress(OSError, AttributeError):
                library = ctypes.CDLL(name)
                function = getattr(library, f"{begins}HostRegister")
                with suppress(AttributeError):
                    getattr(library, f"{begins}SetDevice")(self._device)
                return f"{begins}HostRegister", function
        return "", None

    def __call__(self, memory: Any) -> None:
        """Pin memory for the lifetime of this process.

        Args:
            memory: contiguous and writable, and starts at a page boundary.
        """
        name, register = self._register_function
        if register is None:
            return self._warn_once("neither cudaHostRegister nor hipHostRegister is there")
        size = memoryview(memory).nbytes
        if not size:
            return None
        buffer = (ctypes.c_char * size).from_buffer(memory)
        status = register(
            ctypes.c_void_p(ctypes.addressof(buffer)),
            ctypes.c_size_t(size),
            ctypes.c_uint(_PORTABLE),
        )
        if status in (0, _ALREADY):
            return self._registered.append(buffer)
        return self._warn_once(f"{name} gives error {status}")

    def _warn_once(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(problem)
