"""Retries of networks after failures that may be transient (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fleet.comm import messages as m
from fleet.control.effects import Outbox
from fleet.control.networks import WaitingNetworks
from fleet.domain.events import NetworkRetried

_BACKOFF_S = 5.0  # before the first retry; doubles each time


class Retries:
    """The failures of networks in this launch, and when they are tried again.

    Args:
        max_retries: maximum retries of each network in this launch.
        outbox: collects effects.
        waiting: has the networks that wait for a retry.
        alone: networks that need GPUs of their own.

    Attributes:
        alone: networks that ran out of memory on shared GPUs.
    """

    def __init__(
        self, max_retries: int, outbox: Outbox, waiting: WaitingNetworks, alone: Iterable[str] = ()
    ) -> None:
        self._max_retries = max_retries
        self._outbox = outbox
        self._retry_at_s = waiting.retry_at_s
        self._failures: Counter[str] = Counter()  # network -> its transient failures
        self.alone = set(alone)

    def try_retry(self, failed: m.Failed | m.Measured) -> bool:
        """Count a retry after a transient failure; return False if none is left."""
        name = failed.network
        if not failed.may_pass or self._failures[name] >= self._max_retries:
            return False
        self._failures[name] += 1
        self._outbox.log(
            NetworkRetried(name, failed.reason, self._failures[name], self._max_retries)
        )
        return True

    def try_isolate(self, failed: m.Failed, slots: int) -> bool:
        """Retry a network that ran out of memory on a shared GPU once, on GPUs of its own.

        Args:
            failed: its failure.
            slots: slots of each GPU.

        Returns:
            Whether it is tried again.
        """
        name = failed.network
        if not failed.out_of_memory or slots == 1 or name in self.alone:
            return False
        self.alone.add(name)
        self._outbox.log(
            NetworkRetried(name, failed.reason, self._failures[name], self._max_retries, alone=True)
        )
        return True

    def schedule(self, name: str) -> None:
        """Schedule the next retry of a network."""
        self._retry_at_s[name] = self._outbox.now_s + _BACKOFF_S * 2 ** (self._failures[name] - 1)

    @property
    def next_s(self) -> float:
        """When the next retry is due; infinity if there is none."""
        return min(self._retry_at_s.values(), default=float("inf"))

    def end_backoffs(self) -> bool:
        """Make networks available whose retry is due; return True if there were any."""
        due = [name for name, until in self._retry_at_s.items() if self._outbox.now_s >= until]
        for name in due:
            del self._retry_at_s[name]
        return bool(due)
