"""Searchers are called here: by one thread of rank 0, one call after another, each within a time limit.

A searcher may think for seconds, while MPI, messages and the lease cannot wait. So the coordinator hands over a call
(:meth:`Searchers.consult`) and looks at each of its steps whether the answer is there (:meth:`Searchers.heard`). A
searcher that raises or hangs is never called again; a thread that hangs is left behind, and the next call has another.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from fleet.domain.events import Searched
from fleet.ensemble.effects import Consulted, ConsultFailed
from fleet.search.calls import Call, make, replay
from fleet.search.searcher import Searcher
from fleet.spec.model import one_line
from fleet.units import format_duration

_PATIENCE_S = 60.0  # for one call, where nobody has said how long


Answer: TypeAlias = Consulted | ConsultFailed


class _Work:
    """What a thread does for one entry; nothing of it matters any more once it is given up."""

    def __init__(self, entry: str, name: str) -> None:
        self.entry, self.doing, self.since_s = entry, name, time.monotonic()
        self.done: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def begin(self, call: Call) -> None:
        """A call begins: its time counts from now."""
        self.doing, self.since_s = str(call), time.monotonic()


class Searchers:
    """The searchers of a run.

    Args:
        searchers: by the names of their entries.
        logged: the calls of earlier launches, by entry.
        patience_s: how long one call may take, in seconds, by entry.
    """

    def __init__(self, searchers: Mapping[str, Searcher], logged: Mapping[str, Sequence[Searched]] | None = None,
                 patience_s: Mapping[str, float] | None = None) -> None:
        self._searchers, self._logged, self._patience_s = dict(searchers), dict(logged or {}), dict(patience_s or {})
        self._orders: queue.SimpleQueue[Callable[[], None] | None] | None = None
        self._work: _Work | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an answer is awaited; then nothing else can be asked."""
        return self._work is not None

    def consult(self, entry: str, call: Call) -> None:
        """Have a searcher called; before its first call it hears again those of earlier launches, in their order."""
        searcher, logged = self._searchers[entry], self._logged.pop(entry, ())

        def do(work: _Work) -> Answer:
            difference = replay(searcher, logged, work.begin)
            work.begin(call)
            return Consulted(entry, call, make(searcher, call), "" if difference is None else str(difference))

        self._start(entry, str(call), do)

    def heard(self) -> Answer | None:
        """The answer, once it is there or nobody waits for it any longer; it never blocks."""
        if (work := self._work) is None:
            return None
        try:
            answer = work.done.get_nowait()
        except queue.Empty:
            patience_s = self._patience_s.get(work.entry, _PATIENCE_S)
            if time.monotonic() < work.since_s + patience_s:
                return None
            self._orders = None  # its thread may come back, and finds nothing more to do
            answer = ConsultFailed(work.entry, f"{work.doing} took longer than {format_duration(patience_s)} "
                                               "(search.answer_within)")
        self._work = None
        return answer

    def close(self) -> None:
        """Let the thread end, if it can."""
        if self._orders is not None:
            self._orders.put(None)
            self._orders = None

    # ---- the thread ----

    def _start(self, entry: str, name: str, do: Callable[[_Work], Answer]) -> None:
        assert self._work is None, "calls never overlap"
        self._work = work = _Work(entry, name)

        def order() -> None:
            try:
                answer = do(work)
            except BaseException as error:  # a searcher of a user's may raise anything, SystemExit as well
                answer = ConsultFailed(entry, f"{work.doing} failed: {one_line(error)}")
            work.done.put(answer)

        if self._orders is None:
            self._orders = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._orders,), name="searcher", daemon=True).start()
        self._orders.put(order)


def _serve(orders: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (order := orders.get()) is not None:
        order()
