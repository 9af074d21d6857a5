"""Load the compiled loops once running without them has cost more than loading.

Importing numba takes half a second, longer than many short runs spend on random transforms. So
samples are processed one by one at first. The loops give the same bits, so the switch changes no
result.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

_WORTH_S = 1.0  # seconds without the loops after which they are loaded


class LazyNumba:
    """Loader of :mod:`preprocess.kernels`.

    Attributes:
        kernels: the module of kernels; None until it is loaded, or if numba is missing.
    """

    def __init__(self) -> None:
        self.kernels: Any = None
        self._spent_s = 0.0
        self._lock = threading.Lock()

    def add_slow_time(self, seconds: float) -> None:
        """Add seconds spent without the loops; past one second, load them in a thread."""
        with self._lock:
            before = self._spent_s
            self._spent_s = self._spent_s + seconds
        if before < _WORTH_S <= self._spent_s:
            threading.Thread(target=self.load, name="kernels", daemon=True).start()

    def load(self) -> bool:
        """Load the loops, compiling them the first time; return False if numba is missing."""
        try:
            self.kernels = import_module("preprocess.kernels")
        except ImportError:
            return False
        return True


NUMBA = LazyNumba()
