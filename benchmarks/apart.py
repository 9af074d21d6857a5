"""Work in a process of its own, which can be ended: a solver that is given a limit need not keep to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


def within(limit_s: float, work: Callable[..., None], *args: Any) -> Any:
    """What ``work(*args, answer)`` sends to ``answer``; None where it took longer than the limit."""
    folder, copy = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(*args, copy))
    process.start()
    copy.close()
    results = folder.recv() if folder.poll(limit_s) else None
    process.terminate()
    process.join()
    return results
