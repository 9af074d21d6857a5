"""When the compiled loops are loaded: once so much time has gone by without them that it pays.

To import numba takes half a second, which is more than many a short run spends on its random transforms. So samples are
done one by one at first. The loops come to the same bits, so that nobody can tell when they took over.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

_WORTH_S = 1.0  # so many seconds without the loops are worth loading them


class LazyNumba:
    """The loops of :mod:`preprocess.kernels`.

    Attributes:
        kernels: that module; None until it is loaded, and where numba is missing.
    """

    def __init__(self) -> None:
        self.kernels: Any = None
        self._spent_s = 0.0
        self._lock = threading.Lock()

    def spent(self, seconds: float) -> None:
        """So long something has taken without them; loads them, in a thread, when that has become too long."""
        with self._lock:
            before = self._spent_s
            self._spent_s = self._spent_s + seconds
        if before < _WORTH_S <= self._spent_s:
            threading.Thread(target=self.now, name="kernels", daemon=True).start()

    def now(self) -> bool:
        """Load them; the first time on a machine they are compiled. Returns whether numba is there."""
        try:
            self.kernels = import_module("preprocess.kernels")
        except ImportError:
            return False
        return True


LOADING = LazyNumba()
