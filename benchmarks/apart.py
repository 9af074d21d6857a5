"""Run work in its own process, because a solver may ignore its time limit."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


def run_within(limit_s: float, work: Callable[..., None], *args: Any) -> Any:
    """Return what ``work(*args, answer)`` sends to ``answer``; None after ``limit_s`` seconds."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=work, args=(*args, sender))
    process.start()
    sender.close()
    answer = receiver.recv() if receiver.poll(limit_s) else None
    process.terminate()
    process.join()
    return answer
