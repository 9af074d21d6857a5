"""A scheduling policy of a user, with a mistake."""

from __future__ import annotations

from typing import Any

from scheduler.ensemble.policies import POLICIES, Policy
from tests.simulate import kernel as k


def _decide(rates: Any, progress: Any, cluster: Any, options: Any) -> Any:
    """In the first launch, let nothing run; later, decide as ``adaptive``."""
    kernel = k.active()
    if kernel is not None and kernel.process.label == "0.0":
        return progress.target
    return POLICIES["adaptive"].decide(rates, progress, cluster, options)


LAZY = Policy("lazy", _decide)
