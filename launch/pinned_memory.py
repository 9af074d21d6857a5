"""Memory that a GPU's driver knows of: it stays where it is, and goes to the GPU without another copy of it.

(Tried with a made-up library only, not on a GPU yet.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any

# What may offer it, and how its functions begin. An engine that uses the GPU has loaded one of them
# before.
LIBRARIES = (
    *((f"libcudart.so{version}", "cuda") for version in ("", ".13", ".12", ".11.0")),
    *((f"libamdhip64.so{version}", "hip") for version in ("", ".7", ".6", ".5")),
)
_PORTABLE = 1  # for every context of this process
_ALREADY = 712  # it is registered: of CUDA and of HIP


class Pinning:
    """Registers memory with the driver of a process's GPU; that it cannot be said is no error.

    Args:
        device: the number that the GPU has for this process; a context on another would take memory
            there.
        warn: is told once what is wrong, in words.
        libraries: that are tried, by name and by how their functions begin.
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
        self._registered: list[Any] = []  # it stays registered, so it must stay

    @cached_property
    def _register_function(self) -> tuple[str, Any]:
        """The function that registers, and its name; None where no library has it. Looked for when it is needed."""
        for name, begins in self._libraries:
            with suppress(OSError, AttributeError):
                library = ctypes.CDLL(name)
                function = getattr(library, f"{begins}HostRegister")
                with suppress(AttributeError):
                    getattr(library, f"{begins}SetDevice")(self._device)
                return f"{begins}HostRegister", function
        return "", None

    def __call__(self, memory: Any) -> None:
        """Register memory, which stays as long as this process.

        Args:
            memory: one contiguous piece that may be written, and begins with a page.
        """
        name, register = self._register_function
        if register is None:
            return self._say("neither cudaHostRegister nor hipHostRegister is there")
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
        return self._say(f"{name} gives error {status}")

    def _say(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(problem)
